"""LiteLLM's hook refuses long prompts of teams with a limit, and keys that could not be looked up."""

from __future__ import annotations

import asyncio
import importlib
import json
import sys
from collections.abc import Iterator
from datetime import datetime
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

NAMES = (
    "fastapi",
    "litellm",
    "litellm.types",
    "litellm.types.llms",
    "litellm.types.llms.openai",
    "litellm.types.utils",
    "litellm.integrations",
    "litellm.integrations.custom_logger",
)
MODULE = "llm_serving.kinds.gateway.request_guard"

OWN_SETTINGS = ["cache", "fallbacks", "headers", "litellm_call_id", "max_retries", "metadata", "no-log", "num_retries"]
"""Some of what LiteLLM lists as its own."""

ADS = {"ads": {"models": ["chat", "small"]}}


class Refused(Exception):
    """In place of FastAPI's HTTPException."""


@pytest.fixture
def hook() -> Iterator[Any]:
    """The hook's module, without LiteLLM, which has an environment of its own."""
    with pytest.MonkeyPatch.context() as patch:
        for name in NAMES:
            patch.setitem(sys.modules, name, ModuleType(name))
        patch.setattr(sys.modules["fastapi"], "HTTPException", Refused, raising=False)
        patch.setattr(sys.modules[NAMES[-1]], "CustomLogger", object, raising=False)
        patch.setattr(sys.modules["litellm.types.utils"], "all_litellm_params", OWN_SETTINGS, raising=False)
        chat_parts = sys.modules["litellm.types.llms.openai"]
        patch.setattr(chat_parts, "ValidUserMessageContentTypes", ["text", "image_url", "file"], raising=False)
        patch.delitem(sys.modules, MODULE, raising=False)
        yield importlib.import_module(MODULE)
        sys.modules.pop(MODULE)


@pytest.mark.parametrize(
    ("field", "value", "characters"),
    [
        ("messages", [{"role": "user", "content": "abc"}], 7),
        ("messages", [{"role": "user", "content": [{"type": "text", "text": "für"}]}], 11),
        ("prompt", ["ab", "cd"], 4),
        ("prompt", [464, 2068, 7586], 12),
        ("input", [[464, 2068], [7586]], 12),
        ("input_ids", [464, 2068], 8),
        ("input", "abc", 3),
        ("tools", [{"type": "function", "function": {"name": "f", "parameters": {"n": 1}}}], 9),
        ("max_tokens", 100_000, 0),
        ("metadata", {"note": "abc"}, 0),
    ],
)
def test_a_prompt_has_the_characters_of_its_texts(hook: Any, field: str, value: Any, characters: int) -> None:
    limited = hook.RequestGuard({"ads": {"prompt_characters": characters}, "search": {"prompt_characters": None}}, {})

    def call(team: str | None, data: dict[str, Any]) -> None:
        asyncio.run(
            limited.async_pre_call_hook(SimpleNamespace(team_id=team, user_id="default"), None, data, "completion")
        )

    call("ads", {field: value})
    with pytest.raises(Refused) as refused:
        call("ads", {field: value, "query": "x"})
    status, detail = refused.value.args
    assert status == 413
    message = f"The prompt has {characters + 1} characters; the team's limit is {characters}"
    assert detail == {"error": {"message": message, "type": "prompt_too_long"}}
    for team in ("search", "other", None):
        call(team, {field: value, "query": "x" * 1000})


@pytest.mark.parametrize(
    ("sent", "id_"),
    [("cart-7", "cart-7"), ("cart 7", "own"), ("x" * 129, "own"), ('a"b', "own"), (None, "own")],
)
def test_a_request_s_id_leads_from_the_caller_to_the_engine_and_the_log(
    hook: Any, sent: str | None, id_: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    guard = hook.RequestGuard({"ads": {}}, {})
    request = {"headers": {"x-request-id": sent} if sent else {}, "body": {"prompt": "candles"}}
    call = {"model": "openai/m", "litellm_call_id": "own", "proxy_server_request": request}
    to_engine = asyncio.run(guard.async_pre_call_deployment_hook(call, None))
    assert to_engine["extra_headers"] == {"X-Request-Id": id_}
    bedrock = {**call, "model": "bedrock/converse/m"}
    assert asyncio.run(guard.async_pre_call_deployment_hook(bedrock, None)) == bedrock
    metadata = {"user_api_key_team_id": "ads", "model_group": "chat", "model_info": {"id": "chat/big"}}
    ended = {
        "litellm_call_id": "own",
        "litellm_params": {"metadata": metadata, "proxy_server_request": request},
        "messages": ["candles"],
        "exception": TimeoutError("candles"),
    }
    times = datetime(2026, 11, 26, 9, 0, 0), datetime(2026, 11, 26, 9, 0, 2)
    asyncio.run(guard.async_log_success_event(ended, None, *times))
    assert capsys.readouterr().out == "", "text is LiteLLM's own"
    monkeypatch.setenv(hook.LOG_VARIABLE, "true")
    asyncio.run(guard.async_log_success_event(ended, None, *times))
    asyncio.run(guard.async_log_failure_event(ended, None, *times))
    text = capsys.readouterr().out
    answered, failed = map(json.loads, text.splitlines())
    expected = {"request_id": id_, "team": "ads", "route": "chat", "deployment": "chat/big", "seconds": 2.0}
    assert answered.items() >= {**expected, "end": "answered"}.items()
    assert failed.items() >= {**expected, "end": "TimeoutError"}.items()
    assert "candles" not in text


def test_a_key_that_could_not_be_looked_up_gets_503_and_no_list_of_models(hook: Any) -> None:
    guard = hook.RequestGuard({"ads": {"prompt_characters": None}}, {})
    unverified, verified = (SimpleNamespace(team_id=None, user_id=user) for user in (hook.UNVERIFIED_USER, "default"))
    with pytest.raises(Refused) as refused:
        asyncio.run(guard.async_pre_call_hook(unverified, None, {}, "completion"))
    status, detail = refused.value.args
    message = "The key cannot be verified: the gateway's database does not answer"
    assert (status, detail) == (503, {"error": {"message": message, "type": "service_unavailable"}})
    assert asyncio.run(guard.async_filter_listed_models(unverified, ["chat"])) == []
    asyncio.run(guard.async_pre_call_hook(verified, None, {}, "completion"))
    assert asyncio.run(guard.async_filter_listed_models(verified, ["chat"])) == ["chat"]


@pytest.mark.parametrize(
    ("team", "model", "sent", "controls"),
    [
        ("ads", "chat", None, {"namespace": "team ads", "ttl": 60.0}),
        ("ads", "chat", {"no-cache": True, "namespace": "team search", "ttl": 9}, {"no-cache": True, "namespace": "team ads", "ttl": 60.0}),
        ("ads", "chat", "team search", {"namespace": "team ads", "ttl": 60.0}),
        ("ads", "small", {"namespace": "team search"}, {"no-cache": True, "no-store": True}),
        (None, "chat", None, {"no-cache": True, "no-store": True}),
    ],
)  # fmt: skip
def test_a_request_reads_kept_answers_of_its_own_team_alone(
    hook: Any, team: str | None, model: str, sent: object, controls: dict[str, Any]
) -> None:
    data = {"model": model, "priority": -9, "litellm_params": {"metadata": {}}, **({"cache": sent} if sent else {})}
    user = SimpleNamespace(team_id=team, user_id="default")
    asyncio.run(hook.RequestGuard(ADS, {"chat": 60.0}).async_pre_call_hook(user, None, data, "completion"))
    assert data == {"model": model, "cache": controls}
    data = {"model": model, "cache": {"namespace": "team search"}}
    asyncio.run(hook.RequestGuard(ADS, {}).async_pre_call_hook(user, None, data, "completion"))
    assert data == {"model": model}, "where no route keeps answers"


@pytest.mark.parametrize("model", ["echo", "chat,echo", ["chat"]])
def test_a_model_that_is_not_the_team_s_is_refused_whoever_named_it(hook: Any, model: object) -> None:
    user = SimpleNamespace(team_id="ads", user_id="default")
    with pytest.raises(Refused) as refusal:
        asyncio.run(hook.RequestGuard(ADS, {}).async_pre_call_hook(user, None, {"model": model}, "acompletion"))
    assert refusal.value.args[0] == 403
    own = {"model": "chat"}
    asyncio.run(hook.RequestGuard(ADS, {}).async_pre_call_hook(user, None, own, "acompletion"))
    assert own == {"model": "chat"}


def test_a_request_sets_nothing_of_litellm_s_and_keeps_what_its_proxy_wrote(hook: Any) -> None:
    kept = {"model": "chat", "min_p": 0.1, "metadata": {"user_api_key_team_id": "ads"}, "litellm_call_id": "1"}
    data = {**kept, "no-log": True, "fallbacks": ["small"], "router_settings_override": {"fallbacks": [{}]}}
    # Of the transfer of another request's KV cache.
    data |= {"kv_transfer_params": {"do_remote_prefill": True}, "vllm_xargs": {"ngrams": 3, "kv_transfer_params": "x"}}
    kept["vllm_xargs"] = {"ngrams": 3}
    user = SimpleNamespace(team_id="ads", user_id="default")
    asyncio.run(hook.RequestGuard(ADS, {}).async_pre_call_hook(user, None, data, "acompletion"))
    assert data == kept


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("messages", "hi"), ("messages", [5]), ("messages", [{"role": "user", "content": 5}]), ("prompt", 5),
        ("tools", [5]), ("response_format", "json"), ("timeout", "soon"), ("stream", "yes"), ("prompt", []), ("messages", None),
        ("prompt", ["hi", 5]), ("prompt", [{}]), ("messages", [{"role": "assistant", "tool_calls": 5}]),
        *[
            ("messages", [{"role": "user", "content": [part]}])
            for part in (5, {}, {"type": 5}, {"type": "text"}, {"type": "image_url"}, {"type": "file", "file": "x"}, {"type": "image"})
        ],
    ],
)  # fmt: skip
def test_a_field_of_another_form_than_the_api_s_is_refused(hook: Any, field: str, value: object) -> None:
    user = SimpleNamespace(team_id="ads", user_id="default")

    def call(data: dict[str, Any]) -> None:
        asyncio.run(
            hook.RequestGuard(ADS, {}).async_pre_call_hook(user, None, {"model": "chat", **data}, "acompletion")
        )

    with pytest.raises(Refused) as refused:
        call({field: value})
    assert refused.value.args[0] == 400
    assert refused.value.args[1]["error"]["param"] == field
    call({"messages": [{"role": "assistant", "content": None}, {"role": "user", "content": []}], "tools": None})
    call({"prompt": [1, 2], "response_format": {"type": "json_object"}, "timeout": 3})
    picture = {"type": "image", "source": {"type": "base64"}}  # of Anthropic's API
    assert hook.find_malformed({"messages": [{"role": "user", "content": [picture]}]}, "anthropic_messages") is None
    assert hook.find_malformed({"prompt": "a lamp", "response_format": "b64_json"}, "aimage_generation") is None
    assert hook.find_malformed({"prompt": None}, "atext_completion") == "prompt"


@pytest.mark.parametrize(
    ("body", "field", "asked"),
    [
        ({"prompt": "hi", "n": 2}, "n", "n is 2"),
        ({"prompt": ["hi", "ho"]}, "prompt", "prompt has 2 prompts"),
        ({"prompt": [[1], [2], [3]], "n": 1}, "prompt", "prompt has 3 prompts"),
    ],
)
def test_a_streamed_completion_of_several_answers_which_litellm_mixes_up_is_refused(
    hook: Any, body: dict[str, Any], field: str, asked: str
) -> None:
    user = SimpleNamespace(team_id="ads", user_id="default")

    def call(call_type: str = "atext_completion", **data: Any) -> None:
        guard = hook.RequestGuard(ADS, {})
        asyncio.run(guard.async_pre_call_hook(user, None, {"model": "chat", **data}, call_type))

    with pytest.raises(Refused) as refused:
        call(**body, stream=True)
    message = (
        f"{asked}: a gateway gives all answers of a streamed completion index 0, which mixes them up. "
        "Fix: set stream to false, or send one request for each answer."
    )
    error = {"message": message, "type": "invalid_request_error", "param": field}
    assert refused.value.args == (400, {"error": error})
    call(**body)
    call("acompletion", messages=[], n=2, stream=True)
    for prompt in ("hi", ["hi"], [1, 2], [[1, 2]]):
        call(prompt=prompt, n=1, stream=True)


@pytest.mark.parametrize(("characters", "ids"), [(10, "abc"), (11, "bc"), (21, "c")])
def test_a_deployment_gets_no_longer_prompts_than_its_limit(hook: Any, characters: int, ids: str) -> None:
    limits = {"a": 10, "b": 20, "c": None}
    rows = [{"model_info": {"id": name, "prompt_characters": limit}} for name, limit in limits.items()]
    messages, tools = [{"content": "x" * (characters - 1)}], {"tools": ["x"]}
    kept = asyncio.run(hook.RequestGuard({}, {}).async_filter_deployments("chat", rows, messages, tools))
    assert "".join(row["model_info"]["id"] for row in kept) == ids


def test_a_request_has_its_team_s_priority_where_the_engine_schedules_by_it(hook: Any) -> None:
    guard = hook.RequestGuard({"ads": {"priority": "high"}, "search": {}, "slow": {"priority": "low"}}, {})

    def change(has_priority: bool, team: str) -> Any:
        kwargs = {"model_info": {"has_priority": has_priority}, "metadata": {"user_api_key_team_id": team}}
        return asyncio.run(guard.async_pre_call_deployment_hook({**kwargs, "extra_body": {"top_k": 1}}, None))

    changed = {team: change(True, team)["extra_body"] for team in ("ads", "search", "slow", "unknown")}
    assert changed == {
        "ads": {"top_k": 1, "priority": -1}, "search": {"top_k": 1, "priority": 0},
        "slow": {"top_k": 1, "priority": 1}, "unknown": {"top_k": 1, "priority": 0},
    }  # fmt: skip
    assert change(False, "ads")["extra_body"] == {"top_k": 1}


def test_a_request_has_its_team_s_class_and_name_where_the_endpoint_tells_them_apart_and_no_header_of_the_caller(
    hook: Any,
) -> None:
    guard = hook.RequestGuard({"ads": {"priority": "high", "models": ["chat"]}, "search": {}}, {})
    forged = {"X-Class": "chat-high", "x-caller": "search", "x-request-id": "1"}

    def send(team: str | None, **traits: Any) -> dict[str, str]:
        kwargs = {
            "model": "openai/m",
            "model_info": traits,
            "metadata": {"user_api_key_team_id": team},
            "proxy_server_request": {"headers": forged},
            "extra_headers": forged,
        }
        headers: dict[str, str] = asyncio.run(guard.async_pre_call_deployment_hook(kwargs, None))["extra_headers"]
        assert headers.pop("X-Request-Id") == "1"
        return headers

    traits = {
        "classes": {"high": {"x-class": "chat-high"}, "low": {"x-class": "chat-low"}},
        "caller_header": "x-caller",
    }
    assert send("ads", **traits) == {"x-class": "chat-high", "x-caller": "ads"}
    assert send("search", **traits) == {"x-caller": "search"}, "between the two classes"
    assert send("other", **traits) == send(None, **traits) == send("ads") == {}
    body = {"model": "chat", "extra_headers": forged, "headers": forged, "num_retries": 9, "max_retries": 9}
    asyncio.run(guard.async_pre_call_hook(SimpleNamespace(team_id="ads", user_id="u"), None, body, "completion"))
    assert body == {"model": "chat"}


def test_pictures_are_refused_to_a_team_with_a_budget_and_get_no_headers(hook: Any) -> None:
    guard = hook.RequestGuard({"ads": {"budget": {"day": 1.0}}, "search": {"budget": None}}, {})

    def call(team: str, call_type: str) -> None:
        asyncio.run(guard.async_pre_call_hook(SimpleNamespace(team_id=team, user_id="u"), None, {}, call_type))

    with pytest.raises(Refused) as refused:
        call("ads", "aimage_generation")
    message = "Pictures have no price, and the team has a budget"
    assert refused.value.args == (403, {"error": {"message": message, "type": "no_price"}})
    call("ads", "acompletion")
    call("search", "aimage_generation")
    kwargs = {"model": "openai/m"}
    assert asyncio.run(guard.async_pre_call_deployment_hook(kwargs, "CallTypes.aimage_generation")) == kwargs
    assert "extra_headers" in asyncio.run(guard.async_pre_call_deployment_hook(kwargs, "CallTypes.acompletion"))
