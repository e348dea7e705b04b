"""The result of `blueprint model fit`, as a table and as data."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from llm_serving.catalog import models
from llm_serving.catalog.instances import Instance
from llm_serving.catalog.models import Model
from llm_serving.engines import base, memory
from llm_serving.engines.memory import Fit
from llm_serving.settings.units import format_bytes

Fits = Mapping[str, Sequence[Fit]]
"""By instance type, one for each degree of tensor parallelism; empty without accelerators."""


def compute(model: Model, instances: Iterable[Instance], context: int, dtype: str) -> Fits:
    """Compute the fit of each instance type at each useful degree of tensor parallelism."""
    return {
        instance.name: [
            base.get_memory_model().compute_fit(model, instance, degree, context=context, dtype=dtype)
            for degree in memory.list_tensor_sizes(model, instance)
        ]
        for instance in instances
    }


def build_payload(
    model: Model, instances: Mapping[str, Instance], fits: Fits, context: int, dtype: str
) -> dict[str, Any]:
    """Return the result as data: bytes, tokens, and reasons as sentences."""
    return {
        "model": {
            "name": model.name,
            "parameters": model.parameters,
            "active_parameters": model.active_parameters,
            "weight_bytes": model.weight_bytes,
            "max_context": model.max_context,
            "random": model.random,
            "source": model.source,
        },
        "kv_bytes_per_token": memory.compute_kv_bytes_per_token(model, dtype=dtype),
        "kv_cache_dtype": dtype,
        "context": context,
        "utilization": base.get_memory_model().UTILIZATION,
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
    parts: list[RenderableType] = [*_render_header(model, context, dtype), Text()]
    for kind, title in (("gpu", "GPUs"), ("neuron", "NeuronCores")):
        kind_instances = [
            instance for instance in instances.values() if instance.accelerators and instance.accelerators.kind == kind
        ]
        if kind_instances:
            parts += [_render_table(model, kind_instances, fits, title), Text()]
    no_accelerators = [name for name, instance in instances.items() if not instance.accelerators]
    if no_accelerators:
        parts.append(Text(f"No accelerators: {_format_names(no_accelerators)}", style="dim"))
    return Group(*parts, *_render_legend(model, fits))


def explain(fits: Fits) -> list[str]:
    """Describe each fit in a sentence."""
    return [
        f"{name}, {_format_split(fit)}: {_format_fit(fit)}" for name, type_fits in fits.items() for fit in type_fits
    ]


def _format_fit(fit: Fit) -> str:
    if not fit.fits:
        return f"does not fit: {fit.why}"
    used = f"weights {format_bytes(fit.weight_bytes)}, reserve {format_bytes(fit.reserve_bytes)}"
    cache = f"cache {format_bytes(fit.cache_bytes)} of {format_bytes(fit.budget_bytes)}"
    capacity = f"{fit.cache_tokens:,} tokens, {fit.requests:,.1f} requests of {fit.context:,}"
    return f"{used}, {cache} on each: {capacity}" if fit.cache_tokens else f"{used}, {cache} free on each"


def _render_header(model: Model, context: int, dtype: str) -> Iterator[Text]:
    active = f", {_format_count(model.active_parameters)} active" if model.experts else ""
    yield Text.assemble((model.name, "bold"), f"  {_format_count(model.parameters)} parameters{active}")
    yield Text(f"weights   {format_bytes(model.weight_bytes)} ({_describe_weights(model)})")
    if model.encoder:
        yield Text("KV cache  none (encoder)")
    else:
        yield Text(
            f"KV cache  {memory.compute_kv_bytes_per_token(model, dtype=dtype):,} bytes per token"
            f"{_describe_attention(model)}"
        )
    yield Text(f"context   {context:,} tokens per request, max {model.max_context:,}")
    if model.random:
        yield Text(models.RANDOM_NOTICE, style="yellow")


def _describe_weights(model: Model) -> str:
    labels = {"none": model.dtype, "fp8": "FP8", "mxfp4": "experts in MXFP4", "nvfp4": "NVFP4"}
    return labels[model.quantization]


def _describe_attention(model: Model) -> str:
    if model.latent:
        return " (latent attention: the same on each accelerator)"
    if model.sliding_layers:
        return f" ({model.sliding_layers} of {model.layers} layers keep a window of {model.window} only)"
    return ""


def _render_table(model: Model, instances: Sequence[Instance], fits: Fits, title: str) -> Table:
    columns = _select_columns(instances, fits)
    # 80 columns are enough: lists of names fold, names and numbers do not.
    title = f"KV cache per replica in thousand tokens, by number of {title}"
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
        return Text("fits" if model.encoder else f"{fit.cache_tokens / 1000:,.1f}", style="green")
    if base.get_memory_model().describe_indivisible(model, fit.tensor_parallel):
        return Text("no split", style="red")
    return Text(f"-{format_bytes(-fit.cache_bytes)}" if fit.cache_bytes < 0 else "< 1", style="red")


def _render_legend(model: Model, fits: Fits) -> Iterator[Text]:
    all_fits = [fit for type_fits in fits.values() for fit in type_fits]
    divisible = [
        fit for fit in all_fits if not base.get_memory_model().describe_indivisible(model, fit.tensor_parallel)
    ]
    if any(fit.cache_bytes < 0 for fit in divisible):
        yield Text("-24 GB    short by this much memory per accelerator", style="dim")
    if any(fit.cache_bytes >= 0 and not fit.fits for fit in divisible):
        yield Text("< 1       KV cache smaller than one request of this context", style="dim")
    reasons = [
        reason
        for fit in all_fits
        if (reason := base.get_memory_model().describe_indivisible(model, fit.tensor_parallel))
    ]
    if reasons:
        yield Text(f"no split  {reasons[0]}", style="dim")
    share = f"{base.get_memory_model().UTILIZATION:.0%} of the memory is used, the engine's default"
    yield Text(f"Computed, not measured: {share}; --type NAME explains one instance type.", style="dim")
    if any(not fit.calibrated for fit in all_fits):
        yield Text("Neuron: the reserve is estimated, not measured.", style="dim")


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


def _format_split(fit: Fit) -> str:
    return "whole" if fit.tensor_parallel == 1 else f"split {fit.tensor_parallel} ways"


def _format_count(count: int) -> str:
    return f"{count / 1e9:.3g} billion" if count >= 1e9 else f"{count / 1e6:.3g} million"
