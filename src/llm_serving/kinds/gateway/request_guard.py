"""LiteLLM's hook for the rules of teams: copied beside its config.yaml, it runs in LiteLLM's own environment.

With `allow_requests_on_db_unavailable` LiteLLM lets keys that it read lately pass while its database is away, and every
other key too, known or not, as a user of its own. The hook refuses that user.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from fastapi import HTTPException
from litellm.integrations.custom_logger import CustomLogger
from litellm.types.llms.openai import ValidUserMessageContentTypes
from litellm.types.utils import all_litellm_params

TEAMS_VARIABLE, CACHED_VARIABLE = "GATEWAY_TEAMS", "GATEWAY_CACHED"
UNVERIFIED_USER = "__db_unavailable_fallback__"
"""LiteLLM's user for a key that it could not look up. Source: 1.106.0, proxy/auth/auth_exception_handler.py."""

PROMPT_LIMIT, HAS_PRIORITY, CLASSES, CALLER = "prompt_characters", "has_priority", "classes", "caller_header"
"""What LiteLLM's settings say of a deployment, in `model_info`."""

_PROXY_FIELDS = {
    "metadata", "litellm_metadata", "proxy_server_request", "secret_fields", "litellm_call_id", "litellm_logging_obj",
    "litellm_session_id", "litellm_trace_id", "shared_session", "client_side_timeout", "stream_timeout",
}  # fmt: skip
"""What LiteLLM's proxy writes into a body before its hooks, in place of a client's."""

_OWN_FIELDS = {*all_litellm_params, "priority", "extra_body", "extra_headers", "litellm_params"} | {
    "context_window_fallbacks", "content_policy_fallbacks", "router_settings_override", "specific_deployment",
}  # fmt: skip
"""Of a body, or of a header that LiteLLM writes there: it would read the client's as its own settings, such as
`fallbacks`, which lead to models of other teams, and `no-log`, by which no budget and no record knows of a request."""

_ENGINE_FIELDS = {
    "kv_transfer_params", "ec_transfer_params", "disaggregated_params", "bootstrap_host", "bootstrap_port",
    "bootstrap_room", "data_parallel_rank", "routed_dp_rank", "disagg_prefill_dp_rank", "rid", "request_id",
    "prompt_token_ids", "prompt_token_ids_b64", "lora_path", "lora_request",
}  # fmt: skip
"""What routers tell engines of transfers of KV caches, of ranks, of a request's id and a prompt's tokens; and paths of
adapters of SGLang and TensorRT-LLM (serve/openai_protocol.py). vLLM 0.32.0 reads the blocks that `kv_transfer_params`
name from the host that they name, and ends where they name none
(distributed/kv_transfer/kv_connector/v1/nixl/pull_scheduler.py, `update_state_after_alloc`)."""

_ENGINE_ARGUMENTS = "vllm_xargs"
"""Further fields by which vLLM lets a client set the same."""

_TEXT_COMPLETION = "text_completion"
"""How LiteLLM's names of calls for completions end."""

_PICTURES = "image_generation"
"""How LiteLLM's names of calls for pictures end."""

_EXTRA_FIELDS = {
    "acompletion": ("thinking",),
    _PICTURES: ("response_format",),
    _TEXT_COMPLETION: (
        "response_format", "tools", "tool_choice", "parallel_tool_calls", "reasoning_effort", "top_logprobs",
    ),
}  # fmt: skip
"""Of calls, by how LiteLLM's names of them end: at these fields LiteLLM or its client fails. The engine knows, or
ignores them."""

_STREAMED_CALLS = ("acompletion", "atext_completion")
"""LiteLLM's names of calls whose streams have the engine's count of tokens only where the request asks for it."""

_CHAT, _RERANK = "acompletion", "rerank"
"""LiteLLM's names of chats, and of calls for which it knows no way to a deployment: it closes the route with 500."""

_MESSAGES = "anthropic_messages"
"""LiteLLM's name of calls of Anthropic's API."""

_PARTS, _SOURCES = ("text", "image", "document", "tool_result", "tool_reference"), (None, "base64", "url")
"""Of these: what its users say, and where pictures and documents are. LiteLLM leaves others out, and says nothing."""

_PROMPT_FIELDS = (
    "messages", "prompt", "suffix", "input", "instructions", "system", "tools", "functions", "query", "documents",
    "input_ids", "prompt_embeds",
)  # fmt: skip

_FORMS: dict[str, type | tuple[type, ...]] = {
    "messages": list, "prompt": (str, list), "input": (str, list, dict), "functions": list,
    "tool_choice": (str, dict), "response_format": dict, "logit_bias": dict, "timeout": (int, float),
    "stream": bool,
}  # fmt: skip
"""Of fields at whose other forms LiteLLM itself fails with 500, after it asked each deployment of the route."""

_ITEM_FORMS: dict[str, type | tuple[type, ...]] = {
    "messages": dict, "prompt": (str, int, list), "tools": dict, "functions": dict,
}  # fmt: skip
"""Of what the lists among these fields have."""

_PART_FORMS: dict[str, type | tuple[type, ...]] = {
    "text": str, "image_url": (str, dict), "file": dict, "thinking": str,
}  # fmt: skip
"""Of the parts of a message: each has its content in the field that its type names."""

_TOKEN_CHARACTERS = 4
"""Characters of a token in a prompt of tokens, `[464, 2068]`: what one has in English, by rule of thumb."""

ID_HEADER = "X-Request-Id"

IS_ID = re.compile(r"[A-Za-z0-9._:/+=-]{1,128}").fullmatch
"""Ids of callers that may stand in a log, as images/router/front.conf has it."""

LOG_VARIABLE = "JSON_LOGS"
"""LiteLLM's own: its lines are JSON where it is set. Here there is one for each request then."""

PRIORITIES = {"high": -1, "normal": 0, "low": 1}
"""What engines read: the lowest goes first."""

_CACHE_CONTROLS = ("no-cache", "no-store")
"""What clients may ask of the cache: LiteLLM would also let them choose whose answers they read."""

_NO_CACHE = dict.fromkeys(_CACHE_CONTROLS, True)


class RequestGuard(CustomLogger):  # type: ignore[misc] # of another environment
    """Refuses requests before any deployment is called, and sends the others where they belong."""

    def __init__(self, teams: Mapping[str, Any], cached: Mapping[str, float]) -> None:
        """Take the blueprint's teams, and the routes that keep answers, with the seconds."""
        super().__init__()
        self._teams, self._cached = teams, cached

    async def async_pre_call_hook(
        self,
        user_api_key_dict: Any,
        cache: object,  # noqa: ARG002 - LiteLLM names the arguments
        data: dict[str, Any],
        call_type: str,
    ) -> None:
        """Refuse a key that could not be looked up with 503, and a prompt beyond the team's limit with 413.

        So is a model that is not the team's, with 403: LiteLLM looks for it in the body, and calls the one that the URL
        names, `?model=`. And pictures of a team with a budget: they have no price that would count against it.

        A field of another form than the API's gets 400, and so do a call to rerank and a streamed completion of several
        answers. The rest reads cached answers of its own team only, and gives itself no priority.
        """
        if user_api_key_dict.user_id == UNVERIFIED_USER:
            message = "The key cannot be verified: the gateway's database does not answer"
            raise build_refusal(503, "service_unavailable", message)
        team, model = user_api_key_dict.team_id, data.get("model")
        rules = self._teams.get(team, {})
        if team and model is not None and model not in rules.get("models", ()):
            raise build_refusal(403, "team_model_access_denied", f"The team {team} has no model {model}")
        if call_type == _RERANK:
            raise build_refusal(400, "invalid_request_error", "A gateway has no rerank. Call the deployment itself")
        if field := find_malformed(data, call_type):
            message = f"{field} has another form in the API"
            raise build_refusal(400, "invalid_request_error", message, param=field)
        if call_type == _MESSAGES:
            data["messages"] = write_out_documents(data["messages"])
        if data.get("stream") and call_type.endswith(_TEXT_COMPLETION):
            refuse_several(data)
        if rules.get("budget") and call_type.endswith(_PICTURES):
            raise build_refusal(403, "no_price", "Pictures have no price, and the team has a budget")
        controls = data.get("cache")
        for field in (_OWN_FIELDS | _ENGINE_FIELDS) - _PROXY_FIELDS:
            data.pop(field, None)
        if isinstance(arguments := data.get(_ENGINE_ARGUMENTS), dict):
            data[_ENGINE_ARGUMENTS] = {name: arguments[name] for name in arguments.keys() - _ENGINE_FIELDS}
        if data.get("stream") and call_type in _STREAMED_CALLS:
            # Or LiteLLM counts by a tokenizer of its own, and with `stream_options: null` nothing, also for the budget.
            options = data.get("stream_options")
            data["stream_options"] = {**(options if isinstance(options, dict) else {}), "include_usage": True}
        if self._cached:
            data["cache"] = self._build_cache(team, model, controls)
        limit = rules.get("prompt_characters")
        if limit is not None and (characters := count_prompt(data)) > limit:
            message = f"The prompt has {characters:,} characters; the team's limit is {limit:,}"
            raise build_refusal(413, "prompt_too_long", message)

    def _build_cache(self, team: str | None, model: str | None, sent_controls: object) -> dict[str, Any]:
        """Build LiteLLM's controls of a request: whose answers it reads, and how long its own is kept."""
        if team is None or model is None or model not in self._cached:
            return dict(_NO_CACHE)
        sent = sent_controls if isinstance(sent_controls, dict) else {}
        controls = {name: sent[name] for name in _CACHE_CONTROLS if name in sent}
        return {**controls, "namespace": f"team {team}", "ttl": self._cached[model]}

    async def async_filter_deployments(
        self,
        model: str,  # noqa: ARG002
        healthy_deployments: Sequence[Mapping[str, Any]],
        messages: object,
        request_kwargs: Mapping[str, Any] | None = None,
        parent_otel_span: object = None,  # noqa: ARG002
    ) -> Sequence[Mapping[str, Any]]:
        """Leave out the deployments for shorter prompts."""
        characters = count_prompt({**(request_kwargs or {}), **({"messages": messages} if messages else {})})
        limits = (row["model_info"].get(PROMPT_LIMIT) for row in healthy_deployments)
        rows = zip(healthy_deployments, limits, strict=True)
        return [row for row, limit in rows if limit is None or characters <= limit]

    async def async_pre_call_deployment_hook(
        self,
        kwargs: dict[str, Any],
        call_type: object,
    ) -> dict[str, Any] | None:
        """Give a request its id, and at a deployment that schedules by them its team's priority, class and name.

        No header of the caller's own goes on.
        """
        traits = kwargs.get("model_info") or {}
        metadata = kwargs.get("litellm_metadata") or kwargs.get("metadata") or {}
        team = str(metadata.get("user_api_key_team_id"))
        class_ = self._teams.get(team, {}).get("priority", "normal")
        is_bedrock, call = str(kwargs.get("model")).startswith("bedrock/"), str(call_type)
        # Bedrock takes no header of ours, and those of a call for pictures LiteLLM would write into its body.
        if not is_bedrock and not call.endswith(_PICTURES):
            caller = {traits[CALLER]: team} if traits.get(CALLER) and team in self._teams else {}
            headers = {ID_HEADER: find_request_id(kwargs), **caller, **traits.get(CLASSES, {}).get(class_, {})}
            kwargs = {**kwargs, "extra_headers": headers}
        extra_fields = {"priority": PRIORITIES[class_]} if traits.get(HAS_PRIORITY) else {}
        for end, fields in _EXTRA_FIELDS.items():
            if call.endswith(end) and not is_bedrock:
                extra_fields |= {field: kwargs[field] for field in fields if field in kwargs}
                kwargs = {name: value for name, value in kwargs.items() if name not in fields}
        return (
            {**kwargs, "extra_body": {**(kwargs.get("extra_body") or {}), **extra_fields}} if extra_fields else kwargs
        )

    async def async_log_success_event(
        self,
        kwargs: dict[str, Any],
        response_obj: object,  # noqa: ARG002
        start_time: datetime,
        end_time: datetime,
    ) -> None:
        """Log that a request was answered, without what it asks."""
        log_request(kwargs, "answered", end_time - start_time)

    async def async_log_failure_event(
        self,
        kwargs: dict[str, Any],
        response_obj: object,  # noqa: ARG002
        start_time: datetime,
        end_time: datetime,
    ) -> None:
        """Log that an attempt failed, without the message: a deployment's may repeat what it was asked."""
        log_request(kwargs, type(kwargs.get("exception")).__name__, end_time - start_time)

    async def async_filter_listed_models(self, user_api_key_dict: Any, model_names: Sequence[str]) -> Sequence[str]:
        """List no model to a key that could not be looked up."""
        return [] if user_api_key_dict.user_id == UNVERIFIED_USER else model_names


def build_refusal(status: int, kind: str, message: str, **more: str) -> HTTPException:
    """Build the answer to a request that goes no further, in the form of OpenAI's errors."""
    return HTTPException(status, {"error": {"message": message, "type": kind, **more}})


def find_request_id(kwargs: Mapping[str, Any]) -> str:
    """Return the caller's id of a request, or LiteLLM's where there is none that may stand in a log."""
    request = kwargs.get("proxy_server_request") or (kwargs.get("litellm_params") or {}).get("proxy_server_request")
    headers = {name.lower(): value for name, value in ((request or {}).get("headers") or {}).items()}
    sent_id = headers.get(ID_HEADER.lower())
    return sent_id if isinstance(sent_id, str) and IS_ID(sent_id) else str(kwargs.get("litellm_call_id"))


def log_request(kwargs: Mapping[str, Any], end: str, duration: timedelta) -> None:
    """Log one request to one deployment, where logs are JSON."""
    if not os.environ.get(LOG_VARIABLE):
        return
    parameters = kwargs.get("litellm_params") or {}
    metadata = parameters.get("metadata") or {}
    line = {
        "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
        "program": "gateway",
        "request_id": find_request_id(kwargs),
        "team": metadata.get("user_api_key_team_id"),
        "route": metadata.get("model_group"),
        "deployment": (metadata.get("model_info") or {}).get("id"),
        "end": end,
        "seconds": round(duration.total_seconds(), 3),
    }
    print(json.dumps(line, ensure_ascii=False), flush=True)


def find_malformed(data: Mapping[str, Any], call_type: str) -> str | None:
    """Find the first field of another form than the API's."""
    is_picture = call_type.endswith(_PICTURES)
    for field, forms in ({**_FORMS, "response_format": str} if is_picture else _FORMS).items():
        if data.get(field) is not None and not isinstance(data[field], forms):
            return field
    for field, forms in _ITEM_FORMS.items():
        items = data.get(field)
        if isinstance(items, list) and not all(isinstance(item, forms) for item in items):
            return field
    prompt = data.get("prompt", "")
    if prompt is None and call_type.endswith(_TEXT_COMPLETION):
        return "prompt"
    if isinstance(prompt, list) and len({*map(type, prompt)}) != 1:  # neither texts nor tokens, or nothing
        return "prompt"
    messages = data.get("messages", None if call_type == _MESSAGES else ())
    if messages is None or not all(_has_form(message, call_type) for message in messages):
        return "messages"
    return None


def _has_form(message: Mapping[str, Any], call_type: str) -> bool:
    """Return whether a message has the API's form; of the types of parts each API has its own."""
    content, is_user = message.get("content") or "", message.get("role") == "user"
    for part in content if isinstance(content, list) else ():
        kind = part.get("type") if isinstance(part, dict) else None
        if not isinstance(kind, str) or not isinstance(part.get(kind), _PART_FORMS.get(kind, object)):
            return False
        if is_user and call_type == _CHAT and kind not in ValidUserMessageContentTypes:
            return False
    return isinstance(content, (str, list)) and isinstance(message.get("tool_calls") or [], list)


def write_out_documents(value: Any) -> Any:
    """Make documents of text in messages of Anthropic's API texts; refuse what LiteLLM would leave out with 400."""
    if isinstance(value, list):
        return [write_out_documents(item) for item in value]
    if not isinstance(value, dict) or value.get("role") == "assistant":
        return value
    kind, place = value.get("type"), value.get("source")
    source = place if isinstance(place, dict) else {}
    source_kind = source.get("type")
    if kind == "document" and source_kind == "text":
        texts = (value.get("title"), value.get("context"), source.get("data"))
        return {"type": "text", "text": "\n".join(text for text in texts if isinstance(text, str))}
    if "role" not in value and (kind not in _PARTS or source_kind not in _SOURCES):
        message = f"A gateway cannot pass on a {kind}{f' of a {source_kind}' if source_kind else ''}. Send its text"
        raise build_refusal(400, "invalid_request_error", message, param="messages")
    return {**value, "content": write_out_documents(value["content"])} if "content" in value else value


def refuse_several(data: Mapping[str, Any]) -> None:
    """Refuse a streamed completion of several answers with 400.

    LiteLLM reads the text of a chunk alone, so each choice gets index 0. Source: 1.106.0,
    litellm_core_utils/streaming_handler.py, `handle_openai_text_completion_chunk`.
    """
    prompt = data.get("prompt")
    prompt_count = len(prompt) if isinstance(prompt, list) and not isinstance(prompt[0], int) else 1
    if data.get("n") not in (None, 1):
        field, asked = "n", f"n is {data['n']}"
    elif prompt_count > 1:
        field, asked = "prompt", f"prompt has {prompt_count} prompts"
    else:
        return
    reason = "a gateway gives all answers of a streamed completion index 0, which mixes them up"
    fix = "set stream to false, or send one request for each answer"
    raise build_refusal(400, "invalid_request_error", f"{asked}: {reason}. Fix: {fix}.", param=field)


def count_prompt(data: Mapping[str, Any]) -> int:
    """Count the characters of a request's prompt, with its tools and documents."""
    return sum(count_characters(data.get(field)) for field in _PROMPT_FIELDS)


def count_characters(value: Any) -> int:
    if isinstance(value, str):
        return len(value)
    if isinstance(value, Mapping):
        return sum(map(count_characters, value.values()))
    if not isinstance(value, list):
        return 0
    return sum(_TOKEN_CHARACTERS if isinstance(item, int) else count_characters(item) for item in value)


GUARD = RequestGuard(*(json.loads(os.environ.get(name, "{}")) for name in (TEAMS_VARIABLE, CACHED_VARIABLE)))
