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
from typing import Annotated, Any, Literal

import yaml
from pydantic import AfterValidator, BaseModel, ConfigDict

FILE = Path(__file__).with_name("engines.yaml")

FIELD_NAMES = frozenset(
    {
        "weights",  # s3://BUCKET/PREFIX/, or the folder that they were copied to
        "served_model",  # the name that clients use
        "host",  # the address to listen on
        "port",
        "metrics_port",  # of a router that has its own
        "side_port",  # where prefill and decode agree on a transfer
        "events_at",  # where KV cache events are published, in ZeroMQ's words
        "replay_at",  # where those of before are asked for
        "master_port",  # where the machines of a replica meet
        "ray_port",  # where Ray's machines meet
        "data_port",  # where its data-parallel ranks meet
        "discovery_port",  # where a router is told of prefill and decode
        "context",  # most tokens of a request
        "kv_bytes",  # memory of the KV cache
        "kv_role",  # whether it makes or takes KV caches
        "threads",  # of computation
        "tensor",  # ways that a layer is split
        "pipeline",  # stages of layers
        "data",  # data-parallel ranks
        "machines",  # of one replica
        "rank",  # of this machine among them
        "leader",  # address of the first of them
        "batch_tokens",  # most tokens of a step
        "sequences",  # most requests of a step
        "offload_gib",  # memory for cached prompts, GiB
        "speculative",  # the engine's settings for guessed tokens, JSON
        "adapters",  # NAME=PLACE of each LoRA adapter
        "adapters_most",  # how many of them at once
        "drain_s",  # for requests under way when a replica is to end
        "cache",  # a folder of the process's own
        "modules",  # the folder with event_sources.py
        "sockets",  # a folder whose path is short
        "policy",  # in the router's own words
        "imbalance",  # requests that one replica may have under way more than another
        "deadline_s",  # of a request
        "namespace",  # where the engines' pods live
        "engine_port",  # where every engine listens
        "workers",  # base URLs, labels or NAME:PORT of engines that do both halves of a request
        "prefill",  # the same of those that read prompts
        "decode",  # and of those that write answers
    }
)
"""What rows may ask for. Where a value is a list, the argument that asks for it is repeated for each item."""

Values = Mapping[str, str | int | tuple[str, ...]]


def _parse_field_names(text: str) -> set[str]:
    return {name for _, name, _, _ in string.Formatter().parse(text) if name is not None}


def _check_field_names(text: str) -> str:
    names = _parse_field_names(text)
    if names - FIELD_NAMES:
        raise ValueError(f"{text}: no value is called {', '.join(sorted(names - FIELD_NAMES))}")
    return text


Template = Annotated[str, AfterValidator(_check_field_names)]


class _Row(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class CommandPart(_Row):
    """What one circumstance adds to a command."""

    arguments: tuple[Template, ...] = ()
    environment: Mapping[str, Template] = {}
    own_address: tuple[str, ...] = ()
    """Variables that must hold the address by which other machines reach the process."""


class WeightStreaming(CommandPart):
    """Loading weights straight from S3 into memory."""

    loader: str
    """The engine's own name of it."""


class EngineLimits(_Row):
    """What the engine does not do on one kind of processor."""

    source: str
    read: str
    families: tuple[str, ...]
    """Families of instance types that it runs on."""

    elsewhere: str
    """Why it does not run on the others of the kind."""

    architectures: Mapping[str, tuple[int, ...]]
    """Models that it runs, in 16 bits, by transformers' `model_type`: the sizes that their heads can have."""

    segments: tuple[int, ...]
    """Tokens that one step of a prompt can have, ascending: each is a program compiled beforehand."""

    sequences: int
    """Requests of one step, where the blueprint does not say: they are compiled too."""

    whole_machine: str
    """Why a replica has its machine's accelerators for itself."""

    lacks: Mapping[str, str]
    """Why it does not do what an option asks for, by the option's name; `machines` and `transfer` among them."""

    def select_segment(self, max_tokens: int, context: int) -> int:
        """The largest segment of a prompt up to `most` tokens that is below the context; the least where none is."""
        return max((size for size in self.segments if size <= max_tokens and size < context), default=self.segments[0])


class Platform(CommandPart):
    """The engine on one kind of processor."""

    image: str = ""
    """Of a container that runs it there; empty where the engine's own does."""

    streams: bool = True
    """Whether weights are streamed from S3. If not, they are copied to the machine's disk before the engine starts."""

    start_s: float = 600
    """A replica that has not answered by then, loading its weights aside, never will."""

    limits: EngineLimits | None = None
    """None where every option works."""

    kv_block: int
    """Tokens in one block of the KV cache."""

    device: str
    """The engine's word for it."""

    base_bytes: int = 0
    """Memory of one replica besides weights and KV cache, where those lie in the machine's own memory."""

    weight_copies: float = 0
    """Memory of one replica for each byte of weights, there."""

    options: Mapping[str, CommandPart] = {}
    """What an option adds on this kind of processor."""


EngineMetric = Literal[
    "queue",  # requests that wait
    "running",  # requests that it works on
    "kv-usage",  # share of the KV cache in use
    "preemptions",  # requests whose KV cache was dropped
    "failed-transfers",  # of KV caches between prefill and decode
    "finished",  # requests, by `finish_reasons.label`
    "cache-queries",  # prompt tokens that were looked up in the prefix cache
    "cache-hits",  # and those that were in it
    "ttft",  # histograms, in seconds
    "itl",
    "e2e",
]
RouterMetric = Literal["requests", "errors"]


class FinishReasons(_Row):
    """How the counter of finished requests tells answered requests from others."""

    label: str
    unanswered: tuple[str, ...]
    """Values of the label that mean: without an answer."""


class RayCommands(_Row):
    """What the machines of a replica run where Ray joins them."""

    lead: tuple[Template, ...]
    """Put before the engine's command on the first."""

    follow: tuple[Template, ...]
    """The whole command on the others."""


class Engine(_Row):
    """What runs a model."""

    source: str
    read: str
    command: tuple[Template, ...]
    environment: Mapping[str, Template]
    image: str
    """Of a container that runs it, where its platform names none."""

    own_image: str
    """The same with what EFA and routing by events need; {registry} is the fleet's own."""

    options: Mapping[str, CommandPart]
    """What a setting adds, by name."""

    ray: RayCommands
    """Ray in place of the engine's own processes."""

    transfers: Mapping[str, CommandPart]
    """How a KV cache is handed on, by what lies between the machines."""

    streaming: WeightStreaming
    other_s3: CommandPart
    """For an S3 that is not AWS's own."""

    platforms: Mapping[str, Platform]
    health: str
    """Path that answers 200 while the process lives; proves nothing about answers."""

    metrics_path: str
    """Path of its own counters and histograms, in Prometheus's format."""

    metrics: Mapping[EngineMetric, str]
    """Prometheus names of those that it has."""

    finish_reasons: FinishReasons


class DiscoveryMode(CommandPart):
    """One way of finding engines."""

    before: tuple[Template, ...] = ()
    """Put before the router's own command: what finds them for it."""


class Discovery(_Row):
    """How a router finds the engines."""

    together: DiscoveryMode
    """Engines that do both halves of a request."""

    apart: DiscoveryMode
    """Engines that read prompts, and engines that write answers."""

    heard: DiscoveryMode | None = None
    """Engines of which the router hears what their caches hold, where that is another way than `together`."""


class Router(_Row):
    """What spreads requests over the replicas."""

    source: str
    read: str
    image: str
    """Of a container that runs it."""

    following_image: str
    """The same with what looks DNS names up for it; {registry} is the fleet's own."""

    command: tuple[Template, ...]
    environment: Mapping[str, Template] = {}
    finds: Mapping[Literal["addresses", "labels", "names"], Discovery]
    metrics: Mapping[Literal["together", "apart"], Mapping[RouterMetric, str]]
    """Prometheus names, by the engines behind it."""

    policies: Mapping[str, str]
    """The router's word for each of a blueprint's policies."""

    base_bytes: int
    """Memory that it takes."""


class _Catalog(_Row):
    engines: Mapping[str, Engine]
    routers: Mapping[str, Router]


@functools.cache
def _load_catalog() -> _Catalog:
    return _Catalog.model_validate(yaml.safe_load(FILE.read_text(encoding="utf-8")))


def load_engines() -> Mapping[str, Engine]:
    """All engines by name."""
    return MappingProxyType(dict(_load_catalog().engines))


def load_routers() -> Mapping[str, Router]:
    """All routers by name."""
    return MappingProxyType(dict(_load_catalog().routers))


def fill_arguments(templates: Iterable[str], values: Values) -> tuple[str, ...]:
    """The arguments with their values filled in.

    Raises:
        KeyError: a value that is asked for is missing in `values`.
    """
    filled: list[str] = []
    for template in templates:
        list_fields = [name for name in _parse_field_names(template) if isinstance(values.get(name), tuple)]
        if list_fields:
            filled += [
                _fill(template, {**values, list_fields[0]: item}) for item in _list_items(values[list_fields[0]])
            ]
        else:
            filled.append(_fill(template, values))
    return tuple(filled)


def _list_items(value: str | int | tuple[str, ...]) -> tuple[str, ...]:
    return value if isinstance(value, tuple) else (str(value),)


def fill_env(parts: Iterable[Mapping[str, str]], values: Values) -> dict[str, str]:
    """The environments of all parts as one; a later part wins.

    Raises:
        KeyError: a value that is asked for is missing in `values`.
    """
    return {name: _fill(template, values) for part in parts for name, template in part.items()}


def _fill(template: str, values: Mapping[str, Any]) -> str:
    return template.format_map(values)
