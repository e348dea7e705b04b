"""The roles of a blueprint: what kinds of process run, on which pool, and how a model is split over accelerators."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from llm_serving.fleet.model import Name
from llm_serving.settings.document import Contradiction, Settings, written
from llm_serving.settings.units import Bounds, Duration, Form, Replicas, Share, Switch, Tokens

Model = Annotated[
    str, Form(r"[^\s-].{0,254}", "a model: a name of the catalogue, a hub id or a folder", "Qwen/Qwen3-0.6B")
]
Weights = Annotated[
    str,
    Form(
        r"s3(?:://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]/[A-Za-z0-9._/=+@-]+)?",
        "a place to stream weights from: s3 or s3://BUCKET/PREFIX",
        "s3://my-models/qwen3-32b",
    ),
]
Adapter = Annotated[
    str,
    Form(
        r"(?:s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]/[A-Za-z0-9._/=+@-]+|[^\s/~-].{0,250})",
        "a LoRA adapter: a folder in the blueprint's own, or s3://BUCKET/PREFIX",
        "s3://my-models/adapters/sql",
    ),
]

Policy = Literal["cache-aware", "kv-aware", "load-aware", "round-robin", "random", "consistent-hash"]


class Scale(Settings):
    """When replicas come and go, between the least and the most of `replicas`: by one measure of the engine's own."""

    model_config = ConfigDict(json_schema_extra={"oneOf": [{"required": ["queue"]}, {"required": ["kv_usage"]}]})

    queue: Annotated[int, Field(ge=1, le=10_000)] | None = None
    """Waiting requests that one replica may have; more of them bring another replica."""

    kv_usage: Share | None = None
    """Share of the KV cache in use; above it another replica comes."""

    cool_down: Duration = written("5min")
    """How long a replica is kept when it is no longer needed."""

    def contradictions(self) -> Iterable[Iterator[Contradiction]]:
        return (self._one_measure(),)

    def _one_measure(self) -> Iterator[Contradiction]:
        if (self.queue is None) == (self.kv_usage is None):
            where = () if self.queue is None else ("kv_usage",)
            yield Contradiction(where, "it must have exactly one of queue and kv_usage", "queue: 4, or kv_usage: 80%")


class Engine(Settings):
    """A role that runs the engine."""

    pool: Name
    """The fleet's pool that carries it."""

    replicas: Replicas = written("1")
    """How many copies run; a range, as in 1..8, scales between its ends; from 0, they sleep while nobody asks."""

    accelerators: Annotated[int, Field(ge=1, le=1024)] = 1
    """Accelerators of one replica, over all its machines; on Neuron its NeuronCores."""

    pipeline: Annotated[int, Field(ge=1, le=64)] = 1
    """Stages of layers, one after the other (pipeline parallelism)."""

    data: Annotated[int, Field(ge=1, le=256)] = 1
    """Copies of the attention layers within a replica, each with requests of its own (data parallelism)."""

    expert: Annotated[bool, Switch()] = False
    """Whole experts spread over the accelerators, instead of each expert split (expert parallelism)."""

    executor: Literal["mp", "ray"] = "mp"
    """What joins the machines of a replica: the engine's own processes, or Ray."""

    scale: Scale | None = None
    """When replicas come and go; by the queue where left out, by the KV cache for decode."""

    adapters: dict[Name, Adapter] = Field(default_factory=dict)
    """LoRA adapters by the name that clients put in `model`."""

    def contradictions(self) -> Iterable[Iterator[Contradiction]]:
        return (self._splits_evenly(), self._scales_a_range())

    @property
    def tensor(self) -> int:
        """Ways that each layer is split (tensor parallelism)."""
        return self.accelerators // (self.pipeline * self.data)

    def _splits_evenly(self) -> Iterator[Contradiction]:
        if self.accelerators % (self.pipeline * self.data):
            parts = f"pipeline {self.pipeline} times data {self.data}"
            why = f"{parts} is {self.pipeline * self.data}, by which it does not divide"
            yield Contradiction(("accelerators",), why, f"a multiple of {self.pipeline * self.data}")

    def _scales_a_range(self) -> Iterator[Contradiction]:
        if self.replicas.most == 0:
            yield Contradiction(("replicas",), "nothing would ever run", "replicas: 1, or a range such as 0..4")
        if self.scale and self.replicas.least == self.replicas.most:
            why = f"the replicas are always {self.replicas.most}"
            yield Contradiction(("scale",), why, f"replicas: 1..{self.replicas.most + 1}, or no scale")


class Served(Engine):
    """One of many models behind one endpoint: clients put the name of its role in `model`."""

    model: Model
    """A model of the catalogue, a hub id such as Qwen/Qwen3-0.6B, or a folder that holds config.json."""

    weights: Weights = "s3"
    """Where the weights are streamed from: `s3` is the fleet's model bucket, or s3://BUCKET/PREFIX."""

    context: Tokens = 4096
    """Most tokens of a request, prompt and answer together."""


class Router(Settings):
    """The role that spreads requests over the replicas."""

    policy: Policy | None = None
    """How a replica is chosen; left out, by cached beginnings where prompts share more than 30%, else by load."""

    replicas: Annotated[int, Field(ge=1, le=100)] = 1
    """How many copies run."""


class Roles(Settings):
    """What runs. Which of these a blueprint has depends on its pattern."""

    worker: Engine | None = None
    """Replicas that do prefill and decode (aggregated, distributed)."""

    prefill: Engine | None = None
    """Replicas that read prompts (disaggregated)."""

    decode: Engine | None = None
    """Replicas that write answers (disaggregated)."""

    models: dict[Name, Served] = Field(default_factory=dict)
    """Models behind one endpoint by the name that clients put in `model` (multi-model)."""

    router: Router = Router()
    """One endpoint before them all."""

    @property
    def engines(self) -> dict[str, Engine]:
        """The roles that run an engine, by name, in the order in which requests meet them."""
        named = {"worker": self.worker, "prefill": self.prefill, "decode": self.decode}
        return {name: role for name, role in named.items() if role} | dict(self.models)


PATTERNS: dict[str, tuple[str, ...]] = {
    "aggregated": ("worker",),
    "disaggregated": ("prefill", "decode"),
    "distributed": ("worker",),
    "multi-model": ("models",),
}
"""The roles that each pattern has, beside its router."""

DEFAULT_SCALE = {"decode": Scale(kv_usage=0.8)}
"""A decode replica's queue is short while its cache fills up. Source: vLLM production guides, 2026-11."""


def scale_of(name: str, role: Engine) -> Scale | None:
    """When the role's replicas come and go; None where they are always as many."""
    if role.replicas.least == role.replicas.most:
        return None
    return role.scale or DEFAULT_SCALE.get(name, Scale(queue=4))


def always(role: Engine) -> Bounds:
    """The replicas where nothing scales: a machine of its own has no autoscaler, and starts at least one."""
    count = max(1, role.replicas.least)
    return Bounds(count, count)
