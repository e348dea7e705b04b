"""One row until it has a result, against an endpoint whose answers each test decides."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from batch import layout, long_inputs, row_runner, rows
from batch.chunk import Outcome, PendingRow
from batch.endpoint import Answer, EndpointAway, NoAnswer
from batch.row_runner import RowRunner

from tests.images.batch_worker.conftest import read_settings

CONTEXT = 200
"""Tokens, which are words here."""

SUBMISSION = layout.Submission("rows.jsonl", team="ads", priority="low", deadline_s=100.0)
JOB = layout.build_job("batch_1", SUBMISSION, name="mine", source={}, now=0.0)
CHAT, EMBEDDINGS = "/v1/chat/completions", "/v1/embeddings"

Respond = Callable[[dict[str, Any]], Answer]


class FakeEndpoint:
    """Answers what a function makes of each body."""

    def __init__(self, respond: Respond) -> None:
        self.respond = respond
        self.bodies: list[dict[str, Any]] = []

    async def send(self, _: str, body: dict[str, Any], source: str) -> Answer:
        assert re.fullmatch(r"batch_\w+\.\d+", source), "the id of each of a row's requests names job and line"
        self.bodies.append(body)
        return self.respond(body)


def build_answer(status: int, body: Any, **more: Any) -> Answer:
    raw = json.dumps(body).encode()
    return Answer(status, raw, body, **more)


def answer_with_its_ends(body: dict[str, Any]) -> Answer:
    """Answer with the first and the last word of a text that the context holds, as vLLM 0.32 refuses any other."""
    words = body["messages"][-1]["content"].split() if "messages" in body else body["input"].split()
    if len(words) > CONTEXT:
        message = (
            f"This model's maximum context length is {CONTEXT} tokens. However, your prompt contains at least "
            f"{CONTEXT + 1} input tokens, which exceeds this limit even without any output tokens. Please reduce the "
            f"length of the input prompt. (parameter=input_tokens, value={CONTEXT + 1})"
        )
        return build_answer(400, {"error": {"message": message, "type": "BadRequestError", "code": 400}})
    text = f"{words[0]}..{words[-1]}"
    usage = {"prompt_tokens": len(words), "completion_tokens": 1}
    return build_answer(200, {"choices": [{"message": {"content": text}}], "usage": usage})


def run(
    respond: Respond, *, words: int = 5, url: str = CHAT, clock: Callable[[], float] = lambda: 0.0, **own: Any
) -> tuple[Outcome, FakeEndpoint, RowRunner]:
    """Run one row; returns what became of it, and who was asked."""
    text = " ".join(f"w{number}" for number in range(words))
    body = {"input": text} if url == EMBEDDINGS else {"messages": [{"role": "user", "content": text}]}
    row = {"custom_id": "a", "method": "POST", "url": url, "body": {"model": "m", **body}}
    endpoint = FakeEndpoint(respond)
    runner = RowRunner(endpoint, read_settings(**{"attempts": 3, **own}), clock)  # type: ignore[arg-type]
    was_suspect = False

    def recover() -> bool:
        """Have the endpoint be up again before the next attempt, as the dispatcher finds."""
        nonlocal was_suspect
        was_suspect, runner.is_suspect = was_suspect or runner.is_suspect, False
        return False

    outcome = asyncio.run(runner.run(PendingRow(7, json.dumps(row).encode()), JOB, recover))
    runner.is_suspect |= was_suspect
    return outcome, endpoint, runner


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_runner, "MAX_BACKOFF_S", 0.0)


def test_pieces_of_a_long_row_cover_it_and_their_answers_become_one() -> None:
    outcome, endpoint, _ = run(answer_with_its_ends, words=1000, long_inputs="split-and-reduce")
    whole, *pieces, reduced = [body["messages"][0]["content"] for body in endpoint.bodies]
    assert "".join(pieces) == whole  # nothing left out, nothing twice
    assert len(pieces) < 12
    assert reduced.startswith(f"[1/{len(pieces)}] w0..w") and reduced.endswith("..w999")
    line = json.loads(outcome.line)
    assert line["split"]["requests"] == len(pieces) + 1
    assert line["split"]["tokens"] == {"input": outcome.input_tokens, "output": len(pieces) + 1}
    assert outcome.input_tokens == 1000 + len(reduced.split())


def test_answers_to_pieces_that_are_too_long_are_split_again() -> None:
    def echo_half(body: dict[str, Any]) -> Answer:
        answer = answer_with_its_ends(body)
        if answer.status == 200:
            words = body["messages"][-1]["content"].split()
            answer = build_answer(200, {"choices": [{"message": {"content": " ".join(words[: len(words) // 2])}}]})
        return answer

    outcome, endpoint, _ = run(echo_half, words=1000, long_inputs="split-and-reduce")
    assert outcome.failure == ""
    refused = [body for body in endpoint.bodies if len(body["messages"][0]["content"].split()) > CONTEXT]
    assert len(refused) >= 2  # the row, and the answers to its pieces


def test_a_row_has_one_budget_of_requests_for_all_its_pieces() -> None:
    def answer_by_all_texts(body: dict[str, Any]) -> Answer:
        joined = " ".join(message["content"] for message in body["messages"])
        return answer_with_its_ends({"messages": [{"content": joined}]})

    messages = [{"role": "user", "content": " ".join(["word"] * 10_000)} for _ in range(2)]
    row = {"custom_id": "a", "method": "POST", "url": CHAT, "body": {"model": "m", "messages": messages}}
    endpoint = FakeEndpoint(answer_by_all_texts)
    runner = RowRunner(endpoint, read_settings(long_inputs="split-and-reduce"), lambda: 0.0)  # type: ignore[arg-type]
    outcome = asyncio.run(runner.run(PendingRow(7, json.dumps(row).encode()), JOB))
    assert len(endpoint.bodies) == row_runner.MAX_REQUESTS, "pieces of one text are split for the other's sake"
    assert outcome.failure == "context_length_exceeded"
    assert "its pieces take more than 512 requests" in outcome.line.decode()


def test_pieces_are_not_sent_past_the_deadline() -> None:
    times = iter([0.0, *[50.0] * 3, *[101.0] * 1000])
    outcome, endpoint, _ = run(
        answer_with_its_ends, words=20_000, long_inputs="split-and-reduce", clock=lambda: next(times)
    )
    assert outcome.failure == layout.EXPIRED_CODE
    assert len(endpoint.bodies) < 10, "of about a hundred"


def test_pieces_are_not_sent_once_the_job_is_cancelled() -> None:
    row = {"custom_id": "a", "method": "POST", "url": CHAT, "body": {"model": "m", "messages": [
        {"role": "user", "content": " ".join(["word"] * 20_000)}]}}  # fmt: skip
    endpoint = FakeEndpoint(answer_with_its_ends)
    runner = RowRunner(endpoint, read_settings(long_inputs="split-and-reduce"), lambda: 0.0)  # type: ignore[arg-type]
    pending = PendingRow(7, json.dumps(row).encode())
    counted: list[int] = []
    outcome = asyncio.run(runner.run(pending, JOB, lambda: len(endpoint.bodies) == 5, counted.append))
    assert outcome.failure == "batch_cancelled"
    assert len(endpoint.bodies) == 5, "of about a hundred"
    assert outcome.input_tokens > 0, "what was used counts for the team"
    answered = [tokens for tokens in counted if tokens]
    assert (len(answered) > 1, sum(answered)) == (True, outcome.tokens), "and does so before the row ends"


def test_a_row_whose_pieces_are_answered_at_its_own_length_fails() -> None:
    def echo(body: dict[str, Any]) -> Answer:
        answer = answer_with_its_ends(body)
        text = body["messages"][-1]["content"]
        return answer if answer.status != 200 else build_answer(200, {"choices": [{"message": {"content": text}}]})

    outcome, _, _ = run(echo, words=1000, long_inputs="split-and-reduce")
    assert outcome.failure == "context_length_exceeded"
    assert json.loads(outcome.line)["error"]["message"] == "the answers to its pieces are as long as the row"


@pytest.mark.parametrize(
    ("url", "rule"), [(CHAT, "reject"), (EMBEDDINGS, "split-and-reduce")], ids=["rejected", "an embedding"]
)
def test_a_long_row_that_may_not_be_changed_fails_with_the_engines_words(url: str, rule: str) -> None:
    outcome, endpoint, _ = run(answer_with_its_ends, words=1000, url=url, long_inputs=rule)
    assert outcome.failure == "context_length_exceeded"
    assert "maximum context length is 200" in json.loads(outcome.line)["error"]["message"]
    assert len(endpoint.bodies) == 1


@pytest.mark.parametrize("words", [210, 1000, 20_000])
def test_a_row_is_cut_to_the_context_however_long_it_is_and_says_by_how_much(words: int) -> None:
    outcome, endpoint, _ = run(answer_with_its_ends, words=words, long_inputs="truncate-tail")
    assert outcome.failure == ""
    cut, whole = (body["messages"][0]["content"] for body in (endpoint.bodies[-1], endpoint.bodies[0]))
    assert whole.startswith(cut)
    note = json.loads(outcome.line)["truncated"]
    assert note == {"characters": len(whole) - len(cut), "rule": "truncate-tail"}


def test_requests_have_the_priority_of_their_job_where_the_engines_schedule_by_it() -> None:
    _, endpoint, _ = run(answer_with_its_ends, has_priority=True)
    assert endpoint.bodies[0]["priority"] == 3
    _, endpoint, _ = run(answer_with_its_ends)
    assert "priority" not in endpoint.bodies[0]  # an engine without it refuses any but 0


def test_attempts_count_what_broke_and_nothing_that_was_refused_for_a_while() -> None:
    answers = [build_answer(429, {}), build_answer(503, {}), build_answer(500, {}), build_answer(200, "no object")]
    outcome, endpoint, runner = run(lambda _: answers.pop(0) if answers else answer_with_its_ends(
        {"input": "a b"}), attempts=3)  # fmt: skip
    assert (outcome.failure, len(endpoint.bodies), runner.refusals) == ("", 5, 2)
    assert runner.is_suspect
    outcome, endpoint, _ = run(lambda _: build_answer(500, {"error": {"message": "broken"}}), attempts=3)
    assert (outcome.failure, len(endpoint.bodies)) == ("server_error", 3)
    assert json.loads(outcome.line)["error"] == {"code": "server_error", "message": "broken", "line": 7}


def test_a_refused_key_is_tried_again_and_nothing_more_is_sent_meanwhile() -> None:
    refusal = build_answer(401, {"error": "Unauthorized"})
    answers = [refusal]
    outcome, endpoint, runner = run(lambda body: answers.pop() if answers else answer_with_its_ends(body), attempts=3)
    assert (outcome.failure, len(endpoint.bodies), runner.is_suspect) == ("", 2, True)
    outcome, endpoint, _ = run(lambda _: refusal, attempts=3)
    assert (outcome.failure, len(endpoint.bodies)) == ("request_refused", 3)


def test_429_for_an_hour_is_waited_out_and_costs_no_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    hour, now = 3600.0, [0.0]

    async def pass_time(seconds: float) -> None:
        now[0] += seconds

    monkeypatch.setattr(row_runner, "MAX_BACKOFF_S", 30.0)
    monkeypatch.setattr(row_runner.asyncio, "sleep", pass_time)
    monkeypatch.setitem(JOB, "deadline_at", 2 * hour)
    respond = lambda body: build_answer(429, {}) if now[0] < hour else answer_with_its_ends(body)  # noqa: E731
    outcome, endpoint, runner = run(respond, clock=lambda: now[0], attempts=1)
    assert outcome.failure == ""
    assert 150 < len(endpoint.bodies) < 500  # every 15 s in the mean
    assert runner.refusals == len(endpoint.bodies) - 1
    assert not runner.is_suspect  # who answers 429 is there: other rows go on


def test_a_wait_is_as_long_as_the_endpoint_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []

    async def note(seconds: float) -> None:
        waits.append(seconds)

    monkeypatch.setattr(row_runner.asyncio, "sleep", note)
    answers = [build_answer(503, {}, retry_after_s=45.0)]
    run(lambda body: answers.pop() if answers else answer_with_its_ends(body))
    assert sum(waits) == 45.0


# vLLM 0.32: openai/models/serving.py, multimodal/registry.py and renderers/online_renderer.py; the second is what a real
# engine answers in tests/blueprints/test_answers.py.
@pytest.mark.parametrize(
    ("status", "message"),
    [
        (404, "The model `other` does not exist."),
        (400, "tiny is not a multimodal model"),
        (400, '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set'),
    ],
    ids=["unknown model", "picture", "tool"],
)
def test_a_row_that_the_model_cannot_take_fails_at_once_in_the_engines_words(status: int, message: str) -> None:
    body = {"error": {"message": message, "type": "BadRequestError", "code": status}}
    outcome, endpoint, runner = run(lambda _: build_answer(status, body))
    line = json.loads(outcome.line)
    assert (outcome.failure, len(endpoint.bodies), runner.is_suspect) == ("request_refused", 1, False)
    assert line["error"] == {"code": "request_refused", "message": message, "line": 7}
    assert (line["response"]["status_code"], line["response"]["body"]) == (status, body)


def test_a_model_that_goes_away_half_way_is_waited_for_and_an_unknown_one_is_not() -> None:
    answers = [build_answer(404, {"error": {"message": "The model `m` does not exist."}})] * 3
    outcome, endpoint, runner = run(lambda body: answers.pop() if answers else answer_with_its_ends(body), attempts=1)
    assert (outcome.failure, len(endpoint.bodies)) == ("request_refused", 1)  # it has never answered
    endpoint.respond = answer_with_its_ends
    text = {"model": "m", "messages": [{"role": "user", "content": "again"}]}
    row = PendingRow(8, json.dumps({"custom_id": "b", "url": CHAT, "body": text}).encode())
    assert asyncio.run(runner.run(row, JOB)).failure == ""
    endpoint.respond = lambda body: answers.pop() if answers else answer_with_its_ends(body)
    assert asyncio.run(runner.run(row, JOB)).failure == ""
    assert (answers, runner.refusals) == ([], 2)


@pytest.mark.parametrize(
    ("url", "body"),
    [
        (CHAT, {"status": "ok"}),
        (CHAT, {"choices": None}),
        (CHAT, {"choices": []}),
        (CHAT, {"choices": [None]}),
        (CHAT, {"choices": [{"message": "text"}]}),
        (CHAT, {"choices": [{"message": {"content": "half of"}, "finish_reason": "abort"}]}),  # the engine stops
        (CHAT, []),
        (EMBEDDINGS, {"choices": [{"text": "x"}]}),
        (EMBEDDINGS, {"data": ["text"]}),
        ("/v1/responses", {"output": [{"type": "message", "content": []}], "status": "cancelled"}),
        ("/v1/rerank", {"data": [{"score": 0.5}]}),
    ],
)
def test_200_without_an_answer_is_none(url: str, body: Any) -> None:
    outcome, endpoint, _ = run(lambda _: build_answer(200, body), url=url, attempts=2)
    assert (outcome.failure, len(endpoint.bodies)) == ("invalid_answer", 2)


_TEXT = {"type": "message", "content": [{"type": "output_text", "text": "Hel"}, {"type": "output_text", "text": "lo"}]}


@pytest.mark.parametrize(
    ("url", "body", "answer", "output_tokens"),
    [
        ("/v1/responses", {"output": [{"type": "reasoning"}, _TEXT], "status": "incomplete"}, "Hello", 2),
        ("/v1/rerank", {"results": [{"index": 0, "relevance_score": 0.5}]}, [{"index": 0, "relevance_score": 0.5}], 0),
        ("/v1/score", {"data": [{"index": 0, "score": 0.5}, {"index": 1, "score": 0.0}]}, [0.5, 0.0], 0),
        ("/classify", {"data": [{"label": "toy", "probs": [0.9, 0.1]}]}, [{"label": "toy", "probs": [0.9, 0.1]}], 0),
    ],
)
def test_a_row_may_ask_for_a_response_and_for_scores_and_labels(
    url: str, body: dict[str, Any], answer: Any, output_tokens: int
) -> None:
    """As vLLM 0.32 answers: entrypoints/openai/responses/protocol.py and pooling/*/protocol.py."""
    tokens = {"input_tokens": 3, "output_tokens": 2} if url == "/v1/responses" else {"prompt_tokens": 3}
    outcome, endpoint, _ = run(lambda _: build_answer(200, {**body, "usage": tokens}), url=url)
    assert (outcome.failure, outcome.input_tokens, outcome.output_tokens) == ("", 3, output_tokens)
    assert endpoint.bodies[0].get("store") is (False if url == "/v1/responses" else None), "no engine keeps it"
    assert rows.read_answer(json.loads(outcome.line)["response"]["body"]) == answer


def test_the_messages_of_a_response_are_cut_to_the_context() -> None:
    long = "w " * 500
    body = {"input": [{"role": "user", "content": [{"type": "input_text", "text": long}]}], "max_output_tokens": 100}
    refusal = {"error": {"message": "maximum context length is 200 tokens, and the prompt has 500 input tokens"}}
    cut = long_inputs.cut(body, refusal, "truncate-tail")
    assert cut is not None
    assert len(cut[0]["input"][0]["content"][0]["text"]) == int(0.97 * len(long) * 100 / 500)


@pytest.mark.parametrize("error", [EndpointAway("gone"), NoAnswer("half a stream")])
def test_a_row_whose_time_is_over_while_the_endpoint_is_away_expires(error: Exception) -> None:
    def fail(_: dict[str, Any]) -> Answer:
        raise error

    outcome, _, runner = run(fail, clock=lambda: 101.0)
    assert (outcome.failure, runner.is_suspect) == ("batch_expired", True)


@pytest.mark.parametrize("status", [401, 502])
@pytest.mark.parametrize("ends", ["it is back", "the job is cancelled", "the time is over"])
def test_an_outage_takes_one_attempt_of_a_row_however_long_it_lasts(
    monkeypatch: pytest.MonkeyPatch, status: int, ends: str
) -> None:
    """As where a router or a load balancer answers in the place of replicas that start again."""
    now = 0.0

    async def pass_time(seconds: float) -> None:
        nonlocal now
        now += seconds
        if now > 60 and ends == "it is back":
            endpoint.respond, runner.is_suspect = answer_with_its_ends, False

    monkeypatch.setattr(row_runner.asyncio, "sleep", pass_time)
    monkeypatch.setattr(row_runner, "MAX_BACKOFF_S", 30.0)
    endpoint = FakeEndpoint(lambda _: build_answer(status, {}))
    runner = RowRunner(endpoint, read_settings(attempts=2), lambda: now)  # type: ignore[arg-type]
    body = {"model": "m", "messages": [{"role": "user", "content": "again"}]}
    row = PendingRow(7, json.dumps({"custom_id": "a", "url": CHAT, "body": body}).encode())
    outcome = asyncio.run(runner.run(row, JOB, lambda: ends == "the job is cancelled" and now > 30))
    expected = {"it is back": "", "the job is cancelled": "batch_cancelled", "the time is over": "batch_expired"}
    assert outcome.failure == expected[ends]
    assert 2 < len(endpoint.bodies) < 100, "requests go on, which start a replica where there is none"
    assert now < 102, "the job's time is over at 100"


def test_a_long_wait_that_the_endpoint_asks_for_ends_with_the_jobs_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0

    async def pass_time(seconds: float) -> None:
        nonlocal now
        now += seconds

    monkeypatch.setattr(row_runner.asyncio, "sleep", pass_time)
    outcome, _, _ = run(lambda _: build_answer(429, {}, retry_after_s=86_400.0), clock=lambda: now)
    assert outcome.failure == "batch_expired"
    assert now < 102, "the job's time is over at 100"


def test_a_row_whose_answer_no_code_expects_has_a_result() -> None:
    def respond(_: dict[str, Any]) -> Answer:
        raise RuntimeError("never seen before")

    outcome, _, _ = run(respond)
    line = json.loads(outcome.line)
    assert (outcome.failure, line["custom_id"], line["error"]["line"]) == ("worker_error", "a", 7)
    assert line["error"]["message"] == "RuntimeError: never seen before"
