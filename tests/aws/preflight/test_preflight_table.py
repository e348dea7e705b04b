from __future__ import annotations

import io
import shlex
from typing import Any

import pytest
from rich.console import Console

from llm_serving.aws.preflight.check import Group, Line, unknown
from llm_serving.aws.preflight.identity import Identity
from llm_serving.aws.preflight.report import Report
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
def report(fleet: Any) -> Report:
    document = fleet("  general:\n    types: g6e.xlarge\n    size: 1\n")
    silent = "the server answered GetServiceQuota with 500"
    lines = (
        Line(
            "Running On-Demand P instances", "fail", "needs up to 768 vCPUs; the quota is 192", "ask", COMMAND, share=4
        ),
        Line("Storage for General Purpose SSD (gp3) volumes, in TiB", "pass", "2 of 50 TiB", share=0.04),
        unknown("Clusters", silent, said="needs up to 1; a new account has 100"),
        unknown("Launch templates", silent, said="needs up to 1; a new account has 5,000"),
    )
    state = Line("s3://my", "fail", "it keeps no versions", "set it right", JSON)
    who = Identity("123456789012", "arn:aws:iam::123456789012:user/anna")
    return Report(document.value, who, "AWS", (Group("quotas", lines), Group("state", (state,))))


def _drawn(report: Report, width: int) -> str:
    sink = io.StringIO()
    Console(file=sink, width=width, highlight=False).print(preflight_table.draw(report, width))
    return sink.getvalue()


@pytest.mark.parametrize("width", [80, 100, 120])
def test_nothing_is_wider_than_the_terminal_but_a_word_that_cannot_be_broken(report: Report, width: int) -> None:
    assert max(len(line.rstrip()) for line in _drawn(report, width).splitlines()) <= width


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("command", [COMMAND, JSON])
def test_a_command_reads_the_same_after_pasting(report: Report, width: int, command: tuple[str, ...]) -> None:
    text = _drawn(report, width).replace("\\\n", " ")
    (line,) = [line for line in text.splitlines() if f" {command[2]} " in line]
    assert tuple(shlex.split(line)) == command


def test_a_cause_behind_several_lines_is_told_once_and_the_sum_counts_all(report: Report) -> None:
    text = _drawn(report, 100)
    assert text.count("the server answered GetServiceQuota with 500") == 1
    assert text.rstrip().splitlines()[-1] == "✓ 1 pass   ! 2 warn   ✗ 2 fail   (2 not known)"


def test_another_server_than_aws_is_named(fleet: Any, report: Report) -> None:
    text = _drawn(Report(report.fleet, report.who, "the server at http://127.0.0.1:1", report.groups), 100)
    assert "answered by the server at http://127.0.0.1:1, not by AWS" in text


def test_plain_data_holds_commands_as_they_are_typed_and_no_infinity(report: Report) -> None:
    said = report.plain()
    assert said["ok"] is False
    assert said["counts"] == {"pass": 1, "warn": 2, "fail": 2, "unknown": 2}
    assert said["groups"][1]["lines"][0]["command"] == shlex.join(JSON)
    assert Line("quota", "fail", "", share=float("inf")).plain()["share"] is None
