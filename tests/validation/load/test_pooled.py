"""Load of tasks whose answers have no tokens: what is sent, what is an answer, and what the report says."""

from __future__ import annotations

import base64
import dataclasses
import json
import math
import struct
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from llm_serving.services import tasks
from llm_serving.services.traffic import Traffic
from llm_serving.settings.choices import Task
from llm_serving.settings.errors import InputError
from llm_serving.validation.drivers import job, registry
from llm_serving.validation.load import load_plan, pooled_answer, prompts
from llm_serving.validation.load.answer import Sample
from llm_serving.validation.load.driver_result import DriverResult
from llm_serving.validation.load.load import generate_prompts
from llm_serving.validation.load.load_plan import LoadPlan
from llm_serving.validation.load.prompt import Prompt
from llm_serving.validation.load.stream import Connection
from llm_serving.validation.pages import html_report
from llm_serving.validation.reports import comparison, report_builder, terminal_summary
from llm_serving.validation.reports.measured import Measured
from llm_serving.validation.reports.report import Report
from llm_serving.validation.reports.validation_run import ValidationRun
from llm_serving.validation.search import sweep
from llm_serving.validation.statistics import soundness
from tests.validation.conftest import TargetFactory

COSTS = {"tiny": prompts.TokenCosts(2, {"the": 1, "of": 1})}


def _build_plan(task: Task = "embed", **traffic: Any) -> LoadPlan:
    settings = Traffic.model_validate({"users": 2, "requests": 20, "input_tokens": "8..16", **traffic})
    return LoadPlan(url="http://127.0.0.1:1", models=("tiny",), traffic=settings, task=task, folder="/tmp")


def _generate(plan: LoadPlan, count: int = 20) -> list[Prompt]:
    return [prompt for prompt, _ in zip(generate_prompts(plan, "load", COSTS), range(count), strict=False)]


def test_a_request_has_as_many_texts_as_the_traffic_says_each_of_its_length() -> None:
    generated = _generate(_build_plan(inputs="1..4"))
    assert {len(prompt.texts) for prompt in generated} == {1, 2, 3, 4}
    for prompt in generated:
        lengths = [len(text.split()) - 1 + COSTS["tiny"].base for text in prompt.texts]
        assert all(8 <= length <= 16 for length in lengths)
        assert prompt.asked_input == sum(lengths)
    texts = [text for prompt in generated for text in prompt.texts]
    assert len(set(texts)) == len(texts)
    assert [prompt.texts for prompt in _generate(_build_plan())] == [
        (prompt.text,) for prompt in _generate(_build_plan())
    ]


def test_processes_follow_from_requests_and_not_from_tokens_that_no_answer_has() -> None:
    traffic = Traffic.model_validate({"arrivals": "2500/s", "output_tokens": "4000", "requests": 100})
    assert load_plan.count_processes(traffic, 64, pooled=True) == 3
    assert load_plan.count_processes(traffic, 64) == 64


def test_several_processes_send_each_request_once() -> None:
    plan = _build_plan(inputs="1..4")
    shards = [load_plan.Shard(index, 3) for index in range(3)]
    shared = [generate_prompts(plan, "load", COSTS, shard) for shard in shards]
    assert [next(shared[number % 3]) for number in range(20)] == _generate(plan)


@pytest.mark.parametrize(
    ("task", "path", "body"),
    [
        ("embed", "/v1/embeddings", {"encoding_format": "base64", "input": ["a", "b"]}),
        ("rerank", "/v1/rerank", {"query": "Read", "documents": ["a", "b"]}),
        ("classify", "/classify", {"input": ["a", "b"]}),
    ],
)
def test_each_task_has_its_own_body(task: Task, path: str, body: dict[str, Any]) -> None:
    pooled = _build_plan(task).pooled
    assert pooled
    assert (pooled.path, pooled.build(["a", "b"])) == (path, body)
    assert _build_plan("generate").pooled is None
    # What writes text is asked as before.
    assert "messages" in Prompt(({"role": "user", "content": "a"},), 4).build_body("m", "chat", engine_dialect=True)


VECTOR = base64.b64encode(struct.pack("<3f", 1, 2, 3)).decode()
USAGE = {"usage": {"prompt_tokens": 7}}
ANSWERS = [
    ("embed", {"data": [{"embedding": VECTOR}, {"embedding": [1, 2, 3]}], **USAGE}, "2 x 3 numbers"),
    ("rerank", {"results": [{"index": 1, "relevance_score": 0.5}, {"index": 0, "relevance_score": 0.25}], **USAGE}, "0.25, 0.5"),
    ("classify", {"data": [{"label": "negative"}, {"label": "positive"}], **USAGE}, "negative, positive"),
]  # fmt: skip


@pytest.mark.parametrize(("task", "response", "text"), ANSWERS)
def test_an_answer_is_complete_with_one_item_for_each_text(task: Task, response: dict[str, Any], text: str) -> None:
    chunks = [(1.0, json.dumps(response).encode())]
    parsed = pooled_answer.parse(chunks, tasks.POOLED[task], 2)
    assert (parsed.done, parsed.failure, parsed.text, parsed.input_tokens) == (True, None, text, 7)
    assert pooled_answer.parse(chunks, tasks.POOLED[task], 3).failure == f"2 {tasks.POOLED[task].answer} for 3 texts"


@pytest.mark.parametrize("body", [b"{", b"[]", b'{"data": []}', b'{"data": [{"embedding": "?"}]}', b'{"error": "x"}'])
def test_what_has_no_vectors_is_no_answer(body: bytes) -> None:
    parsed = pooled_answer.parse([(1.0, body)], tasks.POOLED["embed"], 1)
    assert parsed.failure
    assert parsed.failure.startswith("no vectors in the answer: ")


@pytest.mark.parametrize(
    "second",
    [[], [1.0, None], base64.b64encode(struct.pack("<2f", 1, math.nan)).decode(), base64.b64encode(b"\0" * 5).decode()],
)
def test_a_vector_of_no_finite_numbers_is_no_answer(second: Any) -> None:
    """A model that overflows in 16 bits answers all texts so, as fast as ever and with HTTP 200."""
    body = json.dumps({"data": [{"embedding": VECTOR}, {"embedding": second}]}).encode()
    failure = pooled_answer.parse([(1.0, body)], tasks.POOLED["embed"], 2).failure
    assert failure
    assert failure.startswith("no vectors in the answer: ")


def test_a_connection_that_broke_before_any_answer_says_nothing_of_its_content() -> None:
    assert pooled_answer.parse([], tasks.POOLED["embed"], 1).failure is None


@pytest.fixture
def build_report(make_target: TargetFactory) -> Callable[..., Report]:
    def build(samples: list[Sample], slo: dict[str, Any] | None = None, **changes: Any) -> Report:
        settings = {"task": "embed", "unused_keys": ("slo.itl_ms",), **changes}
        traffic = settings.pop("traffic", {"arrivals": "10/s"})
        target = make_target("http://127.0.0.1:1", traffic, slo, **settings)
        result = DriverResult(started_at="2026-01-02T03:04:05+00:00", duration_s=10.0, planned=len(samples))
        return report_builder.build(Measured(target, result, samples))

    return build


def _build_samples(count: int = 80) -> list[Sample]:
    """Longer texts take longer: 10 ms for each of the four lengths."""
    return [
        Sample(number, number * 0.1, e2e_ms=10.0 * (1 + number % 4), input_tokens=100 * (1 + number % 4), inputs=2)
        for number in range(count)
    ]


def test_the_report_has_end_to_end_latency_alone_by_length_and_texts_a_second(
    build_report: Callable[..., Report],
) -> None:
    built = build_report(_build_samples(), {"e2e_ms": {"p50": 30}, "inputs_per_s": 15, "goodput": "50%"})
    assert (built.verdict, built.missed, built.not_shown) == ("pass", [], [])
    assert built.metrics.keys() == built.bounds.keys() == {"e2e_ms"}
    assert built.throughput.inputs_per_s == 16
    assert [(group.from_tokens, group.to_tokens, group.requests, group.p50) for group in built.by_input] == [
        (100, 100, 20, 10), (200, 200, 20, 20), (300, 300, 20, 30), (400, 400, 20, 40),
    ]  # fmt: skip
    assert built.remarks == ["Left out, since an answer of the task embed has no tokens: slo.itl_ms."]
    assert "output_tokens" not in built.settings["traffic"]
    page = html_report.render(built, _build_samples())
    assert "Latency by input" in page
    assert "Texts/s" in page
    assert "Time to first token" not in page
    assert "Output tokens" not in page


def test_an_slo_of_texts_can_be_missed(build_report: Callable[..., Report]) -> None:
    slo = {"e2e_ms": {"p50": 5}, "inputs_per_s": 21, "goodput": "90%"}
    built = build_report(_build_samples(), slo, traffic={"users": 4})
    assert [missed.metric for missed in built.missed] == ["e2e_ms.p50", "inputs_per_s", "goodput"]


def test_requests_of_one_length_stay_together(build_report: Callable[..., Report]) -> None:
    samples = [Sample(number, number * 0.1, e2e_ms=10.0, input_tokens=100) for number in range(50)]
    assert [group.requests for group in build_report(samples).by_input] == [50]
    assert build_report([]).by_input == []


def test_rows_by_model_have_what_answers_without_tokens_have(build_report: Callable[..., Report]) -> None:
    samples = [dataclasses.replace(sample, model=f"m{sample.number % 2}") for sample in _build_samples()]
    heads, rows = html_report.build_model_table(build_report(samples))
    assert heads == ["Model", "Requests", "Failed", "End-to-end p95 ms", "Texts/s"]
    assert rows == [("m0", "40", "0", "30", "8"), ("m1", "40", "0", "40", "8")]


def test_an_answer_without_tokens_breaks_a_silence_when_it_comes() -> None:
    samples = [Sample(number, number * 0.5, e2e_ms=600.0) for number in range(10)]
    assert soundness.find_longest_stall(samples, 60) == pytest.approx(0.6)
    assert soundness.find_longest_stall([Sample(0, 0.0, error="http_500", e2e_ms=5000.0)], 60) == 5


def test_the_terminal_and_a_sweep_show_texts(
    build_report: Callable[..., Report], tmp_path_factory: pytest.TempPathFactory
) -> None:
    from rich.console import Console

    built = build_report(_build_samples(), {"e2e_ms": {"p50": 30}})
    console = Console(width=200, record=True)
    console.print(terminal_summary.render(built, tmp_path_factory.mktemp("run")))
    text = console.export_text()
    assert "16 texts/s" in text
    assert "End-to-end p95 in ms by input tokens: 100–100: 10, 200–200: 20, 300–300: 30, 400–400: 40" in text
    assert "tokens/s" not in text
    point = sweep.build_point(built, 10, "points/10")
    assert (point.ttft_p95_ms, point.e2e_p95_ms) == (None, 40)
    assert point.seconds == round(built.duration_s, 1), "of the load alone, without its start and its report"


def test_two_runs_are_compared_by_what_both_have(build_report: Callable[..., Report]) -> None:
    def build_run(factor: float) -> ValidationRun:
        samples = _build_samples(200)
        for sample in samples:
            sample.e2e_ms = (sample.e2e_ms or 0) * factor
        return ValidationRun("run", json.loads(build_report(samples).model_dump_json()), samples)

    compared = comparison.compare(build_run(1), build_run(3))
    changes = {change.metric: change for change in compared.changes}
    assert changes.keys() == {"e2e_ms.p50", "e2e_ms.p95", "inputs_per_s", "goodput", "errors"}
    assert changes["e2e_ms.p50"].verdict == "worse"


def test_a_connection_is_used_again_after_an_answer_of_a_stated_length() -> None:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            clients.append(self.client_address)
            body = self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Nothing."""

    clients: list[Any] = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    connection = Connection(f"http://127.0.0.1:{server.server_port}", {})
    try:
        for body in (b"one", b"two", b"three"):
            connection.connect()
            assert b"".join(chunk for _, chunk in connection.post("/classify", body)) == body
    finally:
        connection.close()
        server.shutdown()
        server.server_close()
    assert (len(clients), len(set(clients))) == (3, 1), "one connection"


def test_drivers_that_measure_text_are_refused() -> None:
    with pytest.raises(InputError, match=r"GuideLLM cannot send it: .* this deployment answers /v1/embeddings"):
        job.check(registry.load_driver("guidellm"), _build_plan())


PICTURE = base64.b64encode(b"\x89PNG\r\n\x1a\n" + b"\0\0\0\rIHDR" + struct.pack(">II", 64, 128) + bytes(5)).decode()


def test_prompts_for_pictures_are_descriptions_each_another_and_the_same_with_the_same_seed() -> None:
    prompts_sent = [prompt.text for prompt in _generate(_build_plan("draw"))]
    assert len(set(prompts_sent)) == 20
    assert prompts_sent == [prompt.text for prompt in _generate(_build_plan("draw"))]
    assert prompts_sent != [prompt.text for prompt in _generate(_build_plan("draw", seed=1))]
    shared = [[prompt.text for prompt in _generate_shard(index)] for index in range(2)]
    assert prompts_sent == [text for pair in zip(*shared, strict=True) for text in pair], "two processes share them"


def _generate_shard(index: int) -> list[Prompt]:
    source = generate_prompts(_build_plan("draw"), "load", {}, load_plan.Shard(index, 2))
    return [prompt for prompt, _ in zip(source, range(10), strict=False)]


@pytest.mark.parametrize(
    ("items", "count", "failure"),
    [
        ([{"b64_json": PICTURE}], 1, None),
        ([{"b64_json": PICTURE}] * 2, 2, None),
        ([{"b64_json": PICTURE}], 2, "1 pictures for 2 pictures"),
        ([{"b64_json": "no picture"}], 1, "no pictures in the answer: ValueError: a picture is not base64"),
        ([{"b64_json": base64.b64encode(b"GIF89a").decode()}], 1, "no pictures in the answer: ValueError: a picture is not a PNG file"),
        ([{"url": "http://elsewhere/picture.png"}], 1, "no pictures in the answer: KeyError: 'embedding'"),
        ([], 1, "no pictures in the answer: IndexError: list index out of range"),
    ],
)  # fmt: skip
def test_an_answer_is_good_with_as_many_png_files_as_were_asked_for(
    items: list[dict[str, str]], count: int, failure: str | None
) -> None:
    body = json.dumps({"data": items, "usage": {"input_tokens": 4}}).encode()
    answer = pooled_answer.parse([(0.5, body)], tasks.POOLED["draw"], count)
    assert answer.failure == failure
    if failure is None:
        assert (answer.picture, answer.done) == (PICTURE, True)
        assert answer.text == ", ".join(["64 x 128 pixels"] * count)


def test_a_request_counts_as_the_pictures_that_it_asks_for() -> None:
    traffic = _build_plan("draw", draw={"count": 3, "size": "512x512", "steps": 4}).traffic
    assert load_plan.count_inputs(traffic, "draw", 1) == 3
    assert load_plan.count_inputs(_build_plan("draw").traffic, "draw", 1) == 1
    assert load_plan.count_inputs(traffic, "embed", 5) == 5
    assert traffic.draw
    assert traffic.draw.build_fields() == {"size": "512x512", "num_inference_steps": 4, "n": 3}
