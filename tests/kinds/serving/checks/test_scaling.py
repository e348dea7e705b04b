"""Replicas: what all roles need of a pool at once and while an upgrade runs, and roles that follow the SLO."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from llm_serving import paths
from llm_serving.settings.errors import InputError
from llm_serving.targets import render
from tests.kinds.serving import resolving
from tests.kinds.serving.texts import (
    AGGREGATED,
    B300,
    FLEET,
    LARGE,
    SMALL,
    SURGE,
    TRAFFIC_AND_SLO,
    format_disaggregated,
    format_distributed,
    get_error,
    resolve_blueprint,
)


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


def test_roles_that_need_more_nodes_than_their_pool_grows_to_are_refused(tmp_path: Path) -> None:
    text = format_disaggregated({**B300, "replicas": 13}, {**B300, "accelerators": 4}, LARGE)
    assert get_error(tmp_path, text) == (
        "blueprint.yaml:5:3: roles.decode.replicas: 1: the roles need prefill 2 and decode 1 nodes of the pool "
        "b300, which grows to 2. Fix: use fewer replicas, or set size: 2..3 in the pool."
    )


_REPLICAS = AGGREGATED.replace("MODEL", SMALL).replace("{WORKER}", "{pool: general, replicas: COUNT, accelerators: 4}")


@pytest.mark.parametrize(
    ("disruption", "field", "fix"),
    [
        (SURGE, 'surge: "on"', "set surge: off"),
        ("disruption: {unavailable: 0}\n", "unavailable: 0", "set unavailable: 1"),
    ],
)
def test_an_upgrade_can_start_the_new_replica_first_where_the_pool_holds_both(
    tmp_path: Path, disruption: str, field: str, fix: str
) -> None:
    text = _REPLICAS + disruption + TRAFFIC_AND_SLO
    deployment = resolve_blueprint(tmp_path, text.replace("COUNT", "3"))
    assert [service.replicas.surge for service in deployment.services if not service.is_entry] == [1]
    with pytest.raises(InputError) as error:
        resolve_blueprint(tmp_path, text.replace("COUNT", "4"))
    assert str(error.value).endswith(
        f"disruption.{field}: an upgrade starts one replica more of each role first: 5 nodes of the pool general, which "
        f"grows to 4. Fix: {fix}, or size: 0..5 in the pool."
    )


def test_an_upgrade_stops_as_many_replicas_at_once_as_a_drain(tmp_path: Path) -> None:
    text = _REPLICAS.replace("COUNT", "4") + "disruption: {unavailable: 3}\n" + TRAFFIC_AND_SLO
    template = render.find_template(paths.PATTERNS / "aggregated", "eks")
    worker = yaml.safe_load(render.render_text(resolve_blueprint(tmp_path, text), template))["roles"]["worker"]
    assert worker["disruption"] == {"maxUnavailable": 3}
    assert worker["rollout"] == {"maxSurge": 0, "maxUnavailable": 3}


def test_on_ecs_a_replica_that_has_a_name_of_its_own_has_the_new_one_beside_it(tmp_path: Path) -> None:
    role = {"pool": "on-ecs"}
    text = format_disaggregated(role, role, extra=f"engine: tensorrt-llm\n{SURGE}")
    services = resolve_blueprint(tmp_path, text, "ecs").services
    assert {service.name: service.replicas.surge for service in services} == {
        "prefill-0": 1,
        "decode-0": 1,
        "router": 1,
    }


def test_on_ecs_a_replica_over_several_instances_has_no_second_beside_it(tmp_path: Path) -> None:
    text = format_distributed(model=LARGE, pool="p5en", accelerators=16, pipeline=2, expert="on", extra=SURGE)
    on_ecs = FLEET.replace("size: 4, efa: on}", "size: 4, efa: on, orchestrator: ecs}")
    (tmp_path / "mine").mkdir()
    with pytest.raises(InputError, match="on ECS each node of a replica is a service, and two of one rank would share"):
        resolving.resolve_files(tmp_path / "mine", text, on_ecs, "ecs")
