"""The guard's device metadata: who owns each page, and what each row is sealed to."""

from __future__ import annotations

import secrets

import torch

from sglang_kvguard.kernels import layout as L


class Ledger:
    """Page ledger, owner history, row seals and page faults of one KV pool.

    Field numbers and flag bits are in ``kernels/layout.py``. All tensors live on
    ``device`` and are written by the launch stream only.

    Attributes:
        pages: int64 (num_pages + 1, 4); page 0 is the engine's padding page.
        history: int64 (num_pages + 1, 2), previous owners, newest first.
        seals: int64 (num_rows + 1, 8); row 0 is the engine's padding row.
        report: int64 (64 + num_rows, 8): what a step copies to the host, in one piece:
            ``faults``, a view of its head (running count and a ring of page faults),
            and one verdict a batch entry.
        key: random 63-bit key of the digest, new at every start.

    Metadata costs 48 bytes a page and 64 bytes a row.
    """

    def __init__(self, num_pages: int, num_rows: int, page_size: int, device: str | torch.device):
        """Make an empty ledger.

        Args:
            num_pages: pages that the allocator can hand out, numbered from 1.
            num_rows: request rows, numbered from 1.
            page_size: token slots a page.
            device: where the KV pool is.

        Raises:
            ValueError: a size is not positive.
        """
        if min(num_pages, num_rows, page_size) < 1:
            raise ValueError(
                f"a ledger needs at least one page, row and slot a page, got "
                f"{num_pages=}, {num_rows=}, {page_size=}"
            )
        self.num_pages = num_pages
        self.num_rows = num_rows
        self.page_size = page_size
        self.device = torch.device(device)

        def zeros(*shape: int) -> torch.Tensor:
            return torch.zeros(shape, dtype=torch.int64, device=self.device)

        self.pages = zeros(num_pages + 1, L.PAGE_FIELDS)
        self.history = zeros(num_pages + 1, L.HISTORY_FIELDS)
        self.seals = zeros(num_rows + 1, L.SEAL_FIELDS)
        self.report = zeros(1 + L.FAULT_SLOTS + num_rows, L.VERDICT_FIELDS)
        self.faults = self.report[: 1 + L.FAULT_SLOTS]
        self.key = secrets.randbits(63)
        self._births = 1

    def take_births(self, count: int) -> int:
        """First of ``count`` births that no page has had and none will have again."""
        first = self._births
        self._births += count
        return first

    def verdicts(self, batch_size: int) -> torch.Tensor:
        """Where the fence writes its verdicts: int64 (batch_size, 8) of ``report``."""
        head = self.faults.shape[0]
        return self.report[head : head + batch_size]

    def forget_all(self) -> None:
        """After a flush of the whole pool: no page is alive, no row is sealed.

        Retired pages stay retired. Owners stay, as history for incidents.
        """
        self.pages[:, L.PAGE_FLAGS] &= L.RETIRED
        self.seals.zero_()

    @property
    def bytes_per_page(self) -> int:
        return 8 * (L.PAGE_FIELDS + L.HISTORY_FIELDS)

    @property
    def bytes_per_row(self) -> int:
        return 8 * L.SEAL_FIELDS
