"""What follows from the charts' values is written down as they are now."""

from __future__ import annotations

import json
from typing import Any

import pytest

from llm_serving import paths
from llm_serving.services.rendered import Rendered
from scripts import chart_values


@pytest.mark.parametrize("chart", chart_values.CHARTS)
def test_the_table_of_values_is_up_to_date(chart: str) -> None:
    page = (paths.CHARTS / chart / "VALUES.md").read_text()
    assert page == chart_values.build_table(chart), "run .venv/bin/python -m scripts.chart_values"
    assert page.count("\n| `") > 5


def test_the_schema_of_a_batch_has_every_key_of_a_rendered_file() -> None:
    schema = chart_values.build_batch_schema()
    assert json.loads((paths.CHARTS / "batch" / "values.schema.json").read_text()) == schema
    assert set(schema["properties"]) == {*Rendered[Any].model_fields, "fullnameOverride", "global"}
