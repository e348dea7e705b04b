from __future__ import annotations

import io
import shlex
from typing import Any

import pytest
from rich.console import Console

from llm_serving.aws.preflight.check import CheckGroup, CheckResult, build_unknown_result
from llm_serving.aws.preflight.identity import Identity
from llm_serving.aws.preflight.report import PreflightReport
from llm_serving.tables import preflight_table

COMMAND = (
    *("aws", "service-quotas", "request-service-quota-increase", "--region", "us-west-2", "--service-code", "ec2"),
    *("--quota-code", "L-417A185B", "--desired-value", "1152"),
)
JSON = (
    "aws",
    "s3api",
    "put-bucket-versioning",
    "--bucket",
    "my",
    "--versioning-configuration",
    '{"Status": "Enabled"}',
)


@pytest.fixture
def report(read_fleet: Any) -> PreflightReport:
    document = read_fleet("  general:\n    types: g6e.xlarge\n    size: 1\n")
    server_error = "the server answered GetServiceQuota with 500"
    lines = (
        CheckResult(
            "Running On-Demand P instances",
            "fail",
            "needs up to 768 vCPUs; the quota is 192",
            "ask",
            COMMAND,
            usage_ratio=4,
        ),
        CheckResult("Storage for General Purpose SSD (gp3) volumes, in TiB", "pass", "2 of 50 TiB", usage_ratio=0.04),
        build_unknown_result("Clusters", server_error, message="needs up to 1; a new account has 100"),
        build_unknown_result("Launch templates", server_error, message="needs up to 1; a new account has 5,000"),
    )
    state = CheckResult("s3://my", "fail", "it keeps no versions", "set it right", JSON)
    caller = Identity("123456789012", "arn:aws:iam::123456789012:user/anna")
    return PreflightReport(document.value, caller, "AWS", (CheckGroup("quotas", lines), CheckGroup("state", (state,))))


def _render(report: PreflightReport, width: int) -> str:
    sink = io.StringIO()
    Console(file=sink, width=width, highlight=False).print(preflight_table.render_preflight(report, width))
    return sink.getvalue()


@pytest.mark.parametrize("width", [80, 100, 120])
def test_only_an_unbreakable_word_is_wider_than_the_terminal(report: PreflightReport, width: int) -> None:
    assert max(len(line.rstrip()) for line in _render(report, width).splitlines()) <= width


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("command", [COMMAND, JSON])
def test_a_command_reads_the_same_after_pasting(report: PreflightReport, width: int, command: tuple[str, ...]) -> None:
    text = _render(report, width).replace("\\\n", " ")
    (line,) = [line for line in text.splitlines() if f" {command[2]} " in line]
    assert tuple(shlex.split(line)) == command


def test_a_common_cause_is_shown_once_and_the_sum_counts_all(report: PreflightReport) -> None:
    text = _render(report, 100)
    assert text.count("the server answered GetServiceQuota with 500") == 1
    assert text.rstrip().splitlines()[-1] == "✓ 1 pass   ! 2 warn   ✗ 2 fail   (2 unknown)"


def test_another_server_than_aws_is_named(read_fleet: Any, report: PreflightReport) -> None:
    text = _render(PreflightReport(report.fleet, report.caller, "the server at http://127.0.0.1:1", report.groups), 100)
    assert "endpoint: the server at http://127.0.0.1:1, not AWS" in text


def test_plain_data_holds_commands_as_they_are_typed_and_no_infinity(report: PreflightReport) -> None:
    response = report.build_payload()
    assert response["ok"] is False
    assert response["counts"] == {"pass": 1, "warn": 2, "fail": 2, "unknown": 2}
    assert response["groups"][1]["lines"][0]["command"] == shlex.join(JSON)
    assert CheckResult("quota", "fail", "", usage_ratio=float("inf")).build_payload()["share"] is None
