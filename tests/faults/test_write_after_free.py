"""Somebody writes into pages that are free.

A stock engine hands them out as they are. The guard checks that a page is still zero when
it is born again. Class: write after free.
"""

import pytest

from sglang_kvguard.testing.injector.conditions import When
from tests.faults.stage import Stage

pytestmark = pytest.mark.server


def _inject(stage: Stage, layer: int | None):
    prompt = stage.prompt("B")
    expected = stage.alone(prompt, 8)
    # The last pages of the free list, so that nobody else runs into them first.
    did = stage.arm("write_into_free_pages", When(), count=2, layer=layer).outcome()["did"]
    return stage.send(prompt, 8, stage.rid("B")).result(), expected, prompt, did["pages"]


def test_stock_hands_out_what_was_written(stock: Stage) -> None:
    _inject(stock, layer=None)
    assert stock.ask("free_slots")["not_zero"] > 0


@pytest.mark.parametrize("layer", [None, 0, 2], ids=["all layers", "first layer", "last layer"])
def test_guard_catches_it_at_rebirth(guarded: Stage, layer: int | None) -> None:
    reply, expected, prompt, pages = _inject(guarded, layer)
    line = guarded.expect_violation(reply, "I4", prompt)
    assert line["slot"] // 16 in pages
    assert guarded.new_page_faults() == {"dirty": 2, "retired": 2}, "withheld from then on"
    again = guarded.send(prompt, 8, guarded.rid("B")).result()
    assert again.text == expected, "a retry gets other pages"
