"""Sends one row until it has a result: retries, waits, and inputs longer than the context."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from batch import long_inputs, rows
from batch.chunk import Outcome, PendingRow
from batch.endpoint import BUSY_STATUSES, NOT_FOUND, UNAUTHORIZED, Answer, Endpoint, EndpointAway, NoAnswer
from batch.layout import ENDPOINTS, EXPIRED_CODE, Job
from batch.settings import Settings

log = logging.getLogger("batch-rows")

MAX_BACKOFF_S = 30.0

LOOK_S = 1.0
"""How often a row that waits looks whether its job was cancelled or its time is over."""

MAX_REQUESTS = 512
"""Requests of one row: the pieces of a row's pieces multiply, and nobody asked for so many."""

EXPIRED = (EXPIRED_CODE, "This request could not be executed before the completion window expired.")
"""Code and message of rows that ran out of time, as OpenAI names it."""

GIVEN_UP = ("abort", "error", "cancelled", "timeout")
"""Finish reasons of an answer that an engine ended early, with HTTP 200: `abort` of vLLM and SGLang, as where they stop
(github.com/vllm-project/vllm/issues/57082, read 2026-11-29), the last two of TensorRT-LLM."""

_ENDED = ("completed", "incomplete")
"""States of an answer of /v1/responses that is all that comes; the second has reached its most tokens."""

CANCELLED = "batch_cancelled", "the batch was cancelled before this row ran"
"""Code and message of rows, and of what is left of a row's pieces, that nobody waits for any more."""


class _RowFailed(Exception):
    def __init__(self, code: str, message: str, answer: Answer | None = None) -> None:
        super().__init__(message)
        self.code, self.message, self.answer = code, message, answer


@dataclass
class _Request:
    """The request of one row."""

    url: str
    source: str
    """Job and line, for the logs."""

    deadline_at: float
    is_cancelled: Callable[[], bool]
    count_tokens: Callable[[int], None]
    sent: int = 0
    """Requests of the row, with those of its pieces."""

    input_tokens: int = 0
    output_tokens: int = 0
    notes: dict[str, Any] = field(default_factory=dict)
    """Additional keys of the answer's line, about cut or split texts."""


class RowRunner:
    """Runs rows, any number at a time."""

    def __init__(self, endpoint: Endpoint, settings: Settings, clock: Callable[[], float]) -> None:
        self._endpoint, self._settings, self._clock = endpoint, settings, clock
        self.refusals = 0
        """Number of answers 429 and 503, and 404 of a model that is gone, since the worker started."""

        self.is_suspect = False
        """Whether the endpoint was down, failed or refused the key. Until the dispatcher hears that it answers, no
        other row is sent, and no attempt counts."""

        self._answered: set[tuple[str, str]] = set()
        """Paths and models that have answered a row."""

    async def run(
        self,
        pending: PendingRow,
        job: Job,
        is_cancelled: Callable[[], bool] = lambda: False,
        count_tokens: Callable[[int], None] = lambda _: None,
    ) -> Outcome:
        """Send a row until it has a result or its attempts are used up; returns the result.

        Args:
            is_cancelled: whether the job was cancelled since: no further piece of the row is sent.
            count_tokens: takes the tokens of each answer as it comes: a row of many pieces counts before it ends.
        """
        row = rows.parse(pending.content)
        request = _Request(row.url, f"{job['id']}.{pending.line}", job["deadline_at"], is_cancelled, count_tokens)
        failure = ""
        try:
            answer = await self._ask(request, self._build_body(row, job), cuts=0)
            line = rows.format_output(row.custom_id, 200, answer.raw, **request.notes)
        except _RowFailed as error:
            failure, seen = error.code, error.answer
            status, body = (seen.status, seen.body) if seen else (0, None)
            line = rows.format_error(
                row.custom_id, error.code, error.message, line=pending.line, status=status, body=body
            )
        except Exception as error:  # whatever a row or its answer contains, it gets a result
            log.exception("line %d of %s", pending.line, job["id"])
            failure = "worker_error"
            text = f"{type(error).__name__}: {error}"[:300]
            line = rows.format_error(row.custom_id, failure, text, line=pending.line)
        return Outcome(line, failure, request.input_tokens, request.output_tokens)

    def _build_body(self, row: rows.Row, job: Job) -> dict[str, Any]:
        # SGLang keeps each such answer and its messages in memory for ever, unless a request says no (main, 2026-11,
        # serving_responses.py: msg_store, response_store); vLLM 0.32.0 does with VLLM_ENABLE_RESPONSES_API_STORE.
        body = {"store": False, **row.body} if row.url == "/v1/responses" else dict(row.body)
        if job["model"]:
            body["model"] = job["model"]
        if self._settings.has_priority:  # the lowest goes first; the default, of people's requests, is 0
            body["priority"] = 1 + self._settings.priorities.index(job["priority"])
        return body

    async def _ask(self, request: _Request, body: dict[str, Any], cuts: int) -> Answer:
        """Send until there is an answer, and shorten inputs that exceed the context by the blueprint's rule.

        Args:
            cuts: how often this body was cut or split before.
        """
        request.sent += 1
        if request.sent > MAX_REQUESTS:
            raise _RowFailed("context_length_exceeded", f"its pieces take more than {MAX_REQUESTS} requests")
        if request.sent > 1 and self._clock() > request.deadline_at:
            raise _RowFailed(*EXPIRED)
        if request.sent > 1 and request.is_cancelled():
            raise _RowFailed(*CANCELLED)
        answer = await self._send(request, body)
        if answer.status == 200:
            request.input_tokens += answer.input_tokens
            request.output_tokens += answer.output_tokens
            request.count_tokens(answer.input_tokens + answer.output_tokens)
            return answer
        text = _describe_answer(answer)
        if not long_inputs.is_too_long(answer.status, answer.body):
            raise _RowFailed("request_refused", text, answer)
        too_long = _RowFailed("context_length_exceeded", text, answer)
        if cuts >= long_inputs.MAX_CUTS:
            raise too_long
        if self._settings.long_inputs == long_inputs.SPLIT:
            return await self._split(request, body, too_long, cuts)
        shorter = long_inputs.cut(body, answer.body, self._settings.long_inputs)
        if shorter is None:
            raise too_long
        body, left_out = shorter
        note = request.notes.setdefault("truncated", {"characters": 0, "rule": self._settings.long_inputs})
        note["characters"] += left_out
        return await self._ask(request, body, cuts + 1)

    async def _split(self, request: _Request, body: dict[str, Any], too_long: _RowFailed, cuts: int) -> Answer:
        """Send each piece of the longest text, then once more with the answers in place of the text."""
        pieces = long_inputs.split(body, too_long.answer.body if too_long.answer else None)
        if not pieces:
            raise too_long
        note = request.notes.setdefault("split", {"requests": 0})
        texts = []
        for piece in pieces:  # sequentially: a row is one request in flight
            answer = await self._ask(request, piece, cuts + 1)
            text = rows.read_answer(answer.body)
            texts.append(text if isinstance(text, str) else "")
            note["requests"] += 1
        reduced = long_inputs.reduce(body, texts)
        if reduced is None:
            raise _RowFailed("context_length_exceeded", "the answers to its pieces are as long as the row", None)
        answer = await self._ask(request, reduced, cuts + 1)
        note |= {"requests": note["requests"] + 1, "tokens": {"input": request.input_tokens,
                 "output": request.output_tokens}}  # fmt: skip
        return answer

    async def _send(self, request: _Request, body: dict[str, Any]) -> Answer:
        """Send until there is an answer, or a refusal that is final."""
        attempts = waits = 0
        url_and_model = request.url, str(body.get("model"))
        while True:
            answer: Answer | None = None
            failure: _RowFailed | None = None
            is_counted = not self.is_suspect
            try:
                answer = await self._endpoint.send(request.url, body, request.source)
                if answer.status == 200:
                    self._answered.add(url_and_model)
                if self._is_away(answer, url_and_model):
                    self.refusals += 1
                elif (failure := self._judge(answer, request.url)) is None:
                    return answer
            except EndpointAway:
                self.is_suspect = True
            except NoAnswer as error:
                self.is_suspect = True
                failure = _RowFailed("no_answer", str(error))
            attempts += failure is not None and is_counted
            if failure and attempts >= self._settings.attempts:
                raise failure
            waits += 1
            await self._pause(request, _compute_backoff(waits, answer))

    async def _pause(self, request: _Request, seconds: float) -> None:
        """Wait before the next attempt, unless nobody waits for the row any more."""
        while True:
            if self._clock() > request.deadline_at:
                raise _RowFailed(*EXPIRED)
            if request.is_cancelled():
                raise _RowFailed(*CANCELLED)
            if seconds <= 0:
                return
            await asyncio.sleep(min(seconds, LOOK_S))
            seconds -= LOOK_S

    def _is_away(self, answer: Answer, url_and_model: tuple[str, str]) -> bool:
        """Return whether the row must wait: the endpoint is overloaded, or its model answered before and is gone."""
        return answer.status in BUSY_STATUSES or (answer.status == NOT_FOUND and url_and_model in self._answered)

    def _judge(self, answer: Answer, url: str) -> _RowFailed | None:
        """Describe an answer that is worth a retry; None for any other answer."""
        if answer.status >= 500:
            self.is_suspect = True
            return _RowFailed("server_error", _describe_answer(answer), answer)
        if answer.status == UNAUTHORIZED:
            # A refused key is not the row's fault: with the next key it may be answered.
            self.is_suspect = True
            return _RowFailed("request_refused", _describe_answer(answer), answer)
        if answer.status == 200 and not _is_whole(answer.body, url):
            return _RowFailed("invalid_answer", _describe_answer(answer), answer)
        return None


def _is_whole(body: Any, url: str) -> bool:
    """Return whether an answer has the requested result.

    A proxy may answer 200 with its own page or message, and an engine that stops with what it has so far.
    """
    results = body.get(ENDPOINTS[url]) if isinstance(body, dict) else None
    if not isinstance(results, list) or not results or body.get("status", _ENDED[0]) not in _ENDED:
        return False
    return all(
        isinstance(entry, dict)
        and isinstance(entry.get("message") or {}, dict)
        and entry.get("finish_reason") not in GIVEN_UP
        for entry in results
    )


def _compute_backoff(waits: int, answer: Answer | None) -> float:
    """Compute the seconds before the next attempt: full jitter, at least the endpoint's Retry-After."""
    retry_after_s = answer.retry_after_s if answer else 0.0
    return max(retry_after_s, random.uniform(0.05, min(MAX_BACKOFF_S, 0.5 * 2 ** min(waits, 10))))


def _describe_answer(answer: Answer) -> str:
    error = answer.body.get("error", answer.body) if isinstance(answer.body, dict) else None
    message = error.get("message") if isinstance(error, dict) else None
    return str(message or answer.raw[:200].decode(errors="replace"))[:500]
