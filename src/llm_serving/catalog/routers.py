"""Routers as data, rows of routers.yaml: what spreads requests over replicas, and how it finds them."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from llm_serving.catalog.command_parts import CommandPart, FileSettings, Template
from llm_serving.settings import own_yaml
from llm_serving.settings.plain import PlainData

ROUTERS_FILE = Path(__file__).with_name("routers.yaml")


RouterMetric = Literal["requests", "errors"]

REFUSED = "non_retryable_error"
"""Label `error_type` of vllm-router's errors that are the clients': engines refused with 4xx. 0.1.17, called."""


class DiscoveryMode(CommandPart):
    """Arguments for one way of finding engines."""

    prefix_command: tuple[Template, ...] = ()
    """Put before the router's own command: the program that finds engines for it."""


class Discovery(PlainData):
    """How a router finds the engines."""

    aggregated: DiscoveryMode
    """Engines that do both prefill and decode."""

    disaggregated: DiscoveryMode | None = None
    """Prefill engines and decode engines; None where the router cannot split requests."""

    engine_details: DiscoveryMode | None = None
    """Engines whose KV cache events the router reads, or whose ranks it chooses between, where that differs from
    `aggregated`."""


class RouterProgram(PlainData):
    """What routes in place of the router's own container, in the engine's image, in a container beside that."""

    name: str
    command: tuple[Template, ...]
    settings: FileSettings
    environment: Mapping[str, Template] = {}
    health: str
    """Path that answers once it has all engines."""

    cpus: int
    memory_bytes: int
    disk_bytes: int
    """For the engine's image, unpacked."""


class Router(PlainData):
    """What spreads requests over the replicas."""

    source: str
    read_on: str
    image: str = ""
    """Container image; {registry} is the fleet's own registry. Empty where the framework's image has it."""

    front: tuple[Template, ...] = ()
    """Put before all of its command: what listens in its place and lets clients reach the inference API only."""

    command: tuple[Template, ...] = ()
    """Empty where the framework that brings it starts it."""

    environment: Mapping[str, Template] = {}
    beside: RouterProgram | None = None
    """What routes, where that is in the engine's image. It gets a fixed name of each replica, which ECS alone gives."""

    metrics_path: str = "/metrics"
    rank_routing: CommandPart | None = None
    """Choosing a data-parallel rank of a replica; None where the engine chooses."""

    discovery: Mapping[Literal["addresses", "labels", "names"], Discovery] = {}
    """Empty where the framework that brings it tells it the engines."""

    policies: Mapping[str, str]
    """The router's own name for each of a blueprint's policies; those that are missing are refused."""

    absent_policies: Mapping[str, str] = {}
    """Why one is missing, where more is to say than that the router has none."""

    base_bytes: int
    """Memory that it takes."""

    cache_aware_share: float
    """Share of a prompt, 0 to 1, above which the policy cache-aware follows cached prefixes."""

    metrics: Mapping[Literal["aggregated", "disaggregated"], Mapping[RouterMetric, str]] = {}
    """Prometheus names, by the engines behind it; of several with a | between them the sum counts."""


@functools.cache
def load_routers() -> Mapping[str, Router]:
    return own_yaml.read_rows(ROUTERS_FILE, Router)
