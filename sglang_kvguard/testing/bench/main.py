"""``scripts/bench``: measure, print a table, write the numbers down."""

from __future__ import annotations

import dataclasses
import json
import platform
from datetime import datetime, timezone
from pathlib import Path

import click
import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table

from sglang_kvguard.testing.bench import decode_step

console = Console()

BATCHES = (1, 16, 64)
CHURN = ((4096, 64), (65536, 64), (65536, 1024), (1 << 20, 64), (1 << 20, 1024))


@click.command()
@click.option("--suite", type=click.Choice(["host", "end-to-end", "all"]), default="all")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    default=Path("benchmarks/results/cost.json"),
    help="Where the numbers go, as JSON.",
)
@click.option("--rounds", default=8, show_default=True, help="End-to-end pairs.")
def main(suite: str, out: Path, rounds: int) -> None:
    """Measure what the guard costs, guard off and on in alternation."""
    results: dict[str, object] = json.loads(out.read_text()) if out.exists() else {}
    results["environment"] = {
        "when": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "processor": platform.processor() or platform.machine(),
        "torch_threads": torch.get_num_threads(),
    }
    if suite in ("host", "all"):
        results["decode_step"] = _decode_steps()
        results["allocator"] = _allocators()
    if suite in ("end-to-end", "all"):
        results["end_to_end"] = _end_to_end(rounds)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(results, indent=1) + "\n")
    console.print(f"written to {out}")


def _decode_steps() -> list[dict]:
    costs = [decode_step.measure(batch) for batch in track(BATCHES, "decode step")]
    table = Table(title="Host work of the guard in one decode step (launches stubbed)")
    for column in ("batch", "median us", "p99 us", "launches", "waiting calls"):
        table.add_column(column, justify="right")
    for cost in costs:
        launches = sum(cost.launches.values())
        table.add_row(
            str(cost.batch),
            f"{cost.microseconds:.0f}",
            f"{cost.p99_microseconds:.0f}",
            f"{launches:g} + 1 copy",
            str(sum(cost.sync_calls.values())),
        )
    console.print(table)
    return [dataclasses.asdict(cost) for cost in costs]


def _allocators() -> list[dict]:
    from sglang_kvguard.testing.bench import allocator_churn

    costs = [allocator_churn.measure(*case) for case in track(CHURN, "allocator")]
    table = Table(title="Allocate and free, pages of 16 tokens (paired, launches stubbed)")
    for column in ("pool pages", "batch pages", "stock ops/s", "guarded ops/s", "time ratio", "p10..p90"):
        table.add_column(column, justify="right")
    for cost in costs:
        table.add_row(
            f"{cost.pages:,}",
            str(cost.batch),
            f"{cost.stock:,.0f}",
            f"{cost.guarded:,.0f}",
            f"{cost.ratio:.2f}",
            f"{cost.spread[0]:.2f}..{cost.spread[1]:.2f}",
        )
    console.print(table)
    return [dataclasses.asdict(cost) for cost in costs]


def _end_to_end(rounds: int) -> dict:
    from sglang_kvguard.testing.bench import end_to_end

    result = end_to_end.measure(rounds, console)
    table = Table(title="Throughput of the same traffic, guard on over off (cpu-reference)")
    for column in ("traffic", "off tokens/s", "on tokens/s", "ratio", "p10..p90"):
        table.add_column(column, justify="right")
    for row in result["traffic"]:
        table.add_row(
            row["name"],
            f"{row['off']:.0f}",
            f"{row['on']:.0f}",
            f"{row['ratio']:.3f}",
            f"{row['spread'][0]:.3f}..{row['spread'][1]:.3f}",
        )
    console.print(table)
    return result


if __name__ == "__main__":
    main()
