"""The same traffic against a server without and a server with the guard, in alternation."""

from __future__ import annotations

import random
import statistics
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from rich.console import Console

from sglang_kvguard.testing import recall
from sglang_kvguard.testing.harness.client import Client
from sglang_kvguard.testing.harness.server import Server

CLIENTS = 16
REQUESTS = 48
# An idle server of the CPU reference platform sleeps, so the other one has the machine
# for itself while it is measured.
ARGUMENTS = [
    "--model-path", str(recall.MODEL), "--page-size", "16", "--max-total-tokens", "8192",
    "--skip-server-warmup",
]  # fmt: skip


def measure(rounds: int, console: Console) -> dict[str, Any]:
    """Start both servers and run ``rounds`` pairs of each kind of traffic.

    Returns:
        Arguments, and for each kind the median tokens per second off and on, the
        median paired ratio (on by off) and its 10th and 90th percentile.
    """
    with tempfile.TemporaryDirectory(prefix="kvguard-bench-") as logs:
        guard = ["--enable-kv-guard", "--kv-guard-scope", "shared"]
        with console.status("starting two servers"):
            off = Server(ARGUMENTS, log_path=Path(logs) / "off.log").wait_until_ready()
            with off:
                on = Server([*ARGUMENTS, *guard], log_path=Path(logs) / "on.log")
                with on.wait_until_ready():
                    traffic = [
                        _paired(name, off.client, on.client, rounds, console)
                        for name in ("decode", "prefill", "shared prefix")
                    ]
    return {"arguments": ["--model-path", "(recall model)", *ARGUMENTS[2:]], "rounds": rounds,
            "clients": CLIENTS, "traffic": traffic}  # fmt: skip


def _paired(
    name: str, off: Client, on: Client, rounds: int, console: Console
) -> dict[str, Any]:
    speeds: dict[str, list[float]] = {"off": [], "on": []}
    for pair in range(rounds + 1):
        order = (("off", off), ("on", on)) if pair % 2 else (("on", on), ("off", off))
        for label, client in order:
            with console.status(f"{name}: pair {pair} of {rounds}, guard {label}"):
                speed = _run(name, client, seed=pair)
            if pair:  # the first pair only warms up
                speeds[label].append(speed)
    ratios = sorted(b / a for a, b in zip(speeds["off"], speeds["on"], strict=True))
    deciles = statistics.quantiles(ratios, n=10) if len(ratios) > 1 else [ratios[0]] * 9
    return {
        "name": name,
        "off": statistics.median(speeds["off"]),
        "on": statistics.median(speeds["on"]),
        "ratio": statistics.median(ratios),
        "spread": [deciles[0], deciles[8]],
        "pairs": [[a, b] for a, b in zip(speeds["off"], speeds["on"], strict=True)],
    }


def _run(name: str, client: Client, seed: int) -> float:
    """Tokens (prompt and output) a second of one round; the cache starts empty."""
    client.flush_cache()
    rng = random.Random(f"{name} {seed}")
    letters = "abcdefghijklmnopqrstuvwxyz ,."
    shared = "".join(rng.choices(letters, k=320))
    prompts = []
    for _ in range(REQUESTS):
        own = "".join(rng.choices(letters, k=40 if name != "prefill" else 400))
        prompts.append(shared + own if name == "shared prefix" else own)
    output = 64 if name == "decode" else 8

    def ask(prompt: str) -> int:
        reply = client.generate(prompt, max_new_tokens=output, ignore_eos=True)
        assert reply.status == 200, reply.raw
        return len(prompt) + output

    begin = time.perf_counter()
    with ThreadPoolExecutor(CLIENTS) as clients:
        tokens = sum(clients.map(ask, prompts))
    return tokens / (time.perf_counter() - begin)
