"""The engine's own routes and serving classes over a stand-in for the scheduler's answers.

Everything between the scheduler's message and the client's bytes is the engine's code and
the guard's hooks; only what the scheduler said is made up.
"""

from __future__ import annotations

import asyncio
import re
from types import SimpleNamespace
from typing import Any

import httpx
from sglang.srt.entrypoints import http_server
from sglang.srt.entrypoints.anthropic.serving import AnthropicServing
from sglang.srt.entrypoints.openai.serving_chat import OpenAIServingChat
from sglang.srt.entrypoints.openai.serving_completions import OpenAIServingCompletion
from sglang.srt.entrypoints.openai.serving_responses import OpenAIServingResponses
from sglang.srt.managers.io_struct import GenerateReqInput
from sglang.srt.managers.schedule_batch import FINISH_ABORT
from sglang.srt.managers.tokenizer_manager import TokenizerManager
from sglang.srt.runtime_context import publish
from sglang.srt.server_args import ServerArgs
from starlette.background import BackgroundTasks

from sglang_kvguard.engine.http_errors import KvGuardViolation, abort_message

INCIDENT = "kvg-0001"


def _finish(end: str) -> dict[str, Any] | None:
    match end:
        case "token":
            return None
        case "stop":
            return {"type": "stop", "matched": 1}
        case "violation":
            message = abort_message("I2", INCIDENT, "an entry maps a page that is not alive")
            return FINISH_ABORT(message, 500, "InternalServerError").to_json()
        case "broken":
            return FINISH_ABORT("out of luck", 500, "InternalServerError").to_json()
        case "rejected":
            return FINISH_ABORT("too long", 400, "BadRequestError").to_json()
    raise AssertionError(end)


class _Manager(TokenizerManager):
    """A tokenizer manager whose scheduler answers what the test says."""

    def __init__(self, script: list[list[str]]) -> None:
        self.script = script
        self.rid_to_state = {}
        self.enable_lora = False
        self.server_args = None
        self.served_model_name = "tiny"
        self.request_logger = SimpleNamespace(log_requests=False)
        self.tokenizer = None

    def create_abort_task(self, _obj: Any) -> BackgroundTasks:
        return BackgroundTasks()

    async def generate_request(self, obj: GenerateReqInput, request: Any = None):
        rids = [f"r{i}" for i in range(len(self.script))]
        answers = [self._answer(*pair, obj.stream) for pair in zip(rids, self.script, strict=True)]
        if len(answers) == 1:
            async for out in answers[0]:
                yield out
        elif obj.stream:
            async for out in self._stream_batch_responses(answers, rids):
                yield out
        else:
            yield await self._collect_batch_responses(answers)

    async def _answer(self, rid: str, script: list[str], stream: bool):
        text = ""
        state = SimpleNamespace(obj=SimpleNamespace(rid=rid, lora_path=None), lora_released=False)
        self.rid_to_state[rid] = state
        for end in script:
            text += "a"
            finish = _finish(end)
            out = {
                "text": text,
                "output_ids": [7] * len(text),
                "meta_info": {
                    "id": rid,
                    "finish_reason": finish,
                    "prompt_tokens": 1,
                    "completion_tokens": len(text),
                    "cached_tokens": 0,
                    "weight_version": "default",
                },
            }
            if finish is None and not stream:
                continue
            if finish is not None:
                out["text"] += "SECRET"
                abort = await self._handle_abort_finish_reason(out, state, stream)
                if abort is not None:
                    yield abort
                    return
            yield out


def _serve(manager: _Manager) -> None:
    http_server.set_global_state(
        http_server._GlobalState(
            tokenizer_manager=manager, template_manager=None, scheduler_info={}
        )
    )

    def converted(request: Any, _raw: Any = None) -> tuple[GenerateReqInput, Any]:
        return GenerateReqInput(text="x", stream=bool(request.stream)), request

    completion = OpenAIServingCompletion(manager, None)
    completion._convert_to_internal_request = converted
    chat = OpenAIServingChat.__new__(OpenAIServingChat)
    chat.__dict__.update(
        tokenizer_manager=manager,
        template_manager=None,
        tool_call_parser=None,
        reasoning_parser=None,
        default_chat_template_kwargs={},
        supports_inline_system=True,
        chat_encoding_spec=None,
        _encoding_adapter=None,
        is_gpt_oss=False,
        is_gemma4=False,
        is_minimax_m3=False,
        _reasoning_detector=None,
        _response_parser=None,
        _convert_to_internal_request=converted,
        _validate_request=lambda _request: None,
    )
    state = http_server.app.state
    state.openai_serving_completion = completion
    state.openai_serving_chat = chat
    state.anthropic_serving = AnthropicServing(chat)


_BODIES = {
    "/generate": {"text": "x"},
    "/v1/completions": {"model": "tiny", "prompt": "x"},
    "/v1/chat/completions": {"model": "tiny", "messages": [{"role": "user", "content": "x"}]},
    "/v1/messages": {
        "model": "tiny",
        "max_tokens": 4,
        "messages": [{"role": "user", "content": "x"}],
    },
}


# What the guard must leave exactly as it is.
ORDINARY = ("stop", "broken", "rejected")

_stock: dict[tuple[str, bool, str], dict[str, Any]] = {}


def remember_stock() -> None:
    """Record the ordinary answers of every endpoint, before anything is hooked."""
    for path in _BODIES:
        for stream in (False, True):
            for end in ORDINARY:
                _stock[path, stream, end] = answer(path, stream, [["token", end]])


def differences() -> list[str]:
    """Ordinary answers that are not what they were in stock SGLang."""
    return [
        f"{path} {stream} {end}"
        for (path, stream, end), before in _stock.items()
        if answer(path, stream, [["token", end]]) != before
    ]


def answer(path: str, stream: bool, script: list[list[str]]) -> dict[str, Any]:
    """Status and body that a client of ``path`` gets for what the scheduler says.

    Args:
        script: for each completion its steps: ``token``, then ``stop``, ``violation``,
            ``broken`` (another status 500) or ``rejected`` (a 400).
    """
    publish(ServerArgs(model_path="dummy"), role="tokenizer")
    _serve(_Manager(script))

    async def post() -> httpx.Response:
        transport = httpx.ASGITransport(http_server.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            body = {**_BODIES[path], "stream": stream, "n": len(script)}
            return await client.post(path, json=body)

    response = asyncio.run(post())
    text = re.sub(r'"created":\s*\d+|msg_[0-9a-f]+', "*", response.text)
    return {"status": response.status_code, "text": text}


def responses_error() -> str:
    """What the error builder of ``/v1/responses`` makes of a violation."""
    builder = OpenAIServingResponses.__new__(OpenAIServingResponses)
    response = builder.create_error_response(str(KvGuardViolation("I2", INCIDENT, "x")))
    return f"{response.status_code} {response.body.decode()}"
