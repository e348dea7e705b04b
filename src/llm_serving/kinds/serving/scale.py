"""When replicas of a role come and go: by one metric of the engine, by a framework's planner, at times of the day."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from pydantic import ConfigDict, Field

from llm_serving.kinds.serving.formats import FORMATS
from llm_serving.settings.document import AllowSingleItem, Conflict, Settings, parse_default
from llm_serving.settings.units import Duration, Share, Switch, TimeZone

_DAY_MINUTES = 24 * 60


class Peak(Settings):
    """A time of each day for which replicas start beforehand."""

    at: Annotated[str, FORMATS["time-of-day"]]
    """From when until when; until the next day where the end is the earlier."""

    replicas: Annotated[int, Field(ge=1, le=10_000)]
    """Least replicas in that time. More come with the load."""

    @property
    def minutes(self) -> tuple[int, int]:
        """Start and end in minutes of the day."""
        start, end = (int(time[:2]) * 60 + int(time[3:]) for time in self.at.split(".."))
        return start, end

    def _check_length(self) -> Iterator[Conflict]:
        start, end = self.minutes
        if start == end:
            yield Conflict(("at",), "it ends as it begins", "raise the least of `replicas` for the whole day", self.at)


class Scale(Settings):
    """Autoscaling between the bounds of `replicas`, by one metric of the engine, or by the framework's planner."""

    model_config = ConfigDict(
        json_schema_extra={"oneOf": [{"required": [key]} for key in ("queue", "kv_usage", "planner")]}
    )

    queue: Annotated[int, Field(ge=1, le=10_000)] | None = None
    """Waiting requests per replica; more of them add a replica."""

    kv_usage: Share | None = None
    """Share of the KV cache in use, on average over data-parallel ranks; above it a replica is added."""

    slo: Annotated[bool, Switch()] = False
    """Whether replicas are added too while more of the role's requests miss the SLO's latencies than it allows, on EKS:
    for prefill the time to the first token, for decode that between tokens."""

    planner: Annotated[bool, Switch()] = False
    """Whether Dynamo's planner scales the role in KEDA's place, on EKS with `framework: dynamo`: by what it learns of
    the engine's steps it keeps the time to the first token (prefill), between tokens (decode), or both (worker) below
    the lowest limit of the SLO."""

    cool_down: Duration = parse_default("5min")
    """Time until replicas that are no longer needed stop, on EKS a tenth of them at a time."""

    peaks: Annotated[tuple[Peak, ...], Field(max_length=8), AllowSingleItem()] = ()
    """Times of the day for which replicas start beforehand, one or a list."""

    time_zone: TimeZone = "UTC"
    """Of `peaks`, which follow its summer time."""

    def _check_planner(self) -> Iterator[Conflict]:
        """Check that nothing is written beside the planner that only KEDA does."""
        reasons = {
            "slo": "the planner follows the SLO by itself",
            "cool_down": "the planner stops a replica once the others alone would keep the SLO",
            "peaks": "the planner knows no times of the day",
        }
        for key in reasons if self.planner else ():
            if key in self.model_fields_set:
                yield Conflict((key,), reasons[key], f"remove {key}")

    def _check_overlap(self) -> Iterator[Conflict]:
        """Check that no peak ends another: at its end the least is that of `replicas` again."""
        peak_at: dict[int, str] = {}
        for number, peak in enumerate(self.peaks):
            start, end = peak.minutes
            times = {minute % _DAY_MINUTES for minute in range(start, end + _DAY_MINUTES * (end < start) + 1)}
            if others := [peak_at[minute] for minute in times if minute in peak_at]:
                fix = "leave a minute between both, or make one of them"
                yield Conflict(("peaks", number, "at"), f"it meets {others[0]}", fix, peak.at)
            peak_at |= dict.fromkeys(times, peak.at)

    def _check_time_zone(self) -> Iterator[Conflict]:
        if "time_zone" in self.model_fields_set and not self.peaks:
            reason = "it is that of peaks, and there are none"
            yield Conflict(("time_zone",), reason, "remove time_zone", self.time_zone)

    def _check_one_metric(self) -> Iterator[Conflict]:
        written_metrics = [key for key in ("queue", "kv_usage", "planner") if getattr(self, key)]
        if len(written_metrics) == 2 and "planner" in written_metrics:
            key = written_metrics[0]
            reason = "KEDA scales by it, and the planner in KEDA's place: only one may own the replicas"
            yield Conflict((key,), reason, f"remove {key}, or planner", getattr(self, key))
        elif len(written_metrics) != 1:
            key_path = () if not written_metrics else ("kv_usage",)
            yield Conflict(key_path, "it must have exactly one of queue and kv_usage", "set queue: 4, or kv_usage: 80%")
