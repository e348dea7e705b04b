"""Roles that follow their limits of the SLO."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kinds.serving.texts import format_disaggregated, get_error, resolve_blueprint


def _format_by_slo(pool: str, slo: str = "{ttft_ms: {p95: 500}, itl_ms: {p95: 50}}", extra: str = "") -> str:
    prefill = {"pool": pool, "replicas": "1..2", "scale": "{queue: 4, slo: on}"}
    decode = {"pool": pool, "replicas": "1..2", "scale": "{kv_usage: 80%, slo: on}"}
    return format_disaggregated(prefill, decode, extra=extra).replace("slo: {}", f"slo: {slo}")


def test_prefill_and_decode_follow_their_own_limits_of_the_slo(tmp_path: Path) -> None:
    deployment = resolve_blueprint(tmp_path, _format_by_slo("general"))
    for service in deployment.workers:
        assert service.replicas.scale and service.replicas.scale.slo
    limits = [(objective.role, objective.name) for objective in deployment.latency_objectives]
    assert limits == [("prefill", "ttft p95"), ("decode", "itl p95")]


@pytest.mark.parametrize(
    ("text", "target", "role", "reason"),
    [
        (_format_by_slo("on-ecs"), "ecs", "prefill", "on ECS a role follows one measure of its engines"),
        (
            _format_by_slo("general", "{ttft_ms: {p95: 500}, itl_ms: {mean: 50}}"),
            "eks",
            "decode",
            "the SLO has no percentile of a latency that this role's engines measure",
        ),
    ],
    ids=["ecs", "no limit"],
)
def test_following_the_slo_is_refused_where_nothing_measures_it(
    tmp_path: Path, text: str, target: str, role: str, reason: str
) -> None:
    assert f"roles.{role}.scale.slo: true: {reason}. Fix: remove slo." in get_error(tmp_path, text, target)
