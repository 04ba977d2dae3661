"""Ids on the wire: no client's id begins, equals or reveals another's."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sglang_kvguard.core.identity import Namespaces
from sglang_kvguard.engine.request_ids import (
    client_rid,
    give_back_ids,
    is_minted,
    mint,
    session_rid,
)


@given(st.text(max_size=40), st.text(max_size=40))
def test_no_minted_id_begins_another(one, other):
    first, second = mint(one), mint(other)
    assert not first.startswith(second) and not second.startswith(first)


@given(st.text(max_size=80))
def test_the_clients_id_is_read_back(rid):
    assert is_minted(mint(rid))
    assert client_rid(mint(rid)) == rid
    # Also when the client imitates the form.
    imitation = mint(rid)
    assert client_rid(mint(imitation)) == imitation


def test_ids_that_the_engine_drew_stay():
    drawn = "0123456789abcdef" * 2
    assert not is_minted(drawn)
    assert client_rid(drawn) == drawn


def test_answers_show_the_clients_id():
    one = {"meta_info": {"id": mint("a")}, "text": ""}
    batch = [{"meta_info": {"id": mint("b")}}, {"meta_info": {"id": "f" * 32}}]
    for output in (one, batch, {"error": 1}, [None], "text"):
        give_back_ids(output)
    assert one["meta_info"]["id"] == "a"
    assert [output["meta_info"]["id"] for output in batch] == ["b", "f" * 32]


def test_a_session_finds_its_requests_again():
    namespaces = Namespaces(bytes(32), "session")
    alice, bob = (namespaces.principal("header", name) for name in (b"a", b"b"))
    first = session_rid(namespaces, alice, "s", "r")
    assert first == session_rid(namespaces, alice, "s", "r")
    assert first != session_rid(namespaces, bob, "s", "r")
    assert client_rid(first) == "r"
