"""``kvguard``: what an operator does with the guard from a command line."""

from __future__ import annotations

import click

import sglang_kvguard
from sglang_kvguard.cli.demo import demo


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(sglang_kvguard.__version__, prog_name="kvguard")
def main() -> None:
    """Isolation of KV caches between requests: see it."""


main.add_command(demo)
