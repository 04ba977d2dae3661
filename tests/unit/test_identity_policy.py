"""Settings of the identity: which go together, and what is said when they do not."""

from __future__ import annotations

import pytest

from sglang_kvguard.core.policy import GuardPolicy, PolicyError

ON = "--enable-kv-guard"


@pytest.mark.parametrize(
    "settings",
    [
        {"scope": "tenant", "principal": "bearer"},
        {"scope": "session", "principal": "header:X-Tenant"},
        {"scope": "request", "principal": "header:X-Tenant", "anonymous": "reject"},
        {"scope": "tenant", "principal": "signed-header:X", "signing_key_file": "key"},
        {"scope": "tenant", "principal": "caller"},
        {"scope": "shared", "public_prefix": "file", "secret_file": "secret"},
    ],
)
def test_accepted(settings):
    policy = GuardPolicy(**settings)
    assert GuardPolicy.from_json(policy.to_json()) == policy


@pytest.mark.parametrize(
    "settings, line",
    [
        ({"scope": "tenant"}, "--kv-guard-scope tenant: needs to know whose"),
        ({"scope": "session"}, "--kv-guard-scope session: needs to know whose"),
        ({"principal": "cookie"}, "--kv-guard-principal cookie: expected none, bearer"),
        ({"anonymous": "reject"}, "--kv-guard-anonymous reject: would reject every request"),
        ({"anonymous": "maybe"}, "--kv-guard-anonymous maybe: expected isolate or reject"),
        ({"principal": "signed-header:X"}, "--kv-guard-signing-key-file: goes with"),
        ({"signing_key_file": "key"}, "--kv-guard-signing-key-file: goes with"),
    ],
)
def test_refused_in_one_line_that_names_the_flag(settings, line):
    with pytest.raises(PolicyError) as caught:
        GuardPolicy(**settings)
    assert str(caught.value).startswith(line)
    assert "\n" not in str(caught.value)


def test_on_the_command_line(engine):
    said = engine.call("flags:refusal", ON, "--kv-guard-principal", "caller")
    assert said["code"] == 2 and "caller: is for Python programs" in said["stderr"]
    said = engine.call("flags:refusal", "--kv-guard-secret-file", "x")
    assert said["code"] == 2 and "has no effect without --enable-kv-guard" in said["stderr"]
