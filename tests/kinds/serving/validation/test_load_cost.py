from __future__ import annotations

from typing import Any

import pytest

from llm_serving.catalog import instances
from llm_serving.kinds.serving.deployment import ServingDeployment
from llm_serving.kinds.serving.price import price_deployment, price_instances
from llm_serving.kinds.serving.validation import validate
from llm_serving.services.service import Resources
from llm_serving.settings.units import Bounds
from llm_serving.validation.load.answer import Sample
from llm_serving.validation.load.driver_result import DriverResult
from llm_serving.validation.reports import report_builder
from llm_serving.validation.reports.measured import Measured
from llm_serving.validation.statistics import load_cost
from llm_serving.validation.statistics.load_cost import Cost
from tests.validation.conftest import build_deployment, build_target

ANSWERED = [Sample(number, 0.0, input_tokens=2000, output_tokens=200) for number in range(100)]


def _estimate(deployment: ServingDeployment) -> Cost | None:
    return load_cost.estimate(price_deployment(deployment), ANSWERED, 1.0)


@pytest.fixture
def deployment() -> ServingDeployment:
    """Two replicas on two of four GPUs each, on a target with prices."""
    built = build_deployment("http://127.0.0.1:1", {"users": 1})
    engine, router = built.roles
    resources = Resources(device="nvidia.com/gpu", accelerators=2)
    fields: dict[str, Any] = {"instance_types": ("g6e.12xlarge",), "replicas": Bounds(2, 4), "resources": resources}
    conventions = built.environment.conventions.model_copy(update={"is_local": False})
    environment = built.environment.model_copy(update={"conventions": conventions, "region": "us-east-1"})
    roles = (engine.model_copy(update=fields), router)
    return built.model_copy(update={"roles": roles, "environment": environment})


def test_the_cost_is_that_of_the_accelerators_over_what_they_answered(deployment: ServingDeployment) -> None:
    cost = _estimate(deployment)
    assert cost is not None
    usd_h = instances.find("g6e.12xlarge").prices["us-east-1"].usd_h
    assert cost.usd_h == pytest.approx(usd_h, abs=1e-3)  # two replicas with half an instance each
    spent = usd_h * 100 / 3600
    assert cost.per_million_output_tokens == pytest.approx(spent / (100 * 200) * 1e6, rel=1e-3)
    assert cost.per_million_tokens == pytest.approx(spent / (100 * 2200) * 1e6, rel=1e-3)
    assert cost.per_thousand_requests == pytest.approx(spent / 100 * 1000, rel=1e-3)
    assert "2 x 0.5 of g6e.12xlarge" in cost.basis


@pytest.mark.parametrize(
    ("traffic", "spacing_s"),
    [({"arrivals": 10}, 0.1), ({"users": 20}, 0.1), ({"arrivals": 20}, 0.05)],
    ids=["open loop", "closed loop", "overload"],
)
def test_the_ramp_and_the_end_of_a_load_cost_nothing(traffic: dict[str, Any], spacing_s: float) -> None:
    """Ten requests a second, of two seconds each or more, at a cent a second."""
    samples = [
        Sample(
            number, number * spacing_s, ttft_ms=50.0, e2e_ms=2000 + 1000 * number * (0.1 - spacing_s), output_tokens=1
        )
        for number in range(100)
    ]
    target = build_target("http://127.0.0.1:1", {**traffic, "requests": 100}).model_copy(update={"price": (36.0, "")})
    report = report_builder.build(Measured(target, DriverResult(duration_s=11.9, planned=100), samples))
    assert report.throughput.requests_per_s < 8.5
    assert report.cost and report.cost.per_thousand_requests == pytest.approx(1.0, rel=0.02)


def test_the_cost_of_a_role_that_scales_is_remarked_to_count_its_least(deployment: ServingDeployment) -> None:
    assert list(validate.list_remarks(deployment)) == [
        "The cost counts 2 of up to 4 replicas of worker: it was more where others came during the load."
    ]
    engine, router = deployment.roles
    fixed = engine.model_copy(update={"replicas": Bounds(4, 4)})
    assert list(validate.list_remarks(deployment.model_copy(update={"roles": (fixed, router)}))) == []


@pytest.mark.parametrize(
    ("accelerators", "replicas", "nodes", "wholes"),
    [(1, 1, 1, 1), (1, 5, 1, 2), (3, 2, 1, 2), (4, 3, 2, 6), (2, 0, 1, 1)],
)
def test_the_instances_of_a_deployment_are_priced_as_wholes(
    deployment: ServingDeployment, accelerators: int, replicas: int, nodes: int, wholes: int
) -> None:
    """Of g6e.12xlarge with four GPUs each."""
    engine, router = deployment.roles
    resources = Resources(device="nvidia.com/gpu", accelerators=accelerators)
    fields = {"replicas": Bounds(replicas, 8), "nodes": nodes, "resources": resources}
    placed = deployment.model_copy(update={"roles": (engine.model_copy(update=fields), router)})
    usd_h = instances.find("g6e.12xlarge").prices["us-east-1"].usd_h
    assert price_instances(placed) == pytest.approx(wholes * usd_h)


def test_this_machine_has_no_price() -> None:
    assert price_instances(build_deployment("http://127.0.0.1:1", {"users": 1})) is None
    assert _estimate(build_deployment("http://127.0.0.1:1", {"users": 1})) is None


def test_an_unknown_price_is_not_guessed(deployment: ServingDeployment) -> None:
    environment = deployment.environment.model_copy(update={"region": "sa-east-1"})
    elsewhere = deployment.model_copy(update={"environment": environment})
    assert (_estimate(elsewhere), price_instances(elsewhere)) == (None, None)


def test_replicas_from_zero_cost_at_least_one_where_requests_are_answered(deployment: ServingDeployment) -> None:
    engine, router = deployment.roles
    scaled = engine.model_copy(update={"replicas": Bounds(0, 4)})
    cost = _estimate(deployment.model_copy(update={"roles": (scaled, router)}))
    from_one = engine.model_copy(update={"replicas": Bounds(1, 4)})
    assert cost == _estimate(deployment.model_copy(update={"roles": (from_one, router)}))
    assert cost and cost.usd_h > 0
