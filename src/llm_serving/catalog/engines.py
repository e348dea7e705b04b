"""Engines, routers and frameworks as data: command lines, environments, images, names of metrics.

An engine is a file engines/NAME.yaml; routers and frameworks are rows of routers.yaml and frameworks.yaml. Arguments
hold values in braces; FIELD_NAMES are all that exist, and a row that uses another is refused when it is read. To add an
engine, add its file: no code, unless its memory arithmetic differs (`llm_serving.engines`).
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

FOLDER = Path(__file__).with_name("engines")
"""A file for each engine, named after it."""

ROUTERS_FILE = Path(__file__).with_name("routers.yaml")
FRAMEWORKS_FILE = Path(__file__).with_name("frameworks.yaml")

FIELD_NAMES = frozenset(
    {
        "weights",  # s3://BUCKET/PREFIX/, or the folder that they were copied to
        "served_model",  # the name that clients use
        "host",  # the address to listen on
        "port",
        "metrics_port",  # of a router that has its own
        "nixl_side_channel_port",  # where prefill and decode agree on a transfer
        "kv_events_endpoint",  # where KV cache events are published, as ZeroMQ writes addresses
        "kv_replay_endpoint",  # where earlier events are asked for
        "master_port",  # where the nodes of a replica meet
        "ray_port",  # where Ray's nodes meet
        "data_port",  # where its data-parallel ranks meet
        "discovery_port",  # where a router gets the addresses of prefill and decode
        "context",  # most tokens of a request
        "kv_bytes",  # memory of the KV cache
        "kv_role",  # whether it produces or consumes KV caches
        "threads",  # of computation
        "tensor",  # ways that a layer is split
        "pipeline",  # stages of layers
        "data",  # data-parallel ranks
        "nodes",  # of one replica
        "rank",  # of this node among them
        "leader_address",  # address of rank 0
        "batch_tokens",  # most tokens of a step
        "sequences",  # most requests of a step
        "offload_gib",  # memory for cached prompts, GiB
        "speculative",  # the engine's settings for speculative decoding, JSON
        "adapters",  # NAME=LOCATION of each LoRA adapter
        "max_adapters",  # adapters loaded at once
        "drain_s",  # for requests under way when a replica is to end
        "cache",  # the process's own folder
        "module_folder",  # the folder of the modules in images/ that the engine loads
        "socket_folder",  # a folder with a short path
        "policy",  # in the router's own words
        "imbalance",  # requests that one replica may have under way more than another
        "deadline_s",  # of a request
        "namespace",  # of the engines' pods
        "engine_port",  # where every engine listens
        "workers",  # URLs, labels or NAME:PORT of engines that do both prefill and decode
        "prefill",  # the same of prefill engines
        "decode",  # and of decode engines
    }
)
"""All values that rows can use. Where a value is a list, the argument that uses it is repeated for each item."""

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
    """Arguments and environment that one option or circumstance adds."""

    arguments: tuple[Template, ...] = ()
    environment: Mapping[str, Template] = {}
    address_variables: tuple[str, ...] = ()
    """Variables that must hold the address by which other nodes reach the process."""


class WeightStreaming(CommandPart):
    """Loading weights straight from S3 into memory."""

    loader: str
    """The engine's own name of this loader."""


class EngineLimits(_Row):
    """What the engine runs on one kind of accelerator, where its programs are compiled for fixed shapes."""

    source: str
    read_on: str
    families: tuple[str, ...]
    """Families of instance types that it runs on."""

    unsupported_reason: str
    """Why it does not run on the other families of the kind."""

    architectures: Mapping[str, tuple[int, ...]]
    """Models that it runs, in 16 bits, by transformers' `model_type`: the sizes that their heads can have."""

    segments: tuple[int, ...]
    """Tokens that one step of a prompt can have, ascending: each size is a program compiled beforehand."""

    sequences: int
    """Requests of one step, where the blueprint does not say: they are compiled too."""

    whole_node_reason: str
    """Why a replica needs all accelerators of its node."""

    def select_segment(self, max_tokens: int, context: int) -> int:
        """The largest segment of up to `max_tokens` that is below the context; the smallest one where none is."""
        return max((size for size in self.segments if size <= max_tokens and size < context), default=self.segments[0])


class Platform(CommandPart):
    """The engine on one kind of processor: `cpu`, or a kind of accelerator."""

    image: str = ""
    """Container image; empty where the engine's own serves this platform too."""

    streams: bool = True
    """Whether the engine streams weights from S3; if not, they are copied to the node's disk before it starts."""

    start_s: float = 600
    """Longest start, without the time to load weights."""

    limits: EngineLimits | None = None
    """None where shapes are free."""

    unsupported_options: Mapping[str, str] = {}
    """Why an option does not work on this platform, by the option's name; `nodes` and `transfer` among them."""

    kv_block: int
    """Tokens in one block of the KV cache."""

    device: str
    """The engine's name of the processor."""

    base_bytes: int = 0
    """Memory of one replica besides weights and KV cache, where it uses the machine's own memory."""

    weight_copies: float = 0
    """Memory of one replica for each byte of weights, where it uses the machine's own memory."""

    options: Mapping[str, CommandPart] = {}
    """What an option adds on this platform."""


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
    """How the counter of finished requests separates answered requests from others."""

    label: str = ""
    unanswered: tuple[str, ...] = ()
    """Values of the label that mean: without an answer."""


class RayCommands(_Row):
    """The commands of a replica's nodes where Ray joins them."""

    leader: tuple[Template, ...]
    """Prefix of the engine's command on rank 0."""

    worker: tuple[Template, ...]
    """The whole command on the other ranks."""


class _NamedChoice(_Row):
    """A row that a blueprint names."""

    source: str
    read_on: str
    default: bool = False
    """Whether it is the one of blueprints that name none."""


class Engine(_NamedChoice):
    """What runs a model. A blueprint that needs an optional part that is missing here is refused."""

    command: tuple[Template, ...]
    environment: Mapping[str, Template] = {}
    image: str
    """Container image, where the platform names none."""

    fleet_image: str = ""
    """The same with EFA and KV events, in the fleet's own registry, {registry}; empty where `image` has both."""

    module_folder: str = ""
    """Folder in `fleet_image` of the modules that the engine loads."""

    options: Mapping[str, CommandPart] = {}
    """What a setting of the blueprint adds, by the option's name (`processes.list_options`)."""

    ray: RayCommands | None = None
    """Ray in place of the engine's own processes; None where the engine cannot use it."""

    transfers: Mapping[str, CommandPart] = {}
    """How prefill hands its KV cache to decode, by what lies between them; empty where the engine cannot."""

    streaming: WeightStreaming | None = None
    """Streaming weights from S3; None where weights are copied to the node before the engine starts."""

    other_s3: CommandPart = CommandPart()
    """For an S3 other than AWS's own."""

    platforms: Mapping[str, Platform]
    """By kind of processor: `gpu`, `neuron`, `cpu`; those that are missing are refused."""

    health: str
    """Path that answers 200 while the process lives; proves nothing about answers."""

    metrics_path: str
    """Path of its Prometheus metrics."""

    metrics: Mapping[EngineMetric, str] = {}
    """Prometheus names of those that it has."""

    finish_reasons: FinishReasons = FinishReasons()

    def streams_on(self, platform: Platform) -> bool:
        """Whether the engine streams weights from S3 on a platform."""
        return self.streaming is not None and platform.streams


class DiscoveryMode(CommandPart):
    """Arguments for one way of finding engines."""

    prefix_command: tuple[Template, ...] = ()
    """Put before the router's own command: the program that finds engines for it."""


class Discovery(_Row):
    """How a router finds the engines."""

    aggregated: DiscoveryMode
    """Engines that do both prefill and decode."""

    disaggregated: DiscoveryMode | None = None
    """Prefill engines and decode engines; None where the router cannot split requests."""

    kv_events: DiscoveryMode | None = None
    """Engines whose KV cache events the router reads, where that differs from `aggregated`."""


class Router(_Row):
    """What spreads requests over the replicas."""

    source: str
    read_on: str
    image: str
    """Container image."""

    dns_discovery_image: str = ""
    """The same with the program that looks DNS names up for it, in the fleet's own registry, {registry}."""

    command: tuple[Template, ...]
    environment: Mapping[str, Template] = {}
    discovery: Mapping[Literal["addresses", "labels", "names"], Discovery]
    policies: Mapping[str, str]
    """The router's own name for each of a blueprint's policies."""

    base_bytes: int
    """Memory that it takes."""

    cache_aware_share: float
    """Share of a prompt, 0 to 1, above which the policy cache-aware follows cached prefixes."""

    metrics: Mapping[Literal["aggregated", "disaggregated"], Mapping[RouterMetric, str]] = {}
    """Prometheus names, by the engines behind it."""


class Framework(_NamedChoice):
    """What keeps the replicas of a deployment running."""

    targets: tuple[str, ...] = ()
    """Targets that it runs on; empty where it runs on all."""

    router: str
    """Name of the router's row."""


def _read(file: Path) -> Any:
    return yaml.load(file.read_text(encoding="utf-8"), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))


@functools.cache
def load_engines() -> Mapping[str, Engine]:
    """All engines by name."""
    return MappingProxyType({file.stem: Engine.model_validate(_read(file)) for file in sorted(FOLDER.glob("*.yaml"))})


@functools.cache
def load_routers() -> Mapping[str, Router]:
    """All routers by name."""
    return MappingProxyType({name: Router.model_validate(row) for name, row in _read(ROUTERS_FILE).items()})


@functools.cache
def load_frameworks() -> Mapping[str, Framework]:
    """All frameworks by name."""
    return MappingProxyType({name: Framework.model_validate(row) for name, row in _read(FRAMEWORKS_FILE).items()})


def get_default(rows: Mapping[str, Engine] | Mapping[str, Framework]) -> str:
    """The name of the row that blueprints get which name none: the one with `default`, else the first."""
    return next((name for name, row in rows.items() if row.default), next(iter(rows)))


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
