"""Bases of plain data: frozen, and a field that a class does not know is refused."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class PlainData(BaseModel):
    """Frozen data that no person writes."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class PublishedData(PlainData):
    """Plain data whose schema is published: the texts below its fields are their descriptions."""

    model_config = ConfigDict(use_attribute_docstrings=True)
