from __future__ import annotations

import contextlib
import http.server
import json
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from llm_serving.services.traffic import Judge, Traffic
from llm_serving.settings.errors import InputError, Unavailable
from llm_serving.validation.load import data_rows
from llm_serving.validation.load.answer import Sample
from llm_serving.validation.statistics import scoring
from tests.http_handler import QuietHandler

SCHEMA = json.dumps({"type": "object", "required": ["city"], "properties": {"city": {"type": "string"}}})


def _build_traffic(**settings: Any) -> Traffic:
    return Traffic.model_validate({"users": 1, "data": "own.jsonl", **settings})


def _build_sample(text: str, expected: str | None, prompt: str = "?", error: str | None = None) -> Sample:
    return Sample(0, 0.0, text=text, expected=expected, prompt=prompt, error=error)


@pytest.mark.parametrize(
    ("score_by", "text", "expected", "score"),
    [
        ("exact", " 4\n", "4", 1),
        ("exact", "It is 4.", "4", 0),
        ("contains", "The capital is  PARIS.", "paris", 1),
        ("contains", "The capital is Rome.", "paris", 0),
        ("json_schema", '{"city": "Paris"}', SCHEMA, 1),
        ("json_schema", '{"city": 4}', SCHEMA, 0),
        ("json_schema", 'Here: {"city": "Paris"}', SCHEMA, 0),
    ],
)
def test_answers_are_scored_by_the_way_of_the_blueprint(
    score_by: str, text: str, expected: str, score: float, tmp_path: Path
) -> None:
    sample = _build_sample(text, expected)
    scoring.score(_build_traffic(score_by=score_by), [sample], tmp_path)
    assert sample.score == score


def test_a_failed_request_scores_0_and_one_without_an_expected_answer_nothing(tmp_path: Path) -> None:
    samples = [_build_sample("", "4", error="deadline"), _build_sample("4", "4"), _build_sample("x", None)]
    scoring.score(_build_traffic(), samples, tmp_path)
    assert [sample.score for sample in samples] == [0, 1, None]


def test_an_expected_answer_counts_once_however_often_it_is_asked_for() -> None:
    samples = [_build_sample("a", "a", prompt=prompt) for prompt in "112"]
    for sample, score in zip(samples, (1.0, 1.0, 0.0), strict=True):
        sample.score = score
    assert scoring.compute_mean(samples) == 0.5
    assert scoring.compute_mean([_build_sample("a", None)]) is None


def test_a_row_expects_a_schema_where_answers_are_scored_by_one(tmp_path: Path) -> None:
    file = tmp_path / "own.jsonl"
    file.write_text(json.dumps({"prompt": "a", "expected": json.loads(SCHEMA)}))
    assert data_rows.read_rows(file, _build_traffic(score_by="json_schema"))[0].expected == SCHEMA
    with pytest.raises(InputError, match="it is not a string"):
        data_rows.read_rows(file, _build_traffic())
    file.write_text('{"prompt": "a", "expected": {"type": "thing"}}')
    with pytest.raises(InputError, match="it is not a JSON Schema: 'thing' is not valid"):
        data_rows.read_rows(file, _build_traffic(score_by="json_schema"))


class _JudgeHandler(QuietHandler):
    """Replies the same to each question."""

    requests: list[dict[str, Any]]
    reply: str

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        type(self).requests.append({"path": self.path, **body})
        data = json.dumps({"choices": [{"message": {"content": self.reply}}]}).encode()
        self.respond(200, data)


@pytest.fixture
def judge_url() -> Iterator[str]:
    _JudgeHandler.requests, _JudgeHandler.reply = [], "8"
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _JudgeHandler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/v1"
        server.shutdown()


def test_a_judge_is_asked_with_prompt_expected_and_answer(judge_url: str, tmp_path: Path) -> None:
    traffic = _build_traffic(score_by="judge", judge={"url": judge_url, "model": "strict"})
    sample = _build_sample("x", "y", prompt="What?")
    scoring.score(traffic, [sample], tmp_path)
    assert sample.score == 0.8
    request = _JudgeHandler.requests[0]
    assert request["path"] == "/v1/chat/completions"
    assert request["model"] == "strict"
    assert request["temperature"] == 0
    assert all(text in request["messages"][0]["content"] for text in ("What?", "<expected>\ny", "<answer>\nx"))


@pytest.mark.parametrize(("reply", "score"), [("10", 1.0), ("8/10", 0.8), ("Score: 7.", 0.7), ("0", 0.0)])
def test_a_judges_number_is_read_among_words(judge_url: str, tmp_path: Path, reply: str, score: float) -> None:
    _JudgeHandler.reply = reply
    sample = _build_sample("x", "y")
    scoring.score(_build_traffic(score_by="judge", judge={"url": judge_url, "model": "strict"}), [sample], tmp_path)
    assert sample.score == score


def test_a_judge_that_leads_elsewhere_gets_no_key_and_gives_no_score(
    judge_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Redirecting(QuietHandler):
        def do_POST(self) -> None:
            self.send_response(302)
            self.send_header("Location", f"{judge_url}/chat/completions")
            self.end_headers()

        do_GET = do_POST

    monkeypatch.setenv("BLUEPRINT_JUDGE_API_KEY", "sk-judge")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Redirecting) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/v1"
        sample = _build_sample("Rome", "Rome")
        with pytest.raises(Unavailable, match="did not answer: HTTP Error 302"):
            scoring.score(_build_traffic(score_by="judge", judge={"url": url, "model": "m"}), [sample], tmp_path)
        server.shutdown()
    assert _JudgeHandler.requests == [], "urllib would have asked there with GET, and with the key"


@pytest.mark.parametrize("refusals", [1, 4])
def test_a_judge_that_takes_no_more_for_a_moment_is_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refusals: int
) -> None:
    statuses = [429] * refusals

    class Limited(QuietHandler):
        def do_POST(self) -> None:
            if statuses:
                self.respond(statuses.pop())
            else:
                self.respond_json({"choices": [{"message": {"content": "8"}}]})

    monkeypatch.setattr(scoring, "JUDGE_PAUSES_S", (0.0, 0.0, 0.0))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Limited) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        judge = {"url": f"http://127.0.0.1:{server.server_port}", "model": "m"}
        sample = _build_sample("Rome", "Rome")
        error = pytest.raises(Unavailable, match="HTTP Error 429") if refusals > 3 else contextlib.nullcontext()
        with error:
            scoring.score(_build_traffic(score_by="judge", judge=judge), [sample], tmp_path)
        server.shutdown()
    assert sample.score == (None if refusals > 3 else 0.8)


@pytest.mark.parametrize("port", ["cut", "80a0"])
def test_a_judge_that_breaks_off_or_has_no_such_port_gives_no_score(tmp_path: Path, port: str) -> None:
    class Cut(QuietHandler):
        def do_POST(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", "100")
            self.end_headers()

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Cut) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port if port == 'cut' else port}"
        traffic = _build_traffic(score_by="judge", judge={"url": url, "model": "m"})
        with pytest.raises(Unavailable, match=rf"the judge at {url} did not answer: .+ Fix: correct traffic.judge"):
            scoring.score(traffic, [_build_sample("Rome", "Rome")], tmp_path)
        server.shutdown()


@pytest.mark.parametrize("reply", ["no number", "0.8", "8.5", "-1", "15"])
def test_a_judge_without_a_whole_number_scores_nothing(judge_url: str, tmp_path: Path, reply: str) -> None:
    _JudgeHandler.reply = reply
    traffic = _build_traffic(score_by="judge", judge={"url": judge_url, "model": "strict"})
    failed = _build_sample("", "y", error="deadline")
    message = rf"the judge strict replied '{re.escape(reply)}', not a whole number from 0 to 10\. Fix:"
    with pytest.raises(Unavailable, match=message):
        scoring.score(traffic, [_build_sample("other", "y"), failed], tmp_path)
    assert failed.score is None, "a mean of the failed ones alone would be 0"


def test_a_judges_key_does_not_leave_this_machine_without_tls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BLUEPRINT_JUDGE_API_KEY", "secret")
    with pytest.raises(InputError, match=r"BLUEPRINT_JUDGE_API_KEY: set for http://judge\.example"):
        scoring.build_judge_headers(Judge(url="http://judge.example", model="m"))
    assert scoring.build_judge_headers(Judge(url="https://judge.example", model="m")) == {
        "Authorization": "Bearer secret"
    }


@pytest.mark.engine
@pytest.mark.timeout(900, func_only=True)  # installs the model once; the engine's environment has most of its packages
def test_similarity_is_that_of_a_real_embedding_model(tmp_path: Path) -> None:
    samples = [
        _build_sample("A cat sits on the rug.", "There is a cat on the carpet."),
        _build_sample("Interest rates rose in March.", "There is a cat on the carpet."),
        _build_sample("There is a cat on the carpet.", "There is a cat on the carpet."),
    ]
    scoring.score(_build_traffic(score_by="similarity"), samples, tmp_path)
    alike, other, same = (sample.score or 0.0 for sample in samples)
    assert other < 0.3 < 0.6 < alike < same
    assert same == pytest.approx(1, abs=0.01)


@pytest.mark.parametrize(
    ("text", "schema"),
    [
        ("[" * 100_000, "{}"),
        ("9" * 5000, "{}"),
        ("{}", '{"$ref": "#/$defs/missing"}'),
        ("{}", '{"$ref": "#"}'),
        ('"a"', '{"pattern": "("}'),
        ('"b"', '{"pattern": "^a$"}'),
        ('{"ab": 1}', '{"patternProperties": {"^a": {"type": "string"}}}'),
    ],
)
def test_an_answer_that_cannot_be_held_against_its_schema_scores_0(tmp_path: Path, text: str, schema: str) -> None:
    samples = [_build_sample(text, schema)]
    scoring.score(_build_traffic(score_by="json_schema"), samples, tmp_path)
    assert samples[0].score == 0


@pytest.mark.parametrize("keyword", ["pattern", "patternProperties"])
def test_a_pattern_that_tries_every_way_has_its_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keyword: str
) -> None:
    letters, endless = "a" * 40 + "!", "^(a|a)+$"
    schema = {"pattern": endless} if keyword == "pattern" else {"patternProperties": {endless: False}}
    texts = [letters, "aa"] if keyword == "pattern" else [{letters: 1}, {"b": 1}]
    samples = [_build_sample(json.dumps(text), json.dumps(schema)) for text in texts]
    for sample, limit_s in zip(samples, (0.1, 60), strict=True):
        monkeypatch.setattr(scoring, "PATTERN_LIMIT_S", limit_s)
        scoring.score(_build_traffic(score_by="json_schema"), [sample], tmp_path)
    assert [sample.score for sample in samples] == [0, 1], "and a text that it matches soon is held against it"


def test_a_schema_that_names_a_url_fetches_nothing(tmp_path: Path) -> None:
    asked = []

    class Schema(QuietHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.respond(200, b"{}")

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Schema) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        schema = json.dumps({"$ref": f"http://127.0.0.1:{server.server_port}/schema.json"})
        samples = [_build_sample("{}", schema)]
        scoring.score(_build_traffic(score_by="json_schema"), samples, tmp_path)
        server.shutdown()
    assert (samples[0].score, asked) == (0, [])
