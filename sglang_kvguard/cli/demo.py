"""``kvguard demo``: a leak between two tenants, and the same fault behind the guard."""

from __future__ import annotations

import random
import secrets
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click
from rich.console import Console
from rich.markup import escape
from rich.status import Status
from rich.table import Table

from sglang_kvguard.cli import recycled_buffer
from sglang_kvguard.cli.recycled_buffer import Outcome
from sglang_kvguard.testing.harness import Server, ServerFailed
from sglang_kvguard.testing.harness.environment import has_gpu
from sglang_kvguard.testing.recall import MODEL

# On a GPU only: the model is tiny, and a demonstration should not take the whole device.
_GPU_ARGUMENTS = (
    *("--attention-backend", "triton"),
    *("--mem-fraction-static", "0.3"),
    *("--max-total-tokens", "16384"),
    *("--max-running-requests", "16"),
    "--disable-cuda-graph",
)


@click.command()
@click.option("--seed", type=int, help="Choose the secret; otherwise it is a new one each time.")
@click.option(
    "--keep-logs",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder to leave the servers' logs in.",
)
def demo(seed: int | None, keep_logs: Path | None) -> None:
    """Show a KV leak between two tenants, with and without the guard.

    Starts a real SGLang server twice on a tiny GLM that repeats secrets it was told. The
    exit code is not 0 if anything comes out differently than claimed.
    """
    console = Console()
    # A shell starts background jobs with SIGINT ignored, and Python leaves it so.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGTERM, signal.SIGHUP):
        # By default they end this process at once and leave the server behind.
        signal.signal(number, lambda number, _frame: sys.exit(128 + number))
    seed = secrets.randbelow(10**6) if seed is None else seed
    gpu = has_gpu()
    console.print(f"kvguard demo on {'the GPU' if gpu else 'the CPU reference platform'}, seed {seed}")
    try:
        with _log_folder(keep_logs) as folder:
            off = _act(console, folder, "guard off", gpu, seed)
            on = _act(console, folder, "guard on", gpu, seed, "--enable-kv-guard")
    except ServerFailed as error:
        console.print(f"[bold red]The demo could not be run:[/] {escape(str(error))}")
        sys.exit(2)
    acts = _judge(off, on)
    console.print(_table(off, on, acts))
    wrong = [name for name, came_true in acts.items() if not came_true]
    if wrong:
        console.print(f"[bold red]Not as claimed:[/] {', '.join(wrong)}")
        sys.exit(1)
    console.print("[bold green]All three acts came out as claimed.[/]")


def _act(
    console: Console, folder: Path, name: str, gpu: bool, seed: int, *flags: str
) -> Outcome:
    """Start a server, tell the story on it, stop it."""
    started = time.monotonic()
    with console.status(f"{name}: starting a server") as status:
        server = Server(
            ["--model-path", str(MODEL), *recycled_buffer.ARGUMENTS, *flags]
            + (list(_GPU_ARGUMENTS) if gpu else []),
            log_path=folder / f"{name.replace(' ', '-')}.log",
            gpu=gpu,
            inject=True,
        )
        with server:
            server.wait_until_ready(tick=lambda: _tick(status, name, started))
            ready = time.monotonic() - started
            status.update(f"{name}: A states a secret, B's row is pointed at A's freed page")
            outcome = recycled_buffer.run(server, random.Random(seed))
    console.print(f"  {name}: server ready after {ready:.0f} s, fault injected")
    return outcome


def _tick(status: Status, name: str, started: float) -> None:
    status.update(
        f"{name}: starting a server ({time.monotonic() - started:.0f} s, "
        "up to a minute or two on a small machine)"
    )


def _judge(off: Outcome, on: Outcome) -> dict[str, bool]:
    """Each claim and whether it came true."""
    return {
        "act 1": off.leaked and off.to_b.status == 200 and off.guard is None,
        "act 2": on.to_b.violation is not None and not on.leaked and on.guard["violations"] > 0,
        "act 3": off.not_zero > 0 and on.freed > 0 and on.not_zero == 0,
    }


def _table(off: Outcome, on: Outcome, acts: dict[str, bool]) -> Table:
    table = Table(title="A row of B, pointed at a page that A just gave back", show_lines=True)
    for heading in ("act", "claim", "seen", ""):
        table.add_column(heading, overflow="fold")

    def row(act: str, claim: str, seen: str) -> None:
        came_true = "[green]yes[/]" if acts[act] else "[red]NO[/]"
        table.add_row(act.removeprefix("act "), escape(claim), escape(seen), came_true)

    row("act 1", f"guard off: B is told A's secret {off.secret}", _answer(off))
    row("act 2", f"guard on: B gets an error, nobody A's secret {on.secret}", _answer(on))
    row("act 3", "guard on: the slots that A gave back hold zeros", _zeros(off, on))
    return table


def _answer(outcome: Outcome) -> str:
    reply = outcome.to_b
    if reply.violation is not None:
        error = reply.violation
        seen = f"HTTP 500, {error['invariant']}, incident {error['incident_id']}"
    elif reply.status == 200:
        seen = f"B's answer: {reply.body['text']}"
    else:
        seen = f"HTTP {reply.status}"
    return f"{seen}; secret {'leaked' if outcome.leaked else 'in no response'}"


def _zeros(off: Outcome, on: Outcome) -> str:
    def share(outcome: Outcome) -> str:
        percent = f"{outcome.not_zero / outcome.freed:.0%}" if outcome.freed else "none freed"
        return f"{outcome.not_zero} of {outcome.freed} ({percent})"

    return f"not zero with the guard off: {share(off)}, on: {share(on)}"


@contextmanager
def _log_folder(keep: Path | None) -> Iterator[Path]:
    if keep is not None:
        keep.mkdir(parents=True, exist_ok=True)
        yield keep
        return
    with tempfile.TemporaryDirectory(prefix="kvguard-demo-") as folder:
        yield Path(folder)
