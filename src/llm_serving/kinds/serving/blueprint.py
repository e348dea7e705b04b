"""`blueprint.yaml`: what to serve, under which load, and with which SLO. Plain typed data."""

from __future__ import annotations

import dataclasses
import difflib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from llm_serving import paths
from llm_serving.catalog import command_parts, engines, frameworks, records
from llm_serving.kinds.serving import patterns
from llm_serving.kinds.serving.auth import Auth
from llm_serving.kinds.serving.formats import FORMATS
from llm_serving.kinds.serving.roles import (
    EngineArguments,
    EngineRole,
    ModelName,
    ModelRole,
    ModelSettings,
    Roles,
    Variables,
    get_max_requests,
)
from llm_serving.kinds.serving.tuning import Tuning
from llm_serving.services import load_balancer, tasks
from llm_serving.services.addresses import check_port
from llm_serving.services.blueprint import FILE_NAME, BaseBlueprint
from llm_serving.services.traffic import Percentiles, Slo, Traffic
from llm_serving.settings.choices import OneOf, Task
from llm_serving.settings.document import Conflict, Document, OneOrMore, Settings, load, parse_default
from llm_serving.settings.errors import InputError, build_file_error
from llm_serving.settings.units import Duration, Switch

TOKEN_LIMITS = ("ttft_ms", "itl_ms", "output_tokens_per_s")
"""Fields of the SLO that hold tokens, which not every task's answers have."""


PROMPT_KEYS = ("input_tokens", "shared_prefix", "prefix_groups")
"""Fields of the traffic that say how prompts are made, where these are no texts of so many tokens."""


TEXT_FILES = {
    "chat_template": ("Jinja", 48 * 1024, "use a template in UTF-8, or the model's own"),
    "warm_prompt": ("text", 16 * 1024, "keep what all clients send first, as plain text"),
}
"""Form of the files that a replica's command and its probe hold, the most bytes, and what to do with another file: ECS
takes 64 KiB for a task definition. Source: Amazon ECS service quotas, "Task definition size", 2026-11."""


MIN_ROUTERS = 2
"""Routers behind a load balancer: one in each of two zones, at least."""

_ENGINE = command_parts.get_default(engines.load_engines())
_FRAMEWORK = command_parts.get_default(frameworks.load_frameworks())

Image = Annotated[str, dataclasses.replace(FORMATS["image"], example=engines.load_engines()[_ENGINE].image)]
MediaHost = Annotated[str, FORMATS["media-host"]]
TracesUrl = Annotated[str, FORMATS["traces-url"], AfterValidator(check_port)]
GatewayService = Annotated[str, FORMATS["gateway-service"], AfterValidator(check_port)]


class Disruption(Settings):
    """How many replicas an upgrade may take down at once, and how long they may drain."""

    unavailable: Annotated[int, Field(ge=0, le=1000)] = 1
    """Replicas of a role that an upgrade or a drained node may take down at once. With 0 no node is drained, and an
    upgrade starts new ones first, as with `surge`."""

    surge: Annotated[bool, Switch()] = False
    """Whether an upgrade starts a new replica before it stops an old one: the pool must hold one more. A role with one
    replica answers nothing while it is upgraded otherwise."""

    drain: Duration = parse_default("120s")
    """How long a replica that is stopped may finish its requests."""

    @property
    def starts_first(self) -> bool:
        """Whether an upgrade starts a new replica before it stops an old one."""
        return self.surge or not self.unavailable


class LoadBalancer(load_balancer.LoadBalancer):
    """An Application Load Balancer with TLS in front of the routers; internal to the VPC by default."""

    public: Annotated[bool, Switch()] = False
    """Whether it is reachable from the internet, by all or by `clients`; needs a gateway that authenticates, and a web
    ACL."""

    gateway: GatewayService | None = None
    """Kubernetes Service in the namespace of the deployments that authenticates requests and passes them to the router:
    the load balancer calls it instead of the router. On EKS."""

    def _check_public(self) -> Iterator[Conflict]:
        if self.public and not self.gateway:
            reason = "the internet would reach the routers, and no gateway before them authenticates requests"
            fix = "set public: off, or gateway: NAME:PORT of a Service that authenticates"
            yield Conflict(("public",), reason, fix)
        elif self.public and not self.web_acl:
            reason = "the internet reaches the load balancer, and nothing filters or limits its requests"
            yield Conflict(("public",), reason, "set web_acl: ARN of an AWS WAF web ACL, or public: off")


class Blueprint(BaseBlueprint, ModelSettings):
    """A user's copy of a pattern that serves models."""

    kind: Literal["serving"] = "serving"
    """Kind of work."""

    pattern: Annotated[str, OneOf(lambda: list(patterns.load_patterns()))]
    """Pattern that this is a copy of, a folder of blueprints/."""

    model: ModelName | None = None
    """A model of the catalog, a hub id such as Qwen/Qwen3-0.6B, a folder that holds config.json, or its s3://BUCKET/PREFIX."""

    task: Task = tasks.GENERATE
    """Task of the model: `generate` writes text; `embed` answers POST /v1/embeddings, `rerank` /v1/rerank and
    /v1/score, `classify` /classify; `draw` answers /v1/images/generations with pictures."""

    engine: Annotated[str, OneOf(lambda: list(engines.load_engines()))] = _ENGINE
    """Engine that runs the model."""

    framework: Annotated[str, OneOf(lambda: list(frameworks.load_frameworks()))] = _FRAMEWORK
    """Framework that runs the replicas: `plain` uses the target's own means, such as Deployments on EKS."""

    image: Image | None = None
    """The engine's image on EKS and ECS, with its tag or digest; default is the pinned one."""

    roles: Annotated[Roles, Field(examples=[{"worker": {"pool": "general"}}])]
    """Roles, each on a pool."""

    tuning: Tuning = Tuning()
    """Settings of the engine."""

    engine_arguments: EngineArguments = Field(default_factory=dict)
    """The engine's own options without leading dashes, such as `generation_config: vllm`, if they have no key here.
    Checked against the engine's parser."""

    environment: Variables = Field(default_factory=dict)
    """Environment variables of the engine, such as `NCCL_DEBUG: WARN`. Do not put secrets here."""

    media_hosts: OneOrMore[MediaHost] = Field((), validate_default=False)
    """Hosts that requests may name pictures of by URL, such as images.example.com; vLLM follows no redirect, SGLang
    those to the same hosts. By default none: requests carry pictures as `data:` URLs."""

    traces: TracesUrl | None = None
    """Where the engines send spans of their start and of each request, by OTLP/HTTP, such as an OpenTelemetry
    collector: http://collector.monitoring.svc:4318/v1/traces. A request's span is a child of the caller's
    `traceparent`. Spans hold counts and times, and no text."""

    disruption: Disruption = Disruption()
    """How many replicas an upgrade may take down at once."""

    load_balancer: LoadBalancer | None = None
    """A load balancer with TLS in front of the routers, on EKS and ECS; without it, the VPC calls the routers."""

    auth: Auth | None = None
    """Keys of teams. By default everybody who reaches the routers may call them."""

    traffic: Annotated[Traffic, Field(examples=[{"arrivals": "20/s"}])]
    """The load that it is designed for."""

    slo: Annotated[Slo, Field(examples=[{"ttft_ms": {"p95": 800}}])]
    """Objectives for the answers."""

    @property
    def pattern_row(self) -> patterns.Pattern:
        return patterns.load_patterns()[self.pattern]

    @property
    def framework_row(self) -> frameworks.Framework:
        return frameworks.load_frameworks()[self.framework]

    @property
    def engine_row(self) -> engines.Engine:
        """The engine, as its framework runs it."""
        return frameworks.get_engine(self.engine, self.framework)

    @property
    def is_pooled(self) -> bool:
        """Whether an answer is numbers for whole texts or pictures, without tokens."""
        return tasks.is_pooled(self.task)

    @property
    def max_sequence_tokens(self) -> int:
        """Most tokens that the engine computes of one request together: prompt and answer, or one text; 1 where its
        memory follows from none."""
        if self.task == tasks.DRAW:
            return 1
        return self.traffic.input_tokens.max if self.is_pooled else self.traffic.max_request_tokens

    @property
    def held_slo(self) -> Slo:
        """The SLO without limits that the answers of the task cannot have."""
        update = {name: Slo.model_fields[name].get_default() for name in TOKEN_LIMITS}
        return self.slo.model_copy(update=update) if self.is_pooled else self.slo

    @property
    def unused_keys(self) -> tuple[str, ...]:
        """Written settings of tokens that the task leaves out."""
        limits = [f"slo.{name}" for name in TOKEN_LIMITS if name in self.slo.model_fields_set]
        unused = ("output_tokens", *(PROMPT_KEYS if self.task == tasks.DRAW else ()))
        lengths = [f"traffic.{name}" for name in unused if name in self.traffic.model_fields_set]
        context = ["context"] if self.task == tasks.DRAW and "context" in self.model_fields_set else []
        return (*limits, *lengths, *context) if self.is_pooled else ()

    @property
    def is_disaggregated(self) -> bool:
        """Whether prefill hands its KV cache to decode."""
        return self.roles.prefill is not None and self.roles.decode is not None

    def find_key_path(self, name: str) -> tuple[str, ...]:
        """Return the key path of the engine role `name`."""
        group = [key for key in ("workers", "models") if name in getattr(self.roles, key)]
        return ("roles", *group, name)

    def merge_arguments(self, role: EngineRole) -> EngineArguments:
        """Return the engine's own options of a role: the blueprint's, and the role's over them."""
        return {**self.engine_arguments, **role.engine_arguments}

    def merge_environment(self, role: EngineRole) -> Variables:
        """Return the environment variables of a role: the blueprint's, and the role's over them."""
        return {**self.environment, **role.environment}

    def find_reckoned_argument(self, role: EngineRole, setting: str) -> float | None:
        """Return what the engine's own options of a role say of a number that the memory arithmetic takes."""
        arguments, row = self.merge_arguments(role), engines.load_engines()[self.engine]
        values = [arguments.get(name) for name, meaning in row.reckoned_arguments.items() if meaning == setting]
        return next((value for value in values if isinstance(value, int | float)), None)

    def find_step_number(self, role: EngineRole, setting: Literal["batch_tokens", "sequences"]) -> int | None:
        """Return a number of the engine's step that the blueprint has, by `tuning` or the engine's own option."""
        number = getattr(self.tuning, setting) or self.find_reckoned_argument(role, setting)
        return int(number) if number else None

    def find_media_limit(self, role: EngineRole, medium: str) -> int | None:
        """Return most pictures or videos of a request that the engine is told to take; None where it is not told.

        Args:
            medium: `image` or `video`.
        """
        limits = self.merge_arguments(role).get(self.engine_row.media_limits)
        limit = limits.get(medium) if isinstance(limits, dict) else None
        return limit if isinstance(limit, int) else None

    def reads_text_only(self, role: EngineRole) -> bool:
        """Return whether the engine is told to leave out what turns pictures into tokens."""
        return self.merge_arguments(role).get(self.engine_row.text_only) is True

    def select_model_settings(self, role: EngineRole) -> Blueprint | ModelRole:
        """Return what holds a role's model, weights and context: the role itself, or the blueprint for all roles."""
        return role if isinstance(role, ModelRole) else self

    def locate_weights(self, role: EngineRole) -> tuple[str, str]:
        """Return the key that says where a role's weights lie, and what it says: `s3`, or s3://BUCKET/PREFIX."""
        settings = self.select_model_settings(role)
        model = settings.model or ""
        is_in_s3 = settings.weights == "s3" and model.startswith(records.S3_SCHEME)
        return ("model", model) if is_in_s3 else ("weights", settings.weights)

    def find_model_key_path(self, key_path: Sequence[str], role: EngineRole, key: str) -> tuple[str, ...]:
        """Return the key path of a model setting `key` for the role at `key_path`."""
        return (key,) if self.select_model_settings(role) is self else (*key_path, key)

    def _check_task(self) -> Iterator[Conflict]:
        if self.task not in self.pattern_row.tasks:
            others = [row.name for row in patterns.load_patterns().values() if self.task in row.tasks]
            reason = f"the pattern {self.pattern} is made for {' and '.join(self.pattern_row.tasks)}"
            yield Conflict(("task",), reason, f"set pattern: {' or '.join(others)}, or remove task")

    def _check_token_settings(self) -> Iterator[Conflict]:
        """Yield settings that have no meaning by what an answer is, and whose user expects one."""
        if self.traffic.draw is not None and self.task != tasks.DRAW:
            reason = f"a request of the task {self.task} asks for no pictures"
            yield Conflict(("traffic", "draw"), reason, "set task: draw, or remove draw")
        if not self.is_pooled:
            yield from self._find_text_settings()
            return
        reason = f"an answer of the task {self.task} has no tokens"
        worker, speculative = self.roles.worker, self.tuning.speculative
        refused: dict[tuple[str, ...], object] = {
            ("tools",): self.tools not in ("auto", "off"),
            ("reasoning",): self.reasoning not in ("auto", "off"),
            ("warm_prompt",): self.warm_prompt,
            ("tuning", "speculative"): speculative,
            ("roles", "worker", "adapters"): worker and worker.adapters,
            ("roles", "worker", "scale", "kv_usage"): worker and worker.scale and worker.scale.kv_usage,
            ("roles", "router", "policy"): self.roles.router.policy == "kv-aware",
            ("traffic", "api"): "api" in self.traffic.model_fields_set,
            ("traffic", "turns"): self.traffic.turns.max > 1,
            ("slo", "score"): self.slo.score is not None and self.task != "classify",
        }
        fixes = {"kv_usage": "set queue: 4", "policy": "set policy: load-aware"}
        for key_path in [key_path for key_path, is_written in refused.items() if is_written]:
            yield Conflict(key_path, reason, fixes.get(key_path[-1], f"remove {key_path[-1]}"))
        if self.task == tasks.DRAW:
            yield from self._find_drawing()
        if self.traffic.images is not None:
            yield Conflict(("traffic", "images"), f"a request of the task {self.task} has texts only", "remove images")
        if self.traffic.data is not None and self.task == "rerank":
            yield Conflict(("traffic", "data"), "a prompt is a query or a document, and not both", "remove data")
        if self.traffic.data is not None and self.traffic.inputs.max > 1:
            yield Conflict(("traffic", "inputs"), "a row of data is a request with one text", "remove inputs")
        yield from self._find_full_requests()
        yield from self._find_remaining_limits(reason)

    def _find_full_requests(self) -> Iterator[Conflict]:
        """Yield a bound of replicas that one request exceeds, which an idle replica refuses too: each text counts."""
        for name, role in self.roles.engine_roles.items():
            limit, inputs = get_max_requests(role), self.traffic.inputs.max
            if limit is not None and limit < inputs:
                reason = f"each text counts, and a request of this traffic has up to {inputs}: it would always get 429"
                key_path = (*self.find_key_path(name), "max_requests")
                yield Conflict(key_path, reason, f"set max_requests: {inputs} or more", limit)

    def _find_drawing(self) -> Iterator[Conflict]:
        """Yield settings of texts, which a request for pictures does not have."""
        if self.traffic.inputs.max > 1:
            yield Conflict(("traffic", "inputs"), "a request for pictures has one prompt", "set draw: {count: 4}")
        if self.traffic.trace is not None:
            reason = "its requests have lengths in tokens, and pictures have none"
            yield Conflict(("traffic", "trace"), reason, "set arrivals: 1/s in its place")

    def _find_text_settings(self) -> Iterator[Conflict]:
        for key_path, is_written, others in (
            (("traffic", "inputs"), self.traffic.inputs.max > 1, tasks.NUMBERS),
            (("slo", "inputs_per_s"), self.slo.inputs_per_s is not None, tasks.POOLED),
        ):
            if is_written:
                reason = "a request of the task generate has one prompt"
                yield Conflict(key_path, reason, f"set task: {' or '.join(others)}, or remove {key_path[-1]}")

    def _find_remaining_limits(self, reason: str) -> Iterator[Conflict]:
        """Yield limits on tokens only: without them nothing would be left to hold."""
        written_limits = [name for name in TOKEN_LIMITS if name in self.slo.model_fields_set]
        latencies = [name for name in written_limits if name in ("ttft_ms", "itl_ms")]
        if latencies and self.slo.e2e_ms == Percentiles():
            limits = getattr(self.slo, latencies[0]).model_dump(exclude_none=True)
            name, limit = next(iter(limits.items()), ("p95", 1000.0))
            yield Conflict(("slo", latencies[0]), reason, f"set e2e_ms: {{{name}: {limit:g}}} in its place")

    def _check_served_names(self) -> Iterator[Conflict]:
        """Yield names that clients put in `model` and that two models or adapters have: the router would mix them."""
        owners: dict[str, str] = {}
        for role_name, role in self.roles.models.items():
            own = ("served_name",) if role.served_name else ()
            names: list[tuple[tuple[str, ...], str]] = [(own, role.served_name or role_name)]
            for key, name in names + [(("adapters", adapter), adapter) for adapter in role.adapters]:
                if name in owners:
                    reason = f"clients put {name} in `model`, and it is in roles.models.{owners[name]} too"
                    yield Conflict(("roles", "models", role_name, *key), reason, "use a name of its own")
                owners.setdefault(name, role_name)

    def _check_routers(self) -> Iterator[Conflict]:
        if self.load_balancer and self.roles.router.replicas < MIN_ROUTERS:
            reason = "one router is in one zone, and the load balancer is for the loss of it"
            yield Conflict(("roles", "router", "replicas"), reason, f"set replicas: {MIN_ROUTERS} or more")
        policy = self.roles.router.policy
        if policy in ("cache-aware", "kv-aware") and not self.tuning.prefix_cache:
            reason = "with tuning: {prefix_cache: off} no engine keeps a prompt that a router could follow"
            yield Conflict(("roles", "router", "policy"), reason, "remove policy, or set prefix_cache: on", policy)

    def _check_pattern_roles(self) -> Iterator[Conflict]:
        pattern_roles = self.pattern_row.roles
        for name in patterns.ENGINE_ROLES:
            is_present = bool(getattr(self.roles, name))
            if is_present and name not in pattern_roles:
                role_names = " and ".join(pattern_roles)
                yield Conflict(("roles", name), f"the pattern {self.pattern} has {role_names}", f"remove {name}")
            if name in pattern_roles and not is_present:
                reason = f"the pattern {self.pattern} needs it, and it is missing"
                example = "{NAME: {model: tiny, pool: general}}" if name == "models" else "{pool: general}"
                yield Conflict(("roles", name), reason, f"set {name}: {example}")

    def _check_workers(self) -> Iterator[Conflict]:
        """Yield further workers where there are none, names of roles that are taken, and a weight against nothing."""
        pattern_roles, workers = self.pattern_row.roles, self.roles.workers
        if workers and "worker" not in pattern_roles:
            role_names = " and ".join(pattern_roles)
            yield Conflict(("roles", "workers"), f"the pattern {self.pattern} has {role_names}", "remove workers")
        reserved_names = (*patterns.ENGINE_ROLES, "router")
        for field, example in (("workers", "its accelerators, such as l40s"), ("models", "its model, such as qwen3")):
            for name in filter(reserved_names.__contains__, getattr(self.roles, field)):
                reason = f"{name} is the name of another role"
                yield Conflict(("roles", field, name), reason, f"name it after {example}")
        if self.roles.worker and self.roles.worker.weight > 1 and not workers:
            reason = "there are no workers on other accelerators to weigh it against"
            yield Conflict(("roles", "worker", "weight"), reason, "remove weight")

    def _check_model(self) -> Iterator[Conflict]:
        has_many_models = "models" in self.pattern_row.roles
        if has_many_models and self.model:
            yield Conflict(("model",), "each role of this pattern names its own", "name model in each of roles.models")
        if not has_many_models and not self.model:
            yield Conflict(("model",), "required field is missing", "set model: Qwen/Qwen3-0.6B")

    def _check_context(self) -> Iterator[Conflict]:
        """Yield a context that requests exceed: of several models, asked in turn, the shortest."""
        if self.task == tasks.DRAW:
            return
        models = {("roles", "models", name): role for name, role in self.roles.models.items()}
        key_path, shortest = min(models.items() or [((), self)], key=lambda entry: entry[1].context)
        max_tokens = self.max_sequence_tokens
        if max_tokens > shortest.context:
            sequence, shorter = "a request", "input_tokens and output_tokens"
            together = "input and output together, "
            if self.is_pooled:
                sequence, together, shorter = "a text", "", "input_tokens"
            yield Conflict(
                (*key_path, "context") if "context" in shortest.model_fields_set else ("traffic", "input_tokens"),
                f"{sequence} of this traffic takes up to {max_tokens} tokens, {together}and the context is "
                f"{shortest.context}",
                f"set context: {max_tokens} or more, or shorter {shorter}",
            )

    def _check_pipeline(self) -> Iterator[Conflict]:
        for name in ("prefill", "decode"):
            role: EngineRole | None = getattr(self.roles, name)
            if role and role.pipeline > 1:
                reason = "the KV transfer sends the cache of one pipeline stage"
                yield Conflict(("roles", name, "pipeline"), reason, "set pipeline: 1")

    def _check_split_adapters(self) -> Iterator[Conflict]:
        """Yield adapters that one half of each request has and the other lacks, whose engines answer 404."""
        prefill, decode = self.roles.prefill, self.roles.decode
        if prefill and decode and prefill.adapters != decode.adapters:
            owner, other = ("prefill", "decode") if prefill.adapters else ("decode", "prefill")
            reason = f"each request takes prefill and decode, and {other} has other adapters"
            yield Conflict(("roles", owner, "adapters"), reason, "name the same in both roles")

    def _check_score(self) -> Iterator[Conflict]:
        if self.slo.score is not None and self.traffic.data is None:
            reason = "no answer is expected: traffic has no data"
            yield Conflict(("slo", "score"), reason, "set data: FILE with expected answers in traffic, or remove score")

    def _check_deadline(self) -> Iterator[Conflict]:
        timeout, deadline = self.roles.router.request_timeout, self.traffic.deadline
        if deadline > timeout:
            reason = f"the router cuts a request off after {timeout:g} s, roles.router.request_timeout"
            fix = f"set deadline: {timeout:g}s or less, or request_timeout: {deadline:g}s or more for the router"
            yield Conflict(("traffic", "deadline"), reason, fix)


def read(folder: Path) -> Document[Blueprint]:
    """Read the blueprint in `folder`.

    Raises:
        InputError: with every mistake of its file at once.
    """
    if not folder.exists():
        raise build_file_error(folder, "there is no such folder", _suggest_folder(folder))
    if not folder.is_dir():
        reason = "it is a file, and a blueprint is a folder"
        holder = f'that holds it, "{folder.parent}"' if folder.name == FILE_NAME else "of a blueprint"
        raise build_file_error(folder, reason, f"name the folder {holder}")
    if not os.path.lexists(folder / FILE_NAME):  # reading it names a loop or a dangling link
        reason = f"the folder holds no {FILE_NAME}"
        raise build_file_error(folder, reason, "name the folder of a blueprint; `blueprint new` creates one")
    document = load(folder / FILE_NAME, Blueprint)
    missing_files = [
        document.build_mistake(key_path, file, f"there is no such file in {folder}", f"name a {format_name}")
        for key_path, file, format_name in _list_files(document.value)
        if not (folder / file).is_file()
    ]
    unfit_files = [
        document.build_mistake(key_path, file, reason, fix)
        for key, (_, max_bytes, fix) in TEXT_FILES.items()
        for key_path, file in _find_role_files(document.value, key).items()
        if (folder / file).is_file() and (reason := _find_unfitness(folder / file, max_bytes))
    ]
    if mistakes := missing_files + unfit_files:
        raise InputError(mistakes)
    return document


def _find_role_files(settings: Blueprint, key: str) -> dict[tuple[str, ...], str]:
    return {
        settings.find_model_key_path(settings.find_key_path(name), role, key): file
        for name, role in settings.roles.engine_roles.items()
        if (file := getattr(settings.select_model_settings(role), key))
    }


def _find_unfitness(file: Path, max_bytes: int) -> str:
    if file.stat().st_size > max_bytes:
        return f"it has more than {max_bytes // 1024} KiB"
    try:
        return "" if file.read_text(encoding="utf-8").strip() else "it has no text"
    except UnicodeDecodeError:
        return "it is not UTF-8"


def _list_files(settings: Blueprint) -> Iterator[tuple[tuple[str, ...], str, str]]:
    traffic = settings.traffic
    for key, file, kind in (("data", traffic.data, "JSONL"), ("trace", traffic.trace, "trace")):
        if file is not None:
            yield ("traffic", key), file, f"{kind} file beside the blueprint"
    for key, (format_name, *_) in TEXT_FILES.items():
        for key_path, file in _find_role_files(settings, key).items():
            yield key_path, file, f"{format_name} file beside the blueprint"


def _suggest_folder(folder: Path) -> str:
    siblings = [file.parent for file in folder.parent.glob(f"*/{FILE_NAME}")]
    patterns = [file.parent for file in paths.PATTERNS.glob(f"*/{FILE_NAME}")]
    close_names = difflib.get_close_matches(folder.name, [suggested.name for suggested in siblings + patterns], n=1)
    suggested = [path for path in siblings + patterns if path.name in close_names]
    hint = f", such as {suggested[0]}" if suggested else "; `blueprint new` creates one"
    return f"name the folder of a blueprint{hint}"
