"""The stream of JSON lines, of Terraform and of OpenTofu."""

from __future__ import annotations

from pathlib import Path

import pytest

from llm_serving.terraform import events, runner
from llm_serving.terraform.events import EventLog

DATA = Path(__file__).with_name("data")
STREAMS = ["terraform-1.11.apply.jsonl", "opentofu-1.10.apply.jsonl"]


@pytest.fixture(params=STREAMS)
def log(request: pytest.FixtureRequest, tmp_path: Path) -> EventLog:
    return EventLog(DATA / request.param, tmp_path / "apply.log")


def test_the_log_for_people_is_the_streams_own_sentences(log: EventLog) -> None:
    log.update(final=True)
    lines = log.read_text().splitlines()
    assert lines[0].startswith(("Terraform 1.11", "OpenTofu 1.10"))
    assert lines[-2:] == ["Apply complete! Resources: 2 added, 0 changed, 0 destroyed.", "Outputs: 1"]
    assert events.find_summary(log.events, "apply") == {
        "add": 2,
        "change": 0,
        "import": 0,
        "remove": 0,
        "operation": "apply",
    }
    assert events.find_summary(log.events, "destroy") is None
    assert events.list_changes(log.events) == ["terraform_data.a will be created", "terraform_data.b will be created"]


def test_progress_counts_and_names_the_resource_that_is_waited_for(log: EventLog, tmp_path: Path) -> None:
    lines = log.stream.read_text().splitlines(keepends=True)
    growing = EventLog(tmp_path / "apply.jsonl", tmp_path / "growing.log")
    messages = {"storage": EventLog(tmp_path / "none.jsonl", tmp_path / "none.log"), "network": growing}
    seen = []
    for count in range(len(lines) + 1):
        growing.stream.write_text("".join(lines[:count]))
        growing.update()
        seen.append(runner._format_progress(messages))
    assert list(dict.fromkeys(seen)) == [
        "",
        "network 0/1",
        "network 0/2",
        "network 0/2 (terraform_data.a)",
        "network 1/2",
        "network 1/2 (terraform_data.b)",
        "network 2/2",
    ]
    log.update(final=True)
    assert growing.read_text() == log.read_text()


def test_half_a_line_waits_for_its_end(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "x.jsonl", tmp_path / "x.log")
    text = (DATA / STREAMS[0]).read_text().splitlines()[0]
    log.stream.write_text(text[:40])
    log.update()
    assert log.events == []
    log.stream.write_text(text)
    log.update()
    log.update(final=True)
    assert [event["type"] for event in log.events] == ["version"]


def test_a_warning_before_the_stream_is_kept_as_text(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "x.jsonl", tmp_path / "x.log")
    log.stream.write_text("Warning: Unable to open CLI configuration file\n")
    log.update(final=True)
    assert log.read_text() == "Warning: Unable to open CLI configuration file\n"
    assert runner._format_progress({"network": log}) == ""


def test_an_error_is_listed_once_with_its_address_and_detail_and_a_warning_is_not() -> None:
    diagnostic = {"severity": "error", "summary": "creating VPC", "detail": "limit\nexceeded", "address": "aws_vpc.vpc"}
    stream = [
        {"type": "diagnostic", "diagnostic": {"severity": "warning", "summary": "deprecated", "detail": ""}},
        {"type": "diagnostic", "diagnostic": diagnostic},
        {"type": "diagnostic", "diagnostic": diagnostic},
    ]
    assert events.list_errors(stream) == ["Error: creating VPC (aws_vpc.vpc)\n  limit\n  exceeded"]


def test_a_plan_that_changes_outputs_alone_says_so() -> None:
    refresh = {"type": "planned_change", "change": {"resource": {"addr": "a.b"}, "action": "noop"}}
    assert events.list_changes([refresh]) == ["its outputs"]
