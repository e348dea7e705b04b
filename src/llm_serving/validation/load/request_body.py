"""The JSON body of a request, in the dialect of the server, and the usage of an answer that is not streamed."""

from __future__ import annotations

from typing import Any

from llm_serving.settings import untrusted_json
from llm_serving.validation.load.prompt import Prompt

SHOWN_BYTES = 200
"""Of an answer that is not what was asked for."""


def build(prompt: Prompt, model: str, api: str, *, engine_dialect: bool) -> dict[str, Any]:
    """Return the body of a streamed request to an API, `chat` or `completions`."""
    content = {"messages": prompt.messages} if api == "chat" else {"prompt": prompt.text}
    options = {"include_usage": True}
    body = {"model": model, **content, "max_tokens": prompt.max_tokens, "temperature": 0, **prompt.fields}
    if engine_dialect:
        options["continuous_usage_stats"] = True
        body |= {"ignore_eos": True, "min_tokens": prompt.max_tokens} if prompt.exact else {}
    return {**body, "stream": True, "stream_options": options}


def count_prompt_tokens(answer: bytes, prompt: Prompt) -> int:
    """Return the tokens of a prompt by the usage of its answer, not streamed; its words where the server reports none.

    Raises:
        ValueError: it is no JSON object, as of a server that always streams, or has no number; quotes what it has.
    """
    found = f"no JSON object: {answer[:SHOWN_BYTES].decode('utf-8', 'replace')!r}"
    fix = "answers such requests too; they count"
    try:
        usage = untrusted_json.parse(answer).get("usage") or {}
        found = f"a usage without a number of prompt_tokens: {str(usage)[:SHOWN_BYTES]}"
        fix = "reports a number, or no usage; it counts"
        return int(dict(usage).get("prompt_tokens") or len(prompt.text.split()))
    except (AttributeError, OverflowError, TypeError, ValueError):
        raise ValueError(
            f"returned HTTP 200 to a request with stream: false, and {found}. "
            f"Fix: use a server that {fix} the tokens of prompts."
        ) from None
