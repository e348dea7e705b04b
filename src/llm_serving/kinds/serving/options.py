"""Options of an engine that a blueprint can ask for: when each is needed, its values, and what to write without it.

An option is a row of OPTIONS, and a line of `options` in the file of each engine that has it. An engine without the
line refuses a blueprint that needs it, for the reason of its `unsupported_options` if it has one.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from llm_serving.catalog import cache_keepers, command_parts, engines, frameworks
from llm_serving.catalog.engines import Platform
from llm_serving.kinds.serving import answer_parsers
from llm_serving.kinds.serving.answer_parsers import SelectedParsers
from llm_serving.kinds.serving.blueprint import Blueprint
from llm_serving.kinds.serving.placed_role import PlacedRole
from llm_serving.kinds.serving.placement import count_accelerators
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

    settings: Blueprint
    placed: PlacedRole
    platform: Platform
    """The engine on the processors that it runs on."""

    conventions: Conventions
    rank: int = 0

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
        selected = answer_parsers.select(self.settings, self.role, self.placed.model)
        pair = self.settings.framework_row.engines.get(self.settings.engine)
        if not pair:
            return selected
        own = {key: pair.find_parser(key, getattr(selected, key)) for key in pair.parsers}
        return selected._replace(**own)

    @property
    def max_requests(self) -> int | None:
        """Most requests at the replica; None for any number."""
        return get_max_requests(self.role)

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

    def find_model_key_path(self, key: str) -> tuple[str, ...]:
        """Return the key path of a setting of the role's model."""
        return self.settings.find_model_key_path(self.placed.key_path, self.role, key)

    @property
    def written_template(self) -> str | None:
        """The file of the blueprint's own chat template."""
        return self.settings.select_model_settings(self.role).chat_template

    @property
    def catalog_template(self) -> str:
        """The catalog's chat template, which lies in the engine's own image; empty where there is none."""
        brought = self.settings.framework_row.engines
        if self.conventions.is_local or self.platform.image or brought:
            return ""
        return self.parsers.chat_template


class Option(NamedTuple):
    """An option, and where a blueprint asks for it."""

    name: str
    is_needed: Callable[[Node], Any]
    key: str = ""
    """Key that asks for it, below the role if it begins with `role.`; empty if an engine may go without."""

    fix: str | Callable[[Node], str] = ""
    """What to write for an engine without it."""

    values: Callable[[Node], command_parts.Values] = lambda _: {}


def list_names(node: Node) -> list[str]:
    """Return the names of the options that a node needs, in the order of the command line."""
    return [option.name for option in OPTIONS if option.is_needed(node)]


def build_values(node: Node) -> dict[str, str | int | tuple[str, ...]]:
    values: dict[str, str | int | tuple[str, ...]] = {}
    for option in OPTIONS:
        values |= option.values(node)
    return values


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
            key_path, value = _find_request(node, option)
            fix = option.fix if isinstance(option.fix, str) else option.fix(node)
            yield Conflict(key_path, reason, f"{fix}{suffix}", value)


def _find_request(node: Node, option: Option) -> tuple[tuple[str, ...], Any]:
    """Return the key path that asks for an option, and its value as the blueprint says it."""
    keys = tuple(option.key.split("."))
    is_of_role = keys[0] == "role"
    value: Any = node.role if is_of_role else node.settings
    for key in keys[1:] if is_of_role else keys:
        value = getattr(value, key)
    key_path = (*node.placed.key_path, *keys[1:]) if is_of_role else keys
    if isinstance(value, Speculative):
        value = value.method
    if isinstance(value, Mapping):
        value = ", ".join(value)
    if isinstance(value, KvTiers):
        value = ", ".join(value.names)
    return key_path, f"{value / 2**30:g}Gi" if keys[-1] == "kv_offload" else value


def _describe_other_engines(node: Node, option: str) -> str:
    """Return the other engines that have an option for the node's model, as part of a fix."""
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


def _uses_method(node: Node, *methods: str) -> bool:
    return node.speculative is not None and node.speculative.method in methods


def _compute_offload_bytes(node: Node) -> int:
    """Return the cache of each data-parallel rank, for which the engine reserves it."""
    return node.tuning.ram_bytes // max(1, node.role.data // node.placed.nodes)


def _compute_offload_rank_bytes(node: Node) -> int:
    """Return the cache of each accelerator, for engines whose ranks reserve their own."""
    return node.tuning.ram_bytes // (node.role.accelerators // node.placed.nodes)


def _build_tier_values(node: Node) -> command_parts.Values:
    offload_bytes = _compute_offload_bytes(node)
    return {
        "offload_bytes": offload_bytes,
        "offload_gib": f"{offload_bytes / 2**30:g}",
        "offload_rank_bytes": _compute_offload_rank_bytes(node),
        "offload_rank_gb": max(1, int(_compute_offload_rank_bytes(node) / 1e9)),
        # One server for all ranks of a node.
        "cache_gib": f"{node.tuning.ram_bytes / 2**30:g}",
        "cache_workers": max(1, node.role.accelerators // node.placed.nodes),
    }


def _has_folders(node: Node, *names: str) -> bool:
    """Return whether the engine itself keeps these folders and no other."""
    return node.tuning.keeper is None and tuple(node.tuning.folder_bytes) == names


def _has_deprecated_weights(node: Node) -> bool:
    """Return whether the checkpoint has a form that the engine loads only where it is told to."""
    scheme = node.placed.model.scheme
    return scheme is not None and scheme.is_deprecated


def _has_mixture_ranks(node: Node) -> bool:
    """Return whether several data-parallel ranks serve a mixture of experts without spreading whole ones."""
    return node.role.data > 1 and not node.role.expert and node.placed.model.experts > 0


OPTIONS = (
    Option("shared-machine", lambda node: node.conventions.is_local),
    Option("own-node", lambda node: not node.conventions.is_local),
    Option("one-rank", lambda node: node.role.accelerators == 1 and node.conventions.is_local),
    Option("shared-weights", lambda node: node.tuning.stream_weights and node.shares_weights),
    Option("own-weights", lambda node: node.tuning.stream_weights and not node.shares_weights),
    Option("tensor", lambda node: node.role.tensor > 1, "role.accelerators", "set accelerators: 1"),
    Option("pipeline", lambda node: node.role.pipeline > 1, "role.pipeline", "set pipeline: 1"),
    Option("data", lambda node: node.role.data > 1, "role.data", "set data: 1"),
    Option("data-adapters", lambda node: node.role.data > 1 and node.role.adapters and node.rank == 0),
    Option("expert", lambda node: node.role.expert, "role.expert", "set expert: off"),
    Option("expert-data", lambda node: node.role.expert and node.role.data > 1, "role.data", "set data: 1"),
    Option("mixture-data", _has_mixture_ranks, "role.data", "set data: 1"),
    Option(
        "nodes",
        lambda node: node.placed.nodes > 1,
        "role.accelerators",
        lambda node: f"set accelerators: {count_accelerators(node.placed.instance)}",
    ),
    Option("data-nodes", lambda node: node.placed.nodes > 1 and node.role.data > 1),
    Option("fp8-weights", lambda node: node.tuning.quantization == "fp8", "tuning.quantization", "remove quantization"),
    Option("deprecated-weights", _has_deprecated_weights),
    Option("fp8-cache", lambda node: node.tuning.kv_cache == "fp8", "tuning.kv_cache", "set kv_cache: auto"),
    Option("no-prefix-cache", lambda node: not node.tuning.prefix_cache, "tuning.prefix_cache", "set prefix_cache: on"),
    Option(
        "no-chunked-prefill",
        lambda node: not node.tuning.chunked_prefill,
        "tuning.chunked_prefill",
        "set chunked_prefill: on",
    ),
    Option(
        "batch-tokens",
        lambda node: node.tuning.batch_tokens or node.is_compiled,
        "tuning.batch_tokens",
        "remove batch_tokens",
    ),
    Option("sequences", lambda node: node.tuning.sequences or node.is_compiled, "tuning.sequences", "remove sequences"),
    Option(
        "kv-offload",
        lambda node: node.tuning.kv_offload,
        "tuning.kv_offload",
        "remove kv_offload",
        _build_tier_values,
    ),
    Option(
        "kv-offload",
        lambda node: node.tuning.kv_tiers and _has_folders(node),
        "tuning.kv_tiers",
        "remove kv_tiers",
    ),
    *(
        Option(
            "-".join(("kv", *names)),
            functools.partial(lambda names, node: _has_folders(node, *names), names),
            "tuning.kv_tiers",
            "remove kv_tiers",
        )
        for names in (("disk",), ("shared",), ("disk", "shared"))
    ),
    *(
        Option(
            f"kv-{name}",
            functools.partial(lambda keeper, node: node.tuning.keeper is keeper, keeper),
            "tuning.kv_tiers",
            lambda node: "remove kv_tiers" if node.platform.unsupported_options.get("kv-offload") else "remove by",
        )
        for name, keeper in cache_keepers.load_cache_keepers().items()
    ),
    Option(
        "kv-s3",
        lambda node: node.tuning.keeper is None and "s3" in node.tuning.tier_bytes,
        "tuning.kv_tiers",
        f"{cache_keepers.suggest_cache_keepers(lambda row: 's3' in row.tiers)}, or remove s3",
    ),
    Option(
        "speculative-prompt",
        lambda node: _uses_method(node, "ngram"),
        "tuning.speculative",
        "remove speculative",
        lambda node: {"speculative_tokens": node.speculative.tokens if node.speculative else 0},
    ),
    Option(
        "speculative-prompt-files",
        lambda node: _uses_method(node, "ngram") and node.tuning.keeper is None and node.tuning.folder_bytes,
        "tuning.speculative",
        "remove speculative",
    ),
    Option(
        "speculative-draft",
        lambda node: _uses_method(node, "eagle", "eagle3", "draft_model"),
        "tuning.speculative",
        "remove speculative",
        lambda node: {"speculative_method": node.speculative.method if node.speculative else ""},
    ),
    Option("speculative-layers", lambda node: _uses_method(node, "mtp"), "tuning.speculative", "remove speculative"),
    Option("priority", lambda node: node.tuning.priority, "tuning.priority", "set priority: off"),
    Option(
        "pooled",
        lambda node: node.settings.task in tasks.NUMBERS,
        "task",
        lambda node: f"set task: generate{_describe_other_engines(node, 'pooled')}",
    ),
    Option(
        "draws",
        lambda node: node.settings.task == tasks.DRAW,
        "task",
        lambda node: f"set task: generate{_describe_other_engines(node, 'draws')}",
    ),
    Option(
        "ranked",
        lambda node: node.settings.task in tasks.RANKED,
        "task",
        lambda node: f"set task: embed{_describe_other_engines(node, 'ranked')}",
    ),
    Option(
        "model-config",
        lambda node: node.parsers.model_config_json,
        values=lambda node: {"model_config": node.parsers.model_config_json},
    ),
    Option(
        "bounded-queue",
        lambda node: node.max_requests,
        "role.max_requests",
        "remove max_requests, or set roles.router.max_requests",
        lambda node: {"replica_requests": node.max_requests or 0},
    ),
    Option(
        "shares",
        lambda node: get_shared(node.role),
        "role.shares",
        lambda node: f"set pool: {node.role.pool} in its place{_describe_other_engines(node, 'shares')}",
    ),
    Option(
        "takes-turns",
        lambda node: node.placed.awake_share,
        values=lambda node: {"awake_share": f"{node.placed.awake_share or 0:g}"},
    ),
    Option("tools", lambda node: node.parsers.tools, values=lambda node: {"tools": node.parsers.tools}),
    Option("reasoning", lambda node: node.parsers.reasoning, values=lambda node: {"reasoning": node.parsers.reasoning}),
    Option("chat-template", lambda node: node.written_template or node.catalog_template),
    Option(
        "media-hosts",
        lambda node: node.settings.media_hosts,
        "media_hosts",
        "remove media_hosts",
        lambda node: {"media_hosts": node.settings.media_hosts},
    ),
    Option("pictures", lambda node: node.placed.model.vision, "model", "use a model that reads text only"),
    Option("no-media-hosts", lambda node: not node.settings.media_hosts),
    Option(
        "adapters",
        lambda node: node.role.adapters,
        "role.adapters",
        "remove adapters",
    ),
    Option(
        "adapter-slots",
        lambda node: node.role.adapters and node.settings.find_reckoned_argument(node.role, "adapters") is None,
        values=lambda node: {"max_adapters": len(node.role.adapters)},
    ),
    Option(
        "kv-events",
        lambda node: node.settings.roles.router.policy == "kv-aware",
        "roles.router.policy",
        "set policy: cache-aware",
    ),
    Option(
        "traces",
        lambda node: node.settings.traces,
        "traces",
        "remove traces",
        lambda node: {"traces": node.settings.traces or ""},
    ),
    Option("json-logs", lambda node: node.settings.logs == "json", "logs", "set logs: text"),
    Option("drain", lambda node: not node.conventions.is_local),
    Option("compile-cache", lambda node: node.tuning.compile_cache and not node.conventions.is_local),
    *(
        Option(
            f"kv-{name}-s3",
            functools.partial(
                lambda keeper, node: node.tuning.keeper is keeper and "s3" in node.tuning.tier_bytes, keeper
            ),
            "tuning.kv_tiers",
            "remove s3",
        )
        for name, keeper in cache_keepers.load_cache_keepers().items()
        if "s3" in keeper.tiers
    ),
    Option(
        "cache-limit",
        lambda node: node.placed.cache_limit,
        values=lambda node: {"cache_limit": node.placed.cache_limit or 0},
    ),
    Option("transfer", lambda node: node.settings.is_disaggregated, "pattern", _describe_unsplit),
)
"""In the order of the command line."""
