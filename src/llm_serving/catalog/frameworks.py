"""Frameworks as data, rows of frameworks.yaml, and what they change of engines and routers."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar

from llm_serving.catalog.command_parts import CommandPart, FileSettings, NamedChoice, Template
from llm_serving.catalog.engines import Engine, EngineMetric, Transfer, load_engines
from llm_serving.catalog.routers import Router, load_routers
from llm_serving.settings import own_yaml
from llm_serving.settings.plain import PlainData

FRAMEWORKS_FILE = Path(__file__).with_name("frameworks.yaml")

_Value = TypeVar("_Value")


class FrameworkSetup(PlainData):
    """How the local target gets a framework and the engine that it pins, into an environment of their own."""

    folder: str
    """Folder of the environment below the repository's root."""

    lock: str
    """Python packages with hashes, below the repository's root."""

    modules: tuple[str, ...]
    """Modules that a start imports."""

    environment: Mapping[str, str] = {}
    """Of each of its processes on this machine."""

    note: str
    """What the user should know of it, a sentence."""


class FrameworkEngine(PlainData):
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

    chat_vocabulary: str = ""
    """As of the engine's row, of this version."""

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


class Workload(PlainData):
    """The custom kind by which a framework runs a deployment on EKS."""

    api_version: str
    kind: str
    operator: str
    """Program in the cluster that runs objects of this kind."""

    condition: str = "Ready"
    """Condition of an object that runs."""

    keda: bool = False
    """Whether KEDA scales its replicas by the engines' metrics, as those of Kubernetes' own kinds; or the operator."""


class Refusal(PlainData):
    """What of a blueprint a framework does not run."""

    what: Literal["engines", "models", "empty-roles", "warm-prompts"]
    """Other engines than its only one, several models, roles that go down to no replicas, or prompts for each replica
    before its first request."""

    why: str
    targets: tuple[str, ...] = ()
    """Where it does not; everywhere where left out."""


class Framework(NamedChoice):
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

    only_engine: str = ""
    """The only engine that it was compared with; empty where it runs those of `engines`, or all."""

    refused: tuple[Refusal, ...] = ()
    """Beside unsupported options."""

    router: str = ""
    """Row of the router that it brings; empty where the engine's own is used."""

    module: str = ""
    """Module of `llm_serving.kinds.serving.frameworks` that turns command lines into its own configuration; empty where
    it runs them as they are."""

    config: Mapping[str, Any] = {}
    """Its own configuration, where no module makes it; frameworks/base.py has the values of names in braces."""

    proxy_image: str = ""
    """Envoy before what it adds to the router's pod; empty where it adds nothing."""

    is_x86_64: bool = False
    """Whether the image of what clients call is for x86-64 alone."""

    objects: str = "plain"
    """Folder of charts/inference/templates with the objects that keep its replicas running on EKS."""

    chart_names: tuple[str, ...] = ()
    """Ends of the names of objects that the chart makes for it, which no role may have."""

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
        "options": {**_omit_options(row.options, pair.absent_options), **pair.options},
        "transfer_roles": pair.transfer_roles or row.transfer_roles,
        "transfers": pair.transfers or row.transfers,
        "platforms": {
            kind: platform.model_copy(
                update={
                    "options": _omit_options(platform.options, (*pair.absent_options, *pair.options)),
                    "unsupported_options": {
                        **_omit_options(platform.unsupported_options, works),
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
        "chat_vocabulary": pair.chat_vocabulary or row.chat_vocabulary,
        "metrics_path": pair.metrics_path or row.metrics_path,
        "metrics": pair.metrics or (names if pair.metric_prefix else row.metrics),
        "buckets": pair.buckets or row.buckets,
    }
    return row.model_copy(update=update)


def _omit_options(options: Mapping[str, _Value], names: tuple[str, ...]) -> dict[str, _Value]:
    return {name: part for name, part in options.items() if name not in names}


def get_router(engine: str, framework: str, *, is_disaggregated: bool = False) -> Router:
    """Return the router of an engine under a framework: the one that the framework brings, else the engine's own."""
    row, framework_row = load_engines()[engine], load_frameworks()[framework]
    own = (row.disaggregated_router if is_disaggregated else "") or row.router
    router, pair = load_routers()[framework_row.router or own], framework_row.engines.get(engine)
    # A framework with an image for each engine has its router in each of them.
    return router.model_copy(update={"image": pair.image}) if pair and not router.image else router
