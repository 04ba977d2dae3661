"""Who is calling, in the process that answers clients.

The caller travels in a context variable: an ASGI middleware sets it for each HTTP request,
``sglang_kvguard.principal()`` for a program that uses ``sglang.Engine``. Tasks copy
the context in which they are made, so streams, batches and background work that a request
starts keep its caller.
"""

from __future__ import annotations

import contextlib
import contextvars
import time
from collections.abc import Iterator
from dataclasses import dataclass

from fastapi import HTTPException

from sglang_kvguard.core import principals
from sglang_kvguard.core.identity import EVERYBODY, INTERNAL, Namespaces, Principal, nobody
from sglang_kvguard.core.policy import GuardPolicy
from sglang_kvguard.core.policy_error import PolicyError
from sglang_kvguard.core.principals import Headers, PrincipalSource
from sglang_kvguard.core.secret_file import random_secret, read_secret

SECRET_FLAG = "--kv-guard-secret-file"


@dataclass(frozen=True)
class Caller:
    """Whom the current context works for.

    Attributes:
        principal: who.
        door: path of the HTTP request; empty outside one.
    """

    principal: Principal
    door: str = ""


_caller: contextvars.ContextVar[Caller | None] = contextvars.ContextVar(
    "kvguard_caller", default=None
)


class PrincipalRequired(ValueError, HTTPException):
    """The request has no principal and anonymous requests are rejected.

    A ``ValueError`` for endpoints that turn one into an error of their own, an
    ``HTTPException`` for those that catch nothing.
    """

    def __init__(self, message: str) -> None:
        HTTPException.__init__(self, 401, message)

    def __str__(self) -> str:
        return self.detail


class Identity:
    """The identity settings of this process, ready for use.

    Attributes:
        namespaces: see there.
        source: where principals come from.
        serves_http: there is a middleware, so a context without a caller is the server's own.
    """

    def __init__(self, policy: GuardPolicy) -> None:
        """
        Raises:
            PolicyError: a secret or key file cannot be used.
        """
        secret = (
            read_secret(policy.secret_file, SECRET_FLAG) if policy.secret_file else random_secret()
        )
        self.namespaces = Namespaces(secret, policy.scope)
        self.source = PrincipalSource.parse(policy.principal)
        self._key = (
            read_secret(policy.signing_key_file, principals.KEY_FLAG)
            if policy.signing_key_file
            else None
        )
        self._rejects = policy.anonymous == principals.REJECT
        self.serves_http = False

    @property
    def tells_apart(self) -> bool:
        """Whether a source is configured."""
        return self.source.kind != principals.NONE

    def of_headers(self, headers: Headers) -> Principal | None:
        """The principal of an HTTP request; None if it has to be rejected."""
        if not self.tells_apart:
            return EVERYBODY
        raw = self.source.identify(headers, time.time(), self._key)
        if raw is not None:
            return self.namespaces.principal(self.source.kind, raw)
        return None if self._rejects else nobody()

    def caller(self) -> Caller:
        """Whom this context works for.

        Raises:
            PrincipalRequired: nobody said so, and anonymous callers are rejected.
        """
        caller = _caller.get()
        if caller is not None:
            return caller
        if self.serves_http:
            return Caller(nobody(INTERNAL))
        if not self.tells_apart:
            return Caller(EVERYBODY)
        if self._rejects:
            raise PrincipalRequired(self.how())
        return Caller(nobody())

    def how(self) -> str:
        """How a client says who it is, in one sentence."""
        kind, header = self.source.kind, self.source.header.decode()
        if kind == principals.CALLER:
            return 'this server requires a principal: with sglang_kvguard.principal("name"): ...'
        if kind == principals.BEARER:
            return "this server requires a principal: send Authorization: Bearer TOKEN"
        signed = "a valid signed " if kind == principals.SIGNED_HEADER else "the "
        return f"this server requires a principal: send {signed}header {header}"


@contextlib.contextmanager
def calling(caller: Caller) -> Iterator[None]:
    """Work for ``caller`` inside."""
    token = _caller.set(caller)
    try:
        yield
    finally:
        _caller.reset(token)


@contextlib.contextmanager
def principal(name: str) -> Iterator[None]:
    """Generate for ``name`` inside: ``with sglang_kvguard.principal("tenant-a"): ...``.

    For programs that use ``sglang.Engine`` with ``enable(principal="caller", ...)``. An
    iterator that the engine returns for ``stream=True`` has to be used up inside too,
    because the engine starts working when its first item is asked for.

    Args:
        name: of the tenant, any text that is not empty.

    Raises:
        ValueError: the name is empty.
        RuntimeError: the guard was not told to expect this.
    """
    if not name:
        raise ValueError("a principal needs a name")
    if _identity is None or _identity.source.kind != principals.CALLER:
        raise RuntimeError('call sglang_kvguard.enable(principal="caller", ...) first')
    raw = name.encode("utf-8", "surrogatepass")
    with calling(Caller(_identity.namespaces.principal(principals.CALLER, raw))):
        yield


_identity: Identity | None = None


def configure(policy: GuardPolicy, api_key: str | None) -> Identity:
    """Make the identity of this process, once; before anything is started.

    Args:
        policy: as asked for.
        api_key: the engine's ``--api-key``.

    Raises:
        PolicyError: a secret or key file cannot be used, or all clients would have one
            principal.
    """
    global _identity
    if _identity is None:
        identity = Identity(policy)
        if identity.source.kind == principals.BEARER and api_key:
            raise PolicyError(
                f"{principals.FLAG} bearer: with --api-key all clients send the same token and "
                "would be one tenant; check tokens in a gateway and use signed-header:NAME"
            )
        _identity = identity
    return _identity


def identity() -> Identity:
    """The identity of this process.

    Raises:
        RuntimeError: it was not configured.
    """
    if _identity is None:
        raise RuntimeError("kv-guard: a request arrived before the identity was configured")
    return _identity
