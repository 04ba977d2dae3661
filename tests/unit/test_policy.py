"""What the operator may ask of the guard."""

import dataclasses
import json

import pytest

from sglang_kvguard.core.policy import GuardPolicy, PolicyError


def test_defaults() -> None:
    assert dataclasses.asdict(GuardPolicy()) == {
        "mode": "enforce",
        "scope": "request",
        "ttl": 30.0,
        "ttl_policy": "elastic",
        "verify_zero": "always",
        "allow_unverified_engine": False,
    }


@pytest.mark.parametrize(
    ("setting", "value", "line"),
    [
        ("mode", "warn", "--kv-guard-mode warn: expected enforce or observe"),
        ("scope", "all", "--kv-guard-scope all: expected request, session, tenant or shared"),
        (
            "scope",
            "tenant",
            "--kv-guard-scope tenant: comes with an identity source, which this release does "
            "not have; use request or shared",
        ),
        (
            "scope",
            "session",
            "--kv-guard-scope session: comes with an identity source, which this release does "
            "not have; use request or shared",
        ),
        (
            "ttl_policy",
            "strict",
            "--kv-guard-ttl-policy strict: comes with admission under a time to live, which "
            "this release does not have; use elastic",
        ),
        ("ttl_policy", "lazy", "--kv-guard-ttl-policy lazy: expected elastic or strict"),
        ("verify_zero", "yes", "--kv-guard-verify-zero yes: expected always, sampled or off"),
        (
            "allow_unverified_engine",
            "yes",
            "--kv-guard-allow-unverified-engine: expected true or false, got 'yes'",
        ),
    ],
)
def test_wrong_value_is_one_line_that_names_the_flag(setting: str, value: str, line: str) -> None:
    with pytest.raises(PolicyError) as error:
        GuardPolicy(**{setting: value})
    assert str(error.value) == line


@pytest.mark.parametrize("ttl", [-1, "-0.5", "nan", "inf", float("-inf"), "soon", None, True, []])
def test_time_to_live_is_a_finite_number_of_seconds(ttl: object) -> None:
    with pytest.raises(PolicyError, match=r"^--kv-guard-ttl .*finite number of seconds, 0 or more"):
        GuardPolicy(ttl=ttl)


@pytest.mark.parametrize("ttl", [0, "0", 1.5, "30"])
def test_time_to_live_is_a_float(ttl: object) -> None:
    policy = GuardPolicy(ttl=ttl)
    assert isinstance(policy.ttl, float) and policy.ttl == float(ttl)


def test_survives_json() -> None:
    policy = GuardPolicy("observe", "shared", 0, "elastic", "sampled", True)
    assert GuardPolicy.from_json(policy.to_json()) == policy


def test_equal_policies_have_equal_digests() -> None:
    assert GuardPolicy(ttl=5).digest() == GuardPolicy(ttl="5.0").digest()
    assert GuardPolicy(ttl=5).digest() != GuardPolicy(ttl=6).digest()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "null",
        "[]",
        "{}",
        '{"mode": "enforce"}',
        json.dumps({**dataclasses.asdict(GuardPolicy()), "spare": 1}),
        json.dumps({**dataclasses.asdict(GuardPolicy()), "ttl": -1}),
    ],
)
def test_json_that_is_not_exactly_a_policy_is_refused(text: str) -> None:
    with pytest.raises(PolicyError):
        GuardPolicy.from_json(text)


def test_is_immutable() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        GuardPolicy().ttl = 0
