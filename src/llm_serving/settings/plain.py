"""Bases of plain data: frozen, and a field that a class does not know is refused."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from llm_serving.settings.described import Described


class PlainData(BaseModel):
    """Frozen data that no person writes."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class PublishedData(PlainData, Described):
    """Plain data whose schema is published."""
