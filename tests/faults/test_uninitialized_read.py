"""A slot that was allocated and never written shows zeros, never its previous owner.

Class: state read before it is written.
"""

import pytest

from tests.faults.stage import Stage

pytestmark = pytest.mark.server


def _fill(stage: Stage) -> None:
    for name in "ABC":
        stage.send(stage.prompt(name, 400), 8, stage.rid(name)).result()


def test_stock_shows_the_previous_owner(stock: Stage) -> None:
    _fill(stock)
    assert stock.ask("fresh_allocation", pages=8)["not_zero"] > 0


def test_guard_shows_zeros(guarded: Stage) -> None:
    _fill(guarded)
    assert guarded.ask("fresh_allocation", pages=8)["not_zero"] == 0
    assert guarded.ask("free_bytes")["not_zero"] == 0
