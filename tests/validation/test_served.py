"""The whole validation against the real engine and the real router."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest

from llm_serving.kinds.serving.validation import validate as run
from llm_serving.services.traffic import Slo, Traffic
from llm_serving.settings.errors import CheckFailed
from llm_serving.targets.deployment_plan import DeploymentPlan
from llm_serving.validation.base import ValidationOptions
from llm_serving.validation.reports import report
from llm_serving.validation.reports.report import Report

pytestmark = pytest.mark.engine

TRAFFIC = {
    # More at once than a router gives one replica before its queue counts, whatever an earlier test has sent through it;
    # after a warm-up, whose answers may be slow, users would begin one after the other, and never be as many.
    "users": 24, "warm_up": 0, "requests": 60, "input_tokens": "80..120", "output_tokens": "4..12",
    "shared_prefix": "50%", "prefix_groups": 3, "deadline": "2min",
}  # fmt: skip


@pytest.fixture(scope="module")
def validation_report(running_plan: DeploymentPlan, tmp_path_factory: pytest.TempPathFactory) -> Report:
    """Sixty requests through the router, against limits of which one cannot hold."""
    slo = Slo.model_validate({"ttft_ms": {"p95": 60_000, "p50": 0.01}})
    deployment = running_plan.deployment.model_copy(update={"traffic": Traffic.model_validate(TRAFFIC), "slo": slo})
    options = ValidationOptions(logs=running_plan.directory.logs, runs=tmp_path_factory.mktemp("runs"))
    measured, folder = run.validate(deployment, options)
    jsonschema.validate(json.loads((folder / "report.json").read_text()), report.build_schema())
    return measured


def test_both_replicas_count_the_requests_that_they_answered(validation_report: Report) -> None:
    assert (validation_report.requests.total, validation_report.requests.failed) == (60, 0)
    assert all(replica.requests for replica in validation_report.replicas)
    assert sum(replica.requests or 0 for replica in validation_report.replicas) == 60
    # A busy machine adds remarks on times.
    assert {"Closed", "Prompts"} <= {remark.split(" ")[0] for remark in validation_report.remarks}


def test_prompts_and_answers_have_exactly_the_requested_tokens(validation_report: Report) -> None:
    assert validation_report.tokens.input_exact == 1
    assert validation_report.tokens.output_exact == 1


def test_shared_text_and_cached_tokens_are_reported_apart(validation_report: Report) -> None:
    assert validation_report.shared.of == 60
    # Half of each is shared, with one of three others; only whole blocks of text count.
    assert 0 < (validation_report.shared.prompts or 0) < 0.5
    # A block of the cache holds 128 tokens on CPU, more than any of these prompts has.
    assert validation_report.shared.cached == 0


def test_the_weights_bytes_and_seconds_come_from_the_engines_log(
    running_plan: DeploymentPlan, validation_report: Report
) -> None:
    assert validation_report.weights.source == running_plan.deployment.served_models[0].weights.uri
    assert validation_report.weights.bytes == pytest.approx(
        running_plan.deployment.served_models[0].weights.bytes, rel=0.05
    )
    assert validation_report.weights.seconds is not None
    assert validation_report.weights.random


def test_the_clients_numbers_are_compared_with_the_engines(validation_report: Report) -> None:
    mean_rows = {row.metric: row for row in validation_report.agreement if row.statistic == "mean"}
    assert mean_rows.keys() == {"ttft_ms", "itl_ms", "e2e_ms"}
    for metric in ("ttft_ms", "e2e_ms"):
        # What lies between client and engine takes time, and none can be saved: a tenth of a millisecond is rounding.
        assert mean_rows[metric].client_ms >= (mean_rows[metric].engine_ms or 0) - 0.1
    # On a busy machine several tokens reach the client at once, and their gaps are 0: only the scale is sure.
    assert 0 < (mean_rows["itl_ms"].engine_ms or 0) < mean_rows["e2e_ms"].client_ms
    for row in mean_rows.values():
        assert row.agrees == (row.said == "")


def test_only_the_missed_objective_is_named(validation_report: Report) -> None:
    with pytest.raises(CheckFailed, match=r"ttft_ms.p50: [\d.]+ ms; the limit is 0.01 ms"):
        run.require_slo(validation_report)
    assert [miss.metric for miss in validation_report.missed] == ["ttft_ms.p50"]


def test_the_engines_version_is_from_its_own_api(validation_report: Report) -> None:
    assert validation_report.versions["vllm"].startswith("0.32")


def test_a_users_own_prompts_and_the_completions_api_work_with_the_engine(
    running_plan: DeploymentPlan, tmp_path: Path
) -> None:
    (tmp_path / "own.jsonl").write_text('{"prompt": "The router", "expected": "no such answer"}\n')
    traffic = Traffic.model_validate(
        {
            "arrivals": "5/s", "requests": 10, "api": "completions", "data": "own.jsonl", "output_tokens": 6,
            "warm_up": 1, "deadline": "2min",
        }
    )  # fmt: skip
    deployment = running_plan.deployment.model_copy(update={"traffic": traffic, "slo": Slo()})
    options = ValidationOptions(logs=running_plan.directory.logs, runs=tmp_path / "runs", folder=tmp_path)
    measured, _ = run.validate(deployment, options)
    assert (measured.requests.total, measured.requests.failed) == (10, 0)
    # The same prompt at temperature 0: one answer, whichever replica gave it.
    assert len({answer.actual for answer in measured.answers}) == 1
    assert [answer.same for answer in measured.answers] == [False] * 10
