"""Pages of a request that has ended are freed once more.

A stock allocator then lists them twice and will give them to two requests.
Class: double free, delayed.
"""

import pytest

from sglang_kvguard.testing.injector.conditions import When
from tests.faults.stage import Stage

pytestmark = pytest.mark.server


def _inject(stage: Stage) -> None:
    a = stage.rid("A")
    stage.watch(a)
    armed = stage.arm("free_pages_of", When(after=a), other=a, first=0, count=2)
    stage.send(stage.prompt("A"), 4, a).result()
    armed.outcome()


def test_stock_lists_the_pages_twice(stock: Stage) -> None:
    _inject(stock)
    assert stock.ask("state")["free_pages_listed_twice"] == 2


def test_guard_refuses_the_second_free(guarded: Stage) -> None:
    _inject(guarded)
    prompts = [guarded.prompt(name, 300) for name in "AB"]
    expected = [guarded.alone(prompt, 8) for prompt in prompts]
    replies = [guarded.send(prompt, 8, guarded.rid("after")) for prompt in prompts]
    assert [reply.result().text for reply in replies] == expected
    # Within one batch with the first free it is somebody else's, later it is the second.
    faults = guarded.new_page_faults()
    assert sum(faults.values()) == 2 and faults.keys() <= {"double_free", "foreign_free"}
    assert guarded.new_violations() == 0
