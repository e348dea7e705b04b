"""One request's prompt, its JSON body in the dialect of the server, and the usage of an answer that is not streamed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from llm_serving.settings import untrusted_json
from llm_serving.validation.load import pictures

SHOWN_BYTES = 200
"""Of an answer that is not what was asked for."""


@dataclass(frozen=True)
class Prompt:
    messages: tuple[dict[str, Any], ...]
    max_tokens: int
    exact: bool = True
    """Whether the answer should have exactly `max_tokens` tokens."""
    asked_input: int | None = None
    expected: str | None = None
    model: str | None = None
    """Name of the model; None means the plan's first."""
    follow_ups: tuple[Prompt, ...] = ()
    """The session's next turns, each without what came before it."""
    further_texts: tuple[str, ...] = ()
    """Texts of the same request, for tasks that answer several at once."""
    fields: Mapping[str, Any] = field(default_factory=dict)
    """What the request's body has besides."""

    @property
    def text(self) -> str:
        """The prompt for the completions API: the text of the last message."""
        return pictures.get_text(self.messages[-1]["content"])

    @property
    def is_plain(self) -> bool:
        return not self.fields and len(self.messages) == 1 and isinstance(self.messages[0]["content"], str)

    @property
    def texts(self) -> tuple[str, ...]:
        """All texts of a request, for tasks that answer several at once."""
        return (self.text, *self.further_texts)

    def build_body(self, model: str, api: str, *, engine_dialect: bool) -> dict[str, Any]:
        """Return the body of a streamed request to an API, `chat` or `completions`."""
        content = {"messages": self.messages} if api == "chat" else {"prompt": self.text}
        options = {"include_usage": True}
        body = {"model": model, **content, "max_tokens": self.max_tokens, "temperature": 0, **self.fields}
        if engine_dialect:
            options["continuous_usage_stats"] = True
            body |= {"ignore_eos": True, "min_tokens": self.max_tokens} if self.exact else {}
        return {**body, "stream": True, "stream_options": options}

    def count_tokens(self, answer: bytes) -> int:
        """Return its tokens by the usage of an answer that is not streamed; its words where the server reports none.

        Raises:
            ValueError: it is no JSON object, as of a server that always streams, or has no number; quotes what it has.
        """
        content = f"no JSON object: {answer[:SHOWN_BYTES].decode('utf-8', 'replace')!r}"
        fix = "answers such requests too; they count"
        try:
            usage = untrusted_json.parse(answer).get("usage") or {}
            content = f"a usage without a number of prompt_tokens: {str(usage)[:SHOWN_BYTES]}"
            fix = "reports a number, or no usage; it counts"
            return int(dict(usage).get("prompt_tokens") or len(self.text.split()))
        except (AttributeError, OverflowError, TypeError, ValueError):
            raise ValueError(
                f"returned HTTP 200 to a request with stream: false, and {content}. "
                f"Fix: use a server that {fix} the tokens of prompts."
            ) from None
