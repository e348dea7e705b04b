"""What search modules answer, as their makers' sources write it, read by LiteLLM's hook."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

NAMES = (
    "litellm",
    "litellm._logging",
    "litellm.caching",
    "litellm.caching.caching",
    "litellm.integrations",
    "litellm.integrations.custom_logger",
)
MODULE = "llm_serving.kinds.gateway.semantic_cache"


@pytest.fixture
def hook() -> Iterator[Any]:
    """The hook's module, without LiteLLM, which has an environment of its own."""
    with pytest.MonkeyPatch.context() as patch:
        for name in NAMES:
            patch.setitem(sys.modules, name, ModuleType(name))
        cache = type("Cache", (), {"async_get_cache": None, "async_add_cache": None})
        patch.setattr(sys.modules["litellm._logging"], "verbose_proxy_logger", None, raising=False)
        patch.setattr(sys.modules["litellm.caching.caching"], "Cache", cache, raising=False)
        patch.setattr(sys.modules[NAMES[-1]], "CustomLogger", object, raising=False)
        patch.delitem(sys.modules, MODULE, raising=False)
        yield importlib.import_module(MODULE)
        sys.modules.pop(MODULE)


ROW = {"distance": "0.0123", "key": "team ads:1", "scope": "abc"}
FIELDS = [b"distance", b"0.0123", b"key", b"team ads:1", b"scope", b"abc"]


@pytest.mark.parametrize(
    ("reply", "rows"),
    [
        ([1, b"semantic-x-384:1", FIELDS], [ROW]),  # valkey-search, and RediSearch over RESP2
        ([0], []),
        ({b"total_results": 1, b"warning": [], b"results": [{b"id": b"semantic-x-384:1", b"values": [],
          b"extra_attributes": dict(zip(FIELDS[::2], FIELDS[1::2], strict=True))}]}, [ROW]),
        ({"total_results": 0, "results": []}, []),
    ],
)  # fmt: skip
def test_replies_of_both_search_modules_are_read(hook: Any, reply: Any, rows: list[dict[str, str]]) -> None:
    assert hook.read_rows(reply) == rows


def test_a_message_s_text_is_read_where_it_has_nothing_else(hook: Any) -> None:
    text, picture = {"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": "x"}}
    messages = [{"content": "a"}, {"content": [text, text]}, {"content": [text, picture]}, {"content": None}, {}]
    assert [hook.read_text(message) for message in messages] == ["a", "a\na", "", "", ""]
