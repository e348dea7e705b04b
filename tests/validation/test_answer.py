from __future__ import annotations

import json
from typing import Any

import pytest

from llm_serving.validation import answer
from llm_serving.validation.answer import Answer, Gap, Sample


def _event(**event: Any) -> bytes:
    return b"data: " + json.dumps(event).encode() + b"\n\n"


def _chat(text: str, *, role: str = "", reason: str | None = None, tokens: int | None = None) -> bytes:
    delta = {"content": text} | ({"role": role} if role else {})
    usage = {} if tokens is None else {"usage": {"prompt_tokens": 5, "completion_tokens": tokens}}
    return _event(choices=[{"index": 0, "delta": delta, "finish_reason": reason}], **usage)


_DONE = b"data: [DONE]\n\n"


def _judged(*pieces: bytes) -> Sample:
    sample = Sample(0, 0.0)
    answer.judge(sample, answer.read([(float(at), piece) for at, piece in enumerate(pieces)]))
    return sample


def test_the_event_that_only_opens_a_chat_is_no_token() -> None:
    read = answer.read([(1.0, _chat("", role="assistant")), (2.0, _chat("Hi")), (3.0, _DONE)])
    assert read.times == [2.0]
    assert read.text == "Hi"


def test_a_token_without_text_yet_counts_where_the_usage_counts_it() -> None:
    pieces = [_chat("", role="assistant", tokens=0), _chat("", tokens=1), _chat("é", tokens=2), _DONE]
    read = answer.read([(float(at), piece) for at, piece in enumerate(pieces)])
    assert read.times == [1.0, 2.0]
    assert read.counts == [1, 1]
    assert read.output_tokens == 2


def test_the_gap_of_an_event_with_several_tokens_is_shared_among_them() -> None:
    read = answer.read([(0.0, _chat("a", tokens=1)), (0.3, _chat("bcd", tokens=4)), (0.4, _chat("e", tokens=5))])
    assert [(round(gap.ms), gap.tokens) for gap in read.gaps()] == [(100, 3), (100, 1)]


def test_without_a_usage_in_each_event_the_final_one_is_spread_over_them() -> None:
    final = _event(choices=[], usage={"prompt_tokens": 5, "completion_tokens": 8})
    read = answer.read([(0.0, _chat("ab")), (0.2, _chat("cd")), (0.4, _chat("ef")), (0.6, _chat("gh")), (0.6, final)])
    assert [round(gap.ms) for gap in read.gaps()] == [100, 100, 100]
    assert (read.input_tokens, read.output_tokens) == (5, 8)


def test_a_usage_that_comes_only_with_the_last_content_does_not_make_it_carry_all_tokens() -> None:
    read = answer.read([(0.0, _chat("a")), (0.1, _chat("b")), (0.2, _chat("c", reason="stop", tokens=3))])
    assert read.counts == [1, 1, 1]


def test_a_completion_reasoning_and_a_tool_call_are_content() -> None:
    pieces = [
        _event(choices=[{"text": "a"}]),
        _event(choices=[{"delta": {"reasoning_content": "b"}}]),
        _event(choices=[{"delta": {"tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]}}]),
    ]
    read = answer.read([(float(at), piece) for at, piece in enumerate(pieces)])
    assert read.text == "abf{}"
    assert read.times == [0.0, 1.0, 2.0]


def test_events_split_anywhere_and_with_either_line_end_are_read_whole() -> None:
    stream = (_chat("a") + _chat("b") + _DONE).replace(b"\n\n", b"\r\n\r\n")
    pieces = [(index / 100, stream[index : index + 1]) for index in range(len(stream))]
    read = answer.read(pieces)
    assert read.text == "ab"
    assert read.done
    # The time of an event is that of the piece that completed it.
    assert read.times[0] == pytest.approx(stream.index(b"\n") / 100)


def test_a_whole_answer_is_no_failure() -> None:
    assert _judged(_chat("a"), _chat("", reason="stop"), _DONE).error is None
    assert _judged(_chat("a"), _DONE).error is None
    assert _judged(_chat("a", reason="length")).error is None


def test_a_stream_that_ends_too_early_is_truncated() -> None:
    sample = _judged(_chat("a"), _chat("b"))
    assert sample.error == answer.TRUNCATED
    assert "after 2 tokens" in sample.detail


def test_an_answer_without_a_token_is_empty() -> None:
    assert _judged(_chat("", reason="stop"), _DONE).error == answer.EMPTY


def test_an_error_event_is_a_server_error_with_its_message() -> None:
    sample = _judged(_chat("a"), _event(error={"message": "out of memory", "code": 500}), _DONE)
    assert (sample.error, sample.detail) == (answer.SERVER_ERROR, "out of memory")
    assert _judged(_event(object="error", message="gone")).detail == "gone"


def test_an_event_that_is_not_json_is_a_server_error() -> None:
    assert _judged(b"data: <html>\n\n").error == answer.SERVER_ERROR


def test_nothing_at_all_is_truncated() -> None:
    assert _judged().error == answer.TRUNCATED


def test_a_sample_comes_back_from_its_line_as_it_was() -> None:
    sample = Sample(3, 1.5, ttft_ms=10.0, e2e_ms=30.0, gaps=[Gap(10.0, 2)], error=None, text="é\n", expected="e")
    assert Sample.from_json(sample.to_json()) == sample
    assert "\n" not in sample.to_json()


def test_the_mean_gap_weighs_each_token() -> None:
    assert Sample(0, 0.0, gaps=[Gap(10.0, 3), Gap(50.0, 1)]).mean_gap_ms() == 20.0
    assert Sample(0, 0.0).mean_gap_ms() is None


def test_an_answer_is_whole_only_when_the_server_said_so() -> None:
    assert not Answer(text="a").whole
    assert Answer(done=True).whole
    assert Answer(finish_reason="stop").whole
