"""A header by which a gateway names a principal so that nobody else can.

Canonical form, no spaces, fields in this order::

    v1;t=1790000000;p=dGVuYW50LWE;s=<64 lower-case hexadecimal digits>

``t`` is the time of signing in seconds since 1970, decimal, no leading zero. ``p`` is the
principal in base64url without padding. ``s`` is HMAC-SHA256 under the key file's bytes
over ``fields.join("sglang-kvguard signed header v1", t, principal)``. Any other spelling of
the same content is refused.

A header is accepted for ``MAX_SKEW`` seconds before and after ``t``. It names who asks, not
what is asked, so within that window whoever can read the gateway's traffic can
replay it: gateway and server have to talk over a private network or TLS.
"""

from __future__ import annotations

import base64
import hmac
import re

from sglang_kvguard.core.fields import join

MAX_SKEW = 60

_FORM = re.compile(rb"v1;t=([1-9][0-9]{0,14});p=([A-Za-z0-9_-]{1,1366});s=([0-9a-f]{64})")


def sign(key: bytes, principal: bytes, timestamp: int) -> str:
    """The header's value, for gateways and tests."""
    encoded = base64.urlsafe_b64encode(principal).rstrip(b"=").decode()
    return f"v1;t={timestamp};p={encoded};s={_mac(key, str(timestamp), principal).hex()}"


def verify(key: bytes, value: bytes, now: float) -> bytes | None:
    """The principal that ``value`` names.

    Args:
        key: of the key file.
        value: of the header, as received.
        now: seconds since 1970.

    Returns:
        None when the form, the signature or the time is not right. Which of them is not
        told, so that an attacker learns nothing from it.
    """
    parts = _FORM.fullmatch(value)
    if parts is None:
        return None
    timestamp, encoded, signature = parts.groups()
    try:
        principal = base64.urlsafe_b64decode(encoded + b"=" * (-len(encoded) % 4))
    except ValueError:
        return None
    # Base64 leaves bits unused at the end; only one spelling is canonical.
    canonical = base64.urlsafe_b64encode(principal).rstrip(b"=") == encoded
    expected = _mac(key, timestamp.decode(), principal).hex().encode()
    genuine = hmac.compare_digest(expected, signature)
    recent = abs(now - int(timestamp)) <= MAX_SKEW
    return principal if genuine and canonical and recent else None


def _mac(key: bytes, timestamp: str, principal: bytes) -> bytes:
    return hmac.digest(key, join("sglang-kvguard signed header v1", timestamp, principal), "sha256")
