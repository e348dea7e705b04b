"""What clients ask of a model by its task: the endpoint, the body of a request, and where the answer is.

`generate` writes text; the others answer a whole text at once: with numbers, a vector, scores or labels, or with
pictures. To add a task is to add its name to `Task` and a row here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from llm_serving.settings.choices import Task

GENERATE: Task = "generate"
EMBED: Task = "embed"
DRAW: Task = "draw"

RANKED: tuple[Task, ...] = ("rerank", "classify")
"""Tasks whose answers a head of the model computes."""

QUERY = "Read"
"""Query of a request to rerank: the first word of every made text, so that its tokens are the same everywhere."""


class PooledTask(NamedTuple):
    """A task whose answer is for whole texts, and has no tokens."""

    path: str
    """Endpoint of the inference API, through the router as on the engine itself."""

    build: Callable[[Sequence[str]], dict[str, Any]]
    """The texts of one request in its body."""

    field: str
    """Field of the response with one item for each text."""

    answer: str
    """What an answer is, in words."""

    counted: str = "texts"
    """What throughput counts."""

    probe: Mapping[str, Any] = MappingProxyType({})
    """Further fields of a probe's request, which make it small."""


POOLED: dict[Task, PooledTask] = {
    # As the openai client asks: half the size of numbers written out.
    "embed": PooledTask(
        "/v1/embeddings", lambda texts: {"encoding_format": "base64", "input": list(texts)}, "data", "vectors"
    ),
    "rerank": PooledTask(
        "/v1/rerank", lambda texts: {"query": QUERY, "documents": list(texts)}, "results", "scores of documents"
    ),
    "classify": PooledTask("/classify", lambda texts: {"input": list(texts)}, "data", "labels"),
    # OpenAI's API of pictures, which vLLM-Omni has too.
    "draw": PooledTask(
        "/v1/images/generations",
        lambda texts: {"response_format": "b64_json", "prompt": "".join(texts)},
        "data",
        "pictures",
        "pictures",
        MappingProxyType({"num_inference_steps": 1}),
    ),
}
"""Endpoints of the first three: vLLM 0.32.0, vllm/entrypoints/pooling/*/api_router.py."""

NUMBERS: tuple[Task, ...] = tuple(task for task in POOLED if task != DRAW)
"""Tasks whose answers are numbers."""


def describe_unused(task: Task, keys: Sequence[str]) -> str:
    """Return a sentence about settings of tokens, where answers have none."""
    return f"Left out, since an answer of the task {task} has no tokens: {', '.join(keys)}."


def is_pooled(task: Task) -> bool:
    """Return whether a task answers at once, with numbers or pictures, and not with tokens one after the other."""
    return task in POOLED
