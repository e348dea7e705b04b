"""The catalog of models, one row each."""

from __future__ import annotations

from collections.abc import Iterable

from rich.table import Table

from llm_serving.catalog import pipelines
from llm_serving.catalog.models import Model
from llm_serving.engines import memory
from llm_serving.settings.units import format_bytes


def render(models: Iterable[Model]) -> Table:
    """Render names, sizes and context lengths in 80 columns."""
    table = Table("name", box=None, padding=(0, 1, 0, 0), pad_edge=False)
    for heading in ("billion\nparam.", "weights", "KV B/\ntoken", "max\ncontext"):
        table.add_column(heading, justify="right", no_wrap=True)
    for model in models:
        billions = model.parameters / 1e9
        table.add_row(
            _describe_name(model),
            f"{billions:.{3 if billions > 0.001 else 1}g}" if billions < 1000 else f"{billions:,.0f}",
            format_bytes(model.weight_bytes),
            f"{memory.compute_kv_bytes_per_token(model):,}",
            f"{model.max_context:,}" if model.max_context < pipelines.UNBOUNDED else "–",
        )
    return table


def _describe_name(model: Model) -> str:
    """Describe a model by its name and what most models are not."""
    remarks = [remark for remark in ("random weights" * model.random, model.task) if remark not in ("", "generate")]
    return f"{model.name} ({', '.join(remarks)})" if remarks else model.name
