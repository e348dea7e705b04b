"""Runs all checks concurrently, within a time limit; a check without an answer becomes a warning."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait

from llm_serving import console
from llm_serving.aws import session
from llm_serving.aws.preflight.check import Check, CheckGroup, CheckResult, build_unknown_result
from llm_serving.fleet.checks import join_words

MAX_CONCURRENT_CHECKS = 8
"""Concurrent checks; AWS's describe calls allow about 20 a second, Service Quotas fewer."""

TIMEOUT_S = 90.0
"""For all checks together. One call takes 20 s at most and is tried three times."""


def run_checks(checks: Sequence[Check], step: console.Step, timeout_s: float = TIMEOUT_S) -> list[CheckGroup]:
    """Return the results by heading, in the order of the checks."""
    deadline = time.monotonic() + timeout_s
    executor = ThreadPoolExecutor(MAX_CONCURRENT_CHECKS, "preflight")
    checks_by_future = {executor.submit(_run_check, check): check for check in checks}
    results: dict[Check, Sequence[CheckResult]] = {}
    pending: set[Future[Sequence[CheckResult]]] = set(checks_by_future)
    while pending and time.monotonic() < deadline:
        done, pending = wait(pending, timeout=0.2)
        results |= {checks_by_future[future]: future.result() for future in done}
        step.note = _format_progress(len(results), [checks_by_future[future] for future in pending], len(checks))
    executor.shutdown(wait=False, cancel_futures=True)
    timeout_reason = f"no answer within {timeout_s:.0f} s"
    groups: dict[str, list[CheckResult]] = {}
    for check in checks:
        unanswered = [build_unknown_result(check.name, timeout_reason, "run it again")]
        groups.setdefault(check.group, []).extend(results.get(check, unanswered))
    return [CheckGroup(title, tuple(group_results)) for title, group_results in groups.items()]


def _format_progress(done: int, pending: Sequence[Check], total: int) -> str:
    # Some checks have the same name, which is shown once.
    names = list(dict.fromkeys(check.name for check in pending))
    waiting = f", waiting for {', '.join(names[:2])}{' and others' if len(names) > 2 else ''}" if names else ""
    return f"{done} of {total} checks{waiting}"


def _run_check(check: Check) -> Sequence[CheckResult]:
    try:
        return check.list_results()
    except session.get_error_types() as error:
        return [build_unknown_result(check.name, describe_error(error), suggest_fix(error, check.actions))]


def describe_error(error: Exception) -> str:
    """Why AWS gave no answer, in a few words."""
    from botocore import exceptions, parsers

    if isinstance(error, parsers.ResponseParserError):
        return "the server's response is not AWS's"
    if not isinstance(error, exceptions.ClientError):
        return " ".join(str(error).split())
    if session.get_error_code(error) in session.DENIED_CODES:
        return f"no permission for {error.operation_name}"
    if session.get_error_code(
        error
    ).isdigit():  # no answer of AWS's form, but an error page of a server between or in its place
        return f"the server answered {error.operation_name} with {session.get_error_code(error)}"
    return f"{error.operation_name} was refused: {session.format_error(error)}"


def suggest_fix(error: Exception, actions: Sequence[str]) -> str:
    """Return what would get an answer; "" where nothing would."""
    from botocore import exceptions

    denied = isinstance(error, exceptions.ClientError) and session.get_error_code(error) in session.DENIED_CODES
    return f"allow {join_words(actions)} for this identity" if denied and actions else ""
