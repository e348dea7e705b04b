"""nccl-tests between instances: what others published, and the least that is healthy."""

from __future__ import annotations

import functools
from pathlib import Path

import yaml

from llm_serving.catalog.instances import Row

FILE = Path(__file__).with_suffix(".yaml")


class PublishedResult(Row):
    """A result of all_reduce_perf that somebody published."""

    type: str
    nodes: int
    message_bytes: int
    bus_gb_s: float
    """Bus bandwidth in 10^9 bytes a second."""

    source: str


class NetworkTest(Row):
    """The row of nccl-tests."""

    min_share: float
    """Least bus bandwidth of the largest message, as a share of the instance's network bandwidth."""

    published: tuple[PublishedResult, ...]


@functools.cache
def load() -> NetworkTest:
    """Load the row."""
    return NetworkTest.model_validate(yaml.safe_load(FILE.read_text(encoding="utf-8")), strict=False)
