"""The whole validation, Locust and all, against a server whose delays and faults are known."""

from __future__ import annotations

import csv
import itertools
import json
import shutil
import stat
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from llm_serving.console import CommandFailed
from llm_serving.services.runs import compute_prompts_digest
from llm_serving.services.traffic import Traffic
from llm_serving.settings.errors import CheckFailed, InputError, Unavailable
from llm_serving.validation import base, run
from llm_serving.validation.drivers import registry
from llm_serving.validation.load import driver_result, load_plan
from llm_serving.validation.load.answer import Sample
from llm_serving.validation.load.driver_result import Progress
from llm_serving.validation.reports import report, run_folder
from llm_serving.validation.statistics import time_series
from tests import known_server
from tests.known_server import Behaviour
from tests.validation.conftest import (
    FinishedRun,
    ServerValidator,
    TargetFactory,
    build_options,
    ignore_busy_machine,
    measure,
)

pytestmark = pytest.mark.timeout(300)

DATA = Path(__file__).with_name("data")
TTFT_S, ITL_S, TOKENS = 0.1, 0.02, 16
WHOLE_MS = (TTFT_S + ITL_S * (TOKENS - 1)) * 1000
"""Of an answer to its last token."""

MAX_DELAY_MS = 20_000
"""What a busy machine adds to a time at the most."""

TRAFFIC = {"users": 8, "requests": 60, "output_tokens": TOKENS, "input_tokens": "20..40", "warm_up": 4}


@pytest.fixture(scope="module")
def clean_run(validate_server: ServerValidator) -> FinishedRun:
    """The closed loop against a server without faults."""
    slo = {"ttft_ms": {"p50": 20_000}, "errors": "0%", "output_tokens_per_s": 10}
    with ignore_busy_machine():
        return validate_server(Behaviour(TTFT_S, ITL_S), TRAFFIC, slo)


def test_prompts_generated_without_sharing_share_no_text(clean_run: FinishedRun) -> None:
    assert clean_run.report.shared.of == 60
    assert clean_run.report.shared.prompts is not None
    assert clean_run.report.shared.prompts < 0.1


def test_all_requests_are_answered_within_the_slo(clean_run: FinishedRun) -> None:
    assert clean_run.report.verdict == "pass"
    assert clean_run.report.requests.model_dump() == {"total": 60, "failed": 0, "by_error": {}, "planned": 60}
    base.require_slo(clean_run.report)


def test_measured_times_are_the_servers(clean_run: FinishedRun) -> None:
    # A busy machine makes all of them longer, never shorter: tight below, wide above.
    metrics = clean_run.report.metrics
    assert TTFT_S * 999 <= metrics["ttft_ms"].p50 <= TTFT_S * 1000 + MAX_DELAY_MS
    assert WHOLE_MS * 0.999 <= metrics["e2e_ms"].p50 <= WHOLE_MS + MAX_DELAY_MS
    _check_gaps(metrics["ttft_ms"].mean, metrics["itl_ms"].mean, metrics["e2e_ms"].mean)
    assert metrics["itl_ms"].count == 60 * (TOKENS - 1)
    assert metrics["ttft_ms"].count == 60


def test_the_clients_numbers_agree_with_the_servers_own(clean_run: FinishedRun) -> None:
    mean_rows = {row.metric: row for row in clean_run.report.agreement if row.statistic == "mean"}
    assert mean_rows.keys() == {"ttft_ms", "itl_ms", "e2e_ms"}
    for metric in ("ttft_ms", "e2e_ms"):  # the server's clock runs within the client's, however busy the machine
        engine_ms = mean_rows[metric].engine_ms
        assert engine_ms - 0.1 <= mean_rows[metric].client_ms <= engine_ms + MAX_DELAY_MS
    _check_gaps(*(mean_rows[metric].engine_ms for metric in ("ttft_ms", "itl_ms", "e2e_ms")))


def _check_gaps(ttft_ms: float, itl_ms: float, e2e_ms: float) -> None:
    """Check the mean time between tokens: tokens that were held up come at once, and the last of them never early."""
    assert WHOLE_MS * 0.999 <= ttft_ms + (TOKENS - 1) * itl_ms <= e2e_ms + 0.1


def test_the_replica_counts_exclude_the_warm_up(clean_run: FinishedRun) -> None:
    assert [(replica.name, replica.requests) for replica in clean_run.report.replicas] == [("worker-0", 60)]


def test_prompts_and_answers_have_exactly_the_requested_tokens(clean_run: FinishedRun) -> None:
    assert clean_run.report.tokens.input_exact == 1
    assert clean_run.report.tokens.output_exact == 1
    assert {sample.output_tokens for sample in clean_run.samples} == {TOKENS}
    assert {sample.input_tokens for sample in clean_run.samples} <= set(range(20, 41))


def test_the_run_folder_has_report_page_csv_and_requests(clean_run: FinishedRun) -> None:
    assert {path.name for path in clean_run.folder.iterdir()} == {
        "report.json", "report.html", "requests.jsonl", "plan.json", "locust.log",
        "locust_stats.csv", "locust_stats_history.csv", "locust_failures.csv", "locust_exceptions.csv",
    }  # fmt: skip
    data = json.loads((clean_run.folder / "report.json").read_text())
    jsonschema.validate(data, report.build_schema())
    assert data["verdict"] == "pass"
    assert "PASS" in (clean_run.folder / "report.html").read_text()
    latest = clean_run.folder.parent.parent / "latest"
    assert latest.is_symlink()
    assert latest.resolve() == clean_run.folder.resolve()


def test_only_the_user_can_read_prompts_and_answers(clean_run: FinishedRun) -> None:
    assert stat.S_IMODE(clean_run.folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in clean_run.folder.iterdir()} == {0o600}


def test_locusts_own_csv_has_the_same_count(clean_run: FinishedRun) -> None:
    with (clean_run.folder / "locust_stats.csv").open() as file:
        rows = {row["Type"]: row for row in csv.DictReader(file)}
    assert {kind: int(rows[kind]["Request Count"]) for kind in ("POST", "TTFT", "ITL")} == {
        "POST": 60, "TTFT": 60, "ITL": 60,
    }  # fmt: skip


def test_versions_and_settings_describe_the_run(clean_run: FinishedRun) -> None:
    assert clean_run.report.versions.keys() >= {"blueprint", "vllm", "locust", "python"}
    assert clean_run.report.settings["traffic"]["users"] == 8
    assert clean_run.report.emulated == ["A server with known delays stands in for vLLM."]


@pytest.fixture(scope="module")
def faulty_run(validate_server: ServerValidator) -> FinishedRun:
    """A run in which every second request fails; each kind of fault occurs twice."""
    faults = ("hang", "http_500", "cut", "reset", "empty", "error_event")
    traffic = {**TRAFFIC, "requests": 24, "deadline": "15s", "warm_up": 0}
    # The first streamed request asks what the server understands; the twelve faults fall on requests 2 to 24.
    return validate_server(
        Behaviour(0.02, 0.002, faults=faults, fault_interval=2), traffic, {"ttft_ms": {"p95": 50_000}}
    )


def test_each_fault_is_counted_by_its_kind(faulty_run: FinishedRun) -> None:
    assert faulty_run.report.requests.total == 24
    assert faulty_run.report.requests.by_error == {
        "deadline": 2, "http_500": 2, "truncated": 4, "empty": 2, "server_error": 2,
    }  # fmt: skip
    assert [miss.metric for miss in faulty_run.report.missed] == ["ttft_ms.p95", "errors"]
    assert faulty_run.report.bounds["ttft_ms"]["p95"].infinite


def test_a_request_never_answered_ends_at_its_deadline(faulty_run: FinishedRun) -> None:
    assert all((sample.failed_ms is None) == (sample.error is None) for sample in faulty_run.samples)
    timed_out = [sample for sample in faulty_run.samples if sample.error == "deadline"]
    assert all(14_900 <= (sample.failed_ms or 0) <= 15_000 + MAX_DELAY_MS for sample in timed_out)
    assert [sample.detail for sample in timed_out] == ["incomplete after 15 s"] * 2


def test_failures_keep_the_server_s_message(faulty_run: FinishedRun) -> None:
    details = {sample.error: sample.detail for sample in faulty_run.samples if sample.error}
    assert "injected fault" in details["http_500"]
    assert details["server_error"] == "injected fault"


def test_the_gate_names_each_missed_metric_with_its_value_and_limit(faulty_run: FinishedRun) -> None:
    with pytest.raises(CheckFailed, match=r"errors: 12 of 24 requests failed \(50.00%\); the limit is 0%") as error:
        base.require_slo(faulty_run.report)
    assert error.value.exit_code == 1


def test_what_a_starved_driver_missed_is_named_as_not_shown(clean_run: FinishedRun, faulty_run: FinishedRun) -> None:
    verdict = {"verdict": "not shown", "not_shown": ["the load driver was starved"], "missed": faulty_run.report.missed}
    with pytest.raises(CheckFailed) as error:
        base.require_slo(clean_run.report.model_copy(update=verdict))
    lines = str(error.value).splitlines()
    assert lines[:2] == ["this load does not show that known meets its SLO:", "  the load driver was starved"]
    assert "  errors: 12 of 24 requests failed (50.00%); the limit is 0%" in lines


def test_the_open_loop_sends_when_due_whatever_the_server_does(validate_server: ServerValidator) -> None:
    traffic = {
        "arrivals": "40/s", "process": "constant", "requests": 40, "output_tokens": 4, "input_tokens": 16, "warm_up": 2,
    }  # fmt: skip
    finished = validate_server(Behaviour(1.5, 0.001), traffic)
    starts = sorted(sample.start_s for sample in finished.samples)
    assert starts == pytest.approx([index / 40 for index in range(40)], abs=1e-6)
    assert finished.report.requests.failed == 0
    # All are under way at once: one after another they would take a minute.
    assert finished.report.duration_s < 40
    assert finished.report.metrics["ttft_ms"].p50 >= 1500


def test_several_processes_send_one_load_by_one_clock(
    validate_server: ServerValidator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load_plan, "count_processes", lambda *_, **__: 2)
    traffic = {
        "arrivals": "40/s", "process": "constant", "requests": 40, "output_tokens": 4, "input_tokens": 200,
        "shared_prefix": "50%", "warm_up": 2, "images": {"count": "1..2", "width": 64, "height": 48},
    }  # fmt: skip
    finished = validate_server(Behaviour(0.5, 0.001), traffic)
    samples = sorted(finished.samples, key=lambda sample: sample.number)
    assert [sample.number for sample in samples] == list(range(40))
    assert [sample.start_s for sample in samples] == pytest.approx([index / 40 for index in range(40)], abs=1e-6)
    assert finished.report.requests.failed == 0
    assert finished.report.tokens.input_exact == 1
    pictures = [sample.input_tokens - 200 for sample in samples]
    assert set(pictures) == {known_server.PICTURE_TOKENS, 2 * known_server.PICTURE_TOKENS}
    assert "A picture of 64 x 48 is 64 of the input tokens, by the server's usage." in finished.report.remarks
    # The probe for vLLM's dialect has none; no two requests have the same, those of the warm-up included.
    digests, widths, heights = zip(*finished.known["pictures"], strict=True)
    assert (set(widths), set(heights)) == ({64}, {48})
    assert len(set(digests)) == len(digests) >= (sum(pictures) + 2) // known_server.PICTURE_TOKENS
    # 39 of 40 prompts begin with what the first one of either process began with.
    assert finished.report.shared.of == 40
    assert finished.report.shared.prompts == pytest.approx(0.49, abs=0.08)
    assert len(finished.report.driver) == 2
    assert (finished.folder / "locust-1.log").is_file()
    assert not list(finished.folder.glob("requests-*"))


_ASKS_AN_ADAPTER = """
from llm_serving.validation.user import OpenAIUser

class User(OpenAIUser):
    def body(self, prompt):
        body = super().body(prompt)
        return {**body, "model": "code-sql"} if body["model"] == "code" else body

    def check(self, prompt, answer):
        return "wrong" if prompt.model == "code" else None
"""


def test_a_load_of_several_models_is_also_shown_by_the_model_that_each_request_asked(
    make_target: TargetFactory, clean_run: FinishedRun, tmp_path: Path
) -> None:
    file = tmp_path / "user.py"
    file.write_text(_ASKS_AN_ADAPTER)
    traffic = {"users": 4, "requests": 31, "turns": "1..3", "output_tokens": 4, "input_tokens": 20, "warm_up": 0}
    with known_server.run_server(Behaviour(0.05, 0.001)) as url:
        target = make_target(url, traffic).model_copy(update={"models": ("chat", "code", "mail")})
        finished = measure(target, tmp_path, user_file=file)
    asked = Counter(sample.model for sample in finished.samples)
    assert asked.keys() == {"chat", "code-sql", "mail"}
    rows = finished.report.by_model
    assert [row.model for row in rows] == ["chat", "code-sql", "mail"]
    assert [row.requests for row in rows] == [asked[row.model] for row in rows]
    assert [row.failed for row in rows] == [0, asked["code-sql"], 0]
    assert sum(row.throughput.requests_per_s for row in rows) == pytest.approx(
        finished.report.throughput.requests_per_s, abs=0.01
    )
    one_model = clean_run.folder
    assert '"model"' not in (one_model / "requests.jsonl").read_text()
    assert "by_model" in (finished.folder / "report.json").read_text()
    assert "by_model" not in (one_model / "report.json").read_text()


_BREAKS_IN_THE_SECOND = """
from llm_serving.validation.user import OpenAIUser
from locust import events

class User(OpenAIUser):
    pass

@events.init.add_listener
def break_second(environment, **_):
    if environment.load.shard.index:
        environment.load.prepare = None
"""


def test_a_process_that_fails_ends_the_load_with_its_reason(
    validate_server: ServerValidator, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(load_plan, "count_processes", lambda *_, **__: 2)
    file = tmp_path / "breaks.py"
    file.write_text(_BREAKS_IN_THE_SECOND)
    with pytest.raises(
        Unavailable, match=r"the load driver failed: TypeError: .*\. locust-1\.log beside the plan has the trace"
    ):
        validate_server(Behaviour(), TRAFFIC, user_file=file)


def test_a_stray_locust_conf_and_its_variables_change_nothing(
    validate_server: ServerValidator, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "locust.conf").write_text("users = 3\nrun-time = 1s\nheadless = true\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LOCUST_SPAWN_RATE", "1")
    # Without gevent's patches nothing would be sent while anything waits.
    monkeypatch.setenv("LOCUST_SKIP_MONKEY_PATCH", "1")
    parse = "from locust.argument_parser import parse_options as p; o = p([]); print(o.num_users, o.spawn_rate)"
    own_command_line = subprocess.run([sys.executable, "-c", parse], capture_output=True, text=True, timeout=240)
    assert own_command_line.stdout.endswith("3 1.0\n"), "Locust's own command line takes both"
    traffic = {"arrivals": "10/s", "process": "constant", "requests": 20, "output_tokens": 2, "input_tokens": 16}
    finished = validate_server(Behaviour(0.5, 0.001), {**traffic, "warm_up": 0})
    assert finished.report.requests.total == 20
    assert max(time_series.compute_in_flight(finished.samples, 0.1)) > 3


def test_users_of_the_closed_loop_think_between_requests(validate_server: ServerValidator) -> None:
    traffic = {"users": 20, "think_time": "0.5s", "requests": 60, "output_tokens": 1, "input_tokens": 16, "warm_up": 0}
    finished = validate_server(Behaviour(0.01, 0.001), traffic)
    # Three pauses of each user on average, where answers alone would take a tenth of a second.
    assert finished.report.duration_s > 0.6
    assert sum(sample.start_s < 0.1 for sample in finished.samples) < 15, "they do not all come at once"
    assert any("a service that stops gets no more requests" in remark for remark in finished.report.remarks)


@pytest.mark.parametrize("think_time", [None, "0.001s"])
def test_users_of_the_closed_loop_begin_one_after_the_other(
    validate_server: ServerValidator, think_time: str | None
) -> None:
    """Within three answers of the warm-up, while those who began send their next."""
    traffic = {"users": 8, "requests": 40, "output_tokens": 1, "input_tokens": 16, "warm_up": 2}
    finished = validate_server(Behaviour(0.2, 0.001), {**traffic, "think_time": think_time})
    in_flight = time_series.compute_in_flight(finished.samples, 0.1)
    assert in_flight[0] < 4 and max(in_flight) > 6
    steady = finished.report.steady
    assert steady and steady.from_s >= 0.6, "three answers of 0.2 s, not the first answer's end"


def test_in_the_open_loop_waiting_for_a_client_counts_as_latency(
    validate_undisturbed: ServerValidator,
) -> None:
    # One at once of arrivals that come four times as fast: the wait is the requests', not omitted.
    traffic = {
        "arrivals": "20/s", "process": "constant", "max_concurrency": 1,
        "requests": 20, "output_tokens": 1, "input_tokens": 16,
    }  # fmt: skip
    finished = validate_undisturbed(Behaviour(0.2, 0.001), {**traffic, "warm_up": 0}, {"ttft_ms": {"p50": 10_000}})
    last_sample = max(finished.samples, key=lambda sample: sample.number)
    assert last_sample.waited_ms > 2000
    assert last_sample.ttft_ms > last_sample.waited_ms + 190
    assert any("for one of the 1 requests at once to end" in remark for remark in finished.report.remarks)
    # Waiting for a place is the traffic's, not the driver's own delay.
    assert last_sample.late_ms < last_sample.waited_ms / 2
    assert not any("starved" in reason for reason in finished.report.not_shown)
    engine = next(row for row in finished.report.agreement if (row.metric, row.statistic) == ("ttft_ms", "mean"))
    assert engine.engine_ms < 1000
    assert not engine.agrees


def test_a_server_other_than_vllm_is_validated_with_the_users_prompts(
    validate_server: ServerValidator, tmp_path: Path
) -> None:
    prompt = "one two " * 50
    (tmp_path / "own.jsonl").write_text(
        f'{{"prompt": "{prompt}", "expected": "w0 w1"}}\n{{"prompt": "{prompt}three", "expected": "y", "id": 1, "temprature": 0.7}}\n'
    )
    traffic = {
        "users": 2, "requests": 6, "api": "completions", "data": "own.jsonl", "output_tokens": "1..2", "warm_up": 1,
    }  # fmt: skip
    finished = validate_server(Behaviour(0.01, 0.001, tokens_per_chunk=2, plain=True), traffic, folder=tmp_path)
    assert finished.report.requests.failed == 0
    assert [(answer.prompt, answer.actual, answer.same) for answer in finished.report.answers[:2]] == [
        (prompt, "w0 w1 ", True),
        (f"{prompt}three", "w0 w1 ", False),
    ]
    assert "These keys of own.jsonl were not sent: id, temprature." in finished.report.remarks
    assert finished.report.tokens.output_mean == 2
    assert {sample.input_tokens for sample in finished.samples} == {100, 101}
    shared = finished.report.shared
    assert shared.of == 2, "of six requests: the file has no more"
    assert shared.prompts == pytest.approx(0.5, abs=0.1), "the second prompt begins with the first"
    assert shared.traffic == compute_prompts_digest(Traffic.model_validate(traffic), tmp_path)
    html = (finished.folder / "report.html").read_text()
    assert f"{shared.prompts:.0%} of the text of 2 prompts is the beginning of an earlier one" in html


def test_a_trace_is_played_at_its_times_with_its_lengths(validate_server: ServerValidator, tmp_path: Path) -> None:
    (tmp_path / "azure.csv").write_bytes((DATA / "azure.csv").read_bytes())
    traffic = {"trace": "azure.csv", "trace_speed": 10, "input_tokens": "1..500", "output_tokens": "1..60"}
    finished = validate_server(Behaviour(0.01, 0.001), {**traffic, "warm_up": 0}, folder=tmp_path)
    samples = sorted(finished.samples, key=lambda sample: sample.number)
    assert [(sample.input_tokens, sample.output_tokens) for sample in samples][:3] == [(374, 44), (396, 60), (500, 55)]
    assert [sample.start_s for sample in samples][:3] == pytest.approx([0, 0.4314579, 0.4541877], abs=1e-6)
    assert finished.report.requests.planned == len(samples) == 6
    assert any("lengths outside input_tokens 1..500" in remark for remark in finished.report.remarks)


@pytest.mark.parametrize("loop", [{"arrivals": "30/s"}, {"users": 2}])
def test_sessions_send_the_conversation_so_far_after_thinking(
    validate_server: ServerValidator, loop: dict[str, Any]
) -> None:
    traffic = {"turns": 3, "think_time": "0.1s", "requests": 11, "input_tokens": 20, "output_tokens": 4, "warm_up": 0}
    finished = validate_server(Behaviour(0.02, 0.001), {**traffic, **loop})
    samples = sorted(finished.samples, key=lambda sample: sample.number)
    assert [sample.number for sample in samples] == list(range(11))
    assert [sample.turn for sample in samples] == [1, 2, 3] * 3 + [1, 2], "the last session is cut"
    assert finished.report.requests.planned == 11
    for first, second in itertools.pairwise(samples):
        if second.turn > 1:
            # The answer's four words and a message of twenty tokens are added, without another chat template.
            assert second.input_tokens - first.input_tokens in range(15, 26)
            assert second.start_s > first.start_s + first.e2e_ms / 1000, "never before the answer"
    thought = [b.start_s - a.start_s - a.e2e_ms / 1000 for a, b in itertools.pairwise(samples) if b.turn > 1]
    assert 0.02 < sum(thought) / len(thought) < MAX_DELAY_MS / 1000
    assert finished.report.shared.prompts > 0.2, "later turns begin with the earlier ones"


def test_the_gap_of_chunks_with_several_tokens_is_the_tokens(validate_server: ServerValidator) -> None:
    finished = validate_server(Behaviour(0.02, 0.1, tokens_per_chunk=4), {**TRAFFIC, "requests": 8, "warm_up": 0})
    metrics = finished.report.metrics
    assert metrics["itl_ms"].count == 8 * (TOKENS - 4)
    # Three times 400 ms lie between the first chunk and the last, which is never early.
    assert (
        1220 * 0.999 <= metrics["ttft_ms"].mean + (TOKENS - 4) * metrics["itl_ms"].mean <= metrics["e2e_ms"].mean + 0.1
    )


_USER = """
from llm_serving.validation.user import OpenAIUser

class Picky(OpenAIUser):
    def body(self, prompt):
        return {**super().body(prompt), "max_tokens": 3}

    def check(self, prompt, answer):
        assert answer.text.startswith("w0")
        return "too_long" if len(answer.text.split()) > 2 else None
"""


def test_a_judge_without_an_answer_leaves_the_report_of_the_load(
    validate_server: ServerValidator, tmp_path: Path
) -> None:
    (tmp_path / "own.jsonl").write_text('{"prompt": "2 + 2 =", "expected": "4"}\n')
    judge = {"score_by": "judge", "judge": {"url": "http://127.0.0.1:9", "model": "strict"}}
    traffic = {"arrivals": "40/s", "requests": 8, "data": "own.jsonl", **judge}
    finished = validate_server(Behaviour(0.01, 0.001), traffic, {"score": "90%"}, folder=tmp_path)
    assert (finished.report.verdict, finished.report.missed) == ("not shown", [])
    unanswered = "score of 90%: not measured, the judge at http://127.0.0.1:9 did not answer: "
    assert [reason.startswith(unanswered) for reason in finished.report.not_shown].count(True) == 1, "busy or not"
    assert finished.report.expected is not None
    assert (finished.report.expected.compared, finished.report.expected.score) == (8, None)
    assert any(remark.startswith("The answers were not scored: the judge") for remark in finished.report.remarks)


def test_answers_to_a_drop_in_driver_have_no_score(tmp_path: Path) -> None:
    """Its samples have no text, which would be no expected answer."""
    traffic = Traffic.model_validate({"users": 1, "data": "own.jsonl"})
    samples = [Sample(0, 0.0, expected="4"), Sample(1, 0.0)]
    aiperf = registry.load_driver("aiperf")
    assert run._score(traffic, samples, tmp_path, aiperf) == "answers to AIPerf are not compared"
    assert [(sample.expected, sample.score) for sample in samples] == [(None, None)] * 2
    assert run._score(traffic, samples, tmp_path, aiperf) == "", "where none is expected"


def test_a_custom_user_class_decides_what_is_sent_and_what_counts(
    validate_server: ServerValidator, tmp_path: Path
) -> None:
    file = tmp_path / "picky.py"
    file.write_text(_USER)
    finished = validate_server(Behaviour(0.01, 0.001), {**TRAFFIC, "requests": 8, "warm_up": 0}, user_file=file)
    assert finished.report.requests.by_error == {"too_long": 8}
    assert {sample.output_tokens for sample in finished.samples} == {3}


_BREAKS = """
from llm_serving.validation.user import OpenAIUser

class User(OpenAIUser):
    def _play(self, *_):
        raise LookupError("odd")
"""


_CHECKS = """
from llm_serving.validation.user import OpenAIUser

class User(OpenAIUser):
    def check(self, prompt, answer):
        return answer.text != ""
"""


@pytest.mark.parametrize(
    ("text", "detail"),
    [(_BREAKS, "LookupError: odd"), (_CHECKS, "TypeError: check returned True, not the name of an error")],
)
def test_a_request_that_the_driver_itself_cannot_measure_has_failed(
    validate_server: ServerValidator, tmp_path: Path, text: str, detail: str
) -> None:
    file = tmp_path / "breaks.py"
    file.write_text(text)
    traffic = {"arrivals": "40/s", "requests": 8, "warm_up": 0}
    finished = validate_server(Behaviour(), traffic, {"errors": "5%"}, user_file=file)
    assert finished.report.verdict == "fail"
    assert finished.report.requests.by_error == {"client": 8}
    assert {sample.detail for sample in finished.samples} == {detail}


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("from llm_serving.validation.user import NoSuchUser\n", "cannot import name 'NoSuchUser'"),
        ("from locust import HttpUser\nclass User(HttpUser):\n    pass\n", r"OpenAIUser, and no other\."),
    ],
)
def test_an_invalid_user_file_ends_with_its_error(
    validate_server: ServerValidator, tmp_path: Path, text: str, error: str
) -> None:
    file = tmp_path / "broken.py"
    file.write_text(text)
    with pytest.raises(CommandFailed, match=error):
        validate_server(Behaviour(), TRAFFIC, user_file=file)


def test_the_time_limit_stops_sending_and_requests_in_flight_are_counted(validate_server: ServerValidator) -> None:
    traffic = {**TRAFFIC, "users": 2, "requests": 1000, "time_limit": "4s", "warm_up": 0}
    finished = validate_server(Behaviour(0.3, 0.02), traffic)
    assert 1 <= finished.report.requests.total < 100
    assert finished.report.requests.failed == 0
    assert any(
        "of 1000 requests were sent before the time limit of 4 s" in remark for remark in finished.report.remarks
    )


def _check_refused(deploy: TargetFactory, root: Path, traffic: dict[str, Any], **options: Any) -> None:
    run.validate(deploy("http://127.0.0.1:9", traffic), build_options(root, folder=root, **options))


def test_an_unreachable_deployment_is_reported_and_leaves_no_report(make_target: TargetFactory, tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match=r"http://127.0.0.1:9 is unreachable: .*refused"):
        _check_refused(make_target, tmp_path, TRAFFIC)
    assert not (tmp_path / "runs").exists()


def test_invalid_prompts_and_a_missing_user_file_are_reported_before_anything_starts(
    make_target: TargetFactory, tmp_path: Path
) -> None:
    (tmp_path / "own.jsonl").write_text('{"question": "?"}\n')
    with pytest.raises(InputError, match=r"own.jsonl:1:1: .*exactly one of `prompt` and `messages`"):
        _check_refused(make_target, tmp_path, {**TRAFFIC, "data": "own.jsonl"})
    with pytest.raises(InputError, match=r"--user: .*mine.py.: there is no such file"):
        _check_refused(make_target, tmp_path, TRAFFIC, user_file=tmp_path / "mine.py")


def test_a_second_validation_at_the_same_time_is_refused(make_target: TargetFactory, tmp_path: Path) -> None:
    with (
        run_folder.lock_work(tmp_path / "logs", "known"),
        pytest.raises(Unavailable, match=r"another validation of known is running\. Fix: wait until it ends"),
    ):
        _check_refused(make_target, tmp_path, TRAFFIC)


def test_a_deployment_that_is_destroyed_during_its_validation_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), run_folder.lock_work(tmp_path / "logs", "known") as work:
        (work / "locust.log").read_text()  # negative control: any other fault stays one
    with (
        pytest.raises(Unavailable, match=r"known: it was destroyed during its validation\. Fix: deploy it again\."),
        run_folder.lock_work(tmp_path / "logs", "known") as work,
    ):
        shutil.rmtree(tmp_path / "logs")
        (work / "locust.log").read_text()


def test_progress_is_one_line() -> None:
    progress = Progress(phase="load", total=300, sent=120, answered=110, failed=2, ttft_p95_ms=51.4, remaining_s=12.3)
    assert (
        driver_result.format_progress(progress)
        == "sent 120 of 300, answered 110, failed 2, TTFT p95 so far 51 ms, about 12 s left"
    )
    assert driver_result.format_progress(Progress(phase="warm-up")) == "warm-up: not counted"
