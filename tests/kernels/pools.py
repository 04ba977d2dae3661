"""Pools of buffers with every odd layout there is, and what a page's bytes are in them,
found by counting bytes one by one."""

from __future__ import annotations

import random

import torch
from sglang_kvguard.kernels.spans import Span, SpanTable

DTYPES = (torch.uint8, torch.bfloat16, torch.float32, torch.int64)


class Pool:
    """Some spans over one or several buffers.

    Attributes:
        storages: the buffers as bytes.
        spans: the table.
        num_pages: as in the table.
    """

    def __init__(self, entries: list[Span], num_pages: int):
        self.entries = entries
        self.num_pages = num_pages
        self.spans = SpanTable.build(entries, num_pages, "cpu")
        self.storages = {}
        for span in entries:
            storage = span.tensor.untyped_storage()
            self.storages[storage.data_ptr()] = torch.empty(0, dtype=torch.uint8).set_(storage)

    def fill(self) -> None:
        for storage in self.storages.values():
            storage.copy_(torch.randint(1, 256, storage.shape))

    def bytes_of(self, page: int) -> list[tuple[int, int]]:
        """(storage, offset) of every byte of a page."""
        out = []
        for span in self.entries:
            address = span.tensor.untyped_storage().data_ptr()
            start = span.tensor.data_ptr() - address + span.byte_offset
            for unit in range(page * span.units_per_page, (page + 1) * span.units_per_page):
                first = start + unit * span.unit_stride
                out += [(address, first + k) for k in range(span.unit_span)]
        return out


def random_pool(rng: random.Random) -> Pool:
    num_pages = rng.choice((1, 2, 5, 9))
    entries = []
    for number in range(rng.randint(1, 4)):
        name = f"buffer{number}"
        kind = rng.choice(("slots", "strided slots", "pages", "raw"))
        if kind == "raw":
            units, span = rng.choice((1, 2, 3)), rng.randint(1, 70)
            stride = span + rng.choice((0, 0, 1, 7, 16))
            offset = rng.randint(0, 20)
            size = offset + ((num_pages + 1) * units - 1) * stride + span + rng.choice((0, 0, 5))
            tensor = torch.zeros(size, dtype=torch.uint8)
            entries.append(Span(name, tensor, stride, span, units, offset))
            continue
        dtype, row = rng.choice(DTYPES), rng.choice((1, 3, 8, 20))
        page_size = rng.choice((1, 3, 16)) if kind != "pages" else 1
        rows = (num_pages + 1) * page_size
        gap = rng.choice((1, 3, 8)) if kind == "strided slots" else 0
        # Where the buffer starts in its storage decides its alignment.
        lead = rng.choice((0, 0, 1, 2, 5))
        flat = torch.zeros(lead + rows * (row + gap), dtype=dtype)
        tensor = flat[lead:].view(rows, row + gap)[:, :row]
        if kind == "pages":
            entries.append(Span.of_pages(name, tensor))
        else:
            entries.append(Span.of_slots(name, tensor, page_size))
    return Pool(entries, num_pages)


def random_ids(rng: random.Random, num_pages: int) -> list[int]:
    odd = (0, -1, num_pages + 1, 2**40, -(2**63), num_pages)
    return [
        rng.choice((rng.randint(1, num_pages), rng.choice(odd)))
        for _ in range(rng.choice((1, 2, 7)))
    ]


def aligned_pool(num_pages: int, page_bytes: int, layers: int) -> Pool:
    """Buffers as engines have them: big, contiguous, aligned."""
    storage = torch.zeros(layers * (num_pages + 1) * page_bytes + 16, dtype=torch.uint8)
    start = -storage.data_ptr() % 16
    tensors = storage[start : start + layers * (num_pages + 1) * page_bytes]
    tensors = tensors.view(layers, num_pages + 1, page_bytes)
    return Pool([Span.of_pages(f"k{n}", tensors[n]) for n in range(layers)], num_pages)
