"""Puts all questions at once, within a limit of time; what is not answered becomes a line that says so."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait

from llm_serving import console
from llm_serving.aws import session as clients
from llm_serving.aws.preflight.check import Group, Line, Question, unknown
from llm_serving.fleet.checks import listed

AT_ONCE = 8
"""Questions under way; AWS's describe calls allow about 20 a second, Service Quotas fewer."""

LIMIT_S = 90.0
"""For all answers together. One call takes 20 s at most and is tried three times."""


def ask(questions: Sequence[Question], step: console.Step, limit_s: float = LIMIT_S) -> list[Group]:
    """The answers, under the questions' headings in the order of the questions."""
    end = time.monotonic() + limit_s
    pool = ThreadPoolExecutor(AT_ONCE, "preflight")
    under_way = {pool.submit(_lines, one): one for one in questions}
    answered: dict[Question, Sequence[Line]] = {}
    left: set[Future[Sequence[Line]]] = set(under_way)
    while left and time.monotonic() < end:
        done, left = wait(left, timeout=0.2)
        answered |= {under_way[one]: one.result() for one in done}
        step.note = _progress(len(answered), [under_way[one] for one in left], len(questions))
    pool.shutdown(wait=False, cancel_futures=True)
    late = f"no answer within {limit_s:.0f} s"
    said = [(one.group, answered.get(one, [unknown(one.about, late, "run it again")])) for one in questions]
    titles = dict.fromkeys(title for title, _ in said)
    return [Group(title, tuple(line for at, lines in said if at == title for line in lines)) for title in titles]


def _progress(done: int, left: Sequence[Question], total: int) -> str:
    # A few questions share a subject; its name is shown once.
    names = list(dict.fromkeys(one.about for one in left))
    waiting = f", waiting for {', '.join(names[:2])}{' and others' if len(names) > 2 else ''}" if names else ""
    return f"{done} of {total} answers{waiting}"


def _lines(question: Question) -> Sequence[Line]:
    """The answer, or a line that says why there is none."""
    try:
        return question.ask()
    except clients.errors() as error:
        return [unknown(question.about, why(error), remedy(error, question.actions))]


def why(error: Exception) -> str:
    """Why AWS gave no answer, in a few words."""
    from botocore import exceptions, parsers

    if isinstance(error, parsers.ResponseParserError):
        return "the server's answer is not one of AWS's"
    if not isinstance(error, exceptions.ClientError):
        return " ".join(str(error).split())
    if clients.code(error) in clients.DENIED:
        return f"this identity may not call {error.operation_name}"
    if clients.code(error).isdigit():  # no answer of AWS's form, but an error page of a server between or in its place
        return f"the server answered {error.operation_name} with {clients.code(error)}"
    return f"{error.operation_name} was refused: {clients.said(error)}"


def remedy(error: Exception, actions: Sequence[str]) -> str:
    """What would get an answer; "" where nobody here can do a thing."""
    from botocore import exceptions

    denied = isinstance(error, exceptions.ClientError) and clients.code(error) in clients.DENIED
    return f"allow {listed(actions)} to this identity" if denied and actions else ""
