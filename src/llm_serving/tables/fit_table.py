"""The answer of `blueprint model fit`: a table for a person, plain data for a script."""

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
from llm_serving.engines import memory
from llm_serving.engines.memory import Fit
from llm_serving.settings.units import human_bytes

Fits = Mapping[str, Sequence[Fit]]
"""By instance type, one for each degree of tensor parallelism; none for a machine without accelerators."""


def compute(model: Model, instances: Iterable[Instance], context: int, dtype: str) -> Fits:
    """Every instance type at every degree of tensor parallelism that is worth trying."""
    return {
        row.name: [memory.fit(model, row, ways, context=context, dtype=dtype) for ways in memory.sizes(model, row)]
        for row in instances
    }


def plain(model: Model, instances: Mapping[str, Instance], fits: Fits, context: int, dtype: str) -> dict[str, Any]:
    """The whole answer as data. Bytes, tokens, and the reasons as sentences."""
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
        "kv_bytes_per_token": memory.kv_bytes_per_token(model, dtype=dtype),
        "kv_cache_dtype": dtype,
        "context": context,
        "utilization": memory.UTILIZATION,
        "instances": [
            {
                "name": name,
                "accelerators": _accelerators(instances[name]),
                "fits": [fit.model_dump() | {"requests": fit.requests} for fit in found],
            }
            for name, found in fits.items()
        ],
    }


def draw(model: Model, instances: Mapping[str, Instance], fits: Fits, context: int, dtype: str) -> RenderableType:
    """The model's own numbers, a table each for GPUs and for Neuron devices, and what to read them by."""
    parts: list[RenderableType] = [*_header(model, context, dtype), Text()]
    for kind, title in (("gpu", "GPUs"), ("neuron", "NeuronCores")):
        rows = [row for row in instances.values() if row.accelerators and row.accelerators.kind == kind]
        if rows:
            parts += [_table(model, rows, fits, title), Text()]
    without = [name for name, row in instances.items() if not row.accelerators]
    if without:
        parts.append(Text(f"No accelerators: {_names(without)}", style="dim"))
    return Group(*parts, *_legend(model, fits))


def explain(fits: Fits) -> list[str]:
    """Each fit of few instance types in a sentence."""
    return [f"{name}, {_ways(fit)}: {_sentence(fit)}" for name, found in fits.items() for fit in found]


def _sentence(fit: Fit) -> str:
    if not fit.fits:
        return f"does not fit: {fit.why}"
    taken = f"weights {human_bytes(fit.weight_bytes)}, reserve {human_bytes(fit.reserve_bytes)}"
    left = f"cache {human_bytes(fit.cache_bytes)} of {human_bytes(fit.budget_bytes)}"
    held = f"{fit.cache_tokens:,} tokens, {fit.requests:,.1f} requests of {fit.context:,}"
    return f"{taken}, {left} on each: {held}" if fit.cache_tokens else f"{taken}, {left} free on each"


def _header(model: Model, context: int, dtype: str) -> Iterator[Text]:
    active = f", {_billions(model.active_parameters)} active" if model.experts else ""
    yield Text.assemble((model.name, "bold"), f"  {_billions(model.parameters)} parameters{active}")
    yield Text(f"weights   {human_bytes(model.weight_bytes)} ({_stored(model)})")
    if model.encoder:
        yield Text("KV cache  none: an encoder keeps nothing between requests")
    else:
        yield Text(f"KV cache  {memory.kv_bytes_per_token(model, dtype=dtype):,} bytes a token{_kind(model)}")
    yield Text(f"context   {context:,} tokens a request here, {model.max_context:,} at most")
    if model.random:
        yield Text(models.RANDOM_NOTICE, style="yellow")


def _stored(model: Model) -> str:
    named = {"none": model.dtype, "fp8": "FP8", "mxfp4": "experts in MXFP4"}
    return named[model.quantization]


def _kind(model: Model) -> str:
    if model.latent:
        return " (latent attention: the same on each accelerator)"
    if model.sliding_layers:
        return f" ({model.sliding_layers} of {model.layers} layers keep a window of {model.window} only)"
    return ""


def _table(model: Model, rows: Sequence[Instance], fits: Fits, title: str) -> Table:
    columns = _columns(rows, fits)
    # Narrow enough for a terminal of 80 columns: lists of names fold, names and numbers stay whole.
    title = f"Thousand tokens of KV cache of one replica, by {title} that it is split over"
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("instance types", min_width=20)
    table.add_column("accelerators", max_width=17)
    for ways in columns:
        table.add_column(str(ways), justify="right", no_wrap=True)
    for alike in _alike(rows):
        found = {fit.tensor_parallel: fit for fit in fits[alike[0].name]}
        cells = [_cell(model, found.get(ways)) for ways in columns]
        if not any(cell.plain for cell in cells):  # it has fewer than the table shows
            cells[0] = Text("too small", style="red")
        table.add_row(_names([row.name for row in alike]), _accelerators(alike[0]), *cells)
    return table


def _columns(rows: Sequence[Instance], fits: Fits) -> list[int]:
    """The last four degrees up to the greatest at which something fits: enough for GPUs, and NeuronCores are many."""
    found = [fit for row in rows for fit in fits[row.name]]
    degrees = sorted({fit.tensor_parallel for fit in found})
    most = max((fit.tensor_parallel for fit in found if fit.fits), default=degrees[-1])
    return [ways for ways in degrees if ways <= max(most, 8)][-4:]


def _alike(rows: Sequence[Instance]) -> list[list[Instance]]:
    """Instance types of one family with the same accelerators: for the model they are the same."""
    groups: dict[tuple[str, str], list[Instance]] = {}
    for row in rows:
        groups.setdefault((row.family, _accelerators(row)), []).append(row)
    return list(groups.values())


def _cell(model: Model, fit: Fit | None) -> Text:
    if fit is None:
        return Text("")
    if fit.fits:
        return Text("fits" if model.encoder else f"{fit.cache_tokens / 1000:,.1f}", style="green")
    if memory.indivisible(model, fit.tensor_parallel):
        return Text("no split", style="red")
    return Text(f"-{human_bytes(-fit.cache_bytes)}" if fit.cache_bytes < 0 else "< 1", style="red")


def _legend(model: Model, fits: Fits) -> Iterator[Text]:
    found = [fit for one in fits.values() for fit in one]
    whole = [fit for fit in found if not memory.indivisible(model, fit.tensor_parallel)]
    if any(fit.cache_bytes < 0 for fit in whole):
        yield Text("-24 GB    weights and reserve take so much more than one accelerator has", style="dim")
    if any(fit.cache_bytes >= 0 and not fit.fits for fit in whole):
        yield Text("< 1       the cache holds no request of the context above", style="dim")
    refused = [why for fit in found if (why := memory.indivisible(model, fit.tensor_parallel))]
    if refused:
        yield Text(f"no split  {refused[0]}", style="dim")
    share = f"{memory.UTILIZATION:.0%} of the memory is used, as vLLM does by itself"
    yield Text(f"Computed, not measured: {share}; --type NAME explains one instance type.", style="dim")
    if any(not fit.calibrated for fit in found):
        yield Text("On Neuron no measurement stands behind the reserve: a first guess.", style="dim")


def _accelerators(row: Instance) -> str:
    device = row.accelerators
    return f"{device.count} x {device.name} {device.memory_mib / 1024:.0f} GiB" if device else ""


def _names(names: Sequence[str]) -> str:
    """`g6e.xlarge, .2xlarge, .4xlarge`: the family once."""
    text, last = "", ""
    for name in names:
        family, size = name.split(".")
        text += (", " if text else "") + (f".{size}" if family == last else name)
        last = family
    return text


def _ways(fit: Fit) -> str:
    return "whole" if fit.tensor_parallel == 1 else f"split {fit.tensor_parallel} ways"


def _billions(count: int) -> str:
    return f"{count / 1e9:.3g} billion" if count >= 1e9 else f"{count / 1e6:.3g} million"
