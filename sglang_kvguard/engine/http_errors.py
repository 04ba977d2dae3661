"""What a client gets when its request broke an invariant: one shape on every endpoint.

The scheduler ends the request with ``FINISH_ABORT(abort_message(...), HTTP 500)``. The
server process turns that into :class:`KvGuardViolation` where the engine would pass
an abort on, so that no token of that output is delivered, and into this body wherever
the engine builds an error from an exception's text::

    {"error": {"message": "...", "type": "KvGuardViolation", "code": 500, "param": null,
               "kv_guard_violation": true, "invariant": "I2", "incident_id": "...",
               "retryable": true}}

===========================  =====================================================
not streamed                 HTTP 500 with that body
stream that has begun        ``data: {"error": {...}}`` with the same fields, then the
                             end of the stream (``data: [DONE]``)
``/generate``, streamed      always as a stream that has begun: the engine sends
                             status 200 before the first token exists
``/v1/responses``, streamed  its own ``response.failed`` event, with the message
``/v1/messages``             the fields inside Anthropic's error object; streamed, its
                             own ``error`` event, with the message
other endpoints              HTTP 500 with the engine's error object, and the message
``Engine.generate``          raises :class:`KvGuardViolation`
===========================  =====================================================

A call that asked for several completions (``n`` > 1, or a batch) fails as a whole, as it
does in the engine for any other error of one of them.

**Retrying.** ``retryable`` is true: the request was ended because its pages were not
what they should have been, not because of what it asked for. The same request sent
again is a new request with new pages and a new incident id, should it happen again.
Tokens of a stream that arrived before the error event were computed before the
violation and are right; the retry starts over.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

from fastapi import HTTPException
from fastapi.responses import JSONResponse

ERR_TYPE = "KvGuardViolation"
STATUS = HTTPStatus.INTERNAL_SERVER_ERROR

_PREFIX = f'{{"{ERR_TYPE}": '


def abort_message(invariant: str, incident_id: str, text: str) -> str:
    """What the scheduler passes to ``FINISH_ABORT`` as its message.

    Args:
        invariant: ``"I1"`` to ``"I7"``.
        incident_id: of the record that the operator finds in the log.
        text: what was broken, in words, without prompt text.

    Returns:
        JSON that :func:`raise_violation` reads back in the server process.
    """
    return json.dumps(
        {ERR_TYPE: {"invariant": invariant, "incident_id": incident_id, "text": text}}
    )


class ViolationText(str):
    """The message of a violation, which finds its way through ``str(exception)``.

    Attributes:
        body: the fields of the error object.
    """

    body: dict[str, Any]

    def __new__(cls, invariant: str, incident_id: str, text: str) -> ViolationText:
        self = super().__new__(
            cls,
            f"KV guard ended this request: {text} ({invariant}, incident {incident_id}); "
            "it may be sent again",
        )
        self.body = {
            "message": str(self),
            "type": ERR_TYPE,
            "code": STATUS.value,
            "param": None,
            "kv_guard_violation": True,
            "invariant": invariant,
            "incident_id": incident_id,
            "retryable": True,
        }
        return self

    def __str__(self) -> ViolationText:
        return self


class KvGuardViolation(ValueError, HTTPException):
    """The request broke an invariant and was ended.

    A ``ValueError``, because that is what every endpoint of the engine turns into an
    error of its own in the middle of a stream, and an ``HTTPException`` for those that
    catch nothing.

    Attributes:
        detail: the message.
        body: the fields of the error object, ``incident_id`` among them.
    """

    def __init__(self, invariant: str, incident_id: str, text: str) -> None:
        message = ViolationText(invariant, incident_id, text)
        HTTPException.__init__(self, STATUS.value, message)
        self.body = message.body

    def __str__(self) -> str:
        return self.detail


async def raise_violation(original: Callable, self, out: dict, state, is_stream: bool):
    """Hook around ``TokenizerManager._handle_abort_finish_reason``.

    Raises:
        KvGuardViolation: the request was ended by the guard.
        Exception: what the engine raises for every other abort.
    """
    violation = _violation_in(out["meta_info"]["finish_reason"])
    if violation is None:
        return await original(self, out, state, is_stream)
    # As for a stream, which drops the request's state and raises nothing.
    await original(self, out, state, True)
    raise violation


def native_response(original: Callable, e: Exception):
    """Hook around ``http_server._create_error_response`` (``/generate`` and its kin)."""
    return _response(e.body) if isinstance(e, KvGuardViolation) else original(e)


def native_event(original: Callable, content: Any) -> bytes:
    """Hook around ``http_server.dumps_json``: the error event of a ``/generate`` stream."""
    if isinstance(content, dict) and isinstance(error := content.get("error"), dict):
        if isinstance(text := error.get("message"), ViolationText):
            content = {"error": text.body}
    return original(content)


def openai_response(original: Callable, self, message: str, *args, **kwargs):
    """Hook around ``create_error_response`` of the OpenAI endpoints."""
    if isinstance(message, ViolationText):
        return _response(message.body)
    return original(self, message, *args, **kwargs)


def openai_event(original: Callable, self, message: str, *args, **kwargs) -> str:
    """Hook around ``create_streaming_error_response`` of the OpenAI endpoints."""
    if isinstance(message, ViolationText):
        return json.dumps({"error": message.body})
    return original(self, message, *args, **kwargs)


def anthropic_response(original: Callable, self, response):
    """Hook around ``AnthropicServing._convert_openai_error_response``.

    The engine never shows an Anthropic client what a status 500 was about.
    """
    body = _error_of(response)
    if not body.get("kv_guard_violation"):
        return original(self, response)
    return JSONResponse(
        {"type": "error", "error": {**body, "type": "api_error"}}, status_code=STATUS.value
    )


def _violation_in(finish_reason: dict[str, Any]) -> KvGuardViolation | None:
    message = finish_reason.get("message")
    if finish_reason.get("type") != "abort" or not str(message).startswith(_PREFIX):
        return None
    return KvGuardViolation(**json.loads(message)[ERR_TYPE])


def _response(body: dict[str, Any]) -> JSONResponse:
    return JSONResponse({"error": body}, status_code=STATUS.value)


def _error_of(response) -> dict[str, Any]:
    try:
        error = json.loads(response.body)["error"]
    except (AttributeError, KeyError, TypeError, ValueError):
        return {}
    return error if isinstance(error, dict) else {}
