"""The result of `blueprint model fit`, as a table and as data."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from llm_serving.catalog import engines, models
from llm_serving.catalog.engines import Platform
from llm_serving.catalog.instances import Instance
from llm_serving.catalog.models import Model
from llm_serving.engines import base, memory
from llm_serving.engines.base import MemoryModel
from llm_serving.engines.memory import Fit, ReplicaSetup, Split
from llm_serving.settings.units import format_bytes

NOT_COMPUTED = "not computed"

Fits = Mapping[str, Sequence[Fit]]
"""By instance type, one for each degree of tensor parallelism; empty without accelerators."""


def compute(model: Model, instances: Iterable[Instance], setup: ReplicaSetup) -> Fits:
    """Compute the fit of each instance type at each useful degree of tensor parallelism.

    Args:
        setup: of a replica, whatever its degree.
    """
    return {
        instance.name: [
            _compute_fit(model, instance, replace(setup, tensor=degree)) for degree in _list_degrees(model, instance)
        ]
        for instance in instances
    }


def _compute_fit(model: Model, instance: Instance, setup: ReplicaSetup) -> Fit:
    memory_model = _select_memory_model(model)
    if not model.is_known:
        return memory.compute_unknown_fit(model, instance, replace(setup, utilization=memory_model.UTILIZATION))
    return memory_model.compute_fit(model, instance, setup)


def _get_platforms(model: Model) -> Mapping[str, Platform]:
    return engines.load_engines()[engines.find_reader(model.formats)].platforms


def _runs_on(model: Model, instance: Instance) -> bool:
    """Return whether the model's engine runs it on a pool of this type."""
    kind = instance.accelerators.kind if instance.accelerators else "cpu"
    platform = _get_platforms(model).get(kind)
    if platform is None or not platform.on_pools:
        return False
    limits = platform.limits
    return limits is None or (instance.family in limits.families and model.kind in limits.architectures)


def _describe_indivisible(model: Model, fit: Fit) -> str:
    return _select_memory_model(model).describe_indivisible(model, Split(fit.tensor_parallel))


def _select_memory_model(model: Model) -> MemoryModel:
    return base.get_memory_model(engines.find_reader(model.formats))


def _list_degrees(model: Model, instance: Instance) -> tuple[int, ...]:
    """Ways to split the model on a type: by accelerators, or whole on all of its CPUs."""
    if not _runs_on(model, instance):
        return ()
    return memory.list_tensor_sizes(model, instance) if instance.accelerators else (1,)


def build_payload(
    model: Model, instances: Mapping[str, Instance], fits: Fits, context: int, dtype: str
) -> dict[str, Any]:
    """Return the result as data: bytes, tokens, and reasons as sentences."""
    return {
        "model": {
            "name": model.name,
            "kind": model.kind,
            "memory": "computed" if model.is_known else NOT_COMPUTED,
            "parameters": model.parameters if model.is_known else None,
            "active_parameters": model.active_parameters if model.is_known else None,
            "weight_bytes": model.weight_bytes,
            "max_context": model.max_context,
            "random": model.random,
            "source": model.source,
        },
        "kv_bytes_per_token": memory.compute_kv_bytes_per_token(model, dtype=dtype) if model.is_known else None,
        "kv_cache_dtype": dtype,
        "context": context,
        "utilization": _select_memory_model(model).UTILIZATION,
        "instances": [
            {
                "name": name,
                "accelerators": _format_accelerators(instances[name]),
                "fits": [fit.model_dump() | {"requests": fit.requests} for fit in type_fits],
            }
            for name, type_fits in fits.items()
        ],
    }


def render(model: Model, instances: Mapping[str, Instance], fits: Fits, context: int, dtype: str) -> RenderableType:
    """Render the model's numbers, a table for GPUs and one for Neuron devices, and a legend."""
    parts: list[RenderableType] = [*_render_header(model, fits, context, dtype), Text()]
    for kind, title in (("gpu", "GPUs"), ("neuron", "NeuronCores")):
        of_kind = [row for row in instances.values() if row.accelerators and row.accelerators.kind == kind]
        kind_instances = [row for row in of_kind if fits[row.name]]
        if kind_instances:
            parts += [_render_table(model, kind_instances, fits, title), Text()]
        others = [row.name for row in of_kind if not fits[row.name]]
        if others:
            refused = _format_names(others) if kind in _get_platforms(model) else title
            parts += [Text(f"{engines.find_reader(model.formats)} does not run it on {refused}", style="dim"), Text()]
    no_accelerators = [instance for instance in instances.values() if not instance.accelerators]
    cpu_instances = [instance for instance in no_accelerators if fits[instance.name]]
    if cpu_instances:
        parts += [_render_cpu_table(cpu_instances, fits), Text()]
    elif no_accelerators:
        parts.append(Text(f"No accelerators: {_format_names([row.name for row in no_accelerators])}", style="dim"))
    on_accelerators = [fit for name, type_fits in fits.items() if instances[name].accelerators for fit in type_fits]
    return Group(*parts, *_render_legend(model, fits, on_accelerators))


def _render_cpu_table(instances: Sequence[Instance], fits: Fits) -> Table:
    """Types without accelerators that hold the model, each with the speed of one request."""
    title = f"On CPU, one replica a node with {memory.NODE_SHARE:.0%} of its memory"
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("instance type", no_wrap=True)
    for heading in ("memory GB/s", "requests", "tokens/s"):
        table.add_column(heading, justify="right", no_wrap=True)
    for instance in instances:
        [fit] = fits[instance.name]
        bandwidth = f"{instance.memory_gb_s:,.0f}" if instance.memory_gb_s else ""
        speed = f"{fit.tokens_per_s:,.1f}" if fit.tokens_per_s else ""
        requests = f"{fit.requests:,.0f}" if fit.cache_tokens else "fits"
        cells = [requests, speed] if fit.fits else [Text("too small", style="red"), ""]
        table.add_row(instance.name, bandwidth, *cells)
    return table


def explain(fits: Fits) -> list[str]:
    return [
        f"{name}, {'whole' if fit.tensor_parallel == 1 else f'split {fit.tensor_parallel} ways'}: {_format_fit(fit)}"
        for name, type_fits in fits.items()
        for fit in type_fits
    ]


def _format_fit(fit: Fit) -> str:
    if not fit.fits:
        return f"does not fit: {fit.why}"
    if not fit.computed:
        weights = f"weights and a tenth {format_bytes(fit.weight_bytes)} of {format_bytes(fit.budget_bytes)} on each"
        return f"{weights}; the rest is {NOT_COMPUTED}"
    draft = f", {format_bytes(fit.draft_bytes)} of them the draft's" if fit.draft_bytes else ""
    parts = memory.describe_reserve(fit.video_bytes, fit.adapter_bytes)
    memory_use = f"weights {format_bytes(fit.weight_bytes)}{draft}, reserve {format_bytes(fit.reserve_bytes)}{parts}"
    cache = f"cache {format_bytes(fit.cache_bytes)} of {format_bytes(fit.budget_bytes)}"
    capacity = f"{fit.cache_tokens:,} tokens, {fit.requests:,.1f} requests of {fit.context:,}"
    speed = f"; at most {fit.tokens_per_s:,.1f} tokens/s of one request, estimated" if fit.tokens_per_s else ""
    return (
        f"{memory_use}, {cache} on each: {capacity}{speed}"
        if fit.cache_tokens
        else f"{memory_use}, {cache} free on each"
    )


def _render_header(model: Model, fits: Fits, context: int, dtype: str) -> Iterator[Text]:
    if not model.is_known:
        yield Text.assemble((model.name, "bold"), f"  of the kind {model.kind}")
        yield Text(f"weights   {format_bytes(model.weight_bytes)}, by its index or its files")
        yield Text(f"KV cache  {NOT_COMPUTED}: its kind is not known here; deploys with memory: unchecked")
        return
    active = f", {_format_count(model.active_parameters)} active" if model.experts else ""
    yield Text.assemble((model.name, "bold"), f"  {_format_count(model.parameters)} parameters{active}")
    yield Text(f"weights   {format_bytes(model.weight_bytes)} ({_describe_weights(model)})")
    if model.task == "draw":
        yield Text("KV cache  none (pictures)")
    elif model.encoder:
        yield Text("KV cache  none (encoder)")
    else:
        yield Text(
            f"KV cache  {memory.compute_kv_bytes_per_token(model, dtype=dtype):,} bytes per token"
            f"{_describe_attention(model)}"
        )
    if model.task != "draw":
        yield Text(f"context   {context:,} tokens per request, max {model.max_context:,}")
    if model.vision:
        yield Text(f"pictures  up to {model.vision.image_tokens:,} tokens each, of the context")
        if any(fit.video_bytes for type_fits in fits.values() for fit in type_fits):
            tokens = model.vision.count_video_tokens(context)
            yield Text(f"videos    up to {tokens:,} tokens, with room for one; --no-videos leaves it out")
    if model.random:
        yield Text(models.RANDOM_NOTICE, style="yellow")


def _describe_weights(model: Model) -> str:
    if model.formats == ("gguf",):
        return "GGUF"
    labels = {"none": model.dtype, "mxfp4": "experts in MXFP4"}
    return labels.get(model.quantization, model.quantization.upper())


def _describe_attention(model: Model) -> str:
    if model.latent:
        return " (latent attention: the same on each accelerator)"
    if model.linear_layers:
        state = model.linear_layers * memory.compute_state_bytes(model)
        return f", and {format_bytes(state)} per request for {model.linear_layers} of {model.layers} layers"
    if model.sliding_layers:
        return f" ({model.sliding_layers} of {model.layers} layers keep a window of {model.window} only)"
    return ""


def _render_table(model: Model, instances: Sequence[Instance], fits: Fits, title: str) -> Table:
    columns = _select_columns(instances, fits)
    # 80 columns are enough: lists of names fold, names and numbers do not.
    shown = "Whether it fits" if model.encoder else "KV cache per replica in thousand tokens"
    caption = shown if model.is_known else "Whether the weights and a tenth fit"
    title = f"{caption}, by number of {title}"
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("instance types", min_width=20)
    table.add_column("accelerators", max_width=17)
    for degree in columns:
        table.add_column(str(degree), justify="right", no_wrap=True)
    for group in _group_instances(instances):
        fits_by_degree = {fit.tensor_parallel: fit for fit in fits[group[0].name]}
        cells = [_render_cell(model, fits_by_degree.get(degree)) for degree in columns]
        if not any(cell.plain for cell in cells):  # fewer accelerators than the table's columns
            cells[0] = Text("too small", style="red")
        table.add_row(_format_names([instance.name for instance in group]), _format_accelerators(group[0]), *cells)
    return table


def _select_columns(instances: Sequence[Instance], fits: Fits) -> list[int]:
    """Select up to four degrees, ending at the largest at which something fits."""
    all_fits = [fit for instance in instances for fit in fits[instance.name]]
    degrees = sorted({fit.tensor_parallel for fit in all_fits})
    max_degree = max((fit.tensor_parallel for fit in all_fits if fit.fits), default=degrees[-1])
    return [degree for degree in degrees if degree <= max(max_degree, 8)][-4:]


def _group_instances(instances: Sequence[Instance]) -> list[list[Instance]]:
    """Group instance types of one family with the same accelerators, which fit alike."""
    groups: dict[tuple[str, str], list[Instance]] = {}
    for instance in instances:
        groups.setdefault((instance.family, _format_accelerators(instance)), []).append(instance)
    return list(groups.values())


def _render_cell(model: Model, fit: Fit | None) -> Text:
    if fit is None:
        return Text("")
    if fit.fits:
        return Text("fits" if model.encoder or not fit.computed else f"{fit.cache_tokens / 1000:,.1f}", style="green")
    if fit.computed and _describe_indivisible(model, fit):
        return Text("no split", style="red")
    return Text(f"-{format_bytes(-fit.cache_bytes)}" if fit.cache_bytes < 0 else "< 1", style="red")


def _render_legend(model: Model, fits: Fits, on_accelerators: Sequence[Fit]) -> Iterator[Text]:
    all_fits = [fit for type_fits in fits.values() for fit in type_fits]
    if not model.is_known:
        yield Text("-24 GB    short by this much memory per accelerator", style="dim")
        return
    misfits = [_describe_indivisible(model, fit) for fit in on_accelerators]
    divisible = [fit for fit, misfit in zip(on_accelerators, misfits, strict=True) if not misfit]
    if any(fit.cache_bytes < 0 for fit in divisible):
        yield Text("-24 GB    short by this much memory per accelerator", style="dim")
    if any(fit.cache_bytes >= 0 and not fit.fits for fit in divisible):
        yield Text("< 1       KV cache smaller than one request of this context", style="dim")
    if any(misfits):
        yield Text(f"no split  {next(filter(None, misfits))}", style="dim")
    if any(fit.tokens_per_s for fit in all_fits):
        formula = "memory bandwidth / (weights that a token reads + half of its context's cache)"
        yield Text(f"tokens/s  at most, of one request: {formula}", style="dim")
    share = f": {_select_memory_model(model).UTILIZATION:.0%} of an accelerator's memory is used, the engine's default"
    shown = share if on_accelerators else ""
    yield Text(f"Computed, not measured{shown}; --type NAME explains one instance type.", style="dim")
    if any(not fit.calibrated for fit in on_accelerators):
        yield Text(
            "Reserves were measured on H100, 16-bit or MXFP4, up to 4 ways; others are extrapolated.", style="dim"
        )


def _format_accelerators(instance: Instance) -> str:
    device = instance.accelerators
    return f"{device.count} x {device.name} {device.memory_mib / 1024:.0f} GiB" if device else ""


def _format_names(names: Sequence[str]) -> str:
    """Format names with the family once: `g6e.xlarge, .2xlarge, .4xlarge`."""
    text, last_family = "", ""
    for name in names:
        family, size = name.split(".")
        text += (", " if text else "") + (f".{size}" if family == last_family else name)
        last_family = family
    return text


def _format_count(count: int) -> str:
    return f"{count / 1e9:.3g} billion" if count >= 1e9 else f"{count / 1e6:.3g} million"
