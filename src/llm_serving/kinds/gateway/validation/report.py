"""Report of a validation of a gateway: report.json."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from llm_serving.validation.statistics.gate import MissedObjective
from llm_serving.validation.statistics.sample_statistics import Latency


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class TeamCalls(_Part):
    """What a team's calls to one model got."""

    team: str
    model: str
    sent: int
    answered: int
    errors: dict[str, int]
    """Of the others, by status or kind of failure."""


class Refusal(_Part):
    """A call that must be refused."""

    call: str
    expected: int
    status: int
    """Of the answer; 0 without one."""


class GatewayReport(_Part):
    """One validation."""

    kind: Literal["gateway"] = "gateway"
    name: str
    verdict: Literal["pass", "fail"]
    missed: tuple[MissedObjective, ...]
    started_at: str
    """UTC, ISO 8601."""

    teams: tuple[TeamCalls, ...]
    refusals: tuple[Refusal, ...]
    answer_ms: Latency
    """From a request to its whole answer."""

    settings: dict[str, Any]
    versions: dict[str, str]
    emulated: tuple[str, ...]
