"""Who a request is for, and which namespace its KV belongs to (I11).

The server decides; what a client sends is one more field under the MAC, so it can split
the client's own namespace and never reach another's.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from dataclasses import dataclass

from sglang_kvguard.core.fields import join
from sglang_kvguard.core.salts import GROUP, PRIVATE, SHARED, Salt, format_salt, parse_salt

# Kinds of principals.
TENANT = "tenant"  # somebody the configured source vouches for
ANONYMOUS = "anonymous"  # nobody it vouches for
INTERNAL = "internal"  # the server itself: warm-up, health checks
EVERYONE = "everyone"  # no source is configured: clients are not told apart

NONCE_BYTES = 32


@dataclass(frozen=True)
class Principal:
    """Whom a request is attributed to. Two are equal only if they are the same caller.

    Attributes:
        kind: ``TENANT``, ``ANONYMOUS``, ``INTERNAL`` or ``EVERYONE``.
        ident: 32 bytes: a keyed hash of what the source said, or random for callers
            that are nobody in particular. The name or token itself is not kept.
    """

    kind: str
    ident: bytes

    @property
    def label(self) -> str:
        """Twelve hexadecimal digits for logs and metrics: which, but not who."""
        message = join("sglang-kvguard label v1", self.kind, self.ident)
        return hashlib.sha256(message).hexdigest()[:12]

    def __repr__(self) -> str:
        return f"Principal({self.kind} {self.label})"


# Clients are not told apart without a source.
EVERYBODY = Principal(EVERYONE, bytes(32))


def nobody(kind: str = ANONYMOUS) -> Principal:
    """A principal that no other request will ever have."""
    return Principal(kind, secrets.token_bytes(NONCE_BYTES))


@dataclass(frozen=True)
class Claims:
    """What a request says about itself. Every field splits, none of them merges.

    Attributes:
        session: session it belongs to.
        cache_salt, extra_key: as sent by the client.
        lora: adapter.
        model, weight_version: what computes its KV.
    """

    session: str | None = None
    cache_salt: str | None = None
    extra_key: str | None = None
    lora: str | None = None
    model: str | None = None
    weight_version: str | None = None


class Namespaces:
    """Derives principals, namespaces and session names under one server secret.

    Not a cache and without state: the same secret, scope and fields give the same
    namespace in every process and at every start.
    """

    def __init__(self, secret: bytes, scope: str) -> None:
        """
        Args:
            secret: at least 32 bytes.
            scope: ``request``, ``session``, ``tenant`` or ``shared``.

        Raises:
            ValueError: the secret is too short.
        """
        if len(secret) < 32:
            raise ValueError(f"a secret needs at least 32 bytes, got {len(secret)}")
        self._secret = secret
        self.scope = scope

    def principal(self, source: str, raw: bytes) -> Principal:
        """The tenant that a source names.

        Args:
            source: kind of the source, so that a token is not taken for a name.
            raw: what it said.
        """
        return Principal(TENANT, self._mac("principal", source, raw))

    def salt(self, principal: Principal, claims: Claims, *, siblings: int = 1) -> Salt:
        """The namespace of one prompt of one API call.

        Call it once a prompt: under scope ``request`` each call gives a new namespace,
        which the ``siblings`` samples of that prompt share.

        Args:
            principal: who asks.
            claims: what the request says.
            siblings: samples of this prompt, ``n`` of the sampling parameters.
        """
        shared = self.scope == "shared" and principal.kind != INTERNAL
        session = claims.session if self.scope == "session" else None
        alone = not shared and (
            self.scope == "request"
            or principal.kind in (ANONYMOUS, INTERNAL)
            or (self.scope == "session" and session is None)
        )
        mac = self._mac(
            "namespace",
            self.scope,
            None if shared else principal.kind,
            None if shared else principal.ident,
            session,
            secrets.token_bytes(NONCE_BYTES) if alone else None,
            claims.cache_salt,
            claims.extra_key,
            claims.lora,
            claims.model,
            claims.weight_version,
        )
        kind = SHARED if not alone else PRIVATE if siblings == 1 else GROUP
        return parse_salt(format_salt(kind, mac, siblings))

    def session(self, principal: Principal, name: str) -> str:
        """What the engine calls a client's session: nobody else's name leads to it."""
        return "kvgs1." + self._mac("session", principal.kind, principal.ident, name).hex()

    def request_nonce(self, principal: Principal, session: str, rid: str) -> str:
        """32 hexadecimal digits that stand for a request within a session.

        A later request of the session refers to this one by ``rid``.
        """
        mac = self._mac("session request", principal.kind, principal.ident, session, rid)
        return mac.hex()[:32]

    def _mac(self, purpose: str, *fields: bytes | str | None) -> bytes:
        message = join(f"sglang-kvguard {purpose} v1", *fields)
        return hmac.digest(self._secret, message, "sha256")
