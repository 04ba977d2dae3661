from __future__ import annotations

import pytest

from tests.unit.engine_process import EngineProcess

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
