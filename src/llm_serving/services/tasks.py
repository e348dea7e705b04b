"""What clients ask of a model by its task: the endpoint, the body of a request, and where the answer is.

`generate` writes text; the others answer a whole text at once, with numbers: a vector, scores or labels. To add a task
is to add its name to `Task` and a row here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from llm_serving.settings.choices import Task

GENERATE: Task = "generate"
EMBED: Task = "embed"

RANKED: tuple[Task, ...] = ("rerank", "classify")
"""Tasks whose answers a head of the model computes."""

QUERY = "Read"
"""Query of a request to rerank: the first word of every made text, so that its tokens are the same everywhere."""


class PooledTask(NamedTuple):
    """A task whose answer is for whole texts."""

    path: str
    """Endpoint of the inference API, through the router as on the engine itself."""

    build: Callable[[Sequence[str]], dict[str, Any]]
    """The texts of one request in its body."""

    field: str
    """Field of the response with one item for each text."""

    answer: str
    """What an answer is, in words."""

    @property
    def inputs(self) -> str:
        """What the texts of a request are called in its body."""
        return list(self.build([""]))[-1]


POOLED: dict[Task, PooledTask] = {
    # As the openai client asks: half the size of numbers written out.
    "embed": PooledTask(
        "/v1/embeddings", lambda texts: {"encoding_format": "base64", "input": list(texts)}, "data", "vectors"
    ),
    "rerank": PooledTask(
        "/v1/rerank", lambda texts: {"query": QUERY, "documents": list(texts)}, "results", "scores of documents"
    ),
    "classify": PooledTask("/classify", lambda texts: {"input": list(texts)}, "data", "labels"),
}
"""Endpoints of vLLM 0.32.0, vllm/entrypoints/pooling/*/api_router.py."""


def describe_unused(task: Task, keys: Sequence[str]) -> str:
    """Return a sentence about settings of tokens, where answers have none."""
    return f"Left out, since an answer of the task {task} has no tokens: {', '.join(keys)}."


def is_pooled(task: Task) -> bool:
    """Whether a task answers with numbers, and not with tokens one after the other."""
    return task in POOLED
