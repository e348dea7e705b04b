"""Services that earlier verdicts passed, and drivers that they believed: each against a server whose truth is known.

Of each, the number that the earlier verdict went by is the negative control.
"""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Any, ClassVar

import pytest

from llm_serving.settings.errors import Unavailable
from llm_serving.validation import run
from tests import known_server
from tests.known_server import Behaviour
from tests.validation.conftest import (
    MAX_DISTURBANCE_S,
    FinishedRun,
    ServerValidator,
    TargetFactory,
    build_options,
    ignore_busy_machine,
    measure,
    repeat_disturbed,
)

pytestmark = pytest.mark.timeout(600)

BASE = {"input_tokens": "20..40", "output_tokens": 8, "warm_up": 4}


class TestAServerThatIsDeadForTwoSecondsInEight:
    BEHAVIOUR: ClassVar = Behaviour(0.05, 0.002, stall_s=2.0, stall_interval_s=8.0)
    SLO: ClassVar = {"ttft_ms": {"p95": 800}}

    def test_the_closed_loop_passes_it_and_says_what_it_cannot_see(self, validate_server: ServerValidator) -> None:
        """The negative control: while it is dead only two users wait, and so many at each delay by the machine."""
        finished = validate_server(self.BEHAVIOUR, {**BASE, "users": 2, "requests": 300}, self.SLO)
        assert finished.report.missed == []
        assert any(remark.startswith("Closed loop of 2 users") for remark in finished.report.remarks)
        assert finished.report.longest_stall_s > 1.6

    def test_the_open_loop_fails_it(self, validate_server: ServerValidator) -> None:
        slo = {**self.SLO, "stall": "0.5s"}
        with ignore_busy_machine():
            finished = validate_server(self.BEHAVIOUR, {**BASE, "arrivals": "40/s", "requests": 330}, slo)
        assert finished.report.verdict == "fail"
        assert [miss.metric for miss in finished.report.missed] == ["ttft_ms.p95", "stall"]


def test_a_service_that_freezes_is_remarked_without_a_limit_of_stalls(validate_server: ServerValidator) -> None:
    """Its negative control is in statistics/test_soundness.py: a busy machine stalls any service."""
    behaviour = Behaviour(0.02, 0.002, stall_s=1.8, stall_interval_s=5)
    with ignore_busy_machine():
        frozen = validate_server(behaviour, {**BASE, "arrivals": "40/s", "requests": 330}, {"ttft_ms": {"p50": 20_000}})
    assert frozen.report.verdict == "pass"
    assert [remark for remark in frozen.report.remarks if "no token came for up to" in remark]


def test_a_latency_that_grows_tenfold_is_said_and_near_its_limit_not_shown(
    validate_undisturbed: ServerValidator,
) -> None:
    """From 0.2 to 2.2 s within 5 s: only the remark of a limit far away, and no verdict at a near one."""
    traffic = {**BASE, "arrivals": "20/s", "requests": 100, "process": "constant", "warm_up": 0}
    behaviour = Behaviour(0.2, 0.002, ttft_growth_s=0.02)
    with ignore_busy_machine():
        near, far = (validate_undisturbed(behaviour, traffic, {"ttft_ms": {"p95": limit}}) for limit in (5000, 60_000))
    assert (near.report.missed, near.report.verdict) == ([], "not shown")
    assert any(reason.startswith("ttft_ms grew through the whole load") for reason in near.report.not_shown)
    assert far.report.verdict == "pass"
    assert any(remark.startswith("ttft_ms grew through the whole load") for remark in far.report.remarks)


def test_answers_a_quarter_as_long_as_requested_show_nothing(validate_server: ServerValidator) -> None:
    traffic = {**BASE, "arrivals": "40/s", "requests": 80, "output_tokens": 32}
    with ignore_busy_machine():
        finished = validate_server(Behaviour(0.02, 0.002, length_share=0.25), traffic, {"e2e_ms": {"p95": 50_000}})
    assert (finished.report.missed, finished.report.verdict) == ([], "not shown")
    reason = "the answers have 25% of the output tokens that were asked for"
    assert any(each.startswith(reason) for each in finished.report.not_shown)


def test_a_service_that_only_streams_is_refused_by_its_answer(make_target: TargetFactory, tmp_path: Path) -> None:
    with known_server.run_server(Behaviour(0.01, 0.001, only_streams=True)) as url:
        target = make_target(url, {**BASE, "users": 1, "requests": 10})
        with pytest.raises(Unavailable) as refused:
            run.validate(target, build_options(tmp_path))
    assert str(refused.value).startswith(
        f"{url}/v1/chat/completions returned HTTP 200 to a request with stream: false, and no JSON object: 'data: {{"
    )
    assert str(refused.value).endswith(
        "Fix: use a server that answers such requests too; they count the tokens of prompts."
    )


def test_requests_that_hang_are_infinite_for_each_limit(validate_server: ServerValidator) -> None:
    traffic = {**BASE, "arrivals": "50/s", "requests": 150, "deadline": "15s", "warm_up": 0}
    slo = {"e2e_ms": {"p99": 14_000}, "errors": "5%"}
    behaviour = Behaviour(0.05, 0.002, faults=("hang",), fault_interval=37)
    with ignore_busy_machine():
        finished = validate_server(behaviour, traffic, slo)
    assert finished.report.requests.by_error == {"deadline": 4}
    # The negative control: few enough failed, and the answered ones are quick.
    assert finished.report.requests.failed / finished.report.requests.total < 0.05
    assert (finished.report.metrics["e2e_ms"].p99 or 0) < 14_000
    assert finished.report.verdict == "fail"
    assert [miss.metric for miss in finished.report.missed] == ["e2e_ms.p99"]


def test_a_queue_that_grows_for_a_short_load_shows_nothing(validate_undisturbed: ServerValidator) -> None:
    """Twenty requests a second is what the server does, and 28 are offered."""
    traffic = {**BASE, "arrivals": "28/s", "process": "constant", "requests": 150}
    finished = validate_undisturbed(Behaviour(0.086, 0.002, slots=2), traffic, {"ttft_ms": {"p95": 10_000}})
    # The negative control: the limit holds, with its bound.
    bound = finished.report.bounds["ttft_ms"]["p95"]
    assert bound.upper is not None
    assert bound.upper < 10_000
    assert finished.report.missed == []
    assert finished.report.verdict == "not shown"
    assert any(reason.startswith("the queue still grew when the load ended: ") for reason in finished.report.not_shown)


def test_a_load_is_prepared_with_no_more_requests_at_once_than_max_requests_admits(
    validate_server: ServerValidator,
) -> None:
    """What measures the tokens of words and warms up would send eight at once."""
    traffic = {"input_tokens": "20..40", "output_tokens": 4, "requests": 12, "warm_up": 6}
    admitting = Behaviour(0.05, 0.1, admitted=2)
    with ignore_busy_machine():
        fitting = validate_server(admitting, {**traffic, "users": 2})
    assert (fitting.report.requests.failed, fitting.report.verdict) == (0, "pass")
    assert [remark for remark in fitting.report.remarks if "429" in remark or "warm-up" in remark] == []
    beyond = validate_server(admitting, {**traffic, "users": 6})
    refused = beyond.report.requests.by_error["http_429"]
    assert (
        f"{refused} requests got 429: max_requests admits 2 at once. Fix: set users or max_concurrency of traffic to 2 "
        "or less, or a higher max_requests." in beyond.report.remarks
    )


class TestAServiceThatIsValidatedTwice:
    TRAFFIC: ClassVar = {
        "arrivals": "40/s",
        "requests": 80,
        "input_tokens": "160..200",
        "output_tokens": 4,
        "warm_up": 0,
    }

    @pytest.fixture
    def validate_twice(self, make_target: TargetFactory, tmp_path: Path) -> Any:
        def _validate_twice() -> tuple[FinishedRun, FinishedRun]:
            with ignore_busy_machine(), known_server.run_server(Behaviour(0.4, 0.001, cache=True)) as url:
                target = make_target(url, self.TRAFFIC, {"ttft_ms": {"p95": 20_000}})
                return measure(target, tmp_path), measure(target, tmp_path)

        return _validate_twice

    def test_the_second_run_finds_nothing_in_the_caches(self, validate_twice: Any) -> None:
        first, second = validate_twice()
        assert (first.report.verdict, second.report.verdict) == ("pass", "pass")
        assert second.report.shared.cached < 0.05
        assert second.report.metrics["ttft_ms"].p50 >= 380

    def test_with_prompts_of_the_seed_alone_it_finds_all_and_shows_nothing(
        self, validate_twice: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The negative control: the same words in each run."""
        monkeypatch.setattr(secrets, "token_hex", lambda _: "same")
        first, second = repeat_disturbed(validate_twice, lambda runs: all(each.is_undisturbed for each in runs))
        assert first.report.verdict == "pass"
        assert second.report.metrics["ttft_ms"].p50 < first.report.metrics["ttft_ms"].p50 / 2
        assert second.report.verdict == "not shown"
        reason = "of prompt tokens were found in caches, and the prompts share"
        assert any(reason in each for each in second.report.not_shown)


_BUSY_DRIVER = """
import time
from llm_serving.validation.user import OpenAIUser

class Busy(OpenAIUser):
    def body(self, prompt):
        end = time.perf_counter() + 0.08
        while time.perf_counter() < end:
            pass
        return super().body(prompt)
"""


def test_a_starved_driver_has_no_verdict_on_the_server(validate_server: ServerValidator, tmp_path: Path) -> None:
    file = tmp_path / "busy.py"
    file.write_text(_BUSY_DRIVER)
    traffic = {**BASE, "arrivals": "20/s", "requests": 80, "warm_up": 0}
    finished = repeat_disturbed(
        lambda: validate_server(Behaviour(0.05, 0.002), traffic, {"ttft_ms": {"p95": 1000}}, user_file=file),
        lambda played: played.known["late_s"] < MAX_DISTURBANCE_S,
    )
    # The negative control: the number alone is over the limit, and the server's own is far within it.
    ttft = next(row for row in finished.report.agreement if (row.metric, row.statistic) == ("ttft_ms", "mean"))
    assert [miss.metric for miss in finished.report.missed] == ["ttft_ms.p95"]
    assert (ttft.engine_ms or 0) < 1000
    assert finished.report.verdict == "not shown"
    assert any(reason.startswith("the load driver was starved: ") for reason in finished.report.not_shown)
