"""Report of a validation of a batch deployment: report.json."""

from __future__ import annotations

from typing import Literal

from llm_serving.settings.plain import PublishedData
from llm_serving.validation.reports.kind_report import KindReport


class RowCounts(PublishedData):
    """The rows of the sample job."""

    total: int
    completed: int
    """With an answer."""

    failed: int
    """In the errors file, those that could not run among them."""

    lost: int
    """In neither file."""

    duplicated: int
    """Results beyond the first of a row."""

    misplaced: int
    """Rows that could not run and have an answer, and rows that could run and failed."""


class Moment(PublishedData):
    """The job at one time."""

    seconds: float
    """Since it was submitted."""

    is_running: bool
    """Whether its rows run or have run: the input is read and divided."""

    completed: int
    failed: int
    output_tokens: int
    in_flight: int
    """Of all workers, as each last said."""


class Reference(PublishedData):
    """Rate of the endpoint at a fixed concurrency."""

    concurrency: int
    output_tokens_per_s: float


class TeamUse(PublishedData):
    """Usage of a team's jobs since the deployment began, including the sample job."""

    team: str
    jobs: int
    input_tokens: int
    output_tokens: int
    endpoint_s: float
    """Of the endpoint's time, shared by requests in flight."""

    cost_usd: float | None
    """Of that time; null on a target without prices."""


class ShareMoment(PublishedData):
    """The jobs at one time."""

    seconds: float
    """Since the first was submitted."""

    output_tokens: dict[str, int]
    """By team, without the urgent job's."""

    urgent_tokens: int
    """Output tokens of the urgent job."""


class TeamShare(PublishedData):
    """A team's share of the output tokens while all teams had rows."""

    team: str
    expected: float
    """By its weight, 0 to 1."""

    measured: float
    rows: int


class UrgentJob(PublishedData):
    """A job of `priority: high` that was submitted while the others ran."""

    team: str
    rows: int
    submitted_s: float
    """Since the first job was submitted."""

    first_row_s: float
    """From its submission to the first row with a result."""


class FairShare(PublishedData):
    """Jobs of all teams at once, each with as many rows as its weight."""

    teams: tuple[TeamShare, ...]
    urgent: UrgentJob
    moments: tuple[ShareMoment, ...]


class BatchReport(KindReport):
    """One validation."""

    kind: Literal["batch"] = "batch"
    job: str
    state: str
    rows: RowCounts
    seconds: float
    """From submission to results."""

    input_tokens: int
    output_tokens: int
    output_tokens_per_s: float
    """While rows ran."""

    endpoint_s: float
    """Of the endpoint's time that the job took."""

    cost_usd: float | None
    """Of that time; null on a target without prices."""

    teams: tuple[TeamUse, ...]
    endpoint_use: float | None
    """Of the best reference; null where it was not measured."""

    references: tuple[Reference, ...]
    fair_share: FairShare | None
    """Null with a single team."""

    moments: tuple[Moment, ...]
    error_kinds: dict[str, int]
