"""Public prefixes and groups in the engine's own prefix cache."""

from __future__ import annotations


def test_the_native_tree_core_is_kept(engine):
    assert engine.call("prefix_cache:tree_core").startswith("Rust")


def test_without_declared_prefixes_nothing_changes(engine):
    assert engine.call("prefix_cache:no_prefixes") == {"own": 20, "other": 0}


def test_a_public_prefix_is_shared_and_what_follows_is_private(engine):
    seen = engine.call("prefix_cache:public_then_private")
    assert seen == {
        "first": 12,
        "same slots": True,
        "again": 20,
        "again slots": True,
        "other tenant": 12,
        "bob slots": True,
        "private slots shared": [],
        "public page freed": False,
        "accounted": True,
    }


def test_only_whole_pages_that_a_prompt_starts_with_are_shared(engine):
    seen = engine.call("prefix_cache:leaving_half_way")
    # One token of a prompt is always computed, so a prompt that is the prefix itself
    # gets all pages but the last.
    assert seen == {
        "half": 4,
        "exactly": 8,
        "one more": 12,
        "short": 0,
        "unrelated": 0,
        "accounted": True,
        "public": 12,
    }


def test_public_pages_stay_until_a_flush(engine):
    seen = engine.call("prefix_cache:eviction_and_reset")
    assert seen == {"before": 0, "after eviction": 12, "accounted": True, "after reset": 0}


def test_a_prefix_may_begin_with_another(engine):
    seen = engine.call("prefix_cache:overlapping_prefixes")
    assert seen == {"shared": True, "long": 20, "short": 12, "accounted": True}


def test_samples_share_their_prompt_and_leave_nothing_behind(engine):
    seen = engine.call("prefix_cache:group_ends")
    assert seen == {
        "samples": [16, 16],
        "while one runs": 20,
        "afterwards": 0,
        "all free": True,
        "accounted": True,
    }
