"""Command line: SGLang's launcher with the fault injector in the scheduler process.

    python -m sglang_kvguard.testing.injector.server --control-socket PATH
        [--remove-seam TARGET] -- --model-path ... --port ...

Everything behind ``--`` goes to SGLang. The secret of the control socket is read from
``SGLANG_KVGUARD_INJECTOR_KEY``.
"""

from __future__ import annotations

import argparse
import functools
import os
import sys

from sglang_kvguard.testing.injector import scheduler_process
from sglang_kvguard.testing.injector.client import KEY_ENV


def main(argv: list[str]) -> None:
    """Serve until the process is ended.

    Args:
        argv: arguments without the program's name.
    """
    own, engine = _split(argv)
    parser = argparse.ArgumentParser(prog="python -m sglang_kvguard.testing.injector.server")
    parser.add_argument("--control-socket", required=True, metavar="PATH")
    parser.add_argument(
        "--remove-seam", metavar="TARGET", help="take this hook out again after it was applied"
    )
    options = parser.parse_args(own)
    if not os.environ.get(KEY_ENV):
        parser.error(f"environment variable {KEY_ENV}: expected the control socket's secret")

    # What sglang.launch_server does, with another function for the scheduler process.
    from sglang.srt.entrypoints.http_server import launch_server
    from sglang.srt.plugins import load_plugins
    from sglang.srt.server_args import prepare_server_args
    from sglang.srt.utils import kill_process_tree

    load_plugins()
    server_args = prepare_server_args(engine)
    try:
        server_args.resolve_once()
        launch_server(
            server_args,
            run_scheduler_process_func=functools.partial(
                scheduler_process.run, options.control_socket, options.remove_seam
            ),
        )
    finally:
        kill_process_tree(os.getpid(), include_parent=False)


def _split(argv: list[str]) -> tuple[list[str], list[str]]:
    if "--" not in argv:
        return argv, []
    at = argv.index("--")
    return argv[:at], argv[at + 1 :]


if __name__ == "__main__":
    main(sys.argv[1:])
