"""Engines, routers and frameworks as data: command lines, environments, images, names of metrics.

An engine is a file engines/NAME.yaml; routers and frameworks are rows of routers.yaml and frameworks.yaml. Arguments
hold values in braces; values.yaml has all that exist, and a row that uses another is refused when it is read. To add an
engine, add its file: no code, unless its memory arithmetic differs from that of every other (`llm_serving.engines`).
"""

from __future__ import annotations

import functools
import string
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict

from llm_serving.catalog.models import WeightsFormat
from llm_serving.catalog.quantizations import Quantization
from llm_serving.settings import own_yaml

FOLDER = Path(__file__).with_name("engines")
ROUTERS_FILE = Path(__file__).with_name("routers.yaml")
CACHE_KEEPERS_FILE = Path(__file__).with_name("cache_keepers.yaml")
FRAMEWORKS_FILE = Path(__file__).with_name("frameworks.yaml")

VALUES_FILE = Path(__file__).with_name("values.yaml")
"""All values that rows can use, with what each is."""

Values = Mapping[str, str | int | tuple[str, ...]]

_Value = TypeVar("_Value")


def _parse_field_names(text: str) -> set[str]:
    return {name for _, name, _, _ in string.Formatter().parse(text) if name is not None}


def _check_field_names(text: str) -> str:
    if unknown := _parse_field_names(text) - _load_field_names():
        raise ValueError(f"{text}: no value is called {', '.join(sorted(unknown))}")
    return text


@functools.cache
def _load_field_names() -> frozenset[str]:
    return frozenset(own_yaml.read(VALUES_FILE))


Template = Annotated[str, AfterValidator(_check_field_names)]


def _check_settings(settings: Mapping[str, Any]) -> Mapping[str, Any]:
    for value in settings.values():
        if isinstance(value, Mapping):
            _check_settings(value)
        elif isinstance(value, str):
            _check_field_names(value)
    return settings


FileSettings = Annotated[Mapping[str, Any], AfterValidator(_check_settings)]
"""Keys of an engine's file of settings; a text that is one value in braces becomes that value, a number too."""


NamesLack = Literal["settings", "command"]
"""What decides the bytes of a cached prompt beside image and weights, and names of prompts do not hold: settings of the
model, or the whole command line, the environment and the kind of accelerator."""


class _Row(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class CommandPart(_Row):
    """Arguments and environment that one option or circumstance adds."""

    arguments: tuple[Template, ...] = ()
    settings: FileSettings = {}
    """For engines that take a file of settings (`Engine.settings_arguments`)."""

    environment: Mapping[str, Template] = {}
    address_variables: tuple[str, ...] = ()
    """Variables that must hold the address by which other nodes reach the process."""

    beside: tuple[Template, ...] = ()
    """A program that runs beside the engine, and starts again where it ends."""


class Transfer(CommandPart):
    """How prefill hands its KV cache to decode, by one kind of connection."""

    copies_cache: bool = False
    """Whether each rank keeps a copy of its whole cache in the node's memory."""

    listeners: tuple[Literal["prefill", "decode"], ...] = ()
    """Roles that listen at the port where prefill and decode agree on a transfer."""


class WeightStreaming(CommandPart):
    """Loading weights straight from S3 into memory."""

    loader: str
    """The engine's own name of this loader."""

    log_line: str = ""
    """Regular expression of the line that it logs: bytes, their unit and seconds; empty if it logs none."""


class StartLines(_Row):
    """Regular expressions of what the engine logs of its start, whose group is seconds."""

    begins: str
    """A line of every start, before the others and without seconds: a log may hold several starts."""

    load: str
    """Lines on loading weights, of ranks and of parts; the longest is the load."""

    compile: str
    """Lines on what follows: profiling, the KV cache, compiling and warming up."""


class WideExperts(CommandPart):
    """Whole experts over the accelerators of several nodes."""

    memory_share: float
    """Share of an accelerator's memory that the engine uses, 0 to 1."""

    balancing: CommandPart
    """Copies of busy experts, which move to where they are needed."""

    balanced_architectures: tuple[str, ...]
    """Models whose experts the engine copies, by transformers' `model_type`."""


class Sleeping(_Row):
    """What an engine keeps that sleeps, so that others have its accelerators: its weights go to the host's memory."""

    source: str
    read_on: str
    accelerator_bytes: int
    """Memory of an accelerator that it keeps."""

    split_accelerator_bytes: int
    """The same where a model is split over several: what they communicate with is kept too."""

    host_copies: float
    """Most memory of the host for each byte of weights, which it keeps awake too."""

    host_bytes: int
    """Other memory of the host, for each accelerator."""

    load_copies: Mapping[Quantization, float] = {}
    """Most memory of an accelerator for each byte of weights while they are loaded, where it is more than they."""

    copy_bytes_s: float
    """Weights of an accelerator that are copied from or to the host in a second."""

    def get_kept_bytes(self, accelerators: int) -> int:
        """Return memory that it keeps of each of so many accelerators."""
        return self.split_accelerator_bytes if accelerators > 1 else self.accelerator_bytes

    def compute_host_bytes(self, weight_bytes: int, accelerators: int) -> int:
        """Return memory of the host that an engine takes, awake or asleep, with so many weights on each accelerator."""
        return accelerators * (int(self.host_copies * weight_bytes) + self.host_bytes)


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
        """Return the largest segment of up to `max_tokens` below the context; the smallest one where none is."""
        return max((size for size in self.segments if size <= max_tokens and size < context), default=self.segments[0])


class LocalSetup(_Row):
    """How the local target gets the engine's programs and the router's, into an environment of the engine's own."""

    folder: str
    """Folder of the environment below the repository's root."""

    locks: tuple[str, ...]
    """Python packages with hashes, files below the repository's root: the router's among them."""

    packages: str = ""
    """Script below the repository's root that unpacks programs which are no Python packages; empty for none."""

    launcher: str = ""
    """Script below the repository's root that starts the program: `python SCRIPT PROGRAM ARGUMENTS...`; where there are
    no `packages`, it is the program itself."""

    modules: tuple[str, ...] = ()
    """Modules that a start imports: their byte code is written once."""

    environment: Mapping[str, str] = {}
    """Variables of the program here, where it shares the machine with others."""

    program: str = ""
    """Name of the program; the user's own on PATH takes its place where `packages` cannot be had."""


class Platform(CommandPart):
    """The engine on one kind of processor: `cpu`, or a kind of accelerator."""

    on_pools: bool = True
    """Whether pools of the fleet have this processor; if not, it takes an accelerator's place on the local target."""

    image: str = ""
    """Container image; empty where the engine's own serves this platform too."""

    version: str = ""
    """Version of the engine in that image; empty where it is the engine's own."""

    version_arguments: str = ""
    """File of engines/ with the arguments that this version takes (`engine_options.load_arguments`)."""

    streams: bool = True
    """Whether the engine streams weights from S3; if not, they are copied to the node's disk before it starts."""

    weights: tuple[Quantization, ...] | None = None
    """Weights that it computes with; None for all."""

    nvidia_driver: int = 0
    """Oldest branch of NVIDIA's driver that runs its image, such as 580; 0 where it needs none."""

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

    sleeping: Sleeping | None = None
    """None where an engine that sleeps frees nothing of the processor."""

    base_bytes: int = 0
    """Memory of one replica besides weights and KV cache, where it uses the machine's own memory."""

    weight_copies: float = 0
    """Memory of one replica for each byte of weights, where it uses the machine's own memory."""

    options: Mapping[str, CommandPart] = {}


EngineMetric = Literal[
    "queue",
    "running",
    "kv-usage",
    "preemptions",
    "failed-transfers",
    "steps",
    "transfer-time",
    "transfer-bytes",
    "finished",
    "cache-queries",
    "cache-hits",
    "prompt-tokens",
    "output-tokens",
    "ttft",
    "itl",
    "e2e",
]
"""Signals of an engine; `signals.yaml` says what each means."""

RouterMetric = Literal["requests", "errors"]


class FinishReasons(_Row):
    """How the counter of finished requests separates answered requests from others."""

    label: str = ""
    unanswered: tuple[str, ...] = ()
    """Values of the label that mean: without an answer."""


class _NamedChoice(_Row):
    """A row that a blueprint names."""

    source: str
    read_on: str
    default: bool = False
    """Whether it is the one of blueprints that name none."""


class AnswerParsers(_Row):
    """How the engine reads the answers of some models, in its own names."""

    models: tuple[str, ...] = ()
    """Patterns of the last part of their names on the hub, in lower case."""

    architectures: tuple[str, ...] = ()
    """Their `model_type`, for models that no pattern matches."""

    tools: tuple[str, ...] = ()
    """Parsers of calls of tools: the one that is used, then others that read the same models."""

    reasoning: tuple[str, ...] = ()
    """Parsers of what a model thinks before it answers: likewise."""

    chat_template: str = ""
    """A template in the engine's image that formats tools, or a query and its document, better than the model's own;
    empty where its own is used."""

    model_config_json: str = ""
    """What the model's config.json is to say instead, JSON, for a ranking model that is stored as one that chats."""


class AdapterApi(_Row):
    """How LoRA adapters come and go while the engine runs: paths, and fields of the bodies that are posted to them."""

    load: str
    unload: str
    name_field: str
    path_field: str
    """Of the adapter's folder."""


class RefusedArguments(_Row):
    """Options of the engine that `engine_arguments` cannot set, and why."""

    names: tuple[str, ...]
    reason: str
    secret: bool = False
    """Whether their values are, so that no message repeats one."""


class Engine(_NamedChoice):
    """What runs a model. A blueprint that needs an optional part that is missing here is refused."""

    rendered_only: str = ""
    """What of it is checked although nothing of it has run; empty where tests run it."""

    memory: str
    """Module of `llm_serving.engines` with its memory arithmetic."""

    router: str
    """Row of the router beside it, under frameworks that bring none."""

    disaggregated_router: str = ""
    """Row of the router before prefill and decode, where that is another."""

    command: tuple[Template, ...]
    settings: FileSettings = {}
    settings_arguments: tuple[Template, ...] = ()
    """What names its file of settings; empty where it takes none."""

    environment: Mapping[str, Template] = {}
    weights_format: WeightsFormat = "safetensors"
    """The form of the weights that it loads."""

    local: LocalSetup | None = None
    """Its programs on the local target; None where they are those of the default engine's environment."""

    image: str
    """Container image, where the platform names none."""

    fleet_image: str = ""
    """The same with EFA and KV events, in the fleet's own registry, {registry}; empty where `image` has both."""

    module_folder: str = ""
    """Folder in `fleet_image` of the modules that the engine loads."""

    options: Mapping[str, CommandPart] = {}
    """What a setting of the blueprint adds, by the option's name (`kinds.serving.options`)."""

    tier_names_lack: NamesLack | None = None
    """What its own files of cached prompts do not hold in their names; None where these hold all."""

    transfers: Mapping[str, Transfer] = {}
    """How prefill hands its KV cache to decode, by what lies between them; empty where the engine cannot."""

    transfer_probe: Mapping[str, str | int] = {}
    """Fields of a request that one end of a transfer answers by itself; empty where it answers any."""

    transfer_roles: Mapping[str, str | bool] = {}
    """The engine's words for the ends of a transfer, by role: `prefill` and `decode`."""

    streaming: WeightStreaming | None = None
    """Streaming weights from S3; None where weights are copied to the node before the engine starts."""

    start_lines: StartLines | None = None
    """None where nobody has read what it logs of its start."""

    wide_experts: WideExperts | None = None
    """Experts over several nodes; None where the engine has nothing to set for them."""

    adapter_api: AdapterApi | None = None
    """None where adapters are loaded only at the start."""

    other_s3: CommandPart = CommandPart()
    """For an S3 other than AWS's own."""

    reckoned_arguments: Mapping[str, Literal["sequences", "batch_tokens", "utilization"]] = {}
    """Options in `engine_arguments` that the memory arithmetic takes, and as what."""

    adapter_modules: str = ""
    """Option in `engine_arguments` with the modules that LoRA adapters may change; empty where it has none."""

    media_limits: str = ""
    """Option in `engine_arguments` with the most pictures and videos of a request, by kind; empty where it has none."""

    argument_keys: Mapping[str, str] = {}
    """Keys of blueprint.yaml that stand for an option of the engine."""

    answer_parsers: tuple[AnswerParsers, ...] = ()
    """The first row that matches a model is its row."""

    refused_arguments: tuple[RefusedArguments, ...] = ()
    """Options that `engine_arguments` cannot set although no key stands for them."""

    code_arguments: tuple[str, ...] = ()
    """Options in `engine_arguments` by which the engine loads code: of the model's folder, or of a module."""

    platforms: Mapping[str, Platform]
    """By kind of processor: `gpu`, `neuron`, `cpu`; those that are missing are refused."""

    health: str
    """Path that answers 200 while the process lives; proves nothing about answers."""

    metrics_path: str
    metrics: Mapping[EngineMetric, str] = {}
    """Prometheus names of those that it has."""

    buckets: Mapping[EngineMetric, tuple[float, ...]] = {}
    """Upper edges of the buckets of histograms, ascending."""

    finish_reasons: FinishReasons = FinishReasons()

    @functools.cached_property
    def written_arguments(self) -> frozenset[str]:
        """Options that some deployment writes by itself, on whatever platform, with _ for -."""
        own = [self, *self.options.values(), *self.transfers.values(), self.other_s3]
        parts = [*own, *([self.streaming] if self.streaming else []), *self._list_wide_parts()]
        words = [word for part in parts for word in (*getattr(part, "arguments", ()), *getattr(part, "command", ()))]
        words += self.settings_arguments
        words += [word for row in self.platforms.values() for part in row.options.values() for word in part.arguments]
        return frozenset(list_option_names(words)) - self.reckoned_arguments.keys()

    def _list_wide_parts(self) -> list[CommandPart]:
        return [self.wide_experts, self.wide_experts.balancing] if self.wide_experts else []

    def streams_on(self, platform: Platform) -> bool:
        """Return whether the engine streams weights from S3 on a platform."""
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

    engine_details: DiscoveryMode | None = None
    """Engines whose KV cache events the router reads, or whose ranks it chooses between, where that differs from
    `aggregated`."""


class RouterProgram(_Row):
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


class Router(_Row):
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
    """Prometheus names, by the engines behind it."""


class FrameworkSetup(_Row):
    """How the local target gets a framework and the engine that it pins, into an environment of their own."""

    folder: str
    """Folder of the environment below the repository's root."""

    lock: str
    """Python packages with hashes, below the repository's root."""

    modules: tuple[str, ...]
    """Modules that a start imports."""

    note: str
    """What the user should know of it, a sentence."""


class FrameworkEngine(_Row):
    """An engine under a framework: what differs from the engine's own row."""

    version: str
    """Of the engine, which the framework pins."""

    name: str = ""
    """The framework's own for it; empty where that is the catalog's."""

    command: tuple[Template, ...] = ()
    """What starts it, where the framework has a program of its own for it; empty where that is the engine's command."""

    settings: FileSettings | None = None
    """Of its file of settings; None where they are the engine's own."""

    settings_arguments: tuple[Template, ...] = ()
    """What names that file; empty where it is what names the engine's own."""

    environment: Mapping[str, Template] = {}
    """Beside the engine's own."""

    options: Mapping[str, CommandPart] = {}
    """What an option adds, in place of what the engine's row says of it."""

    transfer_roles: Mapping[str, str | bool] = {}
    transfers: Mapping[str, Transfer] = {}
    """How prefill hands over to decode; empty where that is as the engine's row says."""

    unsupported_options: Mapping[str, str] = {}
    """Why an option of the engine does not work, by the option's name; beside those of the framework."""

    image: str
    """Container image with both."""

    image_user: int
    """User of the image, who alone reads its programs."""

    platforms: tuple[str, ...]
    """Kinds of processors of the engine's row that it runs on."""

    absent_options: tuple[str, ...] = ()
    """Options of the engine's row that it goes without, though nobody asks for them."""

    arguments: str
    """File of engines/ with the arguments that this version takes (`engine_options.load_arguments`)."""

    metrics_path: str = ""
    """Of its page of metrics; empty where that is the engine's own."""

    metric_prefix: str = ""
    """Put before the engine's names of metrics, in which : is then _."""

    metrics: Mapping[EngineMetric, str] = {}
    """Prometheus names of those that the framework reports in the engine's place; empty where the engine's page is."""

    buckets: Mapping[EngineMetric, tuple[float, ...]] = {}
    """Upper edges of their histograms."""

    parsers: Mapping[Literal["tools", "reasoning"], frozenset[str]] = {}
    """Parsers of answers that the framework has in place of the engine's own; empty where the engine reads them."""

    parser_names: Mapping[Literal["tools", "reasoning"], Mapping[str, str]] = {}
    """The framework's names of parsers that the engine calls otherwise, by the engine's."""

    local: FrameworkSetup | None = None
    """None where it does not run on the local target."""

    def find_parser(self, key: Literal["tools", "reasoning"], name: str) -> str:
        """Return what reads answers in place of the engine's parser `name`; empty where nothing does."""
        if key not in self.parsers:
            return name
        own = self.parser_names.get(key, {}).get(name, name)
        return own if own in self.parsers[key] else ""


class Workload(_Row):
    """The custom kind by which a framework runs a deployment on EKS."""

    api_version: str
    kind: str
    operator: str
    """Program in the cluster that runs objects of this kind."""

    condition: str = "Ready"
    """Condition of an object that runs."""

    keda: bool = False
    """Whether KEDA scales its replicas by the engines' metrics, as those of Kubernetes' own kinds; or the operator."""


class Framework(_NamedChoice):
    """What keeps the replicas of a deployment running."""

    rendered_only: str = ""
    """What of it is checked although nothing of it has run but on this machine; empty where tests run it as on AWS."""

    brings: str = ""
    """What the others here do not have."""

    version: str = ""
    """Of the framework; empty where it is the target's own means."""

    targets: tuple[str, ...] = ()
    """Targets that it runs on; empty where it runs on all."""

    engines: Mapping[str, FrameworkEngine] = {}
    """Engines that it runs; empty where it runs all, as their own rows say."""

    router: str = ""
    """Row of the router that it brings; empty where the engine's own is used."""

    module: str = ""
    """Module of `llm_serving.kinds.serving.frameworks` that turns command lines into its own configuration; empty where
    it runs them as they are."""

    objects: str = "plain"
    """Folder of charts/inference/templates with the objects that keep its replicas running on EKS."""

    add_on: str = ""
    """Of the fleet, which installs the kinds of its objects; empty where every cluster has them."""

    workload: Workload | None = None
    """None where Kubernetes' own kinds, and KEDA for scaling, keep the replicas running."""

    signals: tuple[EngineMetric, ...] = ("queue", "kv-usage")
    """What it can scale replicas by."""

    planner_image: str = ""
    """Image of a program of its own that scales replicas by the SLO, on EKS; empty where it has none."""

    metrics_delay_s: float = 0
    """Seconds after which its pages of metrics have what an engine counted."""

    names_models_by_folder: bool = False
    """Whether clients' name of a model is a folder's, so that it is the last part of a hub id."""

    classes: Mapping[str, int] = {}
    """Classes of requests beside those without one, with their order; empty where it has none."""

    class_header: str = ""
    """Header of a request with its class, as DEPLOYMENT-CLASS; that of no class there changes nothing."""

    caller_header: str = ""
    """Header of a request with its caller, by which the endpoint takes turns; empty where it does not."""

    note: str = ""
    """What its endpoint does otherwise than the engine's own, a sentence; empty for nothing that clients notice."""

    unsupported_options: Mapping[str, str] = {}
    """Why an option of the engine does not work under it, by the option's name."""

    def build_class_headers(self, deployment: str) -> dict[str, dict[str, str]]:
        """Return the headers of a request to a deployment by its class."""
        return {name: {self.class_header: f"{deployment}-{name}"} for name in self.classes}


class CacheKeeper(_Row):
    """What keeps cached prompts in place of the engine."""

    source: str
    read_on: str
    title: str
    tiers: tuple[str, ...]
    targets: tuple[str, ...] = ()
    """Targets that it runs on; empty where it runs on all."""

    server_bytes: int = 0
    """Memory of its server beside each engine, without the prompts that it holds; 0 where it has none."""

    master: str = ""
    """End of the name of the process that knows where all replicas have prompts; empty where there is none."""

    master_port: int = 0
    names_lack: NamesLack
    """What its own names of prompts do not hold."""

    reasons: Mapping[Literal["target", "other_tiers", "adapters", "nodes", "no_accelerators"], str]
    """Why it does not work with what a deployment asks for; with {role}, {pool} and {target}."""

    def runs_on(self, target: str) -> bool:
        return not self.targets or target in self.targets


@functools.cache
def load_engines() -> Mapping[str, Engine]:
    return MappingProxyType(
        {file.stem: Engine.model_validate(own_yaml.read(file)) for file in sorted(FOLDER.glob("*.yaml"))}
    )


@functools.cache
def load_routers() -> Mapping[str, Router]:
    return own_yaml.read_rows(ROUTERS_FILE, Router)


@functools.cache
def load_cache_keepers() -> Mapping[str, CacheKeeper]:
    """Return all that keep cached prompts in place of the engine, by name."""
    return own_yaml.read_rows(CACHE_KEEPERS_FILE, CacheKeeper)


def suggest_cache_keepers(is_fitting: Callable[[CacheKeeper], bool]) -> str:
    """Return the words of a fix that names others which keep cached prompts; empty where none fits."""
    names = [name for name, row in load_cache_keepers().items() if is_fitting(row)]
    return f"set by: {' or '.join(names)}" if names else ""


@functools.cache
def load_frameworks() -> Mapping[str, Framework]:
    return own_yaml.read_rows(FRAMEWORKS_FILE, Framework)


@functools.cache
def get_engine(engine: str, framework: str) -> Engine:
    """Return an engine under a framework: its own row, with what the framework's pinned version changes."""
    row, pair = load_engines()[engine], load_frameworks()[framework].engines.get(engine)
    if pair is None:
        return row
    names = {key: f"{pair.metric_prefix}{name.replace(':', '_')}" for key, name in row.metrics.items()}
    works = (*pair.options, *(("transfer",) if pair.transfers else ()))
    update = {
        "image": pair.image,
        "fleet_image": "",
        "command": pair.command or row.command,
        "settings": row.settings if pair.settings is None else pair.settings,
        "settings_arguments": pair.settings_arguments or row.settings_arguments,
        "environment": {**row.environment, **pair.environment},
        "options": {**_omit(row.options, pair.absent_options), **pair.options},
        "transfer_roles": pair.transfer_roles or row.transfer_roles,
        "transfers": pair.transfers or row.transfers,
        "platforms": {
            kind: platform.model_copy(
                update={
                    "options": _omit(platform.options, (*pair.absent_options, *pair.options)),
                    "unsupported_options": {
                        **_omit(platform.unsupported_options, works),
                        **pair.unsupported_options,
                    },
                    # The pair has one image, made as the engine's own is: not for a platform that needs another.
                    "image": "",
                    "on_pools": platform.on_pools and not platform.image,
                }
            )
            for kind, platform in row.platforms.items()
            if kind in pair.platforms
        },
        "streaming": None,
        "metrics_path": pair.metrics_path or row.metrics_path,
        "metrics": pair.metrics or (names if pair.metric_prefix else row.metrics),
        "buckets": pair.buckets or row.buckets,
    }
    return row.model_copy(update=update)


def _omit(options: Mapping[str, _Value], names: tuple[str, ...]) -> dict[str, _Value]:
    return {name: part for name, part in options.items() if name not in names}


def get_router(engine: str, framework: str, *, is_disaggregated: bool = False) -> Router:
    """Return the router of an engine under a framework: the one that the framework brings, else the engine's own."""
    row, brought = load_engines()[engine], load_frameworks()[framework]
    own = (row.disaggregated_router if is_disaggregated else "") or row.router
    router, pair = load_routers()[brought.router or own], brought.engines.get(engine)
    # A framework with an image for each engine has its router in each of them.
    return router.model_copy(update={"image": pair.image}) if pair and not router.image else router


def get_default(rows: Mapping[str, Engine] | Mapping[str, Framework]) -> str:
    """Return the name of the row that blueprints get which name none: the one with `default`, else the first."""
    return next((name for name, row in rows.items() if row.default), next(iter(rows)))


def list_option_names(words: Iterable[str]) -> list[str]:
    """Return the options among the words of a command line, as `engine_arguments` names them."""
    options = [word.partition("=")[0].removeprefix("--") for word in words if word.startswith("--")]
    return [option.removeprefix("no-").replace("-", "_") for option in options]


def find_reader(formats: Iterable[WeightsFormat]) -> str:
    """Return the name of the engine that loads weights of one of these forms: the default one where it does."""
    rows = load_engines()
    names = [get_default(rows), *rows]
    return next(name for name in names if rows[name].weights_format in formats)


def fill_arguments(templates: Iterable[str], values: Values) -> tuple[str, ...]:
    """Return the arguments with their values filled in.

    Raises:
        KeyError: a value that is asked for is missing in `values`.
    """
    filled: list[str] = []
    for template in templates:
        lists = {name: value for name in _parse_field_names(template) if isinstance(value := values.get(name), tuple)}
        name, items = next(iter(lists.items()), ("", ("",)))
        filled += [template.format_map({**values, name: item}) for item in items]
    return tuple(filled)


def fill_settings(parts: Iterable[Mapping[str, Any]], values: Values) -> dict[str, Any]:
    """Return a file of settings with the keys of all parts; a later part wins, key by key one level down.

    Raises:
        KeyError: a value that is asked for is missing in `values`.
    """
    settings: dict[str, Any] = {}
    for part in parts:
        for key, value in part.items():
            filled = _fill_setting(value, values)
            settings[key] = {**settings.get(key, {}), **filled} if isinstance(filled, dict) else filled
    return settings


def _fill_setting(value: Any, values: Values) -> Any:
    if isinstance(value, Mapping):
        return {key: _fill_setting(item, values) for key, item in value.items()}
    if not isinstance(value, str):
        return value
    names = _parse_field_names(value)
    is_whole = len(names) == 1 and value == f"{{{next(iter(names))}}}"
    return values[next(iter(names))] if is_whole else value.format_map(values)


def fill_env(parts: Iterable[Mapping[str, str]], values: Values) -> dict[str, str]:
    """Return the environments of all parts as one; a later part wins.

    Raises:
        KeyError: a value that is asked for is missing in `values`.
    """
    return {name: template.format_map(values) for part in parts for name, template in part.items()}
