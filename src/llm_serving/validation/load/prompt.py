"""One request's prompt."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from llm_serving.validation.load import pictures


@dataclass(frozen=True)
class Prompt:
    """The prompt of one request."""

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
