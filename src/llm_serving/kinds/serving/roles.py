"""The roles of a blueprint: what kinds of process run, on which pool, and how a model is split over accelerators."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from typing import Annotated, ClassVar, Literal

from pydantic import ConfigDict, Field, JsonValue

from llm_serving.engines.memory import Split
from llm_serving.fleet.model import Name
from llm_serving.kinds.serving.formats import FORMATS
from llm_serving.kinds.serving.scale import Scale
from llm_serving.settings.document import Conflict, Settings, parse_default
from llm_serving.settings.units import Bounds, Duration, Replicas, Switch, TextOrOff, Tokens

ModelName = Annotated[str, FORMATS["model-name"]]
ServedName = Annotated[str, FORMATS["served-name"]]
Revision = Annotated[str, FORMATS["revision"]]
WeightsUri = Annotated[str, FORMATS["weights"]]
AdapterLocation = Annotated[str, FORMATS["adapter"]]

EngineArguments = dict[Annotated[str, Field(max_length=100)], JsonValue]
"""The engine's own options by name, without dashes before it."""

Variables = dict[Annotated[str, FORMATS["variable"]], Annotated[str, FORMATS["variable-value"]]]

ParserName = Annotated[str, TextOrOff(**dataclasses.asdict(FORMATS["parser"]))]
TemplateFile = Annotated[str, FORMATS["template-file"]]
SystemPromptFile = Annotated[str, FORMATS["prompt-file"]]

RouterPolicy = Literal["cache-aware", "kv-aware", "load-aware", "round-robin", "random", "consistent-hash"]


MAX_WEIGHT = 32
"""Largest weight of a replica: as many entries of the router, each of which it asks for its health."""


class EngineRole(Settings):
    """A role that runs the engine."""

    other_names: ClassVar = {
        "tensor_parallel_size": "accelerators",
        "pipeline_parallel_size": "pipeline",
        "data_parallel_size": "data",
        "enable_expert_parallel": "expert",
    }

    pool: Name
    """The fleet's pool that it runs on."""

    replicas: Replicas = parse_default("1")
    """Number of replicas; a range such as 1..8 scales between its bounds; from 0, to zero without requests."""

    accelerators: Annotated[int, Field(ge=1, le=1024)] = 1
    """Accelerators of one replica, over all its nodes; on Neuron its NeuronCores."""

    pipeline: Annotated[int, Field(ge=1, le=64)] = 1
    """Stages of layers, one after the other (pipeline parallelism)."""

    data: Annotated[int, Field(ge=1, le=256)] = 1
    """Copies of the attention layers within a replica, each with its own requests (data parallelism)."""

    expert: Annotated[bool, Switch()] = False
    """Whole experts spread over the accelerators, instead of each expert split (expert parallelism)."""

    gives_way: Annotated[bool, Switch()] = False
    """Whether its replicas give their nodes to those of other roles and deployments that find none: for work that can
    wait, such as batches. They start again where a node is free."""

    gang: Annotated[bool, Switch()] = False
    """Whether the nodes of a replica are admitted together or not at all, by Kueue's queue of the pool, on EKS.
    Otherwise those that run hold their accelerators while they wait for the others."""

    scale: Scale | None = None
    """Autoscaling; default is by the queue, for decode by the KV cache."""

    adapters: dict[Name, AdapterLocation] = Field(default_factory=dict)
    """LoRA adapters by the name that clients put in `model`."""

    engine_arguments: EngineArguments = Field(default_factory=dict)
    """The engine's own options for this role, over those of the blueprint."""

    environment: Variables = Field(default_factory=dict)
    """Environment variables of this role, over those of the blueprint."""

    @property
    def tensor(self) -> int:
        """Ways that each layer is split (tensor parallelism)."""
        return self.accelerators // (self.pipeline * self.data)

    @property
    def split(self) -> Split:
        """How a replica splits its model."""
        return Split(self.tensor, self.pipeline, self.expert, self.data)

    def _check_even_split(self) -> Iterator[Conflict]:
        if self.accelerators % (self.pipeline * self.data):
            divisor = f"pipeline {self.pipeline} times data {self.data}"
            reason = f"{divisor} is {self.pipeline * self.data}, by which it does not divide"
            yield Conflict(("accelerators",), reason, f"use a multiple of {self.pipeline * self.data}")

    def _check_scale_range(self) -> Iterator[Conflict]:
        if self.replicas.max == 0:
            yield Conflict(("replicas",), "nothing would ever run", "set replicas: 1, or a range such as 0..4")
        if self.scale and self.replicas.min == self.replicas.max:
            reason = f"the replicas are always {self.replicas.max}"
            yield Conflict(("scale",), reason, f"set replicas: 1..{self.replicas.max + 1}, or remove scale")
            return
        for number, peak in enumerate(self.scale.peaks if self.scale else ()):
            if not self.replicas.min < peak.replicas <= self.replicas.max:
                reason = f"the role has {self.replicas.min} to {self.replicas.max}"
                fix = f"set {self.replicas.min + 1} to {self.replicas.max}"
                yield Conflict(("scale", "peaks", number, "replicas"), reason, fix, peak.replicas)


class AnsweringRole(EngineRole):
    """Replicas whose answers clients get, and that see a whole request."""

    max_requests: Annotated[int, Field(ge=1, le=100_000)] | None = None
    """Most requests at a replica, computed or waiting. Beyond it the router asks another replica, and the client gets
    429 with Retry-After where all are full. Of embeddings and rankings each text counts. Default is no limit."""


class WorkerRole(AnsweringRole):
    """Replicas that do prefill and decode, beside which others may run on other accelerators."""

    weight: Annotated[int, Field(ge=1, le=MAX_WEIGHT)] = 1
    """Requests that the router gives each replica, for one that it gives to a replica of weight 1. `check` says which
    weights the accelerators' capacity asks for."""


class ModelSettings(Settings):
    """How a model is loaded and its answers are read: of a blueprint for all roles, or of a role for itself."""

    other_names: ClassVar = {"max_model_len": "context", "reasoning_parser": "reasoning"}

    weights: WeightsUri = "s3"
    """Where the weights are streamed from: `s3` is the fleet's model bucket, or s3://BUCKET/PREFIX."""

    context: Tokens = 4096
    """Maximum tokens of a request, prompt and answer together."""

    revision: Revision | None = None
    """Branch, tag or commit on the hub that the weights must be a copy of; default is any."""

    memory: Literal["checked", "unchecked"] = "checked"
    """Whether the model's memory must be known before it is deployed. `unchecked` accepts any model: its
    weights and another tenth must fit, and nothing else is computed."""

    tools: ParserName = "auto"
    """Parser of tool calls in answers: `auto` for the catalog's, `off`, or the engine's name of a parser."""

    reasoning: ParserName = "auto"
    """Parser of reasoning in answers: `auto` for the catalog's, `off`, or the engine's name of a parser."""

    chat_template: TemplateFile | None = None
    """A Jinja file beside blueprint.yaml that formats chats, instead of the model's own or the catalog's."""

    warm_prompt: SystemPromptFile | None = None
    """A text file beside blueprint.yaml with the system prompt of the clients: a replica computes it before it takes
    requests, so that their prefix is cached. Clients send it all the same."""


class ModelSwitch(Settings):
    """How models that share accelerators take turns: one is awake, the others sleep in the host's memory."""

    least_awake: Annotated[Duration, Field(le=3600)] = parse_default("10s")
    """Least time that a model with requests stays awake while another waits."""

    finish: Annotated[Duration, Field(le=3600)] = parse_default("10s")
    """Longest that its requests may then take to finish; what still runs stops, and goes on when it is awake again."""

    waiting: Annotated[int, Field(ge=1, le=100_000)] = 256
    """Most requests that wait for their model at a replica; more get 429 with Retry-After."""


class ModelRole(AnsweringRole, ModelSettings):
    """One of many models behind one endpoint: clients use the name of its role, or its `served_name`, as `model`."""

    model_config = ConfigDict(json_schema_extra={"anyOf": [{"required": [key]} for key in ("pool", "shares")]})

    pool: Name = Field(default_factory=str, validate_default=False)
    """The fleet's pool that it runs on; of a role that `shares`, that role's."""

    model: ModelName
    """A model of the catalog, a hub id such as Qwen/Qwen3-0.6B, a folder that holds config.json, or its s3://BUCKET/PREFIX."""

    served_name: ServedName | None = None
    """The `model` of clients, such as a hub id; default is the name of the role."""

    shares: Name | None = None
    """A role of another model whose replicas serve this one too, on the same accelerators: one of them is awake, the
    others sleep in the host's memory until a request for them comes."""

    switch: ModelSwitch | None = None
    """How the models of a role that others share take turns."""

    def find_conflicts(self) -> Iterable[Iterator[Conflict]]:
        return (*map(self._select_own, super().find_conflicts()), self._find_misplaced())

    def _select_own(self, rule: Iterator[Conflict]) -> Iterator[Conflict]:
        """Yield what a rule finds, but of keys that the role may not have: only to remove them helps."""
        yield from (conflict for conflict in rule if not (self.shares and conflict.key_path[0] in SHARED_KEYS))

    def _find_misplaced(self) -> Iterator[Conflict]:
        """Yield a role without a place, or with one beside that of the role that it shares."""
        if self.shares is None:
            if not self.pool:
                yield Conflict(("pool",), "required field is missing", "set pool: NAME of the fleet, or shares: ROLE")
            return
        for key in SHARED_KEYS:
            if key in self.model_fields_set:
                yield Conflict((key,), f"it runs in the replicas of {self.shares}, which says it", f"remove {key}")


SHARED_KEYS = ("pool", "replicas", "accelerators", "pipeline", "scale", "gang", "gives_way", "switch")
"""Of a role that shares another's replicas, what that role says."""

UNSHARED = {
    "data": "vLLM was not tried so with data-parallel ranks",
    "max_requests": "each engine would count its own, without those that wait for it to wake",
    "warm_prompt": "what it computes beforehand is lost once the model sleeps",
}
"""Settings that no model has which takes turns with others, and why."""

UNSHARED_SCALES = {
    "kv_usage": "the caches of those that sleep are empty, which makes the average low",
    "slo": "the wait for a model's turn, which latencies have then, is hardly shorter with more replicas",
}
"""The same of scaling."""


class RouterRole(Settings):
    """The role that spreads requests over the replicas."""

    policy: RouterPolicy | None = None
    """How a replica is chosen; default is by cached prefixes if prompts share more than the router needs, 30% with
    vllm-router, else by load."""

    replicas: Annotated[int, Field(ge=1, le=100)] = 1
    """Number of routers."""

    max_requests: Annotated[int, Field(ge=1, le=100_000)] | None = None
    """Maximum requests in flight at each router; more get 429 with Retry-After at once. Rows of batches are counted
    apart, up to the same number. Default is no limit."""

    request_timeout: Annotated[Duration, Field(ge=1, le=86400)] = parse_default("30min")
    """Maximum time of a request, up to its last token; the router cuts it off then."""


class Roles(Settings):
    """What runs. Which of these a blueprint has depends on its pattern."""

    worker: WorkerRole | None = None
    """Replicas that do prefill and decode (aggregated, distributed)."""

    workers: dict[Name, WorkerRole] = Field(default_factory=dict)
    """Further replicas of the same model on other accelerators, by the names of their roles (aggregated,
    distributed)."""

    prefill: EngineRole | None = None
    """Replicas that read prompts (disaggregated)."""

    decode: EngineRole | None = None
    """Replicas that write answers (disaggregated)."""

    models: dict[Name, ModelRole] = Field(default_factory=dict)
    """Models behind one endpoint, by the names of their roles (multi-model)."""

    router: RouterRole = RouterRole()
    """The endpoint in front of all of them."""

    @property
    def engine_roles(self) -> dict[str, EngineRole]:
        """The roles that run an engine, by name, in the order in which requests meet them.

        One that shares another's replicas has all that is that role's, too.
        """
        roles = {"worker": self.worker, "prefill": self.prefill, "decode": self.decode}
        models = {name: self._fill_shared(role) for name, role in self.models.items()}
        return {name: role for name, role in roles.items() if role} | dict(self.workers) | models

    @property
    def replica_roles(self) -> dict[str, EngineRole]:
        """Of these, those that have replicas of their own."""
        return {name: role for name, role in self.engine_roles.items() if not get_shared(role)}

    @property
    def sharers(self) -> dict[str, tuple[str, ...]]:
        """The roles whose models sleep and wake in the replicas of another, by its name."""
        sharers: dict[str, tuple[str, ...]] = {}
        for name, role in self.models.items():
            if role.shares:
                sharers[role.shares] = (*sharers.get(role.shares, ()), name)
        return sharers

    def list_others(self, name: str) -> list[str]:
        """Return the roles whose models take turns with a role's on the same accelerators."""
        role = self.models.get(name)
        head = role.shares if role and role.shares else name
        return [other for other in (head, *self.sharers.get(head, ())) if other != name]

    def takes_turns(self, name: str) -> bool:
        """Return whether the model of a role is one of several on the same accelerators."""
        return bool(self.list_others(name))

    def get_switch(self, head: str) -> ModelSwitch:
        """Return how the models in the replicas of a role take turns."""
        return self.models[head].switch or ModelSwitch()

    def _check_sharing(self) -> Iterator[Conflict]:
        """Yield roles that share what is not there, or what is shared itself."""
        for name, role in self.models.items():
            if not role.shares:
                if role.switch and name not in self.sharers:
                    reason = "no other model shares its accelerators"
                    yield Conflict(("models", name, "switch"), reason, f"remove switch, or set shares: {name} for one")
                continue
            head = self.models.get(role.shares)
            others = [other for other, row in self.models.items() if other != name and not row.shares]
            fix = f"name one of {', '.join(others)}" if others else "remove shares, and set pool"
            if head is None or role.shares == name:
                reason = "it is the role itself" if head else "there is no such role of a model"
                yield Conflict(("models", name, "shares"), reason, fix, role.shares)
            elif head.shares:
                reason = f"{role.shares} itself shares the replicas of {head.shares}"
                yield Conflict(("models", name, "shares"), reason, fix, role.shares)

    def _check_turns(self) -> Iterator[Conflict]:
        """Yield settings that models do not have which take turns on the same accelerators."""
        for head, names in self.sharers.items():
            for name in (head, *names):
                written_fields = self.models[name].model_fields_set if name in self.models else set[str]()
                for key, reason in UNSHARED.items():
                    if key in written_fields:
                        yield Conflict(("models", name, key), f"models take turns here, and {reason}", f"remove {key}")
            scale = self.models[head].scale if head in self.models else None
            for key, reason in UNSHARED_SCALES.items():
                if scale and getattr(scale, key):
                    fix = "set scale: {queue: 4}"
                    yield Conflict(("models", head, "scale", key), f"models take turns here, and {reason}", fix)

    def _fill_shared(self, role: ModelRole) -> ModelRole:
        head = self.models.get(role.shares or "")
        return role.model_copy(update={key: getattr(head, key) for key in SHARED_KEYS}) if head else role

    def get_weight(self, name: str) -> int:
        """Return the weight of the replicas of a role."""
        role = self.engine_roles[name]
        return role.weight if isinstance(role, WorkerRole) else 1

    @property
    def admitted(self) -> int | None:
        """Most requests at once that get no 429, with the fewest replicas; None for any number."""
        at_replicas = [
            limit * compute_fixed_replicas(role).min
            for role in self.engine_roles.values()
            if (limit := get_max_requests(role))
        ]
        limits = [sum(at_replicas)] if len(at_replicas) == len(self.engine_roles) else []
        if self.router.max_requests:
            limits.append(self.router.max_requests * self.router.replicas)
        return min(limits, default=None)


DEFAULT_SCALES = {"decode": Scale(kv_usage=0.8)}
"""A decode replica's queue is short while its cache fills up. Source: the engines' production guides, 2026-11."""


def format_bounds(bounds: Bounds) -> int | str:
    """Return bounds as a person writes them: one number where both are the same."""
    return bounds.min if bounds.min == bounds.max else str(bounds)


def refuse_setting(key_path: tuple[str, ...], role: EngineRole, key: str, reason: str, fix: str) -> Conflict:
    """Return the conflict of a setting of the role at `key_path`, with its value as a person writes it."""
    value = getattr(role, key, None)
    if isinstance(value, Bounds):
        value = format_bounds(value)
    return Conflict((*key_path, key), reason, fix, ", ".join(value) if isinstance(value, dict) else value)


def get_shared(role: EngineRole) -> str:
    """Return the role whose replicas serve this one's model too; empty where it has its own."""
    return (role.shares if isinstance(role, ModelRole) else None) or ""


def get_max_requests(role: EngineRole) -> int | None:
    """Return the most requests at a replica; None for any number."""
    return role.max_requests if isinstance(role, AnsweringRole) else None


def resolve_scale(name: str, role: EngineRole) -> Scale | None:
    """Return when the role's replicas come and go; None where they are always as many."""
    if role.replicas.min == role.replicas.max:
        return None
    return role.scale or DEFAULT_SCALES.get(name, Scale(queue=4))


def compute_fixed_replicas(role: EngineRole) -> Bounds:
    """Return the replicas of a target that does not scale: the lower bound, and at least one."""
    count = max(1, role.replicas.min)
    return Bounds(count, count)
