"""How teams share the endpoint: what `validate` measures of jobs of all teams, and how the page shows it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from llm_serving.kinds.batch.validation import shares as batch_shares
from llm_serving.kinds.batch.validation.report import FairShare, ShareMoment, UrgentJob
from llm_serving.settings.errors import Unavailable
from llm_serving.validation.pages import charts

WEIGHTS = {"a": 50, "b": 30, "c": 20}


def build_moments(weights: dict[str, int] = WEIGHTS) -> list[ShareMoment]:
    """40 s of 100 tokens a second by weight; all of the tokens are the urgent job's from second 20 to 24."""
    moments = []
    for second in range(41):
        urgent = max(0, min(second, 24) - 20)
        moments.append(
            ShareMoment(
                seconds=second,
                output_tokens={team: weight * (second - urgent) for team, weight in weights.items()},
                urgent_tokens=100 * urgent,
            )
        )
    return moments


def measure_shares(moments: Sequence[ShareMoment]) -> dict[str, float]:
    return {share.team: share.measured for share in batch_shares.compute_shares(WEIGHTS, {}, moments)}


def test_a_teams_share_is_of_the_tokens_while_all_had_rows() -> None:
    assert measure_shares(build_moments()) == {"a": 0.5, "b": 0.3, "c": 0.2}
    # What one team gets once another has no more rows is no share of anything.
    moments = build_moments()
    end = moments[-1]
    alone = end.model_copy(update={"seconds": 60.0, "output_tokens": {**end.output_tokens, "a": 2400}})
    assert measure_shares([*moments, alone]) == {"a": 0.5, "b": 0.3, "c": 0.2}
    # The control: turns without weights show as such.
    assert measure_shares(build_moments(dict.fromkeys(WEIGHTS, 33))) == pytest.approx(
        {"a": 1 / 3, "b": 1 / 3, "c": 1 / 3}, abs=1e-4
    )
    assert measure_shares([]) == {"a": 0.0, "b": 0.0, "c": 0.0}


def build_fair_share() -> FairShare:
    moments = build_moments()
    urgent = UrgentJob(team="c", rows=4, submitted_s=17.5, first_row_s=2.6)
    shares = tuple(batch_shares.compute_shares(WEIGHTS, {"a": 5, "b": 3, "c": 2}, moments))
    return FairShare(teams=shares, urgent=urgent, moments=tuple(moments))


def test_bands_are_percent_of_each_interval_and_the_urgent_job_has_its_own() -> None:
    width_s, bands = batch_shares.compute_bands(build_fair_share())
    assert (width_s, list(bands)) == (2.0, ["a", "b", "c", "urgent job"])
    columns = list(zip(*bands.values(), strict=True))
    assert columns[:10] == [pytest.approx((50, 30, 20, 0))] * 10
    assert columns[10:12] == [(0, 0, 0, 100)] * 2  # 20 to 24 s
    assert columns[12:] == [pytest.approx((50, 30, 20, 0))] * 8


class FakeClient:
    """Two jobs and an urgent one, whose rows are done by the number of reads."""

    def __init__(self, urgent_rows: int) -> None:
        self.urgent_rows, self.reads = urgent_rows, 0
        self.created: list[dict[str, str]] = []

    def upload(self, file: Path) -> str:
        return file.name

    def create(self, *, file_id: str, metadata: dict[str, str]) -> Any:
        self.created.append(metadata)
        return {"id": file_id}

    def read(self, job_id: str) -> Any:
        self.reads += 1
        done = self.urgent_rows if job_id == "urgent" else min(6, self.reads)
        return {
            "status": "completed" if job_id == "urgent" or done == 6 else "in_progress",
            "request_counts": {"completed": done, "failed": 0, "total": 6},
            "tokens": {"output": 10 * done},
        }


def run(client: Any) -> FairShare:
    files = {"a": Path("a"), "b": Path("b")}
    return batch_shares.measure(client, {"a": 3, "b": 1}, files, Path("urgent"), limit_s=120)


def test_the_urgent_job_is_the_smallest_teams_and_comes_while_the_others_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_shares, "_POLL_S", 0.01)
    client = FakeClient(urgent_rows=2)
    fair_share = run(client)
    assert [(job["team"], job["priority"]) for job in client.created] == [
        ("a", "normal"), ("b", "normal"), ("b", "high"),
    ]  # fmt: skip
    assert (fair_share.urgent.team, fair_share.urgent.rows) == ("b", 2)
    assert fair_share.urgent.first_row_s < 120
    assert [share.expected for share in fair_share.teams] == [0.75, 0.25]


def test_an_urgent_job_without_a_row_is_no_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_shares, "_POLL_S", 0.01)
    with pytest.raises(Unavailable, match="urgent: the urgent job ended as completed without a row"):
        run(FakeClient(urgent_rows=0))


def test_the_picture_has_a_band_for_each_team_and_the_urgent_job_in_its_own_color() -> None:
    width_s, bands = batch_shares.compute_bands(build_fair_share())
    picture = charts.render_bands("Shares", bands, width_s, [50, 80], {"submitted": 17.5}, "urgent job", "By team.")
    assert picture.count('class="band band-') == 3
    assert picture.count('class="band highlight"') == 1
    heights = {float(number) for number in re.findall(r'<line class="mark" x1="50" x2="510" y1="([0-9.]+)"', picture)}
    assert heights == {113.0, 65.6}  # between 192 at 0% and 34 at 100%
    assert re.findall(r'class="mark">([a-z ]+)<', picture) == ["submitted", "a", "b", "c", "urgent job"]
    assert "no samples" in charts.render_bands("Shares", {}, 1.0, [], {}, "", "")


def test_no_teams_name_is_written_over_that_of_the_urgent_job() -> None:
    a, b, urgent = [40.0] * 24, [60.0] * 24, [0.0] * 24
    a[12], b[12], urgent[12] = 48.0, 48.0, 4.0  # where both have most room
    picture = charts.render_bands("Shares", {"a": a, "b": b, "urgent": urgent}, 1.0, [], {}, "urgent", "By team.")
    columns = {name: float(x) for x, name in re.findall(r'<text x="([^"]+)"[^>]+>(a|b|urgent)</text>', picture)}
    assert columns["a"] == columns["b"]
    assert abs(columns["a"] - columns["urgent"]) > charts.LETTER_WIDTH * (len("urgent") + 1) / 2
