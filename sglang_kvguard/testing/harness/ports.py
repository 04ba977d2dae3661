"""A TCP port of the loopback interface that nobody uses."""

import os
import socket

PORT_RANGE_ENV = "KVGUARD_TEST_PORTS"


def free_port() -> int:
    """A port that was free a moment ago.

    With ``KVGUARD_TEST_PORTS=31300-31399`` one of that range, for machines where
    several people test at once; otherwise whatever the system hands out.

    Raises:
        RuntimeError: every port of the range is taken.
    """
    wanted = os.environ.get(PORT_RANGE_ENV)
    if not wanted:
        return _bound(0)
    first, last = (int(number) for number in wanted.split("-"))
    for port in range(first, last + 1):
        try:
            return _bound(port)
        except OSError:
            continue
    raise RuntimeError(f"{PORT_RANGE_ENV}={wanted}: every port is in use")


def _bound(port: int) -> int:
    with socket.socket() as probe:
        # As servers do, so that a port of a connection in TIME_WAIT counts as free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(("127.0.0.1", port))
        return probe.getsockname()[1]
