"""Report of a validation of a gateway: report.json."""

from __future__ import annotations

from typing import Literal

from llm_serving.settings.plain import PublishedData
from llm_serving.validation.reports.kind_report import KindReport
from llm_serving.validation.statistics.sample_statistics import Latency


class TeamCalls(PublishedData):
    """What a team's calls to one model got."""

    team: str
    model: str
    sent: int
    answered: int
    errors: dict[str, int]
    """Of the others, by status or kind of failure."""


class Refusal(PublishedData):
    """A call that must be refused."""

    call: str
    expected: int
    status: int
    """Of the answer; 0 without one."""


class GatewayReport(KindReport):
    """One validation."""

    kind: Literal["gateway"] = "gateway"
    teams: tuple[TeamCalls, ...]
    refusals: tuple[Refusal, ...]
    answer_ms: Latency
    """From a request to its whole answer."""
