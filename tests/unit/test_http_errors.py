"""A violation has one shape for clients; every other answer is stock SGLang's."""

import json

import pytest

from tests.unit.engine_process import EngineProcess

NATIVE, COMPLETIONS, CHAT = "/generate", "/v1/completions", "/v1/chat/completions"
MESSAGES = "/v1/messages"

ERROR = {
    "message": "KV guard ended this request: an entry maps a page that is not alive "
    "(I2, incident kvg-0001); it may be sent again",
    "type": "KvGuardViolation",
    "code": 500,
    "param": None,
    "kv_guard_violation": True,
    "invariant": "I2",
    "incident_id": "kvg-0001",
    "retryable": True,
}
# (what the scheduler says about each completion)
ONE = [["token", "violation"]]
AT_ONCE = [["violation"]]
FIRST_OF_TWO = [["violation"], ["token", "token", "stop"]]


def _events(text: str) -> list[str]:
    return [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]


@pytest.mark.parametrize("script", [ONE, AT_ONCE, FIRST_OF_TWO], ids=["1", "at once", "n=2"])
@pytest.mark.parametrize("path", [NATIVE, COMPLETIONS, CHAT])
def test_not_streamed(guarded: EngineProcess, path: str, script: list) -> None:
    answer = guarded.call("http:answer", path, False, script)
    assert answer["status"] == 500
    assert json.loads(answer["text"]) == {"error": ERROR}


@pytest.mark.parametrize("path", [NATIVE, COMPLETIONS, CHAT])
def test_stream_that_has_begun(guarded: EngineProcess, path: str) -> None:
    answer = guarded.call("http:answer", path, True, ONE)
    assert answer["status"] == 200
    *tokens, error, done = _events(answer["text"])
    assert tokens and json.loads(error) == {"error": ERROR} and done == "[DONE]"
    assert "SECRET" not in answer["text"]


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
def test_stream_that_has_not_begun_is_a_status_500(guarded: EngineProcess, path: str) -> None:
    answer = guarded.call("http:answer", path, True, AT_ONCE)
    assert answer["status"] == 500
    assert json.loads(answer["text"]) == {"error": ERROR}


def test_native_stream_sends_its_status_before_it_knows(guarded: EngineProcess) -> None:
    answer = guarded.call("http:answer", NATIVE, True, AT_ONCE)
    assert answer["status"] == 200
    assert [json.loads(_events(answer["text"])[0]), _events(answer["text"])[1:]] == [
        {"error": ERROR},
        ["[DONE]"],
    ]


@pytest.mark.parametrize("path", [NATIVE, COMPLETIONS, CHAT])
def test_stream_of_several_ends_with_the_first_violation(guarded: EngineProcess, path: str) -> None:
    script = [["token", "violation"], ["token", "token", "token", "token", "stop"]]
    answer = guarded.call("http:answer", path, True, script)
    *_, error, done = _events(answer["text"])
    assert json.loads(error) == {"error": ERROR} and done == "[DONE]"


def test_anthropic(guarded: EngineProcess) -> None:
    answer = guarded.call("http:answer", MESSAGES, False, ONE)
    assert answer["status"] == 500
    assert json.loads(answer["text"]) == {
        "type": "error",
        "error": {**ERROR, "type": "api_error"},
    }


def test_anthropic_stream_names_the_incident(guarded: EngineProcess) -> None:
    answer = guarded.call("http:answer", MESSAGES, True, ONE)
    errors = [json.loads(event) for event in _events(answer["text"]) if '"error"' in event]
    assert [error["error"]["message"] for error in errors] == [ERROR["message"]]
    assert "SECRET" not in answer["text"]


def test_responses_error_builder(guarded: EngineProcess) -> None:
    status, body = guarded.call("http:responses_error").split(" ", 1)
    assert status == "500" and json.loads(body)["error"]["incident_id"] == "kvg-0001"


def test_every_other_answer_is_what_it_was(guarded: EngineProcess) -> None:
    assert guarded.call("http:differences") == []
