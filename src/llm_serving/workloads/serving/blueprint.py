"""`blueprint.yaml`: what to serve, under which load, and with which SLO. Plain typed data."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from llm_serving import paths
from llm_serving.catalog import engines
from llm_serving.fleet.model import Name
from llm_serving.settings.choices import OneOf
from llm_serving.settings.document import Conflict, Document, Settings, load, parse_default
from llm_serving.settings.errors import InputError, Mistake
from llm_serving.settings.units import Duration, Memory, Switch, TextFormat, Tokens
from llm_serving.workloads import base
from llm_serving.workloads.base import BaseBlueprint
from llm_serving.workloads.serving import patterns
from llm_serving.workloads.serving.roles import EngineRole, ModelName, ModelRole, Roles, WeightsUri
from llm_serving.workloads.serving.traffic import Slo, Traffic

FILE_NAME = base.FILE_NAME


def _list_engines() -> list[str]:
    return list(engines.load_engines())


def _list_frameworks() -> list[str]:
    return list(engines.load_frameworks())


Image = Annotated[
    str,
    TextFormat(
        # Registry and repository, then a tag that stays what it is, a digest, or both.
        r"[a-z0-9][a-z0-9._-]*(?::[0-9]{2,5})?(?:/[a-z0-9._-]+)*"
        r"(?::(?!latest(?:@|$))[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}(?:@sha256:[0-9a-f]{64})?|@sha256:[0-9a-f]{64})",
        "an image with a tag other than latest, or a digest",
        engines.load_engines()[engines.get_default(engines.load_engines())].image,
    ),
]


class Speculative(Settings):
    """Tokens guessed ahead and checked at once."""

    method: Literal["ngram", "eagle", "eagle3", "draft_model", "mtp"]
    """Where guesses come from: the prompt itself, a small model made for it, or the model's own prediction layers."""

    tokens: Annotated[int, Field(ge=1, le=16)] = 3
    """Tokens guessed at a time."""

    model: ModelName | None = None
    """The model that guesses; for eagle, eagle3 and draft_model."""

    def find_conflicts(self) -> Iterable[Iterator[Conflict]]:
        return (self._check_model(),)

    def _check_model(self) -> Iterator[Conflict]:
        needs_model = self.method in ("eagle", "eagle3", "draft_model")
        if needs_model and not self.model:
            yield Conflict(("method",), "this method needs a draft model", "model: NAME too, or ngram")
        if self.model and not needs_model:
            reason = f"{self.method} needs no second model"
            yield Conflict(("model",), reason, "no model, or method: draft_model")


class Tuning(Settings):
    """Settings of the engine; the engine decides what is left out."""

    quantization: Literal["fp8"] | None = None
    """Quantizes 16-bit weights as they are loaded; a checkpoint that is quantized already needs nothing."""

    kv_cache: Literal["auto", "fp8"] = "auto"
    """Numbers of the KV cache: the model's own, or 8 bits for twice the tokens."""

    prefix_cache: Annotated[bool, Switch()] = True
    """Keeps the cache of prompts' prefixes for later requests."""

    chunked_prefill: Annotated[bool, Switch()] = True
    """Splits long prompts, so that they do not delay other answers."""

    batch_tokens: Tokens | None = None
    """Most tokens of one step."""

    sequences: Annotated[int, Field(ge=1, le=8192)] | None = None
    """Most requests of one step."""

    kv_offload: Memory | None = None
    """Memory of the node, for each replica, that cached prompts move to when the accelerators' is full."""

    speculative: Speculative | None = None
    """Tokens guessed ahead."""

    kv_transfer: Literal["auto", "rdma", "host"] = "auto"
    """How prefill sends its cache to decode: between accelerators by EFA, through the nodes' memory, or the best."""


class Disruption(Settings):
    """How much an upgrade may take down at once, and how long that may take."""

    unavailable: Annotated[int, Field(ge=0, le=1000)] = 1
    """Replicas of a role that an upgrade or a drained node may take down at once."""

    drain: Duration = parse_default("120s")
    """How long a replica that is stopped may finish its requests."""


class Blueprint(BaseBlueprint):
    """A user's copy of a pattern that serves models."""

    kind: Literal["serving"] = "serving"
    """What sort of work this is."""

    name: Name | None = None
    """Name of the deployment; the folder's name where left out."""

    pattern: Annotated[str, OneOf(patterns.list_names)]
    """The folder under blueprints/ that this is a copy of."""

    model: ModelName | None = None
    """A model of the catalog, a hub id such as Qwen/Qwen3-0.6B, or a folder that holds config.json."""

    engine: Annotated[str, OneOf(_list_engines)] = engines.get_default(engines.load_engines())
    """What runs the model."""

    framework: Annotated[str, OneOf(_list_frameworks)] = engines.get_default(engines.load_frameworks())
    """What keeps the replicas running: `plain` uses what the target has, such as Deployments on EKS."""

    image: Image | None = None
    """The engine's image on EKS and ECS, with its tag or digest; the pinned one where left out."""

    weights: WeightsUri = "s3"
    """Where the weights are streamed from: `s3` is the fleet's model bucket, or s3://BUCKET/PREFIX."""

    context: Tokens = 4096
    """Most tokens of a request, prompt and answer together."""

    roles: Annotated[Roles, Field(examples=[{"worker": {"pool": "general"}}])]
    """What runs, and on which pool."""

    tuning: Tuning = Tuning()
    """Settings of the engine."""

    disruption: Disruption = Disruption()
    """How much an upgrade may take down at once."""

    traffic: Annotated[Traffic, Field(examples=[{"users": 8}])]
    """The load it is made for."""

    slo: Annotated[Slo, Field(examples=[{"ttft_ms": {"p95": 800}}])]
    """What the answers must be like."""

    @property
    def is_disaggregated(self) -> bool:
        """Whether prefill hands its KV cache to decode."""
        return self.roles.prefill is not None and self.roles.decode is not None

    def find_key_path(self, name: str) -> tuple[str, ...]:
        """The key path of the engine role `name`."""
        return ("roles", "models", name) if name in self.roles.models else ("roles", name)

    def select_model_settings(self, role: EngineRole) -> Blueprint | ModelRole:
        """What holds a role's model, weights and context: the role itself, or the blueprint for all roles."""
        return role if isinstance(role, ModelRole) else self

    def find_model_key_path(self, key_path: Sequence[str], role: EngineRole, key: str) -> tuple[str, ...]:
        """The key path of a model setting `key` for the role at `key_path`."""
        return (key,) if self.select_model_settings(role) is self else (*key_path, key)

    def find_conflicts(self) -> Iterable[Iterator[Conflict]]:
        return (
            self._check_pattern_roles(),
            self._check_model(),
            self._check_context(),
            self._check_decode_split(),
            self._check_pipeline(),
        )

    def _check_pattern_roles(self) -> Iterator[Conflict]:
        pattern_roles = patterns.load_patterns()[self.pattern].roles
        for name in patterns.ENGINE_ROLES:
            is_present = bool(getattr(self.roles, name))
            if is_present and name not in pattern_roles:
                role_names = " and ".join(pattern_roles)
                yield Conflict(("roles", name), f"the pattern {self.pattern} has {role_names}", f"no {name}")
            if name in pattern_roles and not is_present:
                reason = f"the pattern {self.pattern} needs it, and it is missing"
                yield Conflict(("roles", name), reason, f"{name}: {_format_example_role(name)}")

    def _check_model(self) -> Iterator[Conflict]:
        has_many_models = "models" in patterns.load_patterns()[self.pattern].roles
        if has_many_models and self.model:
            yield Conflict(("model",), "each role of this pattern names its own", "model in each of roles.models")
        if not has_many_models and not self.model:
            yield Conflict(("model",), "required field is missing", "model: Qwen/Qwen3-0.6B")

    def _check_context(self) -> Iterator[Conflict]:
        max_tokens = self.traffic.input_tokens.max + self.traffic.output_tokens.max
        contexts = [role.context for role in self.roles.models.values()] or [self.context]
        if max_tokens > max(contexts):
            yield Conflict(
                ("context",) if "context" in self.model_fields_set else ("traffic", "input_tokens"),
                f"a request of this traffic takes up to {max_tokens} tokens, input and output together, "
                f"and the context is {max(contexts)}",
                f"context: {max_tokens} or more, or shorter input_tokens and output_tokens",
            )

    def _check_decode_split(self) -> Iterator[Conflict]:
        prefill, decode = self.roles.prefill, self.roles.decode
        if prefill and decode and decode.tensor < prefill.tensor:
            reason = (
                f"decode splits a layer {decode.tensor} ways and prefill {prefill.tensor}: the KV transfer sends a "
                "cache to as many ways or more, never to fewer"
            )
            yield Conflict(("roles", "decode"), reason, f"accelerators: {prefill.tensor} or more for decode")

    def _check_pipeline(self) -> Iterator[Conflict]:
        for name in ("prefill", "decode"):
            role: EngineRole | None = getattr(self.roles, name)
            if role and role.pipeline > 1:
                reason = "the KV transfer sends the cache of one pipeline stage"
                yield Conflict(("roles", name, "pipeline"), reason, "pipeline: 1")


def _format_example_role(name: str) -> str:
    return "{NAME: {model: tiny, pool: general}}" if name == "models" else "{pool: general}"


def read(folder: Path) -> Document[Blueprint]:
    """Reads the blueprint in `folder`.

    Raises:
        InputError: with every mistake of its file at once.
    """
    if not folder.exists():
        raise InputError([Mistake(folder, 1, 1, "", "", "there is no such folder", _suggest_folder(folder))])
    if not folder.is_dir():
        reason = "it is a file, and a blueprint is a folder"
        raise InputError([Mistake(folder, 1, 1, "", "", reason, f"the folder that holds it, {folder.parent}")])
    if not os.path.lexists(folder / FILE_NAME):  # reading it names a loop or a dangling link
        reason = f"the folder holds no {FILE_NAME}"
        raise InputError(
            [Mistake(folder, 1, 1, "", "", reason, "the folder of a blueprint; `blueprint new` creates one")]
        )
    document = load(folder / FILE_NAME, Blueprint)
    prompts = document.value.traffic.data
    if prompts is not None and not (folder / prompts).is_file():
        reason = f"there is no such file in {folder}"
        raise InputError(
            [
                document.build_mistake(
                    ("traffic", "data"), prompts, reason, "the name of a JSONL file beside the blueprint"
                )
            ]
        )
    return document


def _suggest_folder(folder: Path) -> str:
    siblings = [file.parent for file in folder.parent.glob(f"*/{FILE_NAME}")]
    patterns = [file.parent for file in paths.PATTERNS.glob(f"*/{FILE_NAME}")]
    close_names = difflib.get_close_matches(folder.name, [suggested.name for suggested in siblings + patterns], n=1)
    suggested = [path for path in siblings + patterns if path.name in close_names]
    return f"the folder of a blueprint{f', such as {suggested[0]}' if suggested else '; `blueprint new` creates one'}"
