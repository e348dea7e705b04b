"""Descriptions of fields in a published schema."""

from __future__ import annotations

from pydantic import Field

from llm_serving.settings.plain import Described


class Base(Described):
    size: int
    """How large
    it is."""


class Part(Base):
    sort: str = Field(alias="type")
    """What it is."""
    bare: int = 0


class Whole(Described):
    part: Part
    """Of it."""


def test_a_field_is_described_by_the_text_below_it_also_that_of_a_base() -> None:
    tree = Whole.model_json_schema()
    assert tree["properties"]["part"]["description"] == "Of it."
    rows = tree["$defs"]["Part"]["properties"]
    assert {name: row.get("description") for name, row in rows.items()} == {
        "size": "How large\nit is.",
        "type": "What it is.",
        "bare": None,
    }
