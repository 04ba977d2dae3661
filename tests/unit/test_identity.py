"""Namespaces: what splits them, and that nothing merges them."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sglang_kvguard.core.fields import join
from sglang_kvguard.core.identity import (
    EVERYBODY,
    INTERNAL,
    Claims,
    Namespaces,
    nobody,
)
from sglang_kvguard.core.salts import (
    GROUP,
    PRIVATE,
    PUBLIC_SALT,
    SHARED,
    format_salt,
    namespace_number,
    parse_salt,
    salt_after_public,
)

SECRET = bytes(range(32))
TENANT = Namespaces(SECRET, "tenant")
ALICE = TENANT.principal("header", b"alice")
BOB = TENANT.principal("header", b"bob")

text_field = st.none() | st.text(st.characters(codec=None), max_size=4)


def salt(principal=ALICE, /, scope="tenant", siblings=1, **claims) -> str:
    return Namespaces(SECRET, scope).salt(principal, Claims(**claims), siblings=siblings).text


class TestFields:
    def test_no_two_tuples_of_a_small_alphabet_are_joined_alike(self):
        # Every tuple of three fields over absent and all words of up to two of the bytes
        # that the encoding itself uses.
        alphabet = (b"\x00", b"\x01", b"a")
        words = [None, b""]
        words += [bytes().join(w) for n in (1, 2) for w in itertools.product(alphabet, repeat=n)]
        tuples = list(itertools.product(words, repeat=3))
        assert len({join("d", *fields) for fields in tuples}) == len(tuples)

    @given(st.lists(st.none() | st.binary(max_size=12), min_size=2, max_size=2), st.data())
    @settings(max_examples=500, deadline=None)
    def test_moving_bytes_between_fields_shows(self, fields, data):
        first, second = (field or b"" for field in fields)
        whole = first + second
        cut = data.draw(st.integers(0, len(whole)))
        moved = (whole[:cut], whole[cut:])
        assert (join("d", *moved) == join("d", *fields)) == (moved == tuple(fields))

    @given(*[st.tuples(text_field, text_field, text_field)] * 2)
    @settings(max_examples=500, deadline=None)
    def test_different_text_is_joined_differently(self, one, other):
        assert (join("d", *one) == join("d", *other)) == (one == other)

    def test_absent_is_not_empty(self):
        assert join("d", None) != join("d", "")

    def test_a_field_cannot_imitate_two(self):
        inner = join("", "b")[9:]
        assert join("d", "a", "b") != join("d", "a" + inner.decode("latin-1"))

    def test_domains_do_not_meet(self):
        assert join("ab", "c") != join("a", "bc")

    def test_lone_surrogates_are_kept_apart(self):
        assert join("d", "\ud800") != join("d", "\ud801")


# Fixed for good: a change would cut off every tier that keeps keys over restarts.
VECTORS = {
    "plain": ({}, "4d1e084ffd61d3584f4fd39440e1dff4b4ba6e777350b441a70f9a8c4eaf37f5"),
    "empty salt": (
        {"cache_salt": ""},
        "db782a1e3691c6ec5a733a1de5bf395d6395d8ebefad732cbf469dd54526a2ac",
    ),
}

# Pairs that give one key where fields are concatenated, in the engine among others.
ALIKE = [
    ({"extra_key": "a", "lora": "bc"}, {"extra_key": "ab", "lora": "c"}),
    ({"extra_key": "abc"}, {"lora": "abc"}),
    ({"extra_key": "abc", "lora": ""}, {"extra_key": "abc"}),
    ({"cache_salt": "ab", "extra_key": "c"}, {"cache_salt": "a", "extra_key": "bc"}),
    ({"cache_salt": "a|b"}, {"cache_salt": "a", "extra_key": "b"}),
    ({"cache_salt": "a\x00b"}, {"cache_salt": "a", "extra_key": "b"}),
    ({"cache_salt": "x", "session": "y"}, {"session": "x", "cache_salt": "y"}),
    ({"session": "s", "cache_salt": "ab"}, {"session": "sa", "cache_salt": "b"}),
    ({"model": "m1"}, {"model": "m", "weight_version": "1"}),
]


class TestNamespaces:
    @pytest.mark.parametrize("name", VECTORS)
    def test_vectors(self, name):
        claims, mac = VECTORS[name]
        principal = Namespaces(SECRET, "tenant").principal("header", b"tenant-a")
        assert salt(principal, **claims) == f"kvg1.s.{mac}"

    @pytest.mark.parametrize("one, other", ALIKE)
    def test_what_concatenates_alike_is_kept_apart(self, one, other):
        for scope in ("session", "tenant", "shared"):
            assert salt(scope=scope, **one) != salt(scope=scope, **other), scope

    def test_a_tenant_shares_with_itself_only(self):
        assert salt(ALICE) == salt(ALICE)
        assert salt(ALICE) != salt(BOB)

    @given(text_field, text_field, text_field, text_field)
    @settings(max_examples=300, deadline=None)
    def test_no_salt_of_one_tenant_reaches_another(self, salt_a, key_a, salt_b, key_b):
        one = salt(ALICE, cache_salt=salt_a, extra_key=key_a)
        other = salt(BOB, cache_salt=salt_b, extra_key=key_b)
        assert one != other

    @pytest.mark.parametrize("field", ["cache_salt", "extra_key", "session", "lora"])
    def test_sending_a_stolen_namespace_leads_elsewhere(self, field):
        stolen = salt(ALICE)
        assert salt(BOB, **{field: stolen}) != stolen

    @pytest.mark.parametrize("field", ["cache_salt", "extra_key", "lora", "model", "weight_version"])
    @pytest.mark.parametrize("scope", ["tenant", "shared"])
    def test_every_field_splits(self, scope, field):
        values = (None, "", "a", "b")
        assert len({salt(scope=scope, **{field: value}) for value in values}) == len(values)

    def test_a_token_is_not_a_name(self):
        assert TENANT.principal("bearer", b"x") != TENANT.principal("header", b"x")

    def test_another_secret_gives_other_namespaces(self):
        other = Namespaces(bytes(32), "tenant")
        assert other.salt(ALICE, Claims()) != TENANT.salt(ALICE, Claims())

    def test_a_short_secret_is_refused(self):
        with pytest.raises(ValueError, match="32 bytes"):
            Namespaces(b"x" * 31, "tenant")


class TestScopes:
    def test_request_shares_nothing(self):
        first, second = salt(scope="request"), salt(scope="request")
        assert first != second
        assert parse_salt(first).kind == PRIVATE

    def test_request_with_samples_is_a_group_of_its_own(self):
        first, second = salt(scope="request", siblings=3), salt(scope="request", siblings=3)
        assert first != second
        assert parse_salt(first).kind == GROUP
        assert parse_salt(first).siblings == 3

    def test_session_shares_within_a_session_of_a_tenant(self):
        assert salt(scope="session", session="s") == salt(scope="session", session="s")
        assert salt(scope="session", session="s") != salt(scope="session", session="t")
        assert salt(ALICE, scope="session", session="s") != salt(BOB, scope="session", session="s")

    def test_a_request_without_a_session_is_alone_under_session(self):
        assert salt(scope="session") != salt(scope="session")

    def test_tenant_does_not_look_at_sessions(self):
        assert salt(session="s") == salt(session="t")

    def test_shared_does_not_look_at_principals(self):
        assert salt(ALICE, scope="shared") == salt(BOB, scope="shared")
        assert salt(nobody(), scope="shared") == salt(EVERYBODY, scope="shared")

    @pytest.mark.parametrize("scope", ["request", "session", "tenant"])
    def test_anonymous_requests_are_alone(self, scope):
        somebody = nobody()
        first = salt(somebody, scope=scope, session="s")
        assert first != salt(somebody, scope=scope, session="s")
        assert parse_salt(first).kind == PRIVATE

    @pytest.mark.parametrize("scope", ["request", "session", "tenant", "shared"])
    def test_the_servers_own_requests_are_alone(self, scope):
        internal = nobody(INTERNAL)
        assert salt(internal, scope=scope) != salt(internal, scope=scope)
        assert salt(internal, scope=scope) != salt(EVERYBODY, scope=scope)


class TestSalts:
    def test_text_is_read_back(self):
        mac = bytes(range(32))
        for kind, siblings in ((PRIVATE, 1), (SHARED, 0), (GROUP, 2), (GROUP, 128)):
            read = parse_salt(format_salt(kind, mac, siblings))
            assert (read.kind, read.siblings) == (kind, siblings)

    @pytest.mark.parametrize(
        "text",
        [None, "", "a", PUBLIC_SALT, "kvg1.s." + "0" * 63, "kvg1.s." + "A" * 64,
         "kvg1.s." + "0" * 64 + "\n", "kvg1.g0." + "0" * 64, "kvg1.g." + "0" * 64,
         " kvg1.s." + "0" * 64, 7, ["kvg1.s." + "0" * 64]],
    )  # fmt: skip
    def test_anything_else_is_not_ours(self, text):
        assert parse_salt(text) is None

    @given(st.binary(min_size=32, max_size=32))
    @settings(deadline=None)
    def test_numbers_fit_the_ledger_and_are_never_counted_ones(self, mac):
        number = parse_salt(format_salt(SHARED, mac)).namespace
        assert 1 << 62 <= number < 1 << 63

    def test_number_vector(self):
        assert namespace_number("kvg1.s." + VECTORS["plain"][1]) == 8504728120617513881

    def test_tails_meet_only_after_the_same_prefix_in_the_same_namespace(self):
        salts = {salt_after_public(s, lead) for s in ("a", "b") for lead in (b"x", b"y")}
        assert len(salts) == 4
        assert all(parse_salt(s) is None and s != PUBLIC_SALT for s in salts)


class TestLabels:
    def test_a_principal_does_not_show_its_name(self):
        principal = TENANT.principal("bearer", b"sk-secret-token")
        assert "secret" not in repr(principal) + principal.label
        assert len(principal.label) == 12
        assert principal.label != ALICE.label

    def test_nobody_is_never_the_same(self):
        assert nobody() != nobody()


class TestSessions:
    def test_nobody_elses_name_leads_to_a_session(self):
        assert TENANT.session(ALICE, "s") == TENANT.session(ALICE, "s")
        assert TENANT.session(ALICE, "s") != TENANT.session(BOB, "s")
        assert TENANT.session(BOB, TENANT.session(ALICE, "s")) != TENANT.session(ALICE, "s")

    def test_requests_of_a_session_are_found_again(self):
        first = TENANT.request_nonce(ALICE, "s", "r")
        assert first == TENANT.request_nonce(ALICE, "s", "r")
        assert len(first) == 32
        others = {
            TENANT.request_nonce(BOB, "s", "r"),
            TENANT.request_nonce(ALICE, "t", "r"),
            TENANT.request_nonce(ALICE, "sr", ""),
        }
        assert first not in others and len(others) == 3
