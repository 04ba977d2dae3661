"""A page's life under the guard: birth, publication, death, scrub, quarantine, rebirth."""

import pytest
import torch

from sglang_kvguard.core.selftest import SelfTestFailed, run_self_test
from sglang_kvguard.core.tags import SHARED_NAMESPACE
from sglang_kvguard.core.verdicts import ReportOverrun
from sglang_kvguard.kernels import layout as L
from sglang_kvguard.kernels.scrub import scrub
from tests.unit.pools import SmallPool


def test_a_row_reads_what_it_was_given() -> None:
    pool = SmallPool()
    a = pool.guard.mint(1, None)
    assert pool.extend(a, [3, 5], fresh=True).reasons == 0
    assert pool.extend(a, [2]).reasons == 0
    assert pool.read(a).reasons == 0


def test_read_of_a_freed_page_is_seen() -> None:
    pool = SmallPool()
    a = pool.guard.mint(1, None)
    pool.extend(a, [3], fresh=True)
    pool.free(a, [3])
    assert pool.read(a).reasons & L.R_DEAD


def test_read_of_a_freed_and_reborn_page_is_seen_even_for_the_same_row() -> None:
    pool = SmallPool()
    a = pool.guard.mint(1, SHARED_NAMESPACE)
    pool.extend(a, [3, 4], fresh=True)
    pool.free(a, [4])
    pool.settle()
    b = pool.guard.mint(2, SHARED_NAMESPACE)
    pool.extend(b, [4], fresh=True)
    verdict = pool.read(a)
    assert verdict.reasons & L.R_DIGEST and verdict.reasons & L.R_FOREIGN
    assert verdict.page_owner == b.owner


def test_swapped_entries_are_seen() -> None:
    pool = SmallPool()
    a = pool.guard.mint(1, None)
    pool.extend(a, [3, 4], fresh=True)
    pool.table[1, [0, 1]] = pool.table[1, [1, 0]]
    assert pool.read(a).reasons == L.R_DIGEST


def test_over_read_is_seen() -> None:
    pool = SmallPool()
    a = pool.guard.mint(1, None)
    pool.extend(a, [3], fresh=True)
    assert pool.read(a, length=pool.page_size + 1).reasons & L.R_LENGTH


def test_row_of_another_request_is_seen() -> None:
    pool = SmallPool()
    a, b = pool.guard.mint(1, None), pool.guard.mint(2, None)
    pool.extend(a, [3], fresh=True)
    pool.extend(b, [4], fresh=True)
    want = pool.guard.want([b], [0], [False])
    verdict = pool.forward(b, want, pool.page_size, torch.zeros(0).long(), row=1)
    assert verdict.reasons & L.R_ROW and verdict.reasons & L.R_NAMESPACE
    assert pool.read(a).reasons == 0


def test_write_into_another_request_goes_nowhere() -> None:
    pool = SmallPool(page_size=1)
    a, b = pool.guard.mint(1, None), pool.guard.mint(2, None)
    pool.extend(a, [3], fresh=True)
    pool.extend(b, [4], fresh=True)
    want = pool.guard.want([b], [1], [False])
    pool.guard.stamp(want, torch.tensor([5]))
    pool.table[2, 1] = 5
    out = torch.tensor([3])
    verdict = pool.forward(b, want, 2, out)
    assert verdict.reasons & L.R_WRITE_TARGET
    assert out.tolist() == [0], "the write is diverted to the padding slot"
    assert pool.read(a).reasons == 0, "the victim is not an offender"


def test_observe_mode_diverts_nothing() -> None:
    pool = SmallPool(page_size=1, mode="observe")
    b = pool.guard.mint(2, None)
    pool.extend(b, [4], fresh=True)
    want = pool.guard.want([b], [1], [False])
    out = torch.tensor([3])
    assert pool.forward(b, want, 2, out).reasons
    assert out.tolist() == [3]


def test_freed_pages_are_zeroed_in_every_buffer() -> None:
    pool = SmallPool()
    a = pool.guard.mint(1, None)
    pool.extend(a, [3, 16], fresh=True)
    pool.fill([3, 16])
    pool.fill([4], 7.0)
    pool.free(a, [3, 16])
    pool.settle()
    assert pool.bytes_of([3, 16]) == 0
    assert pool.bytes_of([4]) == 4 * pool.page_size * 16, "neighbours keep their bytes"


def test_write_after_free_is_seen_at_rebirth() -> None:
    pool = SmallPool()
    a, b = pool.guard.mint(1, None), pool.guard.mint(2, None)
    pool.extend(a, [3], fresh=True)
    pool.free(a, [3])
    pool.settle()
    pool.buffers[3][pool.locs([3])[-1], 1, 7] = 1e-30
    assert torch.cat(pool.guard.quarantine.take_early(1)).tolist() == [3]
    verdict = pool.extend(b, [3], fresh=True)
    assert verdict.reasons & L.R_DIRTY
    pool.free(b, [3])
    assert [fault.kind for fault in pool.settle()] == [L.F_RETIRED]
    assert pool.guard.retired == 1 and len(pool.guard.quarantine) == 0


def test_zero_check_off_looks_at_nothing() -> None:
    pool = SmallPool(verify_zero="off")
    pool.fill([3])
    assert pool.extend(pool.guard.mint(1, None), [3], fresh=True).reasons == 0


def test_zero_check_sampled_looks_at_one_page_in_sixteen() -> None:
    pool = SmallPool(page_size=1, num_pages=64, num_rows=1, verify_zero="sampled")
    pool.fill(list(range(1, 65)))
    pool.extend(pool.guard.mint(1, None), list(range(1, 65)), fresh=True)
    assert pool.guard.ledger.faults[0, 0] == 4


@pytest.mark.parametrize("again", ["at once", "after the scrub", "in one batch"])
def test_double_free_is_refused_and_counted_once(again: str) -> None:
    pool = SmallPool()
    a = pool.guard.mint(1, None)
    pool.extend(a, [3], fresh=True)
    pool.free(a, [3, 3] if again == "in one batch" else [3])
    if again == "after the scrub":
        pool.settle()
    if again != "in one batch":
        pool.free(a, [3])
    assert [fault.kind for fault in pool.settle()] == [L.F_DOUBLE_FREE]
    assert len(pool.guard.quarantine) == 1


def test_free_of_another_requests_page_is_refused() -> None:
    pool = SmallPool()
    a, b = pool.guard.mint(1, None), pool.guard.mint(2, None)
    pool.extend(a, [3], fresh=True)
    pool.free(b, [3])
    assert [fault.kind for fault in pool.settle()] == [L.F_FOREIGN_FREE]
    assert pool.read(a).reasons == 0 and len(pool.guard.quarantine) == 0


def test_page_handed_out_twice_is_seen_and_its_first_owner_unharmed() -> None:
    pool = SmallPool()
    a, b = pool.guard.mint(1, None), pool.guard.mint(2, None)
    pool.extend(a, [3], fresh=True)
    verdict = pool.extend(b, [3], fresh=True)
    assert verdict.reasons & L.R_ALIAS and verdict.reasons & L.R_WRITE_OWNER
    assert [fault.kind for fault in pool.page_faults] == [L.F_ALIAS]
    assert pool.read(a).reasons == 0


def test_prefix_is_read_by_its_namespace_only() -> None:
    pool = SmallPool()
    a = pool.guard.mint(1, 50)
    pool.extend(a, [3], fresh=True)
    locs = pool.locs([3])
    pool.guard.publish(a, 0, locs, locs, reseal=True)
    assert pool.read(a).reasons == 0
    for row, namespace, expected in ((2, 50, 0), (3, 51, L.R_NAMESPACE)):
        tag = pool.guard.mint(row, namespace)
        pool.table[row, : pool.page_size] = locs.to(torch.int32)
        want = pool.guard.want([tag], [0], [True])
        pool.guard.stamp(want, torch.zeros(0).long())
        assert pool.forward(tag, want, pool.page_size, torch.zeros(0).long()).reasons == expected


def test_unpublished_prefix_is_not_admitted() -> None:
    pool = SmallPool()
    a = pool.guard.mint(1, 50)
    pool.extend(a, [3], fresh=True)
    b = pool.guard.mint(2, 50)
    pool.table[2, : pool.page_size] = pool.locs([3]).to(torch.int32)
    want = pool.guard.want([b], [0], [True])
    pool.guard.stamp(want, torch.zeros(0).long())
    verdict = pool.forward(b, want, pool.page_size, torch.zeros(0).long())
    assert verdict.reasons == L.R_FOREIGN


def test_reseal_follows_a_substitution_by_the_cache() -> None:
    pool = SmallPool()
    a, b = pool.guard.mint(1, 50), pool.guard.mint(2, 50)
    pool.extend(a, [3], fresh=True)
    pool.extend(b, [4], fresh=True)
    first, second = pool.locs([3]), pool.locs([4])
    pool.guard.publish(a, 0, first, first, reseal=True)
    pool.table[2, : pool.page_size] = first.to(torch.int32)
    pool.guard.publish(b, 0, second, first, reseal=True)
    pool.free(b, [4])
    assert pool.read(b).reasons == 0
    assert pool.settle() == []


def test_cache_may_not_publish_pages_of_another_namespace() -> None:
    pool = SmallPool()
    a, b = pool.guard.mint(1, 50), pool.guard.mint(2, 51)
    pool.extend(a, [3], fresh=True)
    pool.extend(b, [4], fresh=True)
    first, second = pool.locs([3]), pool.locs([4])
    pool.guard.publish(a, 0, first, first, reseal=True)
    pool.table[2, : pool.page_size] = first.to(torch.int32)
    pool.guard.publish(b, 0, second, first, reseal=True)
    assert pool.read(b).reasons & L.R_PUBLISH


def test_orphans_of_an_offender_are_withheld() -> None:
    pool = SmallPool()
    a = pool.guard.mint(1, None)
    pool.extend(a, [3, 4], fresh=True)
    pool.fill([3, 4])
    pool.free(a, [3])
    assert pool.guard.retire_orphans([]) == 1
    assert pool.guard.retired == 1 and pool.bytes_of([4]) == 0


def test_a_page_whose_release_was_refused_is_withheld_when_its_owner_is_gone() -> None:
    pool = SmallPool()
    a, b = pool.guard.mint(1, None), pool.guard.mint(2, None)
    pool.extend(a, [3, 4], fresh=True)
    pool.extend(b, [5], fresh=True)
    pool.free(b, [4])
    pool.free(a, [3])
    assert [fault.kind for fault in pool.settle()] == [L.F_FOREIGN_FREE]
    assert pool.guard.retire_orphans([a.owner, b.owner]) == 0, "not while its owner lives"
    assert pool.guard.retire_orphans([b.owner]) == 1
    assert pool.read(b).reasons == 0


def test_a_verdict_that_was_overwritten_is_not_read_as_clean() -> None:
    pool = SmallPool()
    a = pool.guard.mint(1, None)
    pool.extend(a, [3], fresh=True)
    want = pool.guard.want([a], [0], [False])

    def fence():
        return pool.guard.fence(
            want=want,
            req_to_token=pool.table,
            rows=torch.tensor([1]),
            seq_lens=torch.tensor([pool.page_size]),
            out_locs=torch.zeros(0).long(),
            max_len=pool.page_size,
        )

    report = fence()
    for _ in range(20):
        pool.settle()
    report.wait(None)
    assert report.is_of([a.owner]) and not report.is_of([a.owner + 1])
    for _ in range(8):
        fence()
    with pytest.raises(ReportOverrun):
        report.wait(None)


def test_flush_zeroes_everything_and_keeps_retired_pages_out() -> None:
    pool = SmallPool()
    a = pool.guard.mint(1, None)
    pool.extend(a, [3, 4], fresh=True)
    pool.fill(list(range(1, 17)))
    pool.guard.retire_orphans([])
    usable = pool.guard.flush()
    assert sorted(usable.tolist()) == [1, 2, *range(5, 17)]
    assert pool.bytes_of(list(range(1, 17))) == 0


def test_scrub_budget_leaves_the_rest_in_limbo() -> None:
    pool = SmallPool()
    pool.guard._scrub_pages_a_step = 2
    a = pool.guard.mint(1, None)
    pool.extend(a, [3, 4, 5], fresh=True)
    pool.fill([3, 4, 5])
    pool.free(a, [3, 4, 5])
    pool.guard.launch()
    assert pool.guard.quarantine.num_resting == 2 and pool.guard.quarantine.num_limbo == 1
    assert pool.bytes_of([3, 4]) == 0 and pool.bytes_of([5]) > 0
    pool.guard.launch()
    assert pool.bytes_of([5]) == 0 and pool.guard.quarantine.num_resting == 3


def test_self_test_passes_on_a_sound_pool() -> None:
    pool = SmallPool()
    assert "a write after free" in run_self_test(pool.guard, pool.table).steps


@pytest.mark.parametrize("broken", ["scrub", "fence", "stamp", "release", "check_zero"])
def test_self_test_refuses_a_kernel_that_does_nothing(broken: str, monkeypatch) -> None:
    pool = SmallPool()
    monkeypatch.setattr(f"sglang_kvguard.core.guard.{broken}", lambda *args: None)
    with pytest.raises(SelfTestFailed, match="self-test step"):
        run_self_test(pool.guard, pool.table)


def test_self_test_refuses_a_scrub_that_misses_the_last_page(monkeypatch) -> None:
    pool = SmallPool()

    def all_but_the_last(spans, page_ids):
        scrub(spans, page_ids.where(page_ids != spans.num_pages, 0))

    monkeypatch.setattr("sglang_kvguard.core.guard.scrub", all_but_the_last)
    with pytest.raises(SelfTestFailed, match="scrub"):
        run_self_test(pool.guard, pool.table)
