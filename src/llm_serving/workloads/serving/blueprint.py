"""`blueprint.yaml`: what to serve, under which load, and what the answer must be like. Plain typed data."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from llm_serving import paths
from llm_serving.fleet.model import Name
from llm_serving.settings.document import Contradiction, Document, Settings, load, written
from llm_serving.settings.errors import InputError, Mistake
from llm_serving.settings.units import Duration, Form, Memory, Switch, Tokens
from llm_serving.workloads.serving.roles import PATTERNS, Engine, Model, Roles, Served, Weights
from llm_serving.workloads.serving.traffic import Slo, Traffic

FILE = "blueprint.yaml"

Image = Annotated[
    str,
    Form(
        # Registry and repository, then a tag that stays what it is, a digest, or both.
        r"[a-z0-9][a-z0-9._-]*(?::[0-9]{2,5})?(?:/[a-z0-9._-]+)*"
        r"(?::(?!latest(?:@|$))[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}(?:@sha256:[0-9a-f]{64})?|@sha256:[0-9a-f]{64})",
        "an image with a tag other than latest, or a digest",
        "vllm/vllm-openai:v0.32.0",
    ),
]


class Speculative(Settings):
    """Tokens guessed ahead and checked at once."""

    method: Literal["ngram", "eagle", "eagle3", "draft_model", "mtp"]
    """Where guesses come from: the prompt itself, a small model made for it, or the model's own prediction layers."""

    tokens: Annotated[int, Field(ge=1, le=16)] = 3
    """Tokens guessed at a time."""

    model: Model | None = None
    """The model that guesses; for eagle, eagle3 and draft_model."""

    def contradictions(self) -> Iterable[Iterator[Contradiction]]:
        return (self._model_where_one_guesses(),)

    def _model_where_one_guesses(self) -> Iterator[Contradiction]:
        guesses = self.method in ("eagle", "eagle3", "draft_model")
        if guesses and not self.model:
            yield Contradiction(("method",), "this method guesses with a model of its own", "model: NAME too, or ngram")
        if self.model and not guesses:
            why = f"{self.method} needs no second model"
            yield Contradiction(("model",), why, "no model, or method: draft_model")


class Tuning(Settings):
    """Settings of the engine; what is left out, the engine decides."""

    quantization: Literal["fp8"] | None = None
    """Weights of 16 bits made smaller as they are loaded; a checkpoint that is quantized already says so itself."""

    kv_cache: Literal["auto", "fp8"] = "auto"
    """Numbers of the KV cache: the model's own, or 8 bits for twice the tokens."""

    prefix_cache: Annotated[bool, Switch()] = True
    """Keeps the cache of prompts' beginnings for later requests."""

    chunked_prefill: Annotated[bool, Switch()] = True
    """Cuts long prompts, so that answers under way are not held up."""

    batch_tokens: Tokens | None = None
    """Most tokens of one step."""

    sequences: Annotated[int, Field(ge=1, le=8192)] | None = None
    """Most requests of one step."""

    kv_offload: Memory | None = None
    """Memory of the machine, for each replica, that cached prompts move to when the accelerators' is full."""

    speculative: Speculative | None = None
    """Tokens guessed ahead."""

    kv_transfer: Literal["auto", "rdma", "host"] = "auto"
    """How prefill hands its cache to decode: between accelerators by EFA, through the machines' memory, or the best."""


class Disruption(Settings):
    """What may go at once, and how long it may take."""

    unavailable: Annotated[int, Field(ge=0, le=1000)] = 1
    """Replicas of a role that an upgrade or a drained machine may take away at once."""

    drain: Duration = written("120s")
    """How long a replica that is to go may finish its requests."""


class Blueprint(Settings):
    """A user's copy of a pattern."""

    name: Name | None = None
    """Name of the deployment; the folder's name where left out."""

    pattern: Literal["aggregated", "disaggregated", "distributed", "multi-model"]
    """The folder under blueprints/ that this is a copy of."""

    model: Model | None = None
    """A model of the catalogue, a hub id such as Qwen/Qwen3-0.6B, or a folder that holds config.json."""

    engine: Literal["vllm"] = "vllm"
    """What runs the model."""

    framework: Literal["plain"] = "plain"
    """What keeps the replicas on EKS: Deployments, and LeaderWorkerSets where a replica spans machines."""

    image: Image | None = None
    """The engine's image on EKS and ECS, with its tag or digest; the pinned one where left out."""

    weights: Weights = "s3"
    """Where the weights are streamed from: `s3` is the fleet's model bucket, or s3://BUCKET/PREFIX."""

    context: Tokens = 4096
    """Most tokens of a request, prompt and answer together."""

    roles: Annotated[Roles, Field(examples=[{"worker": {"pool": "general"}}])]
    """What runs, and on which pool."""

    tuning: Tuning = Tuning()
    """Settings of the engine."""

    disruption: Disruption = Disruption()
    """What may go at once."""

    traffic: Annotated[Traffic, Field(examples=[{"users": 8}])]
    """The load it is made for."""

    slo: Annotated[Slo, Field(examples=[{"ttft_ms": {"p95": 800}}])]
    """What the answers must be like."""

    def at(self, name: str) -> tuple[str, ...]:
        """Where the engine role `name` stands in the file."""
        return ("roles", "models", name) if name in self.roles.models else ("roles", name)

    def served_by(self, role: Engine) -> Blueprint | Served:
        """Where a role's model, its weights and its context are written: at itself, or once for all roles."""
        return role if isinstance(role, Served) else self

    def written_at(self, at: Sequence[str], role: Engine, key: str) -> tuple[str, ...]:
        """Where `key`, one that `served_by` has, stands for the role at `at`."""
        return (key,) if self.served_by(role) is self else (*at, key)

    def contradictions(self) -> Iterable[Iterator[Contradiction]]:
        return (
            self._roles_of_its_pattern(),
            self._one_model_or_many(),
            self._fits_the_context(),
            self._decode_splits_as_prefill(),
            self._stages_where_they_work(),
        )

    def _roles_of_its_pattern(self) -> Iterator[Contradiction]:
        wanted = PATTERNS[self.pattern]
        for name in ("worker", "prefill", "decode", "models"):
            there = bool(getattr(self.roles, name))
            if there and name not in wanted:
                has = " and ".join(wanted)
                yield Contradiction(("roles", name), f"the pattern {self.pattern} has {has}", f"no {name}")
            if name in wanted and not there:
                why = f"the pattern {self.pattern} needs it, and it is missing"
                yield Contradiction(("roles", name), why, f"{name}: {_role(name)}")

    def _one_model_or_many(self) -> Iterator[Contradiction]:
        many = self.pattern == "multi-model"
        if many and self.model:
            yield Contradiction(("model",), "each role of this pattern names its own", "it in roles.models instead")
        if not many and not self.model:
            yield Contradiction(("model",), "it is required and missing", "model: Qwen/Qwen3-0.6B")

    def _fits_the_context(self) -> Iterator[Contradiction]:
        longest = self.traffic.input_tokens.most + self.traffic.output_tokens.most
        contexts = [role.context for role in self.roles.models.values()] or [self.context]
        if longest > max(contexts):
            yield Contradiction(
                ("context",) if "context" in self.model_fields_set else ("traffic", "input_tokens"),
                f"a request of this traffic takes up to {longest} tokens, input and output together, "
                f"and the context is {max(contexts)}",
                f"context: {longest} or more, or shorter input_tokens and output_tokens",
            )

    def _decode_splits_as_prefill(self) -> Iterator[Contradiction]:
        prefill, decode = self.roles.prefill, self.roles.decode
        if prefill and decode and decode.tensor < prefill.tensor:
            why = (
                f"decode splits a layer {decode.tensor} ways and prefill {prefill.tensor}: NIXL hands a cache on "
                "to as many ways or more, never to fewer"
            )
            yield Contradiction(("roles", "decode"), why, f"accelerators: {prefill.tensor} or more for decode")

    def _stages_where_they_work(self) -> Iterator[Contradiction]:
        for name in ("prefill", "decode"):
            role: Engine | None = getattr(self.roles, name)
            if role and role.pipeline > 1:
                why = "vLLM's NIXL connector hands on the cache of one stage"
                yield Contradiction(("roles", name, "pipeline"), why, "pipeline: 1")


def _role(name: str) -> str:
    return "{NAME: {model: tiny, pool: general}}" if name == "models" else "{pool: general}"


def read(folder: Path) -> Document[Blueprint]:
    """Reads the blueprint in `folder`.

    Raises:
        InputError: with every mistake of its file at once.
    """
    if not folder.exists():
        raise InputError([Mistake(folder, 1, 1, "", "", "there is no such folder", _what_is_there(folder))])
    if not folder.is_dir():
        why = "it is a file, and a blueprint is a folder"
        raise InputError([Mistake(folder, 1, 1, "", "", why, f"the folder that holds it, {folder.parent}")])
    if not (folder / FILE).exists():
        why = f"the folder holds no {FILE}"
        raise InputError([Mistake(folder, 1, 1, "", "", why, "the folder of a blueprint; `blueprint new` makes one")])
    document = load(folder / FILE, Blueprint)
    data = document.value.traffic.data
    if data is not None and not (folder / data).is_file():
        why = f"there is no such file in {folder}"
        raise InputError(
            [document.mistake(("traffic", "data"), data, why, "the name of a JSONL file beside the blueprint")]
        )
    return document


def _what_is_there(folder: Path) -> str:
    here = [file.parent for file in folder.parent.glob(f"*/{FILE}")]
    patterns = [file.parent for file in paths.PATTERNS.glob(f"*/{FILE}")]
    near = difflib.get_close_matches(folder.name, [found.name for found in here + patterns], n=1)
    found = [path for path in here + patterns if path.name in near]
    return f"the folder of a blueprint{f', such as {found[0]}' if found else '; `blueprint new` makes one'}"
