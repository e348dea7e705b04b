"""Roles on unlike accelerators behind one router: the report and its gate tell them apart."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from pathlib import Path

import jsonschema
import pytest

from llm_serving import processes
from llm_serving.settings.units import Bounds
from llm_serving.validation import run
from llm_serving.validation.load.load_plan import TargetRole
from llm_serving.validation.reports import report, terminal_summary
from llm_serving.validation.reports.report import Report
from llm_serving.validation.statistics.unlike_workers import UnlikeWorkers
from tests import dns_discovery, known_server
from tests.known_server import Behaviour
from tests.validation.conftest import TargetFactory, build_options, repeat_disturbed

WEIGHTS = {"fast": 3, "slow": 1}

TRAFFIC = {"arrivals": "20/s", "requests": 120, "input_tokens": 20, "output_tokens": 4, "warm_up": 0}

SLO = {"ttft_ms": {"p50": 500}}


def _list_entries(url: str) -> int:
    return len(json.loads(dns_discovery.fetch_page(f"{url}/workers") or b'{"workers": []}')["workers"])


def measure(make_target: TargetFactory, root: Path, ttft_s: Mapping[str, float]) -> Report:
    """Validate servers of these times to a first token behind the real router, each as a role of its weight."""
    with contextlib.ExitStack() as running:
        urls = {
            role: running.enter_context(known_server.run_server(Behaviour(ttft_s=seconds)))
            for role, seconds in ttft_s.items()
        }
        dns_discovery.write_dns(root, **{"127.0.0.1": ["127.0.0.1"]})
        names = [f"--worker={url.removeprefix('http://')}={WEIGHTS[role]}" for role, url in urls.items()]
        arguments = ("--enable-igw", "--policy", "round_robin")
        url, _ = running.enter_context(dns_discovery.run_router(root, "--router=ROUTER", *names, router=arguments))
        processes.wait_until(lambda: _list_entries(url) == sum(WEIGHTS.values()), "all entries of the router", 90)
        roles = tuple(
            TargetRole(name=role, replicas=Bounds(1, 1), instances=(f"{role}-0",), accelerators="CPU", weight=weight)
            for role, weight in WEIGHTS.items()
        )
        metrics_urls = {f"{role}-0": f"{role_url}/metrics" for role, role_url in urls.items()}
        target = make_target(url, TRAFFIC, SLO).model_copy(update={"roles": roles, "metrics_urls": metrics_urls})
        measured, folder = run.validate(target, build_options(root))
        jsonschema.validate(json.loads((folder / "report.json").read_text()), report.build_schema())
        page = (folder / "report.html").read_text()
        assert "Unlike accelerators" in page and "1 x CPU, weight 3" in page
        return measured


def find_role(measured: Report, role: str) -> UnlikeWorkers:
    return next(row for row in measured.unlike_workers if row.role == role)


@pytest.mark.engine
@pytest.mark.timeout(600)
def test_a_slow_role_fails_although_all_requests_together_are_within_the_slo(
    make_target: TargetFactory, tmp_path: Path
) -> None:
    measured = repeat_disturbed(
        lambda: measure(make_target, tmp_path, {"fast": 0.02, "slow": 1.2}),
        lambda played: (played.metrics["ttft_ms"].p50 or 0) < 400,
    )
    fast, slow = (find_role(measured, role) for role in WEIGHTS)
    assert (fast.requests, slow.requests) == (90, 30)
    assert (fast.share, fast.weight_share) == (slow.share and 1 - slow.share, 0.75)
    assert (measured.metrics["ttft_ms"].p50 or 0) < 400 < 1000 == slow.latencies["ttft_ms"]["p50"].from_ms
    assert (fast.latencies["ttft_ms"]["p50"].state, slow.latencies["ttft_ms"]["p50"].state) == ("met", "missed")
    [missed] = measured.missed
    assert f"{missed.metric}: {missed.why}" == (
        "ttft_ms.p50 on slow (CPU): more than 1000 ms by the engines' own histogram; the limit is 500 ms"
    )
    assert measured.verdict != "pass"
    [_, line] = terminal_summary._list_unlike_lines(measured)
    assert line.plain == "slow, 1 x CPU: 30 requests, 25% of all; by weight 25%; ttft p50 1,000 to 2,500 ms ≤ 500"


@pytest.mark.engine
@pytest.mark.timeout(600)
def test_roles_alike_are_both_within_the_slo(make_target: TargetFactory, tmp_path: Path) -> None:
    measured = repeat_disturbed(
        lambda: measure(make_target, tmp_path, {"fast": 0.02, "slow": 0.02}),
        lambda played: (played.metrics["ttft_ms"].p99 or 0) < 200,
    )
    assert [row.latencies["ttft_ms"]["p50"].state for row in measured.unlike_workers] == ["met", "met"]
    assert not measured.missed
