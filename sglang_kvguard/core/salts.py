"""The text that carries a namespace from the server process to the scheduler.

It becomes the engine's ``cache_salt``, so the radix tree, the host tier and storage keys
all carry it. The server process makes it (``core/identity.py``); whoever only has to act
on it, as the scheduler does, needs no secret and reads it here.

Grammar: ``kvg1.`` *kind* ``.`` 64 hexadecimal digits, where *kind* is

=========  ==================================================================
``p``      private: one request only, which publishes nothing
``g`` *n*  group: the *n* siblings of one API call, *n* from 2 on
``s``      shared: by whoever gets the same salt
=========  ==================================================================
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

from sglang_kvguard.core.fields import join

PRIVATE = "p"
GROUP = "g"
SHARED = "s"

_GRAMMAR = re.compile(r"kvg1\.(p|s|g([1-9][0-9]{0,5}))\.([0-9a-f]{64})")

# Salts of namespaces that this module makes itself. They do not match the grammar, so
# no MAC can ever collide with them.
PUBLIC_SALT = "kvg1.public"
_AFTER_PUBLIC = "kvg1.after."

# Namespace numbers that are derived from a salt have this bit; those that the scheduler
# counts up for private rows (``core/tags.py``) never get there.
_DERIVED = 1 << 62


@dataclass(frozen=True)
class Salt:
    """What a salt says.

    Attributes:
        text: the salt itself.
        kind: ``PRIVATE``, ``GROUP`` or ``SHARED``.
        siblings: requests that share it, when that is known: 1 for private, n for a
            group, 0 for shared.
    """

    text: str
    kind: str
    siblings: int

    @property
    def namespace(self) -> int:
        """Number of the namespace in the page ledger: positive, 63 bits, bit 62 set.

        62 bits are derived from the same 256 that key the tree. The ledger is the second
        check behind the tree; with a million namespaces alive two of them agree in
        these bits with a probability of about 1e-7.
        """
        return namespace_number(self.text)


def format_salt(kind: str, mac: bytes, siblings: int = 0) -> str:
    """The text for a namespace.

    Args:
        kind: ``PRIVATE``, ``GROUP`` or ``SHARED``.
        mac: 32 bytes.
        siblings: size of a group.
    """
    text = f"kvg1.{kind}{siblings if kind == GROUP else ''}.{mac.hex()}"
    if not _GRAMMAR.fullmatch(text):
        raise ValueError(f"not a salt: {kind=} {siblings=} {len(mac)=}")
    return text


def parse_salt(text: str | None) -> Salt | None:
    """The salt in ``text``; None when the guard did not make it."""
    found = _GRAMMAR.fullmatch(text) if isinstance(text, str) else None
    if found is None:
        return None
    kind, siblings, _ = found.groups()
    if kind == PRIVATE:
        return Salt(text, PRIVATE, 1)
    if kind == SHARED:
        return Salt(text, SHARED, 0)
    return Salt(text, GROUP, int(siblings))


def namespace_number(salt: str) -> int:
    """See ``Salt.namespace``; for any salt."""
    digest = hashlib.sha256(join("sglang-kvguard namespace number v1", salt)).digest()
    return _DERIVED | (int.from_bytes(digest[:8], "big") & (_DERIVED - 1))


def salt_after_public(salt: str, lead: bytes) -> str:
    """Salt for what follows a public prefix in the namespace of ``salt``.

    The tree keys such a tail without the tokens of the prefix, so its salt has to stand
    for them: two tails can only meet when namespace *and* prefix are the same.

    Args:
        salt: of the request.
        lead: 32-byte digest of the prefix, ``core.public_prefix.digest_of``.
    """
    digest = hashlib.sha256(join("sglang-kvguard after public prefix v1", salt, lead))
    return _AFTER_PUBLIC + digest.hexdigest()
