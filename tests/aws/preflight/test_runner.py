from __future__ import annotations

import threading
import time

from botocore.exceptions import ClientError, EndpointConnectionError
from botocore.parsers import ResponseParserError

from llm_serving import console
from llm_serving.aws.preflight import runner
from llm_serving.aws.preflight.check import Line, Question

GOOD = Line("good", "pass", "as it should be")


def _raising(error: Exception) -> Question:
    def raise_() -> list[Line]:
        raise error

    return Question("group", "question", raise_, ("ec2:DescribeVpcs",))


def _refused(code: str) -> ClientError:
    return ClientError({"Error": {"Code": code, "Message": "a  long\nstory"}}, "DescribeVpcs")


def _only(question: Question) -> Line:
    ((line,),) = [group.lines for group in runner.ask([question], console.Step("asking"))]
    return line


def test_answers_stand_under_their_headings_in_the_order_of_the_questions() -> None:
    def late() -> list[Line]:
        time.sleep(0.3)
        return [Line("late", "pass", "")]

    step = console.Step("asking")
    groups = runner.ask([Question("a", "1", late), Question("b", "2", lambda: [GOOD]), Question("a", "3", list)], step)
    assert [(group.title, [line.about for line in group.lines]) for group in groups] == [
        ("a", ["late"]),
        ("b", ["good"]),
    ]
    assert step.note == "3 of 3 answers"


def test_questions_are_put_at_the_same_time() -> None:
    meeting = threading.Barrier(4, timeout=20)

    def met() -> list[Line]:
        meeting.wait()
        return [GOOD]

    groups = runner.ask([Question("group", str(number), met) for number in range(4)], console.Step("asking"))
    assert [line.known for line in groups[0].lines] == [True] * 4


def test_what_is_not_answered_in_time_is_said_and_the_rest_stands() -> None:
    free = threading.Event()

    def stuck() -> list[Line]:
        free.wait(20)
        return []

    begin = time.monotonic()
    questions = [Question("group", "stuck", stuck), Question("group", "good", lambda: [GOOD])]
    (group,) = runner.ask(questions, console.Step("asking"), limit_s=1)
    free.set()
    assert time.monotonic() - begin < 10
    assert [(line.about, line.status, line.unanswered) for line in group.lines] == [
        ("stuck", "warn", "no answer within 1 s"),
        ("good", "pass", ""),
    ]


def test_a_refusal_names_what_to_allow() -> None:
    line = _only(_raising(_refused("UnauthorizedOperation")))
    assert (line.status, line.known, line.said) == ("warn", False, "not known")
    assert line.unanswered == "this identity may not call DescribeVpcs"
    assert line.remedy == "allow ec2:DescribeVpcs to this identity"


def test_any_other_error_is_told_in_its_own_words_on_one_line() -> None:
    assert _only(_raising(_refused("InternalError"))).unanswered == (
        "DescribeVpcs was refused: InternalError: a long story"
    )
    assert _only(_raising(_refused("501"))).unanswered == "the server answered DescribeVpcs with 501"
    assert _only(_raising(ResponseParserError("<html>"))).unanswered == "the server's answer is not one of AWS's"
    gone = EndpointConnectionError(endpoint_url="http://127.0.0.1:9")
    assert _only(_raising(gone)).unanswered == 'Could not connect to the endpoint URL: "http://127.0.0.1:9"'
