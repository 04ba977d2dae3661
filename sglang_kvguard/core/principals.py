"""Where a request's principal comes from: ``--kv-guard-principal``.

==================  =================================================================
``none``            clients are not told apart
``bearer``          the token of ``Authorization: Bearer``; the guard does not judge it, so
                    a client that makes one up is a tenant of its own, and one that learns
                    another's token *is* that tenant
``header:NAME``     a header that a gateway sets and that clients cannot send past it
``signed-header:NAME``  the same, signed by the gateway (``core/signed_header.py``)
``caller``          from Python only: ``with sglang_kvguard.principal("name"):``
==================  =================================================================

A request without a principal that the source accepts is anonymous, whatever the reason:
``--kv-guard-anonymous`` says what becomes of it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from sglang_kvguard.core.policy_error import PolicyError
from sglang_kvguard.core.signed_header import verify

NONE = "none"
BEARER = "bearer"
HEADER = "header"
SIGNED_HEADER = "signed-header"
CALLER = "caller"

ISOLATE = "isolate"
REJECT = "reject"
ANONYMOUS_POLICIES = (ISOLATE, REJECT)

FLAG = "--kv-guard-principal"
KEY_FLAG = "--kv-guard-signing-key-file"

Headers = Iterable[tuple[bytes, bytes]]

# RFC 9110, section 5.6.2, and RFC 6750, section 2.1.
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_BEARER = re.compile(rb"[Bb][Ee][Aa][Rr][Ee][Rr] ([A-Za-z0-9._~+/-]+=*)")
_PRINTABLE = re.compile(rb"[\x21-\x7e\x80-\xff]([\x20-\x7e\x80-\xff]*[\x21-\x7e\x80-\xff])?")
_LONGEST = 8192


@dataclass(frozen=True)
class PrincipalSource:
    """A configured source.

    Attributes:
        kind: ``NONE``, ``BEARER``, ``HEADER``, ``SIGNED_HEADER`` or ``CALLER``.
        header: name of its header in lower case; empty for ``NONE`` and ``CALLER``.
    """

    kind: str
    header: bytes = b""

    @classmethod
    def parse(cls, text: str) -> PrincipalSource:
        """The source that ``--kv-guard-principal`` names.

        Raises:
            PolicyError: there is no such source, or the header's name is not one.
        """
        kind, colon, name = str(text).partition(":")
        if not colon and kind in (NONE, CALLER):
            return cls(kind)
        if not colon and kind == BEARER:
            return cls(kind, b"authorization")
        if colon and kind in (HEADER, SIGNED_HEADER):
            if not _HEADER_NAME.fullmatch(name):
                raise PolicyError(
                    f"{FLAG} {text}: {name!r} is not a header name; use e.g. {kind}:X-Tenant"
                )
            return cls(kind, name.lower().encode())
        raise PolicyError(
            f"{FLAG} {text}: expected none, bearer, header:NAME or signed-header:NAME"
        )

    def identify(self, headers: Headers, now: float, key: bytes | None = None) -> bytes | None:
        """What the source says about one request.

        Args:
            headers: name (lower case) and value, as received.
            now: seconds since 1970.
            key: of the key file, for ``SIGNED_HEADER``.

        Returns:
            The principal; None when there is none, or none that can be trusted. A header
            that occurs twice names nobody: a proxy may have checked one of them and a
            client sent the other.
        """
        values = [value for name, value in headers if name == self.header]
        if not self.header or len(values) != 1 or len(values[0]) > _LONGEST:
            return None
        if self.kind == SIGNED_HEADER:
            return verify(key, values[0], now)
        form = _BEARER if self.kind == BEARER else _PRINTABLE
        found = form.fullmatch(values[0])
        if found is None:
            return None
        return found[1] if self.kind == BEARER else found[0]
