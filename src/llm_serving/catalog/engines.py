"""Engines as data: command lines, environments, images, names of metrics.

An engine is a file engines/NAME.yaml. To add one, add its file: no code, unless its memory arithmetic differs from that
of every other (`llm_serving.engines`).
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Literal

from pydantic import Field

from llm_serving.catalog.architecture import Architecture
from llm_serving.catalog.command_parts import (
    CommandPart,
    FileSettings,
    NamedChoice,
    Template,
    get_default,
    list_option_names,
)
from llm_serving.catalog.models import WeightsFormat
from llm_serving.catalog.quantizations import Quantization
from llm_serving.settings import own_yaml
from llm_serving.settings.plain import PlainData

FOLDER = Path(__file__).with_name("engines")


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


class StartLines(PlainData):
    """Regular expressions of what the engine logs of its start, whose group is seconds."""

    begins: str
    """A line of every start, before the others and without seconds: a log may hold several starts."""

    load: str
    """Lines on loading weights, of ranks and of parts; the longest is the load."""

    compile: str
    """Lines on what follows: profiling, the KV cache, compiling and warming up."""


class AttentionKernels(PlainData):
    """Kernels of attention that the engine chooses between by itself."""

    argument: str
    """Option of the engine that chooses in its place."""

    default: str
    others: Mapping[str, str] = {}
    """Of some accelerators, by the beginning of their names."""

    def select(self, accelerators: str, arguments: Mapping[str, object]) -> str:
        """Return those of a replica with these options of its own."""
        own = (name for beginning, name in self.others.items() if accelerators.startswith(beginning))
        return str(arguments.get(self.argument) or next(own, self.default))


class WideExperts(CommandPart):
    """Whole experts over the accelerators of several nodes."""

    memory_share: float
    """Share of an accelerator's memory that the engine uses, 0 to 1."""

    balancing: CommandPart
    """Copies of busy experts, which move to where they are needed."""

    balanced_architectures: tuple[str, ...]
    """Models whose experts the engine copies, by transformers' `model_type`."""


class Sleeping(PlainData):
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


class EngineLimits(PlainData):
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


class LocalSetup(PlainData):
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

    neuron_driver: int = 0
    """Oldest minor of Neuron's driver 2 that runs its image, such as 27; 0 where it needs none."""

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
    "tier-hits",
    "prompt-tokens",
    "output-tokens",
    "ttft",
    "itl",
    "e2e",
]
"""Signals of an engine; `signals.yaml` says what each means."""


class FinishReasons(PlainData):
    """How the counter of finished requests separates answered requests from others."""

    label: str = ""
    unanswered: tuple[str, ...] = ()
    """Values of the label that mean: without an answer."""


class AnswerParsers(PlainData):
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


class AdapterApi(PlainData):
    """How LoRA adapters come and go while the engine runs: paths, and fields of the bodies that are posted to them."""

    load: str
    unload: str
    name_field: str
    path_field: str
    """Of the adapter's folder."""


class RefusedArguments(PlainData):
    """Options or variables of the engine that a blueprint cannot set, and why."""

    names: tuple[str, ...]
    reason: str


class RefusedBeside(PlainData):
    """Values of variables that cannot be beside options that the deployment writes."""

    variables: tuple[str, ...]
    text: str
    """In the value."""

    options: tuple[str, ...]
    reason: str


class Engine(NamedChoice):
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
    settings: FileSettings = Field(default_factory=dict)
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

    transfers: Mapping[str, Transfer] = {}
    """How prefill hands its KV cache to decode, by what lies between them; empty where the engine cannot."""

    transfer_kernels: AttentionKernels | None = None
    """Of which prefill and decode need the same; None where caches are handed over between any."""

    transfers_unlike_blocks: bool = True
    """Whether the blocks of prefill's cache and of decode's may hold unlike numbers of tokens."""

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

    reckoned_arguments: Mapping[str, Literal["sequences", "batch_tokens", "utilization", "adapters"]] = {}
    """Options in `engine_arguments` that the memory arithmetic takes, and as what."""

    holds_whole_prompts: bool = False
    """Whether a step has room for a prompt of the whole context where prompts are not split, and for a token of each
    request; else the engine ends as it starts."""

    drafted_sequences: int = 0
    """Most requests of a step by the engine's own choice where tokens are drafted; 0 for as many as otherwise."""

    caches_states: bool = True
    """Whether beginnings of prompts are cached for models with layers that keep a state too."""

    adapter_modules: str = ""
    """Option in `engine_arguments` with the modules that LoRA adapters may change; empty where it has none."""

    media_limits: str = ""
    """Option in `engine_arguments` with the most pictures and videos of a request, by kind; empty where it has none."""

    chat_vocabulary: str = ""
    """Variable with the folder of the vocabulary of gpt-oss's answers, which the engine loads from the
    internet by default; empty where it brings that."""

    text_only: str = ""
    """Switch in `engine_arguments` by which a model that sees reads text alone; empty where it has none."""

    whole_encoder: Mapping[str, str | bool] = {}
    """Option in `engine_arguments`, and its value, by which each accelerator has all of what reads pictures."""

    argument_keys: Mapping[str, str] = {}
    """Keys of blueprint.yaml that stand for an option of the engine."""

    answer_parsers: tuple[AnswerParsers, ...] = ()
    """The first row that matches a model is its row."""

    refused_arguments: tuple[RefusedArguments, ...] = ()
    """Options that `engine_arguments` cannot set although no key stands for them."""

    refused_variables: tuple[RefusedArguments, ...] = ()
    """Variables that `environment` cannot set."""

    refused_beside: tuple[RefusedBeside, ...] = ()
    """Values that `environment` cannot set for some deployments."""

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
        parts = [*own, *([self.streaming] if self.streaming else [])]
        parts += [self.wide_experts, self.wide_experts.balancing] if self.wide_experts else []
        words = [word for part in parts for word in (*getattr(part, "arguments", ()), *getattr(part, "command", ()))]
        words += self.settings_arguments
        for row in self.platforms.values():
            for part in row.options.values():
                words += part.arguments
        return frozenset(list_option_names(words)) - self.reckoned_arguments.keys()

    def list_adapter_modules(self, arguments: Mapping[str, object]) -> tuple[str, ...]:
        """Return the modules that LoRA adapters may change, by `engine_arguments`; none where they may change all."""
        modules = arguments.get(self.adapter_modules)
        return tuple(map(str, modules)) if isinstance(modules, list) else ()

    def count_adapters(self, arguments: Mapping[str, object], adapter_count: int) -> int:
        """Return LoRA adapters in memory at once: as many as `engine_arguments` says, else those that are named."""
        options = [option for option, meaning in self.reckoned_arguments.items() if meaning == "adapters"]
        return next(
            (count for option in options if isinstance(count := arguments.get(option), int) and adapter_count),
            adapter_count,
        )

    def caches_prompts(self, model: Architecture) -> bool:
        """Return whether beginnings of a model's prompts are cached, unless told otherwise."""
        return self.caches_states or model.state is None


@functools.cache
def load_engines() -> Mapping[str, Engine]:
    return MappingProxyType(
        {file.stem: Engine.model_validate(own_yaml.read(file)) for file in sorted(FOLDER.glob("*.yaml"))}
    )


def find_reader(formats: Iterable[WeightsFormat]) -> str:
    """Return the name of the engine that loads weights of one of these forms: the default one where it does."""
    rows = load_engines()
    names = [get_default(rows), *rows]
    return next(name for name in names if rows[name].weights_format in formats)
