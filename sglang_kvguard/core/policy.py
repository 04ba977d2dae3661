"""What the operator asked of the guard: one immutable value, the same in every process."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from dataclasses import dataclass
from typing import Any

MODES = ("enforce", "observe")
SCOPES = ("request", "session", "tenant", "shared")
TTL_POLICIES = ("elastic", "strict")
VERIFY_ZERO = ("always", "sampled", "off")


class PolicyError(ValueError):
    """A setting of the guard is wrong; the message is one line that names the flag."""


@dataclass(frozen=True)
class GuardPolicy:
    """Settings of the guard.

    Attributes:
        mode: ``enforce`` ends the offending request, ``observe`` only records it.
        scope: who may share KV: nobody but the request itself (``request``), or
            everybody (``shared``). ``session`` and ``tenant`` need an identity
            source, which this release does not have.
        ttl: seconds that a freed page rests after its scrub was enqueued, >= 0.
        ttl_policy: ``elastic`` releases resting pages early, oldest first, when the
            pool runs out. ``strict`` is not in this release.
        verify_zero: whether a page is checked to be all zero when it is born again:
            ``always``, on a sample (``sampled``) or never (``off``).
        allow_unverified_engine: start on an engine version the guard was not tested
            with; recorded as a warning.

    Raises:
        PolicyError: on construction, for a value that this release does not accept.
    """

    mode: str = "enforce"
    scope: str = "request"
    ttl: float = 30.0
    ttl_policy: str = "elastic"
    verify_zero: str = "always"
    allow_unverified_engine: bool = False

    def __post_init__(self) -> None:
        _one_of("--kv-guard-mode", self.mode, MODES)
        _one_of("--kv-guard-scope", self.scope, SCOPES)
        if self.scope in ("session", "tenant"):
            raise PolicyError(
                f"--kv-guard-scope {self.scope}: comes with an identity source, which this "
                "release does not have; use request or shared"
            )
        # Not isinstance: a number in an integer's or numpy's clothes is as good, and
        # normalising it keeps the digests of equal policies equal.
        try:
            ttl = float(self.ttl)
        except (TypeError, ValueError):
            ttl = math.nan
        if isinstance(self.ttl, bool) or not math.isfinite(ttl) or ttl < 0:
            raise PolicyError(
                f"--kv-guard-ttl {self.ttl}: expected a finite number of seconds, 0 or more; "
                "use e.g. 30"
            )
        object.__setattr__(self, "ttl", ttl)
        _one_of("--kv-guard-ttl-policy", self.ttl_policy, TTL_POLICIES)
        if self.ttl_policy == "strict":
            raise PolicyError(
                "--kv-guard-ttl-policy strict: comes with admission under a time to live, "
                "which this release does not have; use elastic"
            )
        _one_of("--kv-guard-verify-zero", self.verify_zero, VERIFY_ZERO)
        if not isinstance(self.allow_unverified_engine, bool):
            raise PolicyError(
                f"--kv-guard-allow-unverified-engine: expected true or false, "
                f"got {self.allow_unverified_engine!r}"
            )

    def to_json(self) -> str:
        """One line of JSON, keys sorted, so that equal policies give equal text."""
        return json.dumps(dataclasses.asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> GuardPolicy:
        """The policy that :meth:`to_json` wrote.

        Raises:
            PolicyError: not JSON, not an object of exactly the known settings, or a
                value that this release does not accept.
        """
        try:
            values = json.loads(text)
        except ValueError as error:
            raise PolicyError(f"guard policy: expected JSON ({error})") from error
        return cls.from_dict(values)

    @classmethod
    def from_dict(cls, values: Any) -> GuardPolicy:
        """The policy with exactly these settings; a missing or unknown one is refused.

        Raises:
            PolicyError: as for :meth:`from_json`.
        """
        known = {field.name for field in dataclasses.fields(cls)}
        if not isinstance(values, dict) or set(values) != known:
            raise PolicyError(
                f"guard policy: expected exactly the settings {', '.join(sorted(known))}"
            )
        return cls(**values)

    def digest(self) -> str:
        """Sixteen hexadecimal digits; two processes with one policy agree on them."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()[:16]


def _one_of(flag: str, value: object, accepted: tuple[str, ...]) -> None:
    if value not in accepted:
        listed = f"{', '.join(accepted[:-1])} or {accepted[-1]}"
        raise PolicyError(f"{flag} {value}: expected {listed}")
