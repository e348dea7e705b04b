"""Report of a validation of a streaming deployment: report.json."""

from __future__ import annotations

from typing import Literal

from llm_serving.settings.plain import PublishedData
from llm_serving.validation.reports.kind_report import KindReport
from llm_serving.validation.statistics.sample_statistics import Latency


class EventCounts(PublishedData):
    """The events that were sent."""

    sent: int
    answered: int
    lost: int
    """With neither an answer nor a dead letter."""

    duplicated: int
    """Answers and dead letters beyond the first of an event."""

    dead: int
    """With a dead letter, those that are not valid among them."""

    misjudged: int
    """Valid events with a dead letter, and others with an answer."""


class StreamMetrics(PublishedData):
    """Times of valid events, in milliseconds."""

    answer_ms: Latency
    """From the moment at which an event was due to its answer in the cache."""

    endpoint_ms: Latency
    """Of that, the endpoint's, retries included."""

    pipeline_ms: Latency
    """The rest of it."""

    committed_ms: Latency
    """From the moment at which an event was due to its answer at a `read_committed` reader of Kafka."""


class StreamReport(KindReport):
    """One validation."""

    kind: Literal["streaming"] = "streaming"
    events: EventCounts
    metrics: StreamMetrics
    events_per_s: float
    """At which they were sent."""

    dead_reasons: dict[str, int]
