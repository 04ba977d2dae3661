"""Which bytes a span table says are a page's, and buffers that it refuses."""

from __future__ import annotations

import pytest
import torch
from sglang_kvguard.kernels.spans import Span, SpanTable


def u8(*shape: int) -> torch.Tensor:
    return torch.zeros(shape, dtype=torch.uint8)


def test_contiguous_slots_of_a_page_are_one_unit():
    span = Span.of_slots("k", torch.zeros(64, 2, 8, dtype=torch.bfloat16), 16)
    assert (span.unit_stride, span.unit_span, span.units_per_page) == (512, 512, 1)


def test_strided_slots_are_units_of_their_own():
    span = Span.of_slots("k", torch.zeros(64, 2, 8, dtype=torch.bfloat16)[:, 0], 16)
    assert (span.unit_stride, span.unit_span, span.units_per_page) == (32, 16, 16)


def test_pages_in_dim_0():
    span = Span.of_pages("k", torch.zeros(8, 5, 3))
    assert (span.unit_stride, span.unit_span, span.units_per_page) == (60, 60, 1)


def test_a_single_row_may_have_any_stride():
    tensor = torch.zeros(1, 6).as_strided((1, 6), (0, 1))
    assert Span.of_pages("k", tensor).unit_stride == 24


def test_table_and_sums():
    k, v = torch.zeros(12, 4), torch.zeros(12, 2, dtype=torch.int8)
    table = SpanTable.build([Span.of_slots("k", k, 4), Span.of_slots("v", v, 4)], 2, "cpu")
    assert table.table.tolist() == [[k.data_ptr(), 64, 64, 1], [v.data_ptr(), 8, 8, 1]]
    assert table.bytes_per_page == 72
    assert table.shapes == ((1, 8), (1, 64))
    assert not table.aligned
    assert SpanTable.build([Span.of_slots("k", k, 4)], 2, "cpu").aligned


def test_layers_of_one_storage_share_a_view():
    layers = torch.zeros(5, 12, 4)
    spans = [Span.of_slots(f"k{n}", layer, 4) for n, layer in enumerate(layers)]
    assert len(SpanTable.build(spans, 2, "cpu").views) == 1
    uneven = SpanTable.build([spans[0], spans[1], spans[4]], 2, "cpu").views
    assert len(uneven) == 3
    assert all(view.shape == (3, 1, 1, 8) for view in uneven)


@pytest.mark.parametrize(
    ("make", "message"),
    (
        (lambda: Span.of_slots("kv", u8(8, 4), 0), "page_size"),
        (lambda: Span.of_slots("kv", u8(0, 4), 1), "at least one row"),
        (lambda: Span.of_slots("kv", u8(8, 0), 1), "at least one"),
        (lambda: Span.of_slots("kv", torch.zeros(()), 1), "at least one row"),
        (lambda: Span.of_slots("kv", u8(4, 8).t(), 1), "inner dims"),
        (lambda: Span.of_slots("kv", u8(8, 4, 4)[:, :, :2], 1), "inner dims"),
        (lambda: Span.of_slots("kv", u8(4).expand(8, 4), 1), "overlap"),
        (lambda: Span.of_pages("kv", u8(4).expand(8, 4)), "overlap"),
    ),
)
def test_refused_shapes_name_the_buffer(make, message):
    with pytest.raises(ValueError, match=f"kv: .*{message}"):
        make()


@pytest.mark.parametrize(
    ("span", "message"),
    (
        (Span.of_slots("kv", u8(15, 4), 4), "pages 0..3 cover bytes 0..64 of a storage of 60"),
        (Span("kv", u8(64), 16, 16, byte_offset=1), "cover bytes 1..65"),
        (Span("kv", u8(64), 16, 16, byte_offset=-1), "cover bytes -1..63"),
        (Span("kv", u8(64), 8, 16), "overlap"),
        (Span("kv", u8(64), 16, 0), "empty"),
        (Span("kv", u8(64), 16, 16, units_per_page=0), "empty"),
        (Span("kv", torch.zeros(64, device="meta"), 4, 4), "is on meta"),
    ),
)
def test_refused_tables_name_the_buffer(span, message):
    with pytest.raises(ValueError, match=f"kv: .*{message}"):
        SpanTable.build([span], 3, "cpu")


def test_a_view_may_reach_back_to_its_storages_start():
    whole = u8(64)
    SpanTable.build([Span("kv", whole[1:], 16, 16, byte_offset=-1)], 3, "cpu")


def test_an_empty_table_is_refused():
    with pytest.raises(ValueError, match="at least one buffer"):
        SpanTable.build([], 3, "cpu")
    with pytest.raises(ValueError, match="num_pages"):
        SpanTable.build([Span.of_slots("kv", u8(8), 1)], 0, "cpu")
