"""One process with the real engine imported, for all tests that need it.

Importing SGLang's server costs the better part of a minute of CPU time and hooks cannot
be taken out again, so the tests do not do it in their own process: they call functions
of ``tests.unit.in_engine`` here. What the process looks like before the guard is turned on
is recorded at its start (``in_engine.off``).
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[2]


class EngineProcess:
    """Calls functions in a process of its own; arguments and results are JSON."""

    def __init__(self) -> None:
        env = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            # Other plugins change the parser as well; the tests are about ours.
            "SGLANG_PLUGINS": "kvguard",
            "SGLANG_KVGUARD_POLICY": "stale",
        }
        self._log = tempfile.TemporaryFile("w+")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.unit.engine_process"],
            cwd=REPOSITORY,
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )

    def call(self, function: str, *args: Any) -> Any:
        """Run ``"module:function"`` of ``tests.unit.in_engine``.

        Raises:
            RuntimeError: it raised; the message is its traceback.
        """
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps([function, args]) + "\n")
            self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            self._log.seek(0)
            raise RuntimeError("the engine process died: " + self._log.read()[-4000:])
        answer = json.loads(line)
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer["value"]

    def close(self) -> None:
        # Nothing to tidy up there, and an interpreter this full takes seconds to end.
        self._process.kill()
        self._process.wait()
        self._log.close()


def _serve() -> None:
    # The engine prints; answers have a pipe of their own.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        function, args = json.loads(line)
        module, name = function.split(":")
        try:
            found = importlib.import_module(f"tests.unit.in_engine.{module}")
            answer = {"value": getattr(found, name)(*args)}
        except BaseException:
            answer = {"error": traceback.format_exc()}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    importlib.import_module("tests.unit.in_engine.off")
    _serve()
