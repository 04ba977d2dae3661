"""The control socket, and commands that wait for the scheduler's thread."""

from __future__ import annotations

import json
import os
import queue
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, Listener
from typing import Any


@dataclass
class _Command:
    name: str
    arguments: dict[str, Any]
    answered: threading.Event = field(default_factory=threading.Event)
    answer: dict[str, Any] = field(default_factory=dict)


class Channel:
    """Accepts connections on threads of its own and hands commands over to another.

    Attributes:
        wake_fd: becomes readable when a command arrives, for a scheduler that sleeps.
    """

    def __init__(self, path: str, key: str) -> None:
        self._listener = Listener(path, family="AF_UNIX", authkey=key.encode())
        self._waiting: queue.SimpleQueue[_Command] = queue.SimpleQueue()
        self.wake_fd, self._wake = os.pipe()
        os.set_blocking(self.wake_fd, False)
        self._start(self._accept)

    def serve(self, execute: Callable[..., Any]) -> None:
        """Run what has arrived, on the caller's thread.

        Args:
            execute: takes the command's name and its arguments; what it returns or
                raises is sent back.
        """
        while not self._waiting.empty():
            command = self._waiting.get()
            try:
                os.read(self.wake_fd, 1)
                command.answer = {"result": execute(command.name, **command.arguments)}
            except Exception:  # the server has to survive a command that went wrong
                command.answer = {"error": traceback.format_exc()}
            command.answered.set()

    @staticmethod
    def _start(target: Callable[..., None], *args: Any) -> None:
        threading.Thread(target=target, args=args, daemon=True, name="kvguard-injector").start()

    def _accept(self) -> None:
        while True:
            try:
                connection = self._listener.accept()
            except (AuthenticationError, EOFError, OSError):
                # A stranger, or somebody who hung up; the next one may be welcome.
                continue
            self._start(self._converse, connection)

    def _converse(self, connection: Connection) -> None:
        with connection:
            while True:
                try:
                    name, arguments = json.loads(connection.recv_bytes())
                except (EOFError, OSError):
                    return
                command = _Command(name, arguments)
                self._waiting.put(command)
                os.write(self._wake, b"!")
                command.answered.wait()
                connection.send_bytes(json.dumps(command.answer).encode())
