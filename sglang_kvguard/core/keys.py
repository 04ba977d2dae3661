"""The whole idea in one small object: KV that only its own request can read.

This is the guard's model for people and for tests. It keeps no engine pool: one slot
tensor, one ledger, and the same fence that guards a server.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from sglang_kvguard.core.violations import FenceViolation, Verdict
from sglang_kvguard.kernels import layout as L


@dataclass(frozen=True)
class KVKey:
    """Names one token's KV in one layer, for one request, in one life of its slot.

    Attributes:
        tag: minted tag of the request.
        layer: model layer.
        position: token position in the request.
        birth: generation of the slot when it was given to the request.
    """

    tag: int
    layer: int
    position: int
    birth: int


class KeyedKV:
    """A KV store that is read and written through keys.

    Example:
        >>> store = KeyedKV(num_slots=8, num_layers=1, width=4)
        >>> key = store.allocate(tag=7, position=0)[0]
        >>> store.write(key, torch.ones(4))
        >>> store.read(key).sum().item()
        4.0
        >>> store.free(tag=7)
        >>> store.read(key)
        Traceback (most recent call last):
        ...
        sglang_kvguard.core.violations.FenceViolation: ...
    """

    def __init__(self, num_slots: int, num_layers: int, width: int, dtype: torch.dtype = torch.float32):
        """
        Args:
            num_slots: token slots.
            num_layers: model layers; each slot has ``width`` elements in each.
            width: elements a token and layer.
            dtype: element type.
        """
        self._data = torch.zeros(num_layers, num_slots, width, dtype=dtype)
        self._owner = [0] * num_slots
        self._birth = [0] * num_slots
        self._slot_of: dict[tuple[int, int, int], int] = {}
        self._free = list(range(num_slots))
        self._births = 0

    def allocate(self, tag: int, position: int) -> list[KVKey]:
        """Give a zeroed slot to ``tag`` and compose its keys, one a layer.

        Raises:
            MemoryError: every slot is taken.
        """
        if not self._free:
            raise MemoryError("every slot is taken")
        slot = self._free.pop(0)
        self._births += 1
        self._owner[slot], self._birth[slot] = tag, self._births
        self._slot_of[tag, position, self._births] = slot
        return [KVKey(tag, layer, position, self._births) for layer in range(len(self._data))]

    def write(self, key: KVKey, value: torch.Tensor) -> None:
        """Store ``value`` (shape (width,)) under ``key``.

        Raises:
            FenceViolation: the key is stale or not the slot's.
        """
        self._data[key.layer, self._admit(key)] = value

    def read(self, key: KVKey) -> torch.Tensor:
        """What was stored under ``key``, zeros if nothing was; shape (width,).

        Raises:
            FenceViolation: the key is stale or not the slot's.
        """
        return self._data[key.layer, self._admit(key)].clone()

    def free(self, tag: int) -> None:
        """Take back every slot of ``tag``: zeroed, and every key to it stale."""
        for slot, owner in enumerate(self._owner):
            if owner == tag:
                self._data[:, slot] = 0
                self._owner[slot] = 0
                self._free.append(slot)

    def _admit(self, key: KVKey) -> int:
        slot = self._slot_of.get((key.tag, key.position, key.birth), -1)
        reasons = 0
        if slot < 0:
            reasons = L.R_FOREIGN
        elif self._owner[slot] == 0:
            reasons = L.R_DEAD
        elif self._birth[slot] != key.birth:
            reasons = L.R_DIGEST
        if reasons:
            raise FenceViolation(
                Verdict(owner=key.tag, reasons=reasons, position=key.position, slot=slot)
            )
        return slot
