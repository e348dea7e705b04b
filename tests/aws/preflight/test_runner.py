from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest
from botocore.exceptions import ClientError, EndpointConnectionError
from botocore.parsers import ResponseParserError

from llm_serving import console
from llm_serving.aws.preflight import runner
from llm_serving.aws.preflight.check import Check, CheckResult

PASSED = CheckResult("good", "pass", "as it should be")


def _make_failing_check(error: Exception) -> Check:
    def raise_() -> list[CheckResult]:
        raise error

    return Check("group", "question", raise_, ("ec2:DescribeVpcs",))


def _make_client_error(code: str) -> ClientError:
    return ClientError({"Error": {"Code": code, "Message": "a  long\nstory"}}, "DescribeVpcs")


def _run_only_check(check: Check) -> CheckResult:
    ((line,),) = [group.results for group in runner.run_checks([check], console.Step("asking"))]
    return line


def test_answers_stand_under_their_headings_in_the_order_of_the_questions() -> None:
    answered = threading.Event()

    def answer_late() -> list[CheckResult]:
        assert answered.wait(60), "a later check is answered first"
        return [CheckResult("late", "pass", "")]

    def answer_first() -> list[CheckResult]:
        answered.set()
        return [PASSED]

    step = console.Step("asking")
    groups = runner.run_checks(
        [Check("a", "1", answer_late), Check("b", "2", answer_first), Check("a", "3", list)], step
    )
    assert [(group.title, [line.name for line in group.results]) for group in groups] == [
        ("a", ["late"]),
        ("b", ["good"]),
    ]
    assert step.note == "3 of 3 checks"


def test_questions_are_put_at_the_same_time() -> None:
    meeting = threading.Barrier(4, timeout=60)

    def wait_for_others() -> list[CheckResult]:
        meeting.wait()
        return [PASSED]

    groups = runner.run_checks(
        [Check("group", str(number), wait_for_others) for number in range(4)], console.Step("asking")
    )
    assert [line.is_known for line in groups[0].results] == [True] * 4


def test_a_check_without_a_timely_answer_is_reported_and_the_rest_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    free, step = threading.Event(), console.Step("asking")
    # The time is over once the other check is answered.
    monkeypatch.setattr(runner, "time", SimpleNamespace(monotonic=lambda: 4.0 * step.note.startswith("1 of 2 checks")))

    def hang() -> list[CheckResult]:
        assert free.wait(60), "the rest is reported meanwhile"
        return []

    checks = [Check("group", "stuck", hang), Check("group", "good", lambda: [PASSED])]
    (group,) = runner.run_checks(checks, step, timeout_s=3)
    assert not free.is_set(), "it is still asked"
    free.set()
    assert [(line.name, line.status, line.unknown_reason) for line in group.results] == [
        ("stuck", "warn", "no answer within 3 s"),
        ("good", "pass", ""),
    ]


def test_a_refusal_names_what_to_allow() -> None:
    line = _run_only_check(_make_failing_check(_make_client_error("UnauthorizedOperation")))
    assert (line.status, line.is_known, line.message) == ("warn", False, "not known")
    assert line.unknown_reason == "no permission for DescribeVpcs"
    assert line.fix == "allow ec2:DescribeVpcs for this identity"


def test_any_other_error_is_quoted_on_one_line() -> None:
    assert _run_only_check(_make_failing_check(_make_client_error("InternalError"))).unknown_reason == (
        "DescribeVpcs was refused: InternalError: a long story"
    )
    assert (
        _run_only_check(_make_failing_check(_make_client_error("501"))).unknown_reason
        == "the server answered DescribeVpcs with 501"
    )
    assert (
        _run_only_check(_make_failing_check(ResponseParserError("<html>"))).unknown_reason
        == "the server's response is not AWS's"
    )
    connection_error = EndpointConnectionError(endpoint_url="http://127.0.0.1:9")
    assert (
        _run_only_check(_make_failing_check(connection_error)).unknown_reason
        == 'Could not connect to the endpoint URL: "http://127.0.0.1:9"'
    )
