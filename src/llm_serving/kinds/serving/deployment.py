"""A blueprint resolved against a fleet: frozen data, every number decided. Templates lay it out and compute nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import Field, JsonValue

from llm_serving.catalog import engines, frameworks
from llm_serving.catalog.engines import EngineMetric
from llm_serving.engines.memory import Batch
from llm_serving.kinds.serving import objectives
from llm_serving.kinds.serving.blueprint import Disruption
from llm_serving.kinds.serving.objectives import LatencyObjective
from llm_serving.kinds.serving.roles import EngineArguments, ModelSwitch
from llm_serving.kinds.serving.scale import Scale
from llm_serving.kinds.serving.stack import ServingStack
from llm_serving.kinds.serving.tuning import Tuning
from llm_serving.services import tasks
from llm_serving.services.deployment import Deployment
from llm_serving.services.load_balancer import StackLoadBalancer
from llm_serving.services.models import LoadedModel, ServedModel
from llm_serving.services.service import Resources, Service
from llm_serving.services.slo import MIN_ERROR_SHARE
from llm_serving.services.traffic import Slo, Traffic
from llm_serving.settings.choices import Task
from llm_serving.settings.plain import PlainData
from llm_serving.settings.units import Bounds

CHART = "inference"
"""Folder of charts/ that deployments of models are releases of."""

WORKER = "worker"
"""Name of the role whose replicas do all of a request."""

PREFILL, DECODE = "prefill", "decode"
"""Names of the roles that a request is split between."""


def map_latencies(role_names: Sequence[str]) -> dict[EngineMetric, list[str]]:
    """Return the engines' roles whose requests have a latency, by histogram.

    Before prefill and decode no engine sees a whole request: prefill has the first token, decode those after it.
    """
    names, is_split = list(role_names), PREFILL in role_names
    answering = [name for name in names if name != PREFILL]
    return {"ttft": [PREFILL] if is_split else names, "itl": answering, "e2e": [] if is_split else names}


class Parallelism(PlainData):
    """How one replica is spread over accelerators."""

    tensor: int = 1
    """Ways that each layer is split."""

    pipeline: int = 1
    """Stages of layers."""

    data: int = 1
    """Copies of the attention layers."""

    expert: bool = False
    """Whether whole experts are spread over the accelerators."""


class ResolvedLoadBalancer(StackLoadBalancer):
    """The load balancer before the routers."""

    public: bool
    gateway: str
    """NAME:PORT of the Service that it calls in place of the router's; empty without one."""


class Role(PlainData):
    """One kind of process in a deployment."""

    name: str
    kind: Literal["engine", "router"]
    image: str = ""
    """Empty where the target runs no containers."""

    served_model: ServedModel | None = None
    """The model; None for the router, which serves what the engines do."""

    sleepers: dict[str, ServedModel] = Field(default_factory=dict)
    """Models that take turns with it on the same accelerators, by the name that they have as roles of the blueprint."""

    switch: ModelSwitch | None = None
    """How they take turns; None where there are none."""

    pool: str = ""
    """The fleet's pool; empty if it needs no dedicated node."""

    instance_types: tuple[str, ...] = ()
    """The pool's types that hold a replica, all alike in what they give; exactly these are asked for."""

    gives_way: bool = False
    """Whether replicas of others may take its nodes."""

    accelerators: int = 0
    """Of one replica; on Neuron its NeuronCores."""

    nodes: int = 1
    """Of one replica: more than one start together, in one zone."""

    parallelism: Parallelism = Parallelism()
    resources: Resources = Resources()
    replicas: Bounds
    weight: int = 1
    """Requests that the router gives each replica, for one that it gives to a replica of weight 1."""

    scale: Scale | None = None
    """When replicas come and go between the bounds; None where they are always as many."""

    kv_block: int = 0
    """Tokens in one block of the engine's KV cache, which holds whole blocks of a prompt; 0 for the router."""

    batch: Batch | None = None
    """The largest step of each of its engines; None for the router."""

    cache_tokens: int = 0
    """Tokens that the KV cache of each of its engines holds; 0 where that is not computed."""

    cache_bytes: int = 0
    """Bytes of that cache in each accelerator; 0 where that is not computed."""

    engine_arguments: EngineArguments = Field(default_factory=dict)
    """The engine's own options: the blueprint's, and the role's over them."""

    metrics: dict[str, str] = Field(default_factory=dict)
    """Prometheus names of its processes' metrics, by the catalog's names."""

    @property
    def served_models(self) -> tuple[ServedModel, ...]:
        """All models of its replicas."""
        return (self.served_model, *self.sleepers.values()) if self.served_model else ()

    def describe_models(self) -> str:
        """Return the names of all models of its replicas: `chat, code and embed`."""
        *names, last = (model.name for model in self.served_models)
        return " and ".join(filter(None, (", ".join(names), last)))


class PoolMaster(PlainData):
    """The process that knows where a pool of several replicas has cached prompts."""

    name: str
    image: str
    port: int
    memory_bytes: int


class ServingDeployment(Deployment):
    """What serves models: all that a renderer needs."""

    kind: str = "serving"
    chart: str = CHART
    pattern: str
    task: Task = tasks.GENERATE
    """What the models are for."""

    engine: str
    objects: str
    """`framework` of the chart's values: what keeps replicas running on EKS."""

    framework_config: dict[str, JsonValue] = Field(default_factory=dict)
    """`frameworkConfig` of the chart's values: of the framework itself, beside the services."""

    image_user: int | None = None
    """User of the images; None for the chart's own."""

    tuning: Tuning = Tuning()
    roles: tuple[Role, ...]
    """Engines in the order in which requests meet them, and the router last."""

    url: str
    """Base URL for clients, without /v1."""

    request_timeout_s: int = 1800
    """Longest request, up to its last token: the router cuts it off then, and nothing before the router may earlier."""

    pool_master: PoolMaster | None = None
    """None where no pool of cached prompts spans the replicas."""

    is_monitored: bool = False
    """Whether the fleet's Prometheus scrapes it, where it runs on EKS."""

    load_balancer: ResolvedLoadBalancer | None = None
    """What has TLS before the routers; None where clients call them."""

    balancer_ranges: tuple[str, ...] = ()
    """Address ranges from which load balancers call the routers on EKS, this one or those of the fleet's Gateways."""

    stack: ServingStack | None = None
    disruption: Disruption
    traffic: Traffic
    slo: Slo
    """Limits that answers of the task can have."""

    admitted: int | None = None
    """Most requests at once that get no 429, with the fewest replicas; None for any number."""

    unused_keys: tuple[str, ...] = ()
    """Settings of tokens that the blueprint has and the task leaves out."""

    cached_prompts: tuple[str, ...] = ()
    """What tiers of cached prompts hold and find of the traffic, in sentences; empty without any."""

    @property
    def engine_row(self) -> engines.Engine:
        """The engine, as its framework runs it."""
        return frameworks.get_engine(self.engine, self.framework)

    @property
    def is_pooled(self) -> bool:
        """Whether an answer is numbers for whole texts, without tokens."""
        return tasks.is_pooled(self.task)

    @property
    def engine_roles(self) -> tuple[Role, ...]:
        return tuple(role for role in self.roles if role.kind == "engine")

    @property
    def mixed_roles(self) -> tuple[Role, ...]:
        """The roles whose replicas run the same model on unlike accelerators; empty where all are alike."""
        roles = self.engine_roles
        return roles if len(roles) > 1 and roles[0].name == WORKER else ()

    @property
    def router(self) -> Role:
        return self.roles[-1]

    def list_services(self, role: Role) -> tuple[Service, ...]:
        return tuple(service for service in self.services if service.role == role.name)

    @property
    def metrics_urls(self) -> dict[str, str]:
        """Pages with the engines' metrics by process, where all processes run on this machine; empty elsewhere."""
        if not self.environment.conventions.is_local:
            return {}
        path = self.engine_row.metrics_path
        return {engine.name: f"http://{engine.host}:{engine.port}{path}" for engine in self.workers}

    @property
    def latency_objectives(self) -> tuple[LatencyObjective, ...]:
        """The limits of the SLO on latencies, as alerts measure them."""
        engine, roles = self.engine_row, map_latencies([role.name for role in self.engine_roles])
        return tuple(objectives.list_latencies(self.slo, engine.metrics, engine.buckets, roles))

    @property
    def allowed_errors(self) -> str:
        """Share of failed requests that alerts allow; empty where a request without a replica starts one, and fails."""
        scales_to_zero = any(role.replicas.min == 0 for role in self.engine_roles)
        return "" if scales_to_zero else f"{max(self.slo.errors, MIN_ERROR_SHARE):g}"

    @property
    def answering_roles(self) -> tuple[Role, ...]:
        """The engines' roles whose answers reach a client: prefill only hands its cache on."""
        return tuple(role for role in self.engine_roles if role.name != PREFILL)

    @property
    def served_models(self) -> tuple[ServedModel, ...]:
        """The models that clients can name, each once."""
        return tuple({model.name: model for role in self.engine_roles for model in role.served_models}.values())

    @property
    def loaded_models(self) -> tuple[LoadedModel, ...]:
        """The models that the engines load, draft models among them, each once."""
        loaded: dict[str, LoadedModel] = {}
        for model in self.served_models:
            loaded[model.weights.uri] = LoadedModel(model=model.model, weights=model.weights)
            if model.draft:
                loaded[model.draft.weights.uri] = model.draft
        return tuple(loaded.values())

    @property
    def model_names(self) -> tuple[str, ...]:
        """All that clients can put in `model`: models and their adapters."""
        return tuple(name for model in self.served_models for name in (model.name, *model.adapters))


def narrow(deployment: Deployment) -> ServingDeployment:
    """Return a deployment of which is known that it serves, as what it is."""
    if not isinstance(deployment, ServingDeployment):
        raise TypeError(f"{deployment.name}: the kind {deployment.kind} serves no models")
    return deployment
