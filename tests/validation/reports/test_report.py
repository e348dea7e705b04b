from __future__ import annotations

import dataclasses
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import jsonschema
import pytest

from llm_serving.validation.base import LoadSource, MetricsPage
from llm_serving.validation.load.answer import Gap, Sample
from llm_serving.validation.load.driver_result import DriverResult, ProcessWatch
from llm_serving.validation.pages import charts, html_report
from llm_serving.validation.reports import report, report_builder
from llm_serving.validation.reports.measured import Measured
from llm_serving.validation.reports.report import Report, WeightLoading
from llm_serving.validation.search import sweep
from llm_serving.validation.statistics import sample_statistics, time_series
from llm_serving.validation.statistics.engine_metrics import KvTransfers
from tests.known_server import ServerRecord
from tests.validation.conftest import build_target

CONTRACT = {
    "verdict", "missed", "not_shown", "goodput", "bounds", "requests", "metrics", "throughput", "cost", "replicas", "weights",
    "settings", "versions", "emulated",
}  # fmt: skip


def _build_sample(number: int, **overrides: Any) -> Sample:
    fields = {
        "ttft_ms": 50.0, "e2e_ms": 80.0, "gaps": [Gap(10.0, 1)] * 3, "asked_input": 20, "input_tokens": 20,
        "asked_output": 4, "output_tokens": 4, "prompt": "a prompt", "text": "an answer",
    }  # fmt: skip
    return Sample(number, number * 0.1, **{**fields, **overrides})


def _build_page(count: int) -> str:
    known_metrics = ServerRecord(ttft_s=[0.05] * count, itl_s=[0.01] * count * 3, e2e_s=[0.08] * count)
    known_metrics.finished["length"] = count
    return known_metrics.render_metrics()


def make_report(
    samples: list[Sample],
    slo: dict[str, Any] | None = None,
    source: LoadSource | None = None,
    framework: str = "plain",
    **outcome: Any,
) -> Report:
    answered_count = sum(sample.error is None for sample in samples)
    defaults = {
        "started_at": "2026-01-02T03:04:05+00:00", "duration_s": 10.0, "planned": len(samples),
        "metrics_before": {"worker-0": _build_page(5)}, "metrics_after": {"worker-0": _build_page(5 + answered_count)},
        "versions": {"locust": "2"}, "kernel_times": True,
    }  # fmt: skip
    target = build_target("http://127.0.0.1:1", {"arrivals": "10/s"}, slo)
    weights = WeightLoading(source="s3://models/tiny/", bytes=2_000_000, seconds=0.5, random=True)
    target = target.model_copy(update={"weights": weights, "versions": {"vllm": "0.32.0"}, "framework": framework})
    result = DriverResult(**{**defaults, **outcome})
    return report_builder.build(Measured(target, result, samples, source=source))


@pytest.fixture
def build_report() -> Any:
    return make_report


def test_a_load_through_a_tunnel_says_so(build_report: Any) -> None:
    remark = "The load came through one tunnel to one router."
    samples = [_build_sample(number) for number in range(60)]
    assert build_report(samples, source=LoadSource(remark, is_limit=True)).remarks == [remark]
    assert remark not in build_report(samples).remarks


def test_failures_are_bounded_also_where_none_is_allowed(build_report: Any) -> None:
    samples = [_build_sample(number) for number in range(60)]
    totals = {total.name: total for total in html_report._build_totals(build_report(samples))}
    failed = totals["Failed requests"]
    assert (failed.value, failed.limit, failed.state) == (
        "0 of 60 (0.00%), at most 4.87%",
        "limit 0% of this load",
        "met",
    )


def test_replicas_and_routers_have_the_names_that_the_cluster_gave_them(build_report: Any) -> None:
    routers = [f"vllm_router_requests_total {count}\n" for count in (10, 40)]
    pages = tuple(
        MetricsPage(name, role, "http://x")
        for name, role in (("pod-a", "worker"), ("pod-b", "worker"), ("front", "router"))
    )
    built = build_report(
        [_build_sample(number) for number in range(60)],
        source=LoadSource("From pods.", pages=pages),
        metrics_before={"pod-a": _build_page(5), "pod-b": _build_page(0), "front": routers[0]},
        metrics_after={"pod-a": _build_page(45), "pod-b": _build_page(20), "front": routers[1]},
    )
    assert {replica.name: replica.requests for replica in built.replicas} == {"pod-a": 40, "pod-b": 20}
    assert built.routers == {"front": 30}
    assert built.method[0] == "From pods."
    assert all(row.agrees for row in built.agreement if row.statistic == "mean")


@pytest.mark.parametrize(("framework", "requests"), [("ray", 60), ("plain", None)])
def test_an_engines_metrics_have_the_names_that_its_framework_gives_them(
    build_report: Any, framework: str, requests: int | None
) -> None:
    before, after = ({"worker-0": _build_page(count).replace("vllm:", "ray_vllm_")} for count in (5, 65))
    samples = [_build_sample(number) for number in range(60)]
    built = build_report(samples, framework=framework, metrics_before=before, metrics_after=after)
    counted = {replica.name: replica.requests for replica in built.replicas}
    assert (counted.get("worker-0") or None) == requests
    assert any(row.agrees for row in built.agreement) == (requests is not None)


def test_the_report_has_every_key_of_the_contract(build_report: Any) -> None:
    built = build_report([_build_sample(number) for number in range(60)], {"ttft_ms": {"p95": 60}})
    data = json.loads(built.model_dump_json())
    assert data.keys() >= CONTRACT
    assert data["verdict"] == "pass"
    assert data["missed"] == data["not_shown"] == []
    assert data["goodput"] == {"share": 1.0, "requests_per_s": 6.0}
    assert data["bounds"]["ttft_ms"]["p95"] == {"value": 50.0, "upper": 50.0, "infinite": False}
    assert data["cost"] is None, "this machine has no price"
    assert data["requests"] == {"total": 60, "failed": 0, "by_error": {}, "planned": 60}
    assert data["metrics"].keys() == {"ttft_ms", "itl_ms", "e2e_ms"}
    assert data["metrics"]["itl_ms"].keys() >= {"p50", "p90", "p95", "p99", "mean"}
    assert data["metrics"]["itl_ms"]["count"] == 180
    assert data["throughput"] == {"requests_per_s": 6.0, "output_tokens_per_s": 24.0, "inputs_per_s": None}
    assert data["replicas"][0]["name"] == "worker-0"
    assert data["replicas"][0]["requests"] == 60
    assert data["weights"] == {
        "source": "s3://models/tiny/",
        "bytes": 2_000_000,
        "seconds": 0.5,
        "random": True,
        "commit": None,
    }
    assert data["versions"] == {"blueprint": "0.1.0", "locust": "2", "vllm": "0.32.0"}
    assert data["settings"]["traffic"]["arrivals"] == 10


@pytest.mark.parametrize(
    ("traffic", "minimum", "verdict"),
    [
        ({"users": 20}, 9.5, "pass"),
        ({"users": 20}, 10.5, "fail"),
        ({"users": 95}, 10.5, "not shown"),  # all but a few requests are sent before all users have begun
        # Negative control: the open loop has no such ramp, and comes as often as it was asked for.
        ({"arrivals": 10}, 9.5, "not shown"),
    ],
)
def test_the_rate_of_users_is_held_against_its_minimum_without_ramp_and_end(
    traffic: dict[str, Any], minimum: float, verdict: str
) -> None:
    """Ten requests a second of two seconds each: a hundred take 11.9 s, which is 8.4/s."""
    target = build_target("http://127.0.0.1:1", {**traffic, "requests": 100}, {"requests_per_s": minimum})
    samples = [_build_sample(number, e2e_ms=2000.0) for number in range(100)]
    result = DriverResult(duration_s=11.9, planned=100, started_at="2026-11-29T06:00:00+00:00")
    built = report_builder.build(Measured(target, result, samples))
    assert (built.verdict, round(built.throughput.requests_per_s, 1)) == (verdict, 8.4)
    is_steady, page = traffic.get("users") == 20, html_report.render(built, samples)
    assert ("8.40, 10 without ramp and drain" in page, "8.40 without" in page) == (is_steady, False)
    point = sweep.build_point(built, 20, "")
    lasting = 8.4 if built.steady is None else 10
    assert (point.requests_per_s, point.output_tokens_per_s) == pytest.approx((lasting, 4 * lasting), rel=0.01)


@pytest.mark.parametrize(
    "samples", [[], [_build_sample(0)], [_build_sample(0, error="deadline", ttft_ms=None, e2e_ms=None)]]
)
def test_every_report_fits_the_published_schema(build_report: Any, samples: list[Sample]) -> None:
    schema = json.loads(Path(report.__file__).with_name("report.schema.json").read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    data = json.loads(build_report(samples).model_dump_json())
    jsonschema.validate(data, schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**data, "verdict": "perhaps"}, schema)


def test_the_published_report_schema_matches_the_model() -> None:
    published_schema = Path(report.__file__).with_name("report.schema.json").read_text()
    assert published_schema == report.render_schema(), (
        "blueprint schema report > src/llm_serving/validation/reports/report.schema.json"
    )


def test_every_field_of_the_schema_has_a_description() -> None:
    definitions = report.build_schema()["$defs"]
    undocumented = [
        f"{name}.{field}"
        for name, part in definitions.items()
        for field, shape in part["properties"].items()
        if "description" not in shape and "$ref" not in shape
    ]
    assert set(undocumented) <= {"ShownAnswer.prompt", "ShownAnswer.actual", "ShownAnswer.detail"}


def test_a_run_without_requests_fails(build_report: Any) -> None:
    built = build_report([], duration_s=0.0, metrics_before={}, metrics_after={})
    assert built.verdict == "fail"
    assert [miss.metric for miss in built.missed] == ["requests"]


def test_failed_requests_count_for_errors_and_not_for_latencies(build_report: Any) -> None:
    failed = [_build_sample(number, error="deadline", ttft_ms=9000.0, e2e_ms=None) for number in range(2)]
    built = build_report(
        [*failed, _build_sample(2), _build_sample(3, error="http_500", ttft_ms=None, e2e_ms=None)], {"errors": "10%"}
    )
    assert built.requests.by_error == {"deadline": 2, "http_500": 1}
    assert built.metrics["ttft_ms"].max == 50
    assert [miss.metric for miss in built.missed] == ["errors"]
    assert {kind: report.describe_error(kind) for kind in built.requests.by_error} == {
        "deadline": "incomplete at the deadline",
        "http_500": "the server returned status 500",
    }


def _build_samples_of_two_models() -> list[Sample]:
    """Return 30 requests of each: those of `fast` take 50 ms, half of those of `<slow>` 200 ms, and the rest fail."""
    slow = {"model": "<slow>", "ttft_ms": 200.0, "e2e_ms": 400.0}
    failed = slow | {"error": "deadline", "ttft_ms": None, "e2e_ms": None}
    return [
        _build_sample(number, **({"model": "fast"} if number % 2 == 0 else slow if number % 4 == 1 else failed))
        for number in range(60)
    ]


def test_a_cell_with_a_limit_shows_what_is_held_against_it(build_report: Any) -> None:
    """Of all requests: the p95 of those answered is 50 ms, and that of all a slow one's, since five failed."""
    failed = [_build_sample(number, error="http_500", ttft_ms=None, e2e_ms=None) for number in range(4)]
    samples = [*failed, *(_build_sample(number, ttft_ms=90.0 if number < 7 else 50.0) for number in range(4, 100))]
    built = build_report(samples, {"ttft_ms": {"p95": 60}})
    cell = html_report.build_cells(built)["ttft_ms"]["p95"]
    assert (built.metrics["ttft_ms"].p95, cell.value, cell.state) == (50.0, 90.0, "missed")


def test_each_model_has_its_own_requests_latencies_and_rates(build_report: Any) -> None:
    samples = _build_samples_of_two_models()
    built = build_report(samples[::-1], {"ttft_ms": {"p95": 60}})
    jsonschema.validate(json.loads(built.model_dump_json()), report.build_schema())
    fast, slow = built.by_model
    assert (fast.model, fast.requests, fast.failed) == ("fast", 30, 0)
    assert (slow.model, slow.requests, slow.failed) == ("<slow>", 30, 15)
    assert fast.metrics["ttft_ms"].p50 == fast.metrics["ttft_ms"].p95 == 50
    assert (slow.metrics["ttft_ms"].p50, slow.metrics["e2e_ms"].p95) == (200, 400)
    assert (fast.throughput.output_tokens_per_s, slow.throughput.output_tokens_per_s) == (12, 6)
    # The SLO is held against all, whatever they asked.
    same = build_report([dataclasses.replace(sample, model="") for sample in samples], {"ttft_ms": {"p95": 60}})
    assert (built.missed, built.bounds, built.metrics) == (same.missed, same.bounds, same.metrics)
    assert same.by_model == []
    assert "by_model" not in same.model_dump_json()


def test_the_page_has_a_row_for_each_model_where_the_load_asked_several(build_report: Any) -> None:
    samples = _build_samples_of_two_models()
    page = html_report.render(build_report(samples), samples)
    heads = "Model", "Requests", "Failed", "TTFT p50 ms", "TTFT p95 ms", "End-to-end p95 ms", "Output tokens/s"
    table = "".join(f'<th scope="col">{head}</th>' for head in heads)
    values = "".join(f"<td>{value}</td>" for value in (30, 15, 200, 200, 400, 6))
    assert f"<thead><tr>{table}</tr></thead>" in page
    assert f'<tr><th scope="row">&lt;slow&gt;</th>{values}</tr>' in page
    _parse_page(page)
    alone = [sample for sample in samples if sample.model == "fast"]
    assert "By model" in page
    assert "By model" not in html_report.render(build_report(alone), alone)


def _build_cache_page(queries: int, hits: int) -> str:
    return f"vllm:prefix_cache_queries_total {queries}\nvllm:prefix_cache_hits_total {hits}\n"


@pytest.mark.parametrize(
    ("tokens", "shared", "hits", "remark"),
    [
        (48, 0.21, 0, "they cache whole blocks of 128 tokens, and a prompt has 48 on average."),
        (400, 0.21, 0, "shared beginnings may be shorter or evicted before reuse."),
        (None, 0.21, 0, "shared beginnings may be shorter or evicted before reuse."),
        (48, 0.21, 100, None),
        (48, 0.0, 0, None),
        (48, None, 0, None),
    ],
)
def test_caches_without_a_hit_are_explained_if_prompts_share_text(
    build_report: Any, tokens: int | None, shared: float | None, hits: int, remark: str | None
) -> None:
    built = build_report(
        [_build_sample(0, input_tokens=tokens)],
        shared_prompts=shared,
        metrics_before={"worker-0": _build_cache_page(0, 0)},
        metrics_after={"worker-0": _build_cache_page(1000, hits)},
    )
    remarks = [text for text in built.remarks if "in their caches" in text]
    assert len(remarks) == (remark is not None)
    if remark:
        assert remarks[0].startswith("Prompts share 21% of their text, and engines found 0% in their caches: ")
        assert remarks[0].endswith(remark)


def test_caveats_are_in_the_remarks(build_report: Any) -> None:
    samples = [_build_sample(number, late_ms=100.0, input_tokens=19) for number in range(10)]
    remarks = " ".join(
        build_report(
            samples,
            planned=20,
            processes=[ProcessWatch(cpu_share=0.95)],
            warm_up_sent=5,
            warm_up_failed=1,
            metrics_after={},
        ).remarks
    )
    assert "10 of 20 requests were sent" in remarks
    assert "95% of a core" in remarks
    assert "100 ms (p99) after they were due" in remarks
    assert "100% of the prompts have another length" in remarks
    assert "1 of 5 warm-up requests failed" in remarks


def test_a_stream_that_comes_at_once_is_remarked_and_not_taken_for_a_fast_one(build_report: Any) -> None:
    held, sent = ([_build_sample(number, gaps=[Gap(ms, 9)]) for number in range(10)] for ms in (0.0, 1.0))
    assert build_report(held).remarks == [
        "100% of the tokens came at once with the one before: the server, or a proxy that holds streams back, sends "
        "many together."
    ]
    assert build_report(sent).remarks == []


def test_a_clean_run_has_no_remarks(build_report: Any) -> None:
    assert build_report([_build_sample(number) for number in range(10)]).remarks == []


def test_an_idle_replica_and_a_count_mismatch_are_remarked(build_report: Any) -> None:
    samples = [_build_sample(number) for number in range(10)]
    unchanged_pages = {"worker-0": _build_page(5)}
    assert build_report(samples, metrics_before=unchanged_pages, metrics_after=unchanged_pages).remarks == [
        "worker-0 answered no request."
    ]
    later_pages = {"worker-0": _build_page(18)}
    assert build_report(samples, metrics_after=later_pages).remarks == [
        "The replicas count 13 answered requests, the client counts 10."
    ]


def test_answers_are_shown_beside_the_expected_answers(build_report: Any) -> None:
    samples = [
        _build_sample(1, prompt="2+2=", text=" 4 ", expected="4"),
        _build_sample(0, prompt="3+3=", text="7", expected="6"),
        _build_sample(2, prompt="", text=""),
    ]
    built = build_report(samples)
    assert [(answer.prompt, answer.same) for answer in built.answers] == [("3+3=", False), ("2+2=", True)]
    assert built.expected is not None
    assert (built.expected.compared, built.expected.same) == (2, 1)
    assert "1 of 2 are as expected, except for white space." in html_report.render(built, samples)


def test_a_report_shows_the_first_answers_and_counts_all(build_report: Any) -> None:
    samples = [_build_sample(number, expected="an answer") for number in range(500)]
    built = build_report(samples)
    assert built.expected.same == 500
    assert len(built.answers) == report_builder.MAX_SHOWN
    assert (
        f"500 of 500 are as expected, except for white space; the first {report_builder.MAX_SHOWN} are shown."
        in html_report.render(built, samples)
    )


def test_the_first_failure_of_each_kind_is_shown(build_report: Any) -> None:
    failed = [_build_sample(number, error=kind, text="") for number, kind in enumerate(["a", "b", "a", "b", "a"])]
    assert [answer.error for answer in build_report(failed).answers] == ["a", "b"]


class _PageParser(HTMLParser):
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


def _parse_page(text: str) -> _PageParser:
    parsed = _PageParser()
    parsed.feed(text)
    return parsed


@pytest.mark.parametrize(("limit", "verdict"), [(60, "PASS"), (40, "FAIL")])
def test_the_page_shows_the_verdict_and_is_self_contained(build_report: Any, limit: float, verdict: str) -> None:
    samples = [_build_sample(number) for number in range(60)]
    parsed = _parse_page(text := html_report.render(build_report(samples, {"ttft_ms": {"p95": limit}}), samples))
    assert parsed.fetched == []
    assert not {"script", "link", "img", "iframe"} & set(parsed.tags)
    assert "url(" not in text
    assert "@import" not in text
    assert verdict in parsed.text
    assert {"PASS": "FAIL", "FAIL": "PASS"}[verdict] not in parsed.text
    assert "Random weights" in parsed.text
    assert parsed.tags.count("svg") == 9  # eight pictures and the verdict's sign


@pytest.mark.parametrize(
    ("slo", "sign"),
    [
        ({"errors": "0%"}, "✓ met"),
        ({"errors": "10%"}, "✓ met"),
        ({"errors": "1%"}, "? not shown"),
        ({"goodput": "90%"}, "✓ met"),
        ({"goodput": "99%"}, "? not shown"),
    ],
)
def test_a_share_is_met_on_the_page_only_where_its_bound_is(build_report: Any, slo: dict[str, str], sign: str) -> None:
    samples = [_build_sample(number) for number in range(60)]
    built = build_report(samples, slo)
    assert (built.verdict == "pass") == (sign == "✓ met")
    text = _parse_page(html_report.render(built, samples)).text
    assert sign in text
    assert ({"✓ met": "? not shown", "? not shown": "✗ missed"}[sign]) not in text


def test_the_page_shows_text_of_a_model_as_text(build_report: Any) -> None:
    samples = [_build_sample(0, text="<script>alert(1)</script>", prompt="<b>&amp;")]
    parsed = _parse_page(html_report.render(build_report(samples), samples))
    assert "script" not in parsed.tags
    assert "<script>alert(1)</script>" in parsed.text


def test_the_page_of_a_run_without_answers_renders(build_report: Any) -> None:
    samples = [_build_sample(number, error="connect", ttft_ms=None, e2e_ms=None, gaps=[]) for number in range(3)]
    parsed = _parse_page(html_report.render(build_report(samples), samples))
    assert "FAIL" in parsed.text
    assert "no sample" in parsed.text


def test_charts_are_well_formed_and_have_captions() -> None:
    values = [50.0] * 100 + [60.0, 5000.0]
    latency = sample_statistics.summarize_latency(values)
    svgs = [
        charts.render_distribution("a < b", values, latency, {"p95": 70.0, "p99": 100_000.0}),
        charts.render_dots("d", [(float(index), value) for index, value in enumerate(values)], [3.0], {"p95": 70.0}),
        charts.render_steps("s", [1.0, 2.0], 0.5, "tokens/s", "caption"),
        charts.render_distribution("one", [5.0], sample_statistics.summarize_latency([5.0]), {}),
        charts.render_distribution("none", [], sample_statistics.summarize_latency([]), {}),
    ]
    for svg in svgs:
        tree = ElementTree.fromstring(svg)
        assert tree.attrib["role"] == "img"
        assert tree.attrib["aria-label"]
        assert "nan" not in svg


def test_a_limit_far_beyond_the_values_is_named_and_does_not_squeeze_them() -> None:
    svg = charts.render_distribution(
        "d", [10.0, 11.0, 12.0] * 10, sample_statistics.summarize_latency([11.0]), {"p95": 5000.0}
    )
    assert "p95 limit 5,000 →" in svg


def test_a_long_run_is_thinned_and_keeps_its_extremes() -> None:
    points = [(index / 100, 50.0) for index in range(100_000)] + [(500.0, 9999.0), (501.0, 1.0)]
    svg = charts.render_dots("d", points, [], {})
    assert svg.count("<circle") <= 3 * (charts.COLUMNS + 1)
    heights = [float(part.split('"')[0]) for part in svg.split('cy="')[1:]]
    assert min(heights) < charts.LOW_TOP + 12
    assert max(heights) > charts.HEIGHT - charts.BOTTOM - 2


def test_tokens_and_requests_in_flight_are_spread_over_time() -> None:
    sample = _build_sample(0, ttft_ms=1000.0, gaps=[Gap(500.0, 2)], output_tokens=3, e2e_ms=2000.0)
    assert time_series.compute_token_rates([sample], 1.0) == [0.0, 1.0, 2.0]
    assert time_series.compute_in_flight([sample], 1.0) == pytest.approx([1.0, 1.0, 0.0])


def test_no_label_of_an_axis_leaves_the_chart() -> None:
    values = [float(value) for value in range(0, 1_000_001, 10_000)]
    svg = charts.render_distribution("d", values, sample_statistics.summarize_latency(values), {})
    labels = re.findall(r'<text x="([\d.]+)" y="[\d.]+" text-anchor="middle" class="">([^<]+)<', svg)
    assert labels[-1][1] == "1,000,000"
    assert all(float(x) + len(text) * charts.LETTER_WIDTH / 2 <= charts.WIDTH + 0.1 for x, text in labels)


def test_the_page_shows_the_hand_over_of_prefill_and_decode_alone(build_report: Any) -> None:
    samples = [_build_sample(0)]
    built = build_report(samples)
    assert built.kv_transfers is None
    assert "Hand-over" not in html_report.render(built, samples)
    transfers = KvTransfers(
        count=2, failed=0, bytes=2 * 2**20, mean_ms=5.0, share_of_ttft=0.1, prefill_ms=20.0, decode_ms=18.0, router_ms=12.0
    )  # fmt: skip
    text = _parse_page(html_report.render(built.model_copy(update={"kv_transfers": transfers}), samples)).text
    assert "5 ms for 1.05 MB, 10% of the time to first token" in text
    assert "20 ms in prefill, 18 ms in decode with the transfer, 12 ms in the router and between" in text
