from __future__ import annotations

import pytest

from tests.unit.engine_process import EngineProcess

# One command line for all: a process has one policy.
TURN_ON = ("--kv-guard-scope", "shared", "--kv-guard-ttl", "5")

_engine: EngineProcess | None = None


def pytest_collection_finish(session: pytest.Session) -> None:
    """Start the engine process now, so that it imports while other tests run."""
    global _engine
    wanted = any("engine" in getattr(item, "fixturenames", ()) for item in session.items)
    if wanted and not session.config.option.collectonly:
        _engine = EngineProcess()


@pytest.fixture(scope="session")
def engine():
    yield _engine
    _engine.close()


@pytest.fixture(scope="session")
def guarded(engine: EngineProcess) -> EngineProcess:
    """The engine process with the guard turned on by a command line."""
    engine.call("flags:turn_on", *TURN_ON)
    return engine
