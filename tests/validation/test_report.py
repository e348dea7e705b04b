from __future__ import annotations

import json
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import jsonschema
import pytest

from llm_serving.validation import charts, html_report, report, statistics
from llm_serving.validation.answer import Gap, Sample
from llm_serving.validation.driver_result import Outcome
from llm_serving.validation.report import Report, WeightsRead
from llm_serving.workloads.serving.deployment import Deployment
from scripts.benchmarks.known_server import Known

CONTRACT = {
    "verdict", "missed", "requests", "metrics", "throughput", "replicas", "weights", "settings", "versions", "emulated",
}  # fmt: skip


def _sample(number: int, **more: Any) -> Sample:
    good = {
        "ttft_ms": 50.0, "e2e_ms": 80.0, "gaps": [Gap(10.0, 1)] * 3, "asked_input": 20, "input_tokens": 20,
        "asked_output": 4, "output_tokens": 4, "prompt": "a prompt", "text": "an answer",
    }  # fmt: skip
    return Sample(number, number * 0.1, **{**good, **more})


def _page(count: int) -> str:
    known = Known(ttft_s=[0.05] * count, itl_s=[0.01] * count * 3, e2e_s=[0.08] * count)
    known.finished["length"] = count
    return known.metrics()


@pytest.fixture
def build(deploy: Callable[..., Deployment]) -> Any:
    def _build(samples: list[Sample], slo: dict[str, Any] | None = None, **outcome: Any) -> Report:
        answered = sum(sample.error is None for sample in samples)
        told = {
            "started_at": "2026-01-02T03:04:05+00:00", "duration_s": 10.0, "planned": len(samples),
            "pages_before": {"worker-0": _page(5)}, "pages_after": {"worker-0": _page(5 + answered)},
            "versions": {"locust": "2"}, "kernel_times": True,
        }  # fmt: skip
        deployment = deploy("http://127.0.0.1:1", {"users": 2}, slo)
        weights = WeightsRead(source="s3://models/tiny/", bytes=2_000_000, seconds=0.5, random=True)
        return report.build(deployment, Outcome(**{**told, **outcome}), samples, weights, {"vllm": "0.32.0"})

    return _build


def test_the_report_holds_the_contract(build: Any) -> None:
    made = build([_sample(number) for number in range(50)], {"ttft_ms": {"p95": 60}})
    data = json.loads(made.model_dump_json())
    assert data.keys() >= CONTRACT
    assert data["verdict"] == "pass"
    assert data["missed"] == []
    assert data["requests"] == {"total": 50, "failed": 0, "by_error": {}, "planned": 50}
    assert data["metrics"].keys() == {"ttft_ms", "itl_ms", "e2e_ms"}
    assert data["metrics"]["itl_ms"].keys() >= {"p50", "p90", "p95", "p99", "mean"}
    assert data["metrics"]["itl_ms"]["count"] == 150
    assert data["throughput"] == {"requests_per_s": 5.0, "output_tokens_per_s": 20.0}
    assert data["replicas"][0]["name"] == "worker-0"
    assert data["replicas"][0]["requests"] == 50
    assert data["weights"] == {"source": "s3://models/tiny/", "bytes": 2_000_000, "seconds": 0.5, "random": True}
    assert data["versions"] == {"locust": "2", "vllm": "0.32.0"}
    assert data["settings"]["traffic"]["users"] == 2


@pytest.mark.parametrize("samples", [[], [_sample(0)], [_sample(0, error="deadline", ttft_ms=None, e2e_ms=None)]])
def test_every_report_fits_the_published_schema(build: Any, samples: list[Sample]) -> None:
    schema = json.loads(Path(report.__file__).with_name("report.schema.json").read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    data = json.loads(build(samples).model_dump_json())
    jsonschema.validate(data, schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**data, "verdict": "perhaps"}, schema)


def test_the_published_schema_is_the_models() -> None:
    published = Path(report.__file__).with_name("report.schema.json").read_text()
    assert published == report.schema_text(), "blueprint schema report > src/llm_serving/validation/report.schema.json"


def test_every_field_of_the_schema_has_a_sentence() -> None:
    definitions = report.schema()["$defs"]
    bare = [
        f"{name}.{field}"
        for name, part in definitions.items()
        for field, shape in part["properties"].items()
        if "description" not in shape and "$ref" not in shape
    ]
    assert set(bare) <= {"Shown.prompt", "Shown.actual", "Shown.detail"}


def test_a_run_without_requests_fails(build: Any) -> None:
    made = build([], duration_s=0.0, pages_before={}, pages_after={})
    assert made.verdict == "fail"
    assert [miss.metric for miss in made.missed] == ["requests"]


def test_failed_requests_count_for_errors_and_not_for_latencies(build: Any) -> None:
    failed = [_sample(number, error="deadline", ttft_ms=9000.0, e2e_ms=None) for number in range(2)]
    made = build([*failed, _sample(2), _sample(3, error="http_500", ttft_ms=None, e2e_ms=None)], {"errors": "10%"})
    assert made.requests.by_error == {"deadline": 2, "http_500": 1}
    assert made.metrics["ttft_ms"].max == 50
    assert [miss.metric for miss in made.missed] == ["errors"]
    assert {kind: meaning for kind, _, meaning in report.error_kinds(made)} == {
        "deadline": "not answered in full by the deadline",
        "http_500": "the server answered with status 500",
    }


def test_what_a_reader_should_know_is_remarked(build: Any) -> None:
    samples = [_sample(number, late_ms=100.0, input_tokens=19) for number in range(10)]
    said = " ".join(
        build(samples, planned=20, cpu_share=0.95, warm_up_sent=5, warm_up_failed=1, pages_after={}).remarks
    )
    assert "10 of 20 requests were sent" in said
    assert "95% of a core" in said
    assert "100 ms (p99) after they were due" in said
    assert "100% of the prompts have another length" in said
    assert "1 of 5 warm-up requests failed" in said


def test_nothing_is_remarked_of_a_clean_run(build: Any) -> None:
    assert build([_sample(number) for number in range(10)]).remarks == []


def test_a_replica_without_requests_and_a_count_that_differs_are_remarked(build: Any) -> None:
    samples = [_sample(number) for number in range(10)]
    same = {"worker-0": _page(5)}
    assert build(samples, pages_before=same, pages_after=same).remarks == ["worker-0 answered no request."]
    more = {"worker-0": _page(18)}
    assert build(samples, pages_after=more).remarks == ["The replicas count 13 answered requests, the client 10."]


def test_answers_stand_beside_what_was_expected(build: Any) -> None:
    samples = [
        _sample(1, prompt="2+2=", text=" 4 ", expected="4"),
        _sample(0, prompt="3+3=", text="7", expected="6"),
        _sample(2, prompt="", text=""),
    ]
    made = build(samples)
    assert [(one.prompt, one.same) for one in made.answers] == [("3+3=", False), ("2+2=", True)]
    assert made.expected is not None
    assert (made.expected.compared, made.expected.same) == (2, 1)
    assert "1 of 2 are as expected, white space aside." in html_report.render(made, samples)


def test_a_report_shows_the_first_answers_and_counts_all(build: Any) -> None:
    samples = [_sample(number, expected="an answer") for number in range(500)]
    made = build(samples)
    assert made.expected.same == 500
    assert len(made.answers) == report.SHOWN_MOST
    assert (
        f"500 of 500 are as expected, white space aside; the first {report.SHOWN_MOST} are shown."
        in html_report.render(made, samples)
    )


def test_of_failures_the_first_of_each_kind_is_shown(build: Any) -> None:
    failed = [_sample(number, error=kind, text="") for number, kind in enumerate(["a", "b", "a", "b", "a"])]
    assert [one.error for one in build(failed).answers] == ["a", "b"]


class _Links(HTMLParser):
    """What a page would fetch, and what it shows."""

    def __init__(self) -> None:
        super().__init__()
        self.fetched: list[str] = []
        self.tags: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.fetched += [f"{tag} {key}" for key, _ in attrs if key in ("src", "href", "srcset", "data", "xlink:href")]

    def handle_data(self, data: str) -> None:
        self.text += data


def _seen(text: str) -> _Links:
    seen = _Links()
    seen.feed(text)
    return seen


@pytest.mark.parametrize(("limit", "verdict"), [(60, "PASS"), (40, "FAIL")])
def test_the_page_shows_the_verdict_and_needs_nothing_but_itself(build: Any, limit: float, verdict: str) -> None:
    samples = [_sample(number) for number in range(40)]
    seen = _seen(text := html_report.render(build(samples, {"ttft_ms": {"p95": limit}}), samples))
    assert seen.fetched == []
    assert not {"script", "link", "img", "iframe"} & set(seen.tags)
    assert "url(" not in text
    assert "@import" not in text
    assert verdict in seen.text
    assert {"PASS": "FAIL", "FAIL": "PASS"}[verdict] not in seen.text
    assert "Random weights" in seen.text
    assert seen.tags.count("svg") == 9  # eight pictures and the verdict's sign


def test_the_page_shows_text_of_a_model_as_text(build: Any) -> None:
    samples = [_sample(0, text="<script>alert(1)</script>", prompt="<b>&amp;")]
    seen = _seen(html_report.render(build(samples), samples))
    assert "script" not in seen.tags
    assert "<script>alert(1)</script>" in seen.text


def test_the_page_of_a_run_without_any_answer_is_drawn(build: Any) -> None:
    samples = [_sample(number, error="connect", ttft_ms=None, e2e_ms=None, gaps=[]) for number in range(3)]
    seen = _seen(html_report.render(build(samples), samples))
    assert "FAIL" in seen.text
    assert "no sample" in seen.text


def test_pictures_are_well_formed_and_say_what_they_show() -> None:
    values = [50.0] * 100 + [60.0, 5000.0]
    told = statistics.latency(values)
    drawn = [
        charts.distribution("a < b", values, told, {"p95": 70.0, "p99": 100_000.0}),
        charts.dots("d", [(float(at), value) for at, value in enumerate(values)], [3.0], {"p95": 70.0}),
        charts.steps("s", [1.0, 2.0], 0.5, "tokens/s", "said"),
        charts.distribution("one", [5.0], statistics.latency([5.0]), {}),
        charts.distribution("none", [], statistics.latency([]), {}),
    ]
    for picture in drawn:
        tree = ElementTree.fromstring(picture)
        assert tree.attrib["role"] == "img"
        assert tree.attrib["aria-label"]
        assert "nan" not in picture


def test_a_limit_far_beyond_the_values_is_named_and_does_not_squeeze_them() -> None:
    drawn = charts.distribution("d", [10.0, 11.0, 12.0] * 10, statistics.latency([11.0]), {"p95": 5000.0})
    assert "p95 limit 5,000 →" in drawn


def test_a_long_run_is_thinned_and_keeps_its_extremes() -> None:
    points = [(at / 100, 50.0) for at in range(100_000)] + [(500.0, 9999.0), (501.0, 1.0)]
    drawn = charts.dots("d", points, [], {})
    assert drawn.count("<circle") <= 3 * (charts.COLUMNS + 1)
    tops = [float(part.split('"')[0]) for part in drawn.split('cy="')[1:]]
    assert min(tops) < charts.LOW_TOP + 12
    assert max(tops) > charts.HEIGHT - charts.BOTTOM - 2


def test_tokens_and_requests_under_way_are_spread_over_time() -> None:
    sample = _sample(0, ttft_ms=1000.0, gaps=[Gap(500.0, 2)], output_tokens=3, e2e_ms=2000.0)
    assert html_report.tokens_by_time([sample], 1.0) == [0.0, 1.0, 2.0]
    assert html_report.under_way([sample], 1.0) == pytest.approx([1.0, 1.0, 0.0])


def test_no_label_of_an_axis_leaves_the_picture() -> None:
    values = [float(value) for value in range(0, 1_000_001, 10_000)]
    drawn = charts.distribution("d", values, statistics.latency(values), {})
    labels = re.findall(r'<text x="([\d.]+)" y="[\d.]+" text-anchor="middle" class="">([^<]+)<', drawn)
    assert labels[-1][1] == "1,000,000"
    assert all(float(x) + len(text) * charts.LETTER / 2 <= charts.WIDTH + 0.1 for x, text in labels)
