"""Declarations of public prefixes, and how much of a prompt is public."""

from __future__ import annotations

import json
from array import array

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sglang_kvguard.core.policy_error import PolicyError
from sglang_kvguard.core.public_prefix import Declared, PublicPrefixes, Shared, read_declarations


def prefixes(*ids, page_size=4) -> PublicPrefixes:
    entries = [Declared(str(n), token_ids=tuple(tokens)) for n, tokens in enumerate(ids)]
    return PublicPrefixes(entries, page_size, list)


def length(public: PublicPrefixes, tokens, limit=None) -> int:
    return public.shared(array("q", tokens), len(tokens) if limit is None else limit).length


class TestFile:
    @pytest.fixture
    def write(self, tmp_path):
        def write(content):
            path = tmp_path / "prefixes.json"
            path.write_text(content if isinstance(content, str) else json.dumps(content))
            path.chmod(0o644)
            return path

        return write

    def test_read(self, write):
        path = write([{"name": "a", "text": "x"}, {"name": "b", "token_ids": [1, 2]}])
        assert read_declarations(str(path)) == (
            Declared("a", text="x"),
            Declared("b", token_ids=(1, 2)),
        )

    @pytest.mark.parametrize(
        "content",
        ["", "{}", "[]", "[1]", '[{"text": "x"}]', '[{"name": "", "text": "x"}]',
         '[{"name": "a"}]', '[{"name": "a", "text": ""}]', '[{"name": "a", "token_ids": []}]',
         '[{"name": "a", "token_ids": [true]}]', '[{"name": "a", "token_ids": [-1]}]',
         '[{"name": "a", "token_ids": [1.0]}]', '[{"name": "a", "text": "x", "token_ids": [1]}]',
         '[{"name": "a", "text": "x", "salt": "y"}]',
         '[{"name": "a", "text": "x"}, {"name": "a", "text": "y"}]'],
    )  # fmt: skip
    def test_refused_in_one_line_that_names_the_flag(self, write, content):
        with pytest.raises(PolicyError, match="--kv-guard-public-prefix") as caught:
            read_declarations(str(write(content)))
        assert "\n" not in str(caught.value)

    def test_others_may_not_write_it(self, write):
        path = write([{"name": "a", "text": "x"}])
        path.chmod(0o664)
        with pytest.raises(PolicyError, match="others may write it .*chmod go-w"):
            read_declarations(str(path))

    def test_missing(self, tmp_path):
        with pytest.raises(PolicyError, match="--kv-guard-public-prefix .*No such file"):
            read_declarations(str(tmp_path / "none"))


class TestShared:
    def test_only_whole_pages(self):
        public = prefixes(range(10))
        assert len(public.tokens[0]) == 8
        assert length(public, range(10)) == 8
        assert length(public, range(7)) == 4
        assert length(public, range(3)) == 0

    def test_the_limit_counts(self):
        assert length(prefixes(range(8)), range(20), limit=7) == 4
        assert length(prefixes(range(8)), range(20), limit=0) == 0

    def test_the_longest_of_several(self):
        public = prefixes(range(4), range(8), [7] * 8)
        assert public.shared(array("q", range(20)), 20) == Shared(1, 8)

    def test_shorter_than_a_page(self):
        with pytest.raises(PolicyError, match="prefix 0 has 3 tokens, less than a page"):
            prefixes(range(3))

    def test_text_is_tokenized(self):
        public = PublicPrefixes([Declared("a", text="abcd")], 2, lambda text: [ord(c) for c in text])
        assert length(public, [97, 98, 99]) == 2

    def test_digests_differ(self):
        public = prefixes(range(8), [9] * 8)
        found = {public.digest_of(Shared(p, n)) for p in (0, 1) for n in (4, 8)}
        assert len(found) == 4

    def test_prefixes_that_begin_alike_have_one_digest_for_what_is_alike(self):
        public = prefixes(range(8), [*range(4), 9, 9, 9, 9])
        assert public.digest_of(Shared(0, 4)) == public.digest_of(Shared(1, 4))

    @given(
        st.lists(st.lists(st.integers(0, 1), min_size=2, max_size=12), min_size=1, max_size=3),
        st.lists(st.integers(0, 1), max_size=14),
        st.integers(0, 14),
    )
    @settings(max_examples=400, deadline=None)
    def test_as_if_compared_page_by_page(self, declared, tokens, limit):
        public = prefixes(*declared, page_size=2)
        expected = 0
        for prefix in public.tokens:
            common = 0
            for at in range(0, min(len(prefix), len(tokens), limit) - 1, 2):
                if list(prefix[at : at + 2]) != tokens[at : at + 2]:
                    break
                common = at + 2
            expected = max(expected, common)
        assert length(public, tokens, limit) == expected
