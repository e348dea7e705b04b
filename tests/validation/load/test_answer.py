from __future__ import annotations

import json
from typing import Any

import pytest

from llm_serving.validation.load import answer
from llm_serving.validation.load.answer import Answer, Gap, Sample


def _format_event(**event: Any) -> bytes:
    return b"data: " + json.dumps(event).encode() + b"\n\n"


def _format_chat(text: str, *, role: str = "", reason: str | None = None, tokens: int | None = None) -> bytes:
    delta = {"content": text} | ({"role": role} if role else {})
    usage = {} if tokens is None else {"usage": {"prompt_tokens": 5, "completion_tokens": tokens}}
    return _format_event(choices=[{"index": 0, "delta": delta, "finish_reason": reason}], **usage)


_DONE = b"data: [DONE]\n\n"


def _judge(*pieces: bytes) -> Sample:
    sample = Sample(0, 0.0)
    answer.set_error(sample, answer.parse_stream([(float(second), chunk) for second, chunk in enumerate(pieces)]))
    return sample


def test_the_opening_event_of_a_chat_is_not_counted_as_a_token() -> None:
    parsed = answer.parse_stream([(1.0, _format_chat("", role="assistant")), (2.0, _format_chat("Hi")), (3.0, _DONE)])
    assert parsed.times == [2.0]
    assert parsed.text == "Hi"


def test_a_token_without_text_yet_counts_where_the_usage_counts_it() -> None:
    pieces = [
        _format_chat("", role="assistant", tokens=0),
        _format_chat("", tokens=1),
        _format_chat("é", tokens=2),
        _DONE,
    ]
    parsed = answer.parse_stream([(float(second), chunk) for second, chunk in enumerate(pieces)])
    assert parsed.times == [1.0, 2.0]
    assert parsed.counts == [1, 1]
    assert parsed.output_tokens == 2


def test_the_gap_of_an_event_with_several_tokens_is_shared_among_them() -> None:
    parsed = answer.parse_stream(
        [(0.0, _format_chat("a", tokens=1)), (0.3, _format_chat("bcd", tokens=4)), (0.4, _format_chat("e", tokens=5))]
    )
    assert [(round(gap.ms), gap.tokens) for gap in parsed.compute_gaps()] == [(100, 3), (100, 1)]


def test_without_a_usage_in_each_event_the_final_one_is_spread_over_them() -> None:
    final = _format_event(choices=[], usage={"prompt_tokens": 5, "completion_tokens": 8})
    parsed = answer.parse_stream(
        [
            (0.0, _format_chat("ab")),
            (0.2, _format_chat("cd")),
            (0.4, _format_chat("ef")),
            (0.6, _format_chat("gh")),
            (0.6, final),
        ]
    )
    assert [round(gap.ms) for gap in parsed.compute_gaps()] == [100, 100, 100]
    assert (parsed.input_tokens, parsed.output_tokens) == (5, 8)


def test_a_usage_in_only_the_last_content_event_is_not_its_token_count() -> None:
    parsed = answer.parse_stream(
        [(0.0, _format_chat("a")), (0.1, _format_chat("b")), (0.2, _format_chat("c", reason="stop", tokens=3))]
    )
    assert parsed.counts == [1, 1, 1]


def test_a_usage_in_only_the_first_event_leaves_the_others_their_times() -> None:
    final = _format_event(choices=[], usage={"prompt_tokens": 5, "completion_tokens": 4})
    pieces = [_format_chat("", role="assistant", tokens=0), _format_chat("ab"), _format_chat("cd"), final]
    parsed = answer.parse_stream([(float(second), chunk) for second, chunk in enumerate(pieces)])
    assert (parsed.times, parsed.counts) == ([1.0, 2.0], [2, 2])


def test_a_completion_reasoning_and_a_tool_call_are_content() -> None:
    pieces = [
        _format_event(choices=[{"text": "a"}]),
        _format_event(choices=[{"delta": {"reasoning_content": "b"}}]),
        _format_event(choices=[{"delta": {"tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]}}]),
    ]
    parsed = answer.parse_stream([(float(second), chunk) for second, chunk in enumerate(pieces)])
    assert parsed.text == "abf{}"
    assert parsed.times == [0.0, 1.0, 2.0]


def test_events_split_anywhere_and_with_either_line_end_are_read_whole() -> None:
    stream = (_format_chat("a") + _format_chat("b") + _DONE).replace(b"\n\n", b"\r\n\r\n")
    pieces = [(index / 100, stream[index : index + 1]) for index in range(len(stream))]
    parsed = answer.parse_stream(pieces)
    assert parsed.text == "ab"
    assert parsed.done
    # The time of an event is that of the piece that completed it.
    assert parsed.times[0] == pytest.approx(stream.index(b"\n") / 100)


def test_a_complete_answer_is_not_a_failure() -> None:
    assert _judge(_format_chat("a"), _format_chat("", reason="stop"), _DONE).error is None
    assert _judge(_format_chat("a"), _DONE).error is None
    assert _judge(_format_chat("a", reason="length")).error is None


def test_a_stream_that_ends_too_early_is_truncated() -> None:
    sample = _judge(_format_chat("a"), _format_chat("b"))
    assert sample.error == answer.TRUNCATED
    assert "after 2 tokens" in sample.detail


@pytest.mark.parametrize("reason", ["abort", "error", "cancelled", "timeout"])
def test_an_answer_that_the_engine_gave_up_is_no_answer_though_its_stream_ends_well(reason: str) -> None:
    sample = _judge(_format_chat("a"), _format_chat("", reason=reason), _DONE)
    expected = f"the engine ended the answer after 1 tokens: finish_reason {reason}"
    assert (sample.error, sample.detail) == (answer.SERVER_ERROR, expected)


def test_an_answer_without_a_token_is_empty() -> None:
    assert _judge(_format_chat("", reason="stop"), _DONE).error == answer.EMPTY


def test_an_error_event_is_a_server_error_with_its_message() -> None:
    sample = _judge(_format_chat("a"), _format_event(error={"message": "out of memory", "code": 500}), _DONE)
    assert (sample.error, sample.detail) == (answer.SERVER_ERROR, "out of memory")
    assert _judge(_format_event(object="error", message="gone")).detail == "gone"


def test_an_event_that_is_not_json_is_a_server_error() -> None:
    assert _judge(b"data: <html>\n\n").error == answer.SERVER_ERROR


@pytest.mark.parametrize(
    "event", [{"choices": ["a"]}, {"choices": [{"delta": "a"}]}, {"choices": [{"delta": {"content": 1}}]}, {"usage": 1}]
)
def test_an_event_of_another_form_is_a_server_error(event: dict[str, Any]) -> None:
    sample = _judge(_format_event(**event), _DONE)
    assert sample.error == answer.SERVER_ERROR
    assert "event is not of OpenAI's form: " in sample.detail


def test_a_usage_without_its_count_is_a_server_error() -> None:
    unknown = _format_event(choices=[{"delta": {"content": "a"}}], usage={"completion_tokens": None})
    assert _judge(unknown, _DONE).error == answer.SERVER_ERROR


def test_an_empty_response_is_truncated() -> None:
    assert _judge().error == answer.TRUNCATED


def test_a_sample_round_trips_through_json() -> None:
    sample = Sample(3, 1.5, ttft_ms=10.0, e2e_ms=30.0, gaps=[Gap(10.0, 2)], error=None, text="é\n", expected="e")
    assert Sample.from_json(sample.to_json()) == sample
    assert "\n" not in sample.to_json()


def test_halves_of_a_character_are_joined_and_one_alone_is_replaced() -> None:
    parsed = answer.parse_stream([(float(number), _format_chat(half)) for number, half in enumerate("\ud83d\ude00")])
    line = Sample(0, 0.0, text=parsed.text, prompt="cut: \ud83d").to_json()
    line.encode()  # as a file takes it
    assert Sample.from_json(line) == Sample(0, 0.0, text="\U0001f600", prompt="cut: \ufffd")


def test_the_mean_gap_weighs_each_token() -> None:
    assert Sample(0, 0.0, gaps=[Gap(10.0, 3), Gap(50.0, 1)]).compute_mean_gap_ms() == 20.0
    assert Sample(0, 0.0).compute_mean_gap_ms() is None


def test_an_answer_is_complete_only_with_an_end_marker_of_the_server() -> None:
    assert not Answer(text="a").is_complete
    assert Answer(done=True).is_complete
    assert Answer(finish_reason="stop").is_complete
