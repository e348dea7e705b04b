"""The catalog of models, one row each."""

from __future__ import annotations

from collections.abc import Iterable

from rich.table import Table

from llm_serving.catalog.models import Model
from llm_serving.engines import memory
from llm_serving.settings.units import format_bytes


def render(models: Iterable[Model]) -> Table:
    """Render names, sizes and context lengths in 80 columns."""
    table = Table("name", "task", box=None, padding=(0, 1, 0, 0), pad_edge=False)
    for heading in ("parameters", "weights", "KV bytes\nper token", "max\ncontext"):
        table.add_column(heading, justify="right")
    for model in models:
        table.add_row(
            f"{model.name} (random weights)" if model.random else model.name,
            model.task,
            f"{model.parameters / 1e9:.3g} B",
            format_bytes(model.weight_bytes),
            f"{memory.compute_kv_bytes_per_token(model):,}",
            f"{model.max_context:,}",
        )
    return table
