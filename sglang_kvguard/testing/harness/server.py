"""A server in a process group of its own, with a log file."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import httpx

from sglang_kvguard.testing.harness.client import Client
from sglang_kvguard.testing.harness.environment import server_environment
from sglang_kvguard.testing.harness.ports import free_port
from sglang_kvguard.testing.injector.client import KEY_ENV, Injector

# A start takes half a minute on two idle cores; several people may share them.
START_TIMEOUT = 300.0
_TAIL_LINES = 40


class ServerFailed(RuntimeError):
    """The server did not start; the message ends with the end of its log."""


class Server:
    """A running server. Use it as a context manager, or call ``stop``.

    Attributes:
        port: where it listens on the loopback interface.
        log_path: standard output and error of all its processes.
        client: HTTP client for it.
        injector: control of the fault injector; None in a server without one.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        *,
        log_path: Path,
        gpu: bool = False,
        environment: Mapping[str, str] | None = None,
        inject: bool = False,
        remove_seam: str | None = None,
    ) -> None:
        """Start the process; ``wait_until_ready`` waits for it.

        Args:
            arguments: of SGLang's launcher, without host and port.
            log_path: file to write the log to; its folder is made.
            gpu: serve on the GPU; otherwise on the CPU reference platform.
            environment: variables on top of this process's.
            inject: start it through the fault injector.
            remove_seam: target of a seam that the injector takes out (implies ``inject``).
        """
        self.port = free_port()
        self.log_path = log_path
        self.injector: Injector | None = None
        self._sockets: tempfile.TemporaryDirectory | None = None
        self._key = secrets.token_hex(16)
        command = [sys.executable, "-m"]
        extra = dict(environment or {})
        if inject or remove_seam:
            # A short path: the name of a Unix socket has to fit into 107 bytes.
            self._sockets = tempfile.TemporaryDirectory(prefix="kvguard-")
            command += ["sglang_kvguard.testing.injector.server"]
            command += ["--control-socket", str(self._control_socket)]
            command += ["--remove-seam", remove_seam] if remove_seam else []
            command += ["--"]
            extra[KEY_ENV] = self._key
        else:
            command += ["sglang.launch_server"]
        command += [*arguments, "--host", "127.0.0.1", "--port", str(self.port)]
        log_path.parent.mkdir(parents=True, exist_ok=True)
        with log_path.open("wb") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=server_environment(gpu=gpu, extra=extra),
                # Its own session: whatever it spawns can be ended as one group, and a
                # terminal's Ctrl-C reaches the caller alone, who then stops it.
                start_new_session=True,
            )
        self.client = Client(f"http://127.0.0.1:{self.port}")

    @property
    def _control_socket(self) -> Path:
        return Path(self._sockets.name) / "control"

    def wait_until_ready(
        self, timeout: float = START_TIMEOUT, tick: Callable[[], None] = lambda: None
    ) -> Server:
        """Block until it answers requests.

        Args:
            timeout: seconds.
            tick: called about four times a second, to show that something goes on.

        Raises:
            ServerFailed: it exited or did not become ready in time.
        """
        deadline = time.monotonic() + timeout
        try:
            while not self._healthy():
                code = self._process.poll()
                if code is not None:
                    raise ServerFailed(f"the server exited with code {code}\n{self.log_tail()}")
                if time.monotonic() > deadline:
                    raise ServerFailed(
                        f"the server was not ready after {timeout:.0f} s\n{self.log_tail()}"
                    )
                tick()
                time.sleep(0.25)
            if self._sockets is not None:
                self.injector = Injector(self._control_socket, self._key)
        except BaseException:
            self.stop()
            raise
        return self

    def wait_until_exited(self, timeout: float = START_TIMEOUT) -> int:
        """For servers that must refuse to start: their exit code.

        Raises:
            ServerFailed: it still runs after ``timeout`` seconds.
        """
        try:
            return self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise ServerFailed(
                f"the server still runs after {timeout:.0f} s\n{self.log_tail()}"
            ) from None
        finally:
            self.stop()

    def alive(self) -> bool:
        """Whether its main process runs."""
        return self._process.poll() is None

    def log(self) -> str:
        """Everything logged so far."""
        return self.log_path.read_text(errors="replace")

    def log_tail(self) -> str:
        """The last lines of the log and where to find the rest."""
        lines = self.log().splitlines()[-_TAIL_LINES:]
        return "\n".join([f"-- end of {self.log_path} --", *lines])

    def stop(self) -> None:
        """End the whole process group; does nothing when it has ended."""
        try:
            self.client.close()
            if self.injector is not None:
                self.injector.close()
                self.injector = None
            self._signal_group(signal.SIGTERM)
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            pass
        finally:
            # Also when the main process is gone, because a child of it may not be, and
            # when an impatient second Ctrl-C ended the wait above.
            self._signal_group(signal.SIGKILL)
            self._process.wait()
            if self._sockets is not None:
                self._sockets.cleanup()

    def _signal_group(self, number: int) -> None:
        try:
            os.killpg(self._process.pid, number)
        except ProcessLookupError:
            pass

    def _healthy(self) -> bool:
        try:
            return self.client.get("/health", timeout=30).status_code == 200
        except httpx.TransportError:
            return False

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
