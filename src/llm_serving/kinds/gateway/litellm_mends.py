"""Mends of LiteLLM 1.106.0: copied beside its config.yaml, which names it as a hook so that LiteLLM imports it.

Each one takes the place of a function of LiteLLM's, or of a package of its environment.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import logging
import sys
import time
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from litellm import router as litellm_router
from litellm import utils
from litellm.caching.caching import Cache
from litellm.exceptions import BadRequestError, ServiceUnavailableError, Timeout
from litellm.integrations.custom_logger import CustomLogger
from litellm.litellm_core_utils import core_helpers
from litellm.llms.anthropic.pass_through.adapters.handler import LiteLLMMessagesToCompletionTransformationHandler
from litellm.llms.anthropic.pass_through.adapters.transformation import AnthropicAdapter
from litellm.llms.anthropic.pass_through.messages import handler as messages_handler
from litellm.llms.bedrock.count_tokens.bedrock_token_counter import BedrockTokenCounter
from litellm.llms.openai.completion.handler import OpenAITextCompletion
from litellm.llms.openai.responses.count_tokens.token_counter import OpenAITokenCounter
from litellm.proxy import _types, common_request_processing, tracing_endpoints
from litellm.proxy._types import LiteLLMRoutes, ProxyException
from litellm.proxy.anthropic_endpoints import endpoints as anthropic_endpoints
from litellm.proxy.auth import user_api_key_auth
from litellm.proxy.spend_tracking import spend_tracking_utils
from litellm.responses import main as responses
from litellm.responses.streaming_iterator import ResponsesAPIStreamingIterator
from litellm.types.router import GenericLiteLLMParams
from openai._base_client import BaseClient
from prisma._base_client import BasePrisma
from starlette.middleware.errors import ServerErrorMiddleware

# proxy/db/prisma_client.py, `_write_engine`, writes a client's engine to a name that prisma 0.15.0 no longer has, and
# fails with each engine that it starts: after its own start, and after that engine went away.
BasePrisma._Prisma__engine = BasePrisma._engine

# OpenAI's `models.retrieve`, which LiteLLM refuses to keys of teams. A model that is not the team's gets 404.
for routes in (LiteLLMRoutes.openai_routes, LiteLLMRoutes.llm_api_routes):
    routes.value.append("/v1/models/{model_id}")

# Messages with `thinking` are chats as all others are (litellm_settings.py). An engine's chat has its thoughts.
LiteLLMMessagesToCompletionTransformationHandler._route_openai_thinking_to_responses_api_if_needed = staticmethod(
    lambda *_, **__: None
)

# Tokens of messages are counted here: LiteLLM would ask the deployment, before hooks mask what is personal, take an
# answer without a count for 0, and ask api.openai.com in place of a mock.
for counter in (OpenAITokenCounter, BedrockTokenCounter):
    counter.should_use_token_counting_api = lambda *_, **__: False

GIVEN_UP = ("abort", "error", "cancelled", "timeout")
"""Finish reasons of an answer that an engine ended early, with HTTP 200: `abort` of vLLM and SGLang, as where they stop
(github.com/vllm-project/vllm/issues/57082, read 2026-11-29), the last two of TensorRT-LLM."""

_CLIENTS_NAMES = ("session_id", "agent_id", "billing_agent_id")
"""Columns of records that clients fill."""

_OPENAI = {"openai", "text-completion-openai"}
"""LiteLLM's names of the provider of our deployments; the second one is that of completions."""

_EARLY_FORMS = {"tools": list, "metadata": dict, "web_search_options": dict}
"""Of fields at whose other forms LiteLLM fails before its hooks, of which request_guard.py has those of the rest."""

_STORES = ("prisma", "redis")
"""Modules of errors whose messages are of the database and the cache, and not of a request."""


def mend(owner: Any, name: str) -> Callable[[Callable[..., Any]], None]:
    """Let a function take the place of one of LiteLLM's, or of a package's, which it is given first."""

    def take_place(replacement: Callable[..., Any]) -> None:
        original = getattr(owner, name)

        def call(*arguments: Any, **options: Any) -> Any:
            return replacement(original, *arguments, **options)

        setattr(owner, name, call)

    return take_place


@mend(Cache, "get_cache_key")
def leave_out_id(get_key: Callable[..., str], cache: Cache, /, **request: Any) -> str:
    """Let the key of a kept answer leave out the headers: they have the id only, another for each request."""
    return get_key(cache, **{name: value for name, value in request.items() if name != "extra_headers"})


@mend(BaseClient, "_process_response_data")
def refuse_given_up(read: Callable[..., Any], client: BaseClient[Any, Any], /, *, data: Any, **options: Any) -> Any:
    """Let the client of deployments refuse an answer, or an event of a stream, by which an engine gives up.

    LiteLLM calls these reasons `stop`, and keeps what there is of the text as the answer.
    """
    for choice in (data.get("choices") or ()) if isinstance(data, dict) else ():
        if (reason := choice.get("finish_reason")) in GIVEN_UP:
            message = f"the engine gave the answer up: finish_reason {reason}"
            raise ServiceUnavailableError(message=message, llm_provider="openai", model=str(data.get("model")))
    return read(client, data=data, **options)


def _build_refusal(message: str, field: str) -> ProxyException:
    """Build the 400 for a request that is refused outside the hooks of request_guard.py."""
    return ProxyException(message=message, type="invalid_request_error", param=field, code=400)


@mend(user_api_key_auth, "read_request_body")
async def refuse_other_bodies(read: Callable[..., Awaitable[Any]], /, *arguments: Any, **options: Any) -> Any:
    """Refuse a body at which LiteLLM fails before its hooks with 400, such as one that is JSON and no object."""
    body = await read(*arguments, **options)
    if not isinstance(body, dict):
        raise _build_refusal("The body is no JSON object", "request_body")
    for field, form in _EARLY_FORMS.items():
        if body.get(field) is not None and not isinstance(body[field], form):
            raise _build_refusal(f"{field} has another form in the API", field)
    return body


@mend(tracing_endpoints, "otlp_error_response")
def answer_messages(find_answer: Callable[..., Any], request: Any, *arguments: Any) -> Any:
    """Answer messages that are refused before their endpoint, as by a wrong key, in the form of Anthropic's errors.

    LiteLLM asks this function first for the form, and has OpenAI's for all that it does not know.
    """
    error = sys.exception()
    if isinstance(error, ProxyException) and request.url.path.startswith("/v1/messages"):
        return anthropic_endpoints._anthropic_error_json_response(error, request)
    return find_answer(request, *arguments)


@mend(AnthropicAdapter, "translate_completion_input_params_with_tool_mapping")
def refuse_unreadable(translate: Callable[..., Any], /, *arguments: Any, **options: Any) -> Any:
    """Refuse a request of Anthropic's API that LiteLLM cannot turn into a chat with 400: it fails with 500."""
    try:
        return translate(*arguments, **options)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        message = "The request has another form in the API"
        raise BadRequestError(message=message, model="", llm_provider="") from error


class MockedAsChat(GenericLiteLLMParams):  # type: ignore[misc] # of another environment
    """Lets a mock answer messages and responses as chats: LiteLLM's own has no stream, and a fixed number of tokens."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{**options, "mock_response": None})


messages_handler.GenericLiteLLMParams = responses.GenericLiteLLMParams = MockedAsChat


@mend(_types, "TokenCountRequest")
def refuse_uncountable(build: Callable[..., Any], /, **fields: Any) -> Any:
    """Refuse a request to count tokens that has another form with 400: LiteLLM fails with 500."""
    try:
        return build(**fields)
    except ValueError as error:
        raise _build_refusal("The request has another form in the API", "messages") from error


@mend(ProxyException, "__init__")
def say_when_and_why(create: Callable[..., None], answer: ProxyException, /, *arguments: Any, **options: Any) -> None:
    """Tell a client when to come again, as a deployment that is full says, or a team's limit of Anthropic's API.

    LiteLLM leaves that out of its answer. After a route's `timeout` it is not to come again: clients of OpenAI and
    Anthropic repeat a 408 twice, and an engine that is too slow would work three times as long. To calls for pictures
    and rankings that hooks refuse LiteLLM writes the whole exception as the message.
    """
    create(answer, *arguments, **options)
    error = sys.exception()
    headers = getattr(error, "litellm_response_headers", None) or getattr(error, "headers", None) or {}
    if wait := headers.get("retry-after"):
        answer.headers.setdefault("retry-after", wait)
    detail = getattr(error, "detail", None)
    if isinstance(detail, dict) and isinstance(detail.get("error"), dict):
        answer.message = detail["error"]["message"]
    if isinstance(error, Timeout):
        answer.headers["x-should-retry"] = "false"


@mend(litellm_router.Router, "_time_to_sleep_before_retry")
def wait_for_nobody(compute: Callable[..., float], router: Any, /, **options: Any) -> float:
    """Wait before a further attempt only where there is one, and no fallback.

    LiteLLM waits as long as the deployment's `Retry-After` says, also after the last attempt and before a fallback.
    """
    routes = {deployment["model_name"] for deployment in options["all_deployments"] or ()}
    has_fallback = any(routes & {*fallback} for fallback in router.fallbacks or ())
    return 0 if has_fallback or not options["remaining_retries"] else compute(router, **options)


@mend(core_helpers, "add_missing_spend_metadata_to_litellm_metadata")
def read_copy(add: Callable[..., Any], records: dict[str, Any], metadata: dict[str, Any]) -> Any:
    """Let LiteLLM read a copy of what it notes of a request, to which a thread that records it adds meanwhile.

    Of answers to messages that deployments had given some were 500, "dictionary changed size during iteration".
    """
    return add(records, dict(metadata))


# What clients call their own user: `user`, `safety_identifier`, headers. Where Postgres refuses the text, such as one
# with a NUL, LiteLLM drops the record, and what all teams spent in those seconds: `_commit_spend_updates_to_db` in
# proxy/db/db_spend_update_writer.py writes the spending of teams after that of such users.
user_api_key_auth.get_end_user_id_from_request_body = lambda *_, **__: None


@mend(spend_tracking_utils, "get_logging_payload")
def leave_out_names(build: Callable[..., dict[str, Any]], /, *arguments: Any, **options: Any) -> dict[str, Any]:
    """Leave out of records what clients call their sessions and agents, by fields or headers.

    Where Postgres refuses such a text, as one with a NUL, or too long for an index, there was no record of the request.
    """
    return {**build(*arguments, **options), **dict.fromkeys(_CLIENTS_NAMES, "")}


@mend(ServerErrorMiddleware, "__call__")
async def keep_connection(answer: Callable[..., Awaitable[None]], *arguments: Any) -> None:
    """Let an error that was logged and answered end there.

    Starlette raises it again, and uvicorn then closes the connection behind the answer: the next request that nginx
    sends on it, another client's, gets 502.
    """
    with contextlib.suppress(Exception):
        await answer(*arguments)


@mend(OpenAITextCompletion, "async_streaming")
async def start_stream(stream: Callable[..., AsyncIterator[Any]], /, *arguments: Any, **options: Any) -> Any:
    """Wait for the first chunk of a stream of completions before its answer begins, as of one of chats.

    LiteLLM asks the deployment only then: where it refused or failed, no other one was asked, nor `Retry-After` said.
    """
    chunks = stream(*arguments, **options)
    first = await anext(chunks, None)

    async def go_on() -> AsyncIterator[Any]:
        if first is not None:
            yield first
        async for chunk in chunks:
            yield chunk

    return go_on()


@mend(utils.TextCompletionStreamWrapper, "convert_to_text_completion_object")
def keep_chunks(convert: Callable[..., Any], stream: utils.TextCompletionStreamWrapper, chunk: Any) -> Any:
    """Keep what a stream of completions has said, from which LiteLLM bills one that its client leaves."""
    vars(stream).setdefault("chunks", []).append(chunk)
    return convert(stream, chunk)


@mend(common_request_processing, "_bill_partial_streamed_spend_on_disconnect")
async def bill_prompt(bill: Callable[..., Awaitable[bool]], request_data: dict[str, Any], response: Any) -> bool:
    """Have the prompt of such a stream billed too."""
    stream = getattr(response, "inner", response)  # HiddenParamsAsyncIteratorWrapper's
    if isinstance(stream, utils.TextCompletionStreamWrapper):
        stream.messages = [{"role": "user", "content": str(request_data.get("prompt"))}]
    return await bill(request_data, stream)


@mend(utils, "_check_provider_match")
def take_as_one(match: Callable[..., bool], model_info: dict[str, Any], custom_llm_provider: str | None) -> bool:
    """Take the provider of completions for that of other calls.

    A chat or a completion notes its provider in the price of its deployment. After a completion the price was not found
    for any response, which then cost nothing, also for the budget.
    """
    own = {model_info.get("litellm_provider"), custom_llm_provider}
    return own == _OPENAI or match(model_info=model_info, custom_llm_provider=custom_llm_provider)


async def end_response(self: ResponsesAPIStreamingIterator) -> None:
    """End a stream of a response; of one that its client leaves LiteLLM records what it says of an incomplete one."""
    if self._yielded_first_chunk and self.completed_response is None and not self._failure_handled:
        response = {
            "id": self.logging_obj.litellm_call_id,
            "object": "response",
            "created_at": int(time.time()),
            "model": self.model,
            "status": "incomplete",
            "output": [],
        }
        self._process_chunk(json.dumps({"type": "response.incomplete", "sequence_number": 0, "response": response}))
    await self.response.aclose()


ResponsesAPIStreamingIterator.aclose = end_response


def describe(error: object) -> object:
    """Return what a log may say of an error: its message may repeat what a client asked."""
    package = type(error).__module__.partition(".")[0]
    if not isinstance(error, BaseException) or isinstance(error, OSError) or package in _STORES:
        return error
    status = str(getattr(error, "status_code", None) or getattr(error, "code", None))
    return f"{type(error).__name__} {status}" if status.isdigit() else type(error).__name__


def format_traceback(error: BaseException) -> str:
    """Format the traceback of an error and of what it came from, each once, the first one first."""
    causes: dict[int, BaseException] = {}
    cause: BaseException | None = error
    while cause is not None and id(cause) not in causes:
        causes[id(cause)] = cause
        cause = cause.__cause__ or cause.__context__
    parts = [[*traceback.format_tb(cause.__traceback__), f"{describe(cause)}\n"] for cause in causes.values()]
    return "".join(itertools.chain.from_iterable(reversed(parts))).rstrip()


@mend(litellm_router, "truncate_fallback_error_detail")
def leave_out_detail(*_: object) -> str:
    """Let the log of a fallback that failed too leave out the message."""
    return str(describe(sys.exception()))


def leave_out_messages(make: Callable[..., logging.LogRecord], /, *arguments: Any, **options: Any) -> logging.LogRecord:
    """Let log records leave out the messages of errors."""
    record = make(*arguments, **options)
    if isinstance(record.args, tuple):
        record.args = tuple(map(describe, record.args))
    if record.exc_info and record.exc_info[1]:
        record.exc_text = format_traceback(record.exc_info[1])
    return record


logging.setLogRecordFactory(functools.partial(leave_out_messages, logging.getLogRecordFactory()))

MENDS = CustomLogger()
"""What config.yaml names."""
