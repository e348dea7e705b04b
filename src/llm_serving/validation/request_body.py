"""The JSON body of a request, in the dialect of the server."""

from __future__ import annotations

from typing import Any

from llm_serving.validation.prompt import Prompt


def build(prompt: Prompt, model: str, api: str, *, engine_dialect: bool) -> dict[str, Any]:
    """Return the body of a streamed request.

    Args:
        api: `chat` or `completions`.
        engine_dialect: whether the server accepts the engines' own parameters.
    """
    content = {"messages": prompt.messages} if api == "chat" else {"prompt": prompt.text}
    options = {"include_usage": True}
    body = {"model": model, **content, "max_tokens": prompt.max_tokens, "temperature": 0}
    if engine_dialect:
        options["continuous_usage_stats"] = True
        body |= {"ignore_eos": True, "min_tokens": prompt.max_tokens} if prompt.exact else {}
    return {**body, "stream": True, "stream_options": options}
