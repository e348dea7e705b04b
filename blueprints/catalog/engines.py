"""Engines and routers, a row each: their command lines, environments and names of metrics, as data.

A row holds arguments with values in braces. `Values` is all that a row may ask for; a row that asks for more is refused
when it is read. So another engine is another row of engines.yaml, and no code.
"""

from __future__ import annotations

import functools
import string
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any

import yaml
from pydantic import AfterValidator, BaseModel, ConfigDict

FILE = Path(__file__).with_name("engines.yaml")

VALUES = frozenset(
    {
        "weights",  # s3://BUCKET/PREFIX/
        "served_model",  # the name that clients use
        "host",  # the address to listen on
        "port",
        "metrics_port",  # of a router that has its own
        "context",  # most tokens of a request
        "kv_bytes",  # memory of the KV cache
        "threads",  # of computation
        "cache",  # a folder of the process's own
        "sockets",  # a folder whose path is short
        "policy",  # in the router's own words
        "imbalance",  # requests that one replica may have under way more than another
        "deadline_s",  # of a request
        "workers",  # base URLs; an argument that is only this becomes one for each
    }
)
"""What rows may ask for."""

Values = Mapping[str, str | int | tuple[str, ...]]


def _known(text: str) -> str:
    asked = {name for _, name, _, _ in string.Formatter().parse(text) if name is not None}
    if asked - VALUES:
        raise ValueError(f"{text}: no value is called {', '.join(sorted(asked - VALUES))}")
    return text


Text = Annotated[str, AfterValidator(_known)]


class _Row(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Part(_Row):
    """What one circumstance adds to a command."""

    arguments: tuple[Text, ...] = ()
    environment: Mapping[str, Text] = {}


class Streaming(Part):
    """Loading weights straight from S3 into memory."""

    loader: str
    """The engine's own name of it."""


class Platform(Part):
    """The engine on one kind of processor."""

    kv_block: int
    """Tokens in one block of the KV cache."""

    base_bytes: int
    """Memory of one replica besides weights and KV cache."""

    weight_copies: float
    """Memory of one replica for each byte of weights."""


class Engine(_Row):
    """What runs a model."""

    source: str
    read: str
    command: tuple[Text, ...]
    environment: Mapping[str, Text]
    streaming: Streaming
    other_s3: Part
    """For an S3 that is not AWS's own."""

    platforms: Mapping[str, Platform]
    health: str
    """Path that answers 200 while the process lives; proves nothing about answers."""

    metrics: str
    """Path of its own counters and histograms, in Prometheus's format."""


class Router(_Row):
    """What spreads requests over the replicas."""

    source: str
    read: str
    command: tuple[Text, ...]
    environment: Mapping[str, Text] = {}
    policies: Mapping[str, str]
    """The router's word for each of a blueprint's policies."""

    base_bytes: int
    """Memory that it takes."""


class _File(_Row):
    engines: Mapping[str, Engine]
    routers: Mapping[str, Router]


@functools.cache
def _file() -> _File:
    return _File.model_validate(yaml.safe_load(FILE.read_text(encoding="utf-8")))


def engines() -> Mapping[str, Engine]:
    """All engines by name."""
    return MappingProxyType(dict(_file().engines))


def routers() -> Mapping[str, Router]:
    """All routers by name."""
    return MappingProxyType(dict(_file().routers))


def arguments(texts: Iterable[str], values: Values) -> tuple[str, ...]:
    """The arguments with their values filled in.

    Raises:
        KeyError: a value that is asked for is missing in `values`.
    """
    filled: list[str] = []
    for text in texts:
        listed = values.get(text[1:-1]) if text.startswith("{") and text.endswith("}") else None
        filled += listed if isinstance(listed, tuple) else (_fill(text, values),)
    return tuple(filled)


def environment(parts: Iterable[Mapping[str, str]], values: Values) -> dict[str, str]:
    """The environments of all parts as one; a later part wins.

    Raises:
        KeyError: a value that is asked for is missing in `values`.
    """
    return {name: _fill(text, values) for part in parts for name, text in part.items()}


def _fill(text: str, values: Mapping[str, Any]) -> str:
    return text.format_map(values)
