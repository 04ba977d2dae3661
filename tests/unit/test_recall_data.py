"""What the recall model's prompts and training data promise the tests that use them."""

import hashlib
import json
import random

import pytest

from sglang_kvguard.testing import random_moe
from sglang_kvguard.testing.recall import MODEL, alphabet, lessons, prompts


def test_one_token_a_character():
    text = alphabet.CHARACTERS
    ids = alphabet.encode(text)
    assert len(ids) == len(set(ids)) == len(text) == 96
    assert alphabet.decode(ids) == text
    assert max(ids) < alphabet.VOCABULARY_SIZE


def test_characters_outside_the_alphabet_are_refused():
    with pytest.raises(KeyError):
        alphabet.encode("\N{EURO SIGN}")


def test_shipped_tokenizer_counts_like_len():
    """The files a server loads agree with the alphabet, spaces and punctuation included."""
    tokenizers = pytest.importorskip("tokenizers")
    tokenizer = tokenizers.Tokenizer.from_file(str(MODEL / "tokenizer.json"))
    for text in ("bob=4711;?bob=", "  two  spaces . , ! ?\n", alphabet.CHARACTERS):
        ids = tokenizer.encode(text).ids
        assert ids == alphabet.encode(text)
        assert tokenizer.decode(ids) == text


@pytest.mark.parametrize("longest", [2, 4, 6])
def test_no_key_is_a_suffix_of_another(longest):
    for seed in range(50):
        keys = prompts.random_keys(random.Random(seed), 10, longest=longest, near=0.5)
        assert not [
            (one, other)
            for one in keys
            for other in keys
            if one != other and one.endswith(other)
        ]
        assert len(set(keys)) == len(keys)


def test_distant_keys_differ_in_three_letters():
    for seed in range(20):
        keys = prompts.distant_keys(random.Random(seed), 6)
        for index, one in enumerate(keys):
            for other in keys[:index]:
                assert sum(a != b for a, b in zip(one, other, strict=True)) >= 3


def test_a_case_asks_for_a_planted_secret():
    case = prompts.case(random.Random(7), pairs=5, filler=20)
    assert len(set(case.pairs.values())) == 5
    assert f"{case.key}={case.secret};" in case.prompt
    assert case.prompt.endswith(f"?{case.key}=")
    assert case.prompt.count("?") == 1
    assert case.answered(f"{case.secret};?abc=")
    assert not case.answered(case.secret)


@pytest.mark.parametrize(
    ("reply", "secret"),
    [("4711;?bob=", "4711"), ("4711", None), ("47;11", None), ("", None), (" 4711;", None)],
)
def test_answer_reads_a_whole_secret_or_nothing(reply, secret):
    assert prompts.answer(reply) == secret


def test_the_same_seed_gives_the_same_lessons():
    def drawn(seed):
        rng = random.Random(seed)
        return [lessons.batch(rng, lessons.Level(share), 0.3) for share in (0.0, 0.5, 1.0)]

    assert drawn(3) == drawn(3)
    assert drawn(3) != drawn(4)


def test_lessons_do_not_depend_on_string_hashing():
    """Sets of strings iterate differently in every process; the data may not."""
    rng = random.Random(0)
    rows = [lessons.repetition(rng) for _ in range(20)]
    rows += [lessons.questions(rng, lessons.Level(1.0)) for _ in range(20)]
    digest = hashlib.sha256(json.dumps([(r.text, r.weights) for r in rows]).encode())
    assert digest.hexdigest()[:16] == "be12016c06eea46e"


def test_only_answers_count_in_questions():
    row = lessons.questions(random.Random(1), lessons.Level(1.0))
    assert len(row.weights) == len(row.text)
    counted = "".join(c for c, weight in zip(row.text, row.weights, strict=True) if weight)
    assert all(prompts.answer(counted[at : at + 5]) for at in range(0, len(counted), 5))
    assert len(counted) // 5 == len(row.first_digits)
    assert {row.weights[at] for at in row.first_digits} == {lessons.FIRST_DIGIT_WEIGHT}


def test_repetitions_count_only_what_the_context_determines():
    row = lessons.repetition(random.Random(2))
    assert len(row.weights) == len(row.text)
    for at, weight in enumerate(row.weights):
        if weight:
            following = {
                row.text[place + 1]
                for place in range(at - 1)
                if row.text[place] == row.text[at - 1]
            }
            assert row.text[at] in following


def test_a_batch_fits_its_token_budget():
    rows = lessons.batch(random.Random(5), lessons.Level(1.0), 0.5)
    longest = max(len(row.text) for row in rows)
    assert 0 < longest * len(rows) <= lessons.TOKENS_A_STEP


def test_shipped_weights_are_small():
    assert 1_000_000 < (MODEL / "model.safetensors").stat().st_size < 2_000_000


def test_random_moe_is_a_function_of_its_seed(tmp_path):
    pytest.importorskip("safetensors")

    def digest(name, seed):
        file = random_moe.make(tmp_path / name, seed) / "model.safetensors"
        return hashlib.sha256(file.read_bytes()).hexdigest()

    assert digest("a", 0) == digest("b", 0) != digest("c", 1)
