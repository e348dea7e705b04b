"""The mends of LiteLLM that need no running one; tests/kinds/gateway/test_gateway.py has the others."""

from __future__ import annotations

import importlib
import json
import logging
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any
from unittest.mock import MagicMock

import pytest

from llm_serving.validation.load import answer

NAMES = (
    "litellm",
    "litellm.caching.caching",
    "litellm.exceptions",
    "litellm.integrations.custom_logger",
    "litellm.litellm_core_utils",
    "litellm.llms.anthropic.pass_through.adapters.handler",
    "litellm.llms.anthropic.pass_through.adapters.transformation",
    "litellm.llms.anthropic.pass_through.messages",
    "litellm.llms.bedrock.count_tokens.bedrock_token_counter",
    "litellm.llms.openai.completion.handler",
    "litellm.llms.openai.responses.count_tokens.token_counter",
    "litellm.proxy",
    "litellm.proxy._types",
    "litellm.proxy.anthropic_endpoints",
    "litellm.proxy.auth",
    "litellm.proxy.spend_tracking",
    "litellm.responses",
    "litellm.responses.streaming_iterator",
    "litellm.types.router",
    "openai._base_client",
    "prisma._base_client",
    "starlette.middleware.errors",
)
MODULE = "llm_serving.kinds.gateway.litellm_mends"


def read_slowly(records: dict[str, dict[str, str]], metadata: dict[str, str]) -> None:
    """Read what is noted of a request, as LiteLLM does, while another thread notes more."""
    for name in metadata:
        records["noted"][f"later: {name}"] = ""


@pytest.fixture
def mends() -> Iterator[Any]:
    """The module, without LiteLLM, which has an environment of its own."""
    factory = logging.getLogRecordFactory()
    with pytest.MonkeyPatch.context() as patch:
        for name in NAMES:
            package = name.partition(".")[0]
            patch.setitem(sys.modules, package, sys.modules.get(package) or ModuleType(package))
            patch.setitem(sys.modules, name, MagicMock())
        cache = type("Cache", (), {"get_cache_key": lambda _, **request: json.dumps(request, sort_keys=True)})
        patch.setattr(sys.modules["litellm.caching.caching"], "Cache", cache)
        sys.modules["litellm.proxy._types"].ProxyException = type("ProxyException", (Exception,), {})
        helpers = sys.modules["litellm.litellm_core_utils"].core_helpers
        helpers.add_missing_spend_metadata_to_litellm_metadata = read_slowly
        patch.delitem(sys.modules, MODULE, raising=False)
        yield importlib.import_module(MODULE)
        sys.modules.pop(MODULE)
    logging.setLogRecordFactory(factory)


def test_an_engine_gives_up_by_the_same_reasons_as_in_load_tests_and_batches(mends: Any) -> None:
    assert set(mends.GIVEN_UP) == answer.GIVEN_UP


def test_requests_that_differ_in_their_id_alone_have_one_kept_answer(mends: Any) -> None:
    cache = mends.Cache()
    request = {"model": "m", "cache": None}
    keys = {cache.get_cache_key(**request, extra_headers={"X-Request-Id": request_id}) for request_id in "ab"}
    assert keys == {cache.get_cache_key(**request)}
    assert cache.get_cache_key(model="n") not in keys


def test_what_is_noted_of_a_request_while_litellm_reads_it_fails_no_answer(mends: Any) -> None:
    records = {"noted": {"team": "ads"}}
    with pytest.raises(RuntimeError, match="changed size"):
        read_slowly(records, records["noted"])
    mends.core_helpers.add_missing_spend_metadata_to_litellm_metadata(records, records["noted"])
    assert "later: later: team" in records["noted"]


def test_a_log_has_where_an_error_came_from_and_no_message_which_may_repeat_a_prompt(
    mends: Any, caplog: pytest.LogCaptureFixture
) -> None:
    assert mends
    try:
        try:
            int("candles")
        except ValueError as error:
            raise RuntimeError("candles") from error
    except RuntimeError as error:
        logging.getLogger("LiteLLM").exception("%s failed: %s", "a call", error)
        logging.getLogger("LiteLLM").error("%s", ConnectionRefusedError("no Postgres at 10.0.0.7"))
    text = caplog.text
    assert "a call failed: RuntimeError" in text
    assert text.index("ValueError\n") < text.index(__file__, text.index("ValueError\n")) < text.rindex("RuntimeError")
    assert "no Postgres at 10.0.0.7" in text
    assert "candles" not in text.replace('"candles"', "")  # as the source has it


def test_an_error_that_comes_from_itself_by_others_is_logged(mends: Any) -> None:
    """LiteLLM raises an error of before from one that came from it."""
    first, second = ValueError("candles"), KeyError("candles")
    first.__cause__, second.__cause__ = second, first
    assert mends.format_traceback(first) == "KeyError\nValueError"
