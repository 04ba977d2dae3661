"""One byte string for a tuple of fields, so that no two tuples give the same one.

Every hash and MAC of the identity layer takes its input from here. Plain concatenation
would let a client move a character from one field into the next; a separator would let it
write the separator.
"""

from __future__ import annotations

Field = bytes | str | None


def join(domain: str, *fields: Field) -> bytes:
    """Encode ``fields`` for the purpose ``domain``.

    Each item is one byte that says whether it is there, and if it is, its length in
    eight bytes (big-endian) and its bytes. So the encoding can be read back item by item, which
    is why it is injective: absent is not empty, and text cannot imitate structure.
    A domain is used with one number of fields only.

    Args:
        domain: what the result is for; no two purposes share one.
        *fields: bytes, text (UTF-8; lone surrogates, which JSON can carry, are kept
            apart instead of refused) or None.
    """
    return b"".join(map(_item, (domain, *fields)))


def _item(field: Field) -> bytes:
    if field is None:
        return b"\x00"
    data = field.encode("utf-8", "surrogatepass") if isinstance(field, str) else field
    return b"\x01" + len(data).to_bytes(8, "big") + data
