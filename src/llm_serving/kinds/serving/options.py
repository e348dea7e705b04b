"""Options of an engine that a blueprint can ask for: when each is needed, its values, and what to write without it.

An option is a row of OPTIONS, and a line of `options` in the file of each engine that has it. An engine without the
line refuses a blueprint that needs it, for the reason of its `unsupported_options` if it has one.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from llm_serving.catalog import cache_keepers, engines, frameworks
from llm_serving.catalog.engines import Platform
from llm_serving.kinds.serving import answer_parsers
from llm_serving.kinds.serving.answer_parsers import SelectedParsers
from llm_serving.kinds.serving.blueprint import Blueprint
from llm_serving.kinds.serving.node_shares import count_accelerators
from llm_serving.kinds.serving.placed_role import PlacedRole
from llm_serving.kinds.serving.roles import EngineRole, get_max_requests, get_shared
from llm_serving.kinds.serving.tuning import KvTiers, Speculative, Tuning
from llm_serving.services import tasks
from llm_serving.services.environment import Conventions
from llm_serving.settings.document import Conflict

TIER_FOLDERS = {"disk": "/kv-disk", "shared": "/kv-shared"}
"""Folders of a container that keep cached prompts."""


@dataclass(frozen=True)
class Node:
    """One node of a replica, which decides its options."""

    placed: PlacedRole
    platform: Platform
    """The engine on the processors that it runs on."""

    conventions: Conventions
    rank: int = 0

    @property
    def settings(self) -> Blueprint:
        return self.placed.settings

    @property
    def role(self) -> EngineRole:
        return self.placed.role

    @property
    def tuning(self) -> Tuning:
        return self.settings.tuning

    @property
    def speculative(self) -> Speculative | None:
        return self.settings.tuning.speculative

    @property
    def parsers(self) -> SelectedParsers:
        """What the answers are read with, in the names of what reads them: the engine, or its framework."""
        selected = answer_parsers.select(self.placed)
        pair = self.settings.framework_row.engines.get(self.settings.engine)
        if not pair:
            return selected
        own = {key: pair.find_parser(key, getattr(selected, key)) for key in pair.parsers}
        return selected._replace(**own)

    @property
    def is_compiled(self) -> bool:
        """Whether programs are compiled for fixed shapes."""
        return self.platform.limits is not None

    @property
    def shares_weights(self) -> bool:
        """Whether ranks of a node read the checkpoint together.

        Data-parallel ranks do for a mixture of experts; for other models they are independent engines, each with
        tensor and pipeline ranks only. Source: vLLM 0.32.0, v1/engine/core.py, `run_engine_core`, and distributed/
        parallel_state.py, `init_distributed_environment`.
        """
        data_ranks = self.role.data if self.placed.model.experts else 1
        return self.role.tensor * self.role.pipeline * data_ranks > 1

    @property
    def written_template(self) -> str | None:
        """The file of the blueprint's own chat template."""
        return self.placed.model_settings.chat_template

    @property
    def catalog_template(self) -> str:
        """The catalog's chat template, which lies in the engine's own image; empty where there is none."""
        framework_engines = self.settings.framework_row.engines
        if self.conventions.is_local or self.platform.image or framework_engines:
            return ""
        return self.parsers.chat_template


class Option(NamedTuple):
    """An option, and where a blueprint asks for it."""

    name: str
    key: str = ""
    """Key that asks for it, below the role if it begins with `role.`; empty if an engine may go without."""

    fix: str | Callable[[Node], str] = ""
    """What to write for an engine without it, with other engines in place of {others}; empty to remove the key."""

    when: Callable[[Node], Any] | None = None
    """Whether a node needs it; None where its key decides."""

    values: Container[Any] | None = None
    """Values of the key that need it; None for any."""

    def is_needed(self, node: Node) -> bool:
        if self.when:
            return bool(self.when(node))
        value = self.find_request(node)[1]
        return bool(value) if self.values is None else value in self.values

    def find_request(self, node: Node) -> tuple[tuple[str, ...], Any]:
        """Return the key path that asks for the option, and its value."""
        keys = tuple(self.key.split("."))
        is_of_role = keys[0] == "role"
        value: Any = node.role if is_of_role else node.settings
        for key in keys[1:] if is_of_role else keys:
            value = getattr(value, key)
        return ((*node.placed.key_path, *keys[1:]) if is_of_role else keys), value

    def describe_fix(self, node: Node) -> str:
        fix = self.fix(node) if callable(self.fix) else self.fix or f"remove {self.key.rpartition('.')[2]}"
        return fix.replace("{others}", _describe_other_engines(node, self.name)) if "{others}" in fix else fix


def list_names(node: Node) -> list[str]:
    """Return the names of the options that a node needs, in the order of the command line."""
    return [option.name for option in OPTIONS if option.is_needed(node)]


def build_values(node: Node) -> dict[str, str | int | tuple[str, ...]]:
    """Return what the options' arguments are filled with, needed or not."""
    ram_bytes, role, nodes = node.tuning.ram_bytes, node.role, node.placed.nodes
    speculative, parsers = node.speculative, node.parsers
    # Some engines reserve a cache for each data-parallel rank, the others for each accelerator.
    offload_bytes, offload_rank_bytes = (
        ram_bytes // max(1, role.data // nodes),
        ram_bytes // (role.accelerators // nodes),
    )
    return {
        "offload_bytes": offload_bytes,
        "offload_gib": f"{offload_bytes / 2**30:g}",
        "offload_rank_bytes": offload_rank_bytes,
        "offload_rank_gb": max(1, int(offload_rank_bytes / 1e9)),
        # One server for all ranks of a node.
        "cache_gib": f"{ram_bytes / 2**30:g}",
        "cache_workers": max(1, role.accelerators // nodes),
        "speculative_tokens": speculative.tokens if speculative else 0,
        "speculative_method": speculative.method if speculative else "",
        "model_config": parsers.model_config_json,
        "tools": parsers.tools,
        "reasoning": parsers.reasoning,
        "replica_requests": get_max_requests(node.role) or 0,
        "awake_share": f"{node.placed.awake_share or 0:g}",
        "media_hosts": node.settings.media_hosts,
        "max_adapters": len(node.role.adapters),
        "traces": node.settings.traces or "",
        "cache_limit": node.placed.cache_limit or 0,
    }


def check(node: Node) -> Iterator[Conflict]:
    """Yield options that the blueprint asks for and that the engine, or its platform, does not have."""
    engine, framework = node.settings.engine_row, node.settings.framework_row
    present = {*engine.options, *node.platform.options, *(("transfer",) if engine.transfers else ())}
    suffix = "" if not node.conventions.is_local else " in a copy to try here"
    for option in OPTIONS:
        reason = framework.unsupported_options.get(option.name) or node.platform.unsupported_options.get(
            option.name, ""
        )
        if option.name not in present:
            reason = reason or f"the engine {node.settings.engine} has no option for it in the catalog"
        if reason and option.key and option.is_needed(node):
            key_path, value = option.find_request(node)
            yield Conflict(key_path, reason, f"{option.describe_fix(node)}{suffix}", _format_request(key_path, value))


def _format_request(key_path: tuple[str, ...], value: Any) -> Any:
    match value:
        case Speculative():
            return value.method
        case Mapping():
            return ", ".join(value)
        case KvTiers():
            return ", ".join(value.names)
        case _:
            return f"{value / 2**30:g}Gi" if key_path[-1] == "kv_offload" else value


def _describe_other_engines(node: Node, option: str) -> str:
    return "".join(
        f", or engine: {name}"
        for name, row in engines.load_engines().items()
        if name != node.settings.engine
        and option in row.options
        and row.weights_format in node.placed.model.formats
        and not all(option in platform.unsupported_options for platform in _list_platforms(row, node))
    )


def _list_platforms(engine: engines.Engine, node: Node) -> list[Platform]:
    """Return an engine's platforms that a node can be: those of its accelerators, or all where it has none."""
    device = node.placed.instance.accelerators
    return [platform for kind, platform in engine.platforms.items() if device is None or kind == device.kind]


def _describe_unsplit(node: Node) -> str:
    baseline = node.settings.pattern_row.baseline
    # Frameworks that have their own way for the engine; they run on Kubernetes.
    pairs = {name: row.engines.get(node.settings.engine) for name, row in frameworks.load_frameworks().items()}
    place = "" if node.conventions.is_kubernetes else " with --target eks"
    choices = [f"set framework: {name}{place}" for name, pair in pairs.items() if pair and pair.transfers]
    choices += [f"set pattern: {baseline}"] if baseline else []
    return ", or ".join((*choices, "choose pools of GPUs"))


def _describe_text_only(node: Node) -> str:
    switch = node.settings.engine_row.text_only
    own = f"set engine_arguments: {{{switch}: true}} where requests have no pictures, or " if switch else ""
    return f"{own}use a model that reads text only"


def _uses_method(node: Node, *methods: str) -> bool:
    return node.speculative is not None and node.speculative.method in methods


def _has_folders(node: Node, *names: str) -> bool:
    """Return whether the engine itself keeps these folders and no other."""
    return node.tuning.keeper is None and tuple(node.tuning.folder_bytes) == names


def _limits_sequences(node: Node) -> bool:
    """Return whether the engine is told how many requests a step has: by itself it may take more than it has room for.

    A model that keeps states has them in blocks of the cache; on this machine nothing counts these.
    """
    if node.tuning.sequences or node.is_compiled:
        return True
    keeps_states = node.placed.fit is not None and node.placed.fit.most_sequences is not None
    has_own_number = node.settings.find_step_number(node.role, "sequences") is not None
    return keeps_states and not has_own_number and not node.conventions.is_local


def _has_mixture_ranks(node: Node) -> bool:
    """Return whether several data-parallel ranks serve a mixture of experts without spreading whole ones."""
    return node.role.data > 1 and not node.role.expert and node.placed.model.experts > 0


OPTIONS = (
    Option("shared-machine", when=lambda node: node.conventions.is_local),
    Option("own-node", when=lambda node: not node.conventions.is_local),
    Option("one-rank", when=lambda node: node.role.accelerators == 1 and node.conventions.is_local),
    Option("shared-weights", when=lambda node: node.tuning.stream_weights and node.shares_weights),
    Option("own-weights", when=lambda node: node.tuning.stream_weights and not node.shares_weights),
    Option("tensor", "role.accelerators", "set accelerators: 1", lambda node: node.role.tensor > 1),
    Option("pipeline", "role.pipeline", "set pipeline: 1", lambda node: node.role.pipeline > 1),
    Option("data", "role.data", "set data: 1", lambda node: node.role.data > 1),
    Option("data-adapters", when=lambda node: node.role.data > 1 and node.role.adapters and node.rank == 0),
    Option("expert", "role.expert", "set expert: off"),
    Option("expert-data", "role.data", "set data: 1", lambda node: node.role.expert and node.role.data > 1),
    Option("mixture-data", "role.data", "set data: 1", _has_mixture_ranks),
    Option(
        "nodes",
        "role.accelerators",
        lambda node: f"set accelerators: {count_accelerators(node.placed.instance)}",
        lambda node: node.placed.nodes > 1,
    ),
    Option("data-nodes", when=lambda node: node.placed.nodes > 1 and node.role.data > 1),
    Option("fp8-weights", "tuning.quantization"),
    Option("deprecated-weights", when=lambda node: node.placed.model.scheme and node.placed.model.scheme.is_deprecated),
    Option("fp8-cache", "tuning.kv_cache", "set kv_cache: auto", values=("fp8",)),
    Option("no-prefix-cache", "tuning.prefix_cache", "set prefix_cache: on", values=(False,)),
    Option("no-chunked-prefill", "tuning.chunked_prefill", "set chunked_prefill: on", values=(False,)),
    Option("batch-tokens", "tuning.batch_tokens", when=lambda node: node.tuning.batch_tokens or node.is_compiled),
    Option("sequences", "tuning.sequences", when=_limits_sequences),
    Option("kv-offload", "tuning.kv_offload"),
    Option("kv-offload", "tuning.kv_tiers", when=lambda node: node.tuning.kv_tiers and _has_folders(node)),
    *(
        Option(
            "-".join(("kv", *names)),
            "tuning.kv_tiers",
            when=functools.partial(lambda names, node: _has_folders(node, *names), names),
        )
        for names in (("disk",), ("shared",), ("disk", "shared"))
    ),
    *(
        Option(
            f"kv-{name}",
            "tuning.kv_tiers",
            lambda node: "remove kv_tiers" if node.platform.unsupported_options.get("kv-offload") else "remove by",
            functools.partial(lambda keeper, node: node.tuning.keeper is keeper, keeper),
        )
        for name, keeper in cache_keepers.load_cache_keepers().items()
    ),
    Option(
        "kv-s3",
        "tuning.kv_tiers",
        f"{cache_keepers.suggest_cache_keepers(lambda row: 's3' in row.tiers)}, or remove s3",
        lambda node: node.tuning.keeper is None and "s3" in node.tuning.tier_bytes,
    ),
    Option("speculative-prompt", "tuning.speculative", when=lambda node: _uses_method(node, "ngram")),
    Option(
        "speculative-prompt-files",
        "tuning.speculative",
        when=lambda node: _uses_method(node, "ngram") and node.tuning.keeper is None and node.tuning.folder_bytes,
    ),
    Option(
        "speculative-draft",
        "tuning.speculative",
        when=lambda node: _uses_method(node, "eagle", "eagle3", "draft_model"),
    ),
    Option("speculative-layers", "tuning.speculative", when=lambda node: _uses_method(node, "mtp")),
    Option("priority", "tuning.priority", "set priority: off"),
    Option("pooled", "task", "set task: generate{others}", values=tasks.NUMBERS),
    Option("draws", "task", "set task: generate{others}", values=(tasks.DRAW,)),
    Option("ranked", "task", "set task: embed{others}", values=tasks.RANKED),
    Option("model-config", when=lambda node: node.parsers.model_config_json),
    Option(
        "bounded-queue",
        "role.max_requests",
        "remove max_requests, or set roles.router.max_requests",
        lambda node: get_max_requests(node.role),
    ),
    Option(
        "shares",
        "role.shares",
        lambda node: f"set pool: {node.role.pool} in its place{{others}}",
        lambda node: get_shared(node.role),
    ),
    Option("takes-turns", when=lambda node: node.placed.awake_share),
    Option("tools", when=lambda node: node.parsers.tools),
    Option("reasoning", when=lambda node: node.parsers.reasoning),
    Option("chat-template", when=lambda node: node.written_template or node.catalog_template),
    Option("media-hosts", "media_hosts"),
    Option("pictures", "model", _describe_text_only, lambda node: node.placed.model.vision),
    Option("no-media-hosts", when=lambda node: not node.settings.media_hosts),
    Option("adapters", "role.adapters"),
    Option(
        "adapter-slots",
        when=lambda node: node.role.adapters and node.settings.find_reckoned_argument(node.role, "adapters") is None,
    ),
    Option("kv-events", "roles.router.policy", "set policy: cache-aware", values=("kv-aware",)),
    Option("traces", "traces"),
    Option("json-logs", "logs", "set logs: text", values=("json",)),
    Option("drain", when=lambda node: not node.conventions.is_local),
    Option("compile-cache", when=lambda node: node.tuning.compile_cache and not node.conventions.is_local),
    *(
        Option(
            f"kv-{name}-s3",
            "tuning.kv_tiers",
            "remove s3",
            functools.partial(
                lambda keeper, node: node.tuning.keeper is keeper and "s3" in node.tuning.tier_bytes, keeper
            ),
        )
        for name, keeper in cache_keepers.load_cache_keepers().items()
        if "s3" in keeper.tiers
    ),
    Option("cache-limit", when=lambda node: node.placed.cache_limit),
    Option("transfer", "pattern", _describe_unsplit, lambda node: node.settings.is_disaggregated),
)
"""In the order of the command line."""
