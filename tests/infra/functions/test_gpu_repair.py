"""Broken GPUs have their instances replaced, each once and never more of them at a time than the limits allow."""

from __future__ import annotations

import datetime
import json
import random
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.awsrequest import AWSResponse
from hypothesis import given
from hypothesis import strategies as st
from moto import mock_aws

from infra.functions import gpu_repair
from infra.functions.gpu_repair import Instance, Signals, Verdict
from llm_serving.catalog import signals
from tests.infra.functions.faulty_cluster import REGION, FaultyCluster, open_cluster

NOW = datetime.datetime(2026, 11, 26, 4, 0, tzinfo=datetime.UTC)
HOUR = datetime.timedelta(hours=1)

EKS_XIDS = {46, 48, 54, 62, 63, 64, 74, 79, 95, 109, 110, 119, 120, 136, 140, 142, 143, 151, 155, 156, 158}
"""WellKnownXidCodes of aws/eks-node-monitoring-agent at 51af549, monitors/nvidia/dcgm/dcgm_policies.go."""

ECS_XIDS = {46, 48, 54, 62, 64, 74, 79, 95, 109, 110, 136, 140, 142, 143, 151, 155, 156, 158}
"""ECS developer guide, "GPU auto repair for Amazon ECS managed instances", "Monitored XID error codes", 2026-11-26."""

EKS_REASONS = {
    *("NeuronDMAError", "NeuronHBMUncorrectableError"),
    *("NeuronNCUncorrectableError", "NeuronSRAMUncorrectableError"),
}
"""Neuron's reasons of AcceleratedHardwareReady for the hardware, the same repository, pkg/reasons/reasons.go."""


def test_the_table_is_the_agents_lists_and_each_row_has_its_source() -> None:
    assert gpu_repair.XIDS.keys() == EKS_XIDS
    assert gpu_repair.CONDITIONS.keys() == EKS_REASONS | {"ACCELERATED_COMPUTE", "agentConnected"}
    tables: tuple[Mapping[Any, gpu_repair.Rule], ...] = (gpu_repair.XIDS, gpu_repair.CONDITIONS)
    assert all(rule.source and rule.meaning for table in tables for rule in table.values())


def test_the_page_shows_every_row() -> None:
    page = (Path(__file__).parents[3] / "docs" / "gpu-faults.md").read_text("utf-8")
    rules = {
        **{f"XID {number}": rule for number, rule in gpu_repair.XIDS.items()},
        "any other XID": gpu_repair.OTHER_XID,
        **{f"`{name}`": rule for name, rule in gpu_repair.CONDITIONS.items()},
    }
    rows = [f"| {sign} | {rule.verdict.name.lower()} | {rule.meaning} |" for sign, rule in rules.items()]
    assert re.findall(r"^\| .* \|$", page, re.MULTILINE)[1:] == rows


@pytest.mark.parametrize("xid", sorted(ECS_XIDS))
def test_whatever_ecs_calls_impaired_is_replaced(xid: int) -> None:
    assert gpu_repair.decide(Signals(xids=(xid,))).verdict >= Verdict.RESET


@pytest.mark.parametrize(
    ("signals", "verdict"),
    [
        (Signals(), Verdict.IGNORE),
        (Signals(xids=(13, 31, 43, 45)), Verdict.WATCH),
        (Signals(xids=(46,)), Verdict.RESET),
        (Signals(xids=(151,)), Verdict.REBOOT),
        (Signals(xids=(46, 79)), Verdict.REPLACE),
        (Signals(conditions=("ACCELERATED_COMPUTE",)), Verdict.REPLACE),
    ],
)
def test_the_verdict_on_an_instance(signals: Signals, verdict: Verdict) -> None:
    decision = gpu_repair.decide(signals)
    assert decision.verdict == verdict
    assert bool(decision.reasons) == (verdict > Verdict.IGNORE)


BROKEN = Signals(xids=(79,))
FLEET = [
    Instance("", f"i-{number:04}", "ranking" if number < 800 else "large", "aabbc"[number % 5])
    for number in range(1250)
]
"""10,000 GPUs: 1,250 instances of eight."""


def break_some(
    broken: Collection[int], *, draining: Collection[int] = (), failed_at: datetime.datetime = NOW
) -> list[Instance]:
    """Return the fleet with some of its instances broken, and some draining."""
    return [
        replace(
            one,
            signals=BROKEN if number in broken else Signals(),
            failed_at=failed_at if number in broken else None,
            draining=number in draining,
        )
        for number, one in enumerate(FLEET)
    ]


def count_places(instances: list[Instance]) -> Counter[str]:
    return Counter(place for instance in instances for place in instance.places)


def test_a_storm_is_many_in_a_short_time_and_not_few_or_slow() -> None:
    storm = range(375)  # 30% of them
    assert gpu_repair.is_storm(break_some(storm), NOW)
    assert not gpu_repair.is_storm(break_some(storm, failed_at=NOW - HOUR), NOW), "a person has seen these"
    assert not gpu_repair.is_storm(break_some(range(250)), NOW), "a fifth is not more than a fifth"
    two_of_two = break_some({0, 1})[:2]
    assert not gpu_repair.is_storm(two_of_two, NOW)


def test_a_small_pool_has_one_instance_replaced_at_a_time_the_longest_broken_first() -> None:
    first = Instance("", "i-2", "ranking", "a", signals=BROKEN, failed_at=NOW - HOUR)
    second = Instance("", "i-1", "ranking", "b", signals=BROKEN, failed_at=NOW)
    choices = gpu_repair.choose([second, first], stopped=False)
    assert [(choice.instance.instance_id, choice.hold) for choice in choices] == [
        ("i-2", ""),
        ("i-1", "1 of at most 1 of pool ranking are draining"),
    ]


@given(st.sets(st.integers(0, 1249), max_size=400), st.sets(st.integers(0, 1249), max_size=4))
def test_never_more_drain_than_the_limits_however_many_are_broken(broken: set[int], draining: set[int]) -> None:
    instances = break_some(broken, draining=draining)
    sizes, before = count_places(instances), count_places([one for one in instances if one.draining])
    choices = gpu_repair.choose(instances, stopped=False)
    started = [choice.instance for choice in choices if not choice.hold]
    after = before + count_places(started)
    for place, size in sizes.items():
        assert after[place] <= max(before[place], gpu_repair.compute_limit(size))
    assert {choice.instance.instance_id for choice in choices} == {
        one.instance_id for number, one in enumerate(instances) if number in broken - draining
    }, "none is forgotten"


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyCluster]:
    """Two pools in two zones: twelve instances, which is all that a test waits for."""
    monkeypatch.setenv(
        "MOTO_EC2_LOAD_DEFAULT_AMIS", "false"
    )  # hundreds, read and made twice a test, and none is looked at
    with mock_aws():
        session = boto3.Session("test", "test", region_name=REGION)
        opened = open_cluster(monkeypatch, session.client)
        opened.clients["ec2"].create_launch_template(
            LaunchTemplateName="gpu", LaunchTemplateData={"ImageId": "ami-12c6146b", "InstanceType": "p5.48xlarge"}
        )
        opened.clients["ecs"].create_cluster(clusterName="demo")
        for zone in ("a", "b"):
            opened.add_group(f"ranking-{zone}", pool="ranking", zone=f"{REGION}{zone}", size=4)
            opened.add_group(f"large-{zone}", pool="large", zone=f"{REGION}{zone}", size=2)
        yield opened


def read_lines(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_a_broken_instance_is_drained_and_reported_unhealthy_and_the_log_says_why(
    cluster: FaultyCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    [broken, well, *_] = cluster.list_group("ranking-a")
    cluster.fail(broken, "XID_79")
    assert cluster.handle() == [
        {
            "cluster": "demo",
            "instance": broken,
            "pool": "ranking",
            "zone": "us-west-2a",
            "verdict": "replace",
            "reasons": ("GPU has fallen off the bus: RESTART_BM, which no instance can do",),
            "action": "replace",
        }
    ]
    assert cluster.list_draining() == cluster.list_unhealthy() == [broken]
    assert cluster.describe()[well]["status"] == "ACTIVE"
    [decision, metric] = read_lines(capsys)
    assert decision["action"] == "replace"
    signal = signals.load()["waiting-repairs"]
    [metrics] = metric["_aws"]["CloudWatchMetrics"]
    assert (metrics["Namespace"], metrics["Metrics"]) == (signal.program, [{"Name": signal.name}])
    assert (metric["cluster"], metric[signal.name]) == ("demo", 0)


def test_a_failed_health_check_without_an_xid_is_a_fault_as_well(cluster: FaultyCluster) -> None:
    [broken, *_] = cluster.list_group("large-b")
    cluster.fail(broken, None)
    [line] = cluster.handle()
    assert (line["verdict"], line["reasons"]) == ("replace", ("DCGM's health check fails, with no XID",))


def test_an_instance_is_replaced_once_its_agent_is_disconnected_for_too_long(
    cluster: FaultyCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost, back, *_ = cluster.list_group("ranking-a")
    limit = gpu_repair.AGENT_LIMIT
    cluster.lost = {lost, back}
    cluster.handle()
    assert cluster.handle() == [], "agents disconnect for minutes, several times an hour"
    cluster.lost = {lost}
    cluster.handle()
    monkeypatch.setattr(gpu_repair, "AGENT_LIMIT", datetime.timedelta(seconds=-1))
    [line] = cluster.handle()
    assert (line["instance"], line["action"]) == (lost, "replace")
    assert line["reasons"] == ("ECS's agent has been disconnected for 15 minutes",)
    assert cluster.list_draining() == cluster.list_unhealthy() == [lost]
    monkeypatch.setattr(gpu_repair, "AGENT_LIMIT", limit)
    cluster.lost = {lost, back}
    cluster.handle()
    assert cluster.handle() == [], "its time begins anew"
    assert cluster.list_draining() == [lost]


def test_agents_that_are_lost_at_once_are_a_storm(cluster: FaultyCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """As of the network or of ECS itself, which no replacement mends."""
    cluster.lost = {*cluster.list_group("ranking-a")}
    cluster.handle()
    monkeypatch.setattr(gpu_repair, "AGENT_LIMIT", datetime.timedelta(seconds=-1))
    lines = cluster.handle()
    assert len(lines) == 4 and {line["action"] for line in lines} == {
        "wait: the cluster has the tag gpu-repair=stopped"
    }
    assert not cluster.list_draining()


def test_the_same_event_ten_times_replaces_an_instance_once(cluster: FaultyCluster) -> None:
    [broken, *_] = cluster.list_group("ranking-a")
    cluster.fail(broken)
    for _ in range(10):
        cluster.handle()
    assert set(cluster.drained.values()) == {1}
    assert cluster.replace_unhealthy() == 1
    assert cluster.handle() == []
    assert cluster.list_draining() == [], "an event that comes late finds the new instance, which is well"


@pytest.mark.parametrize(
    ("service", "operation"), [("ecs", "UpdateContainerInstancesState"), ("autoscaling", "SetInstanceHealth")]
)
def test_a_call_that_dies_half_way_is_finished_by_the_next(
    cluster: FaultyCluster, service: str, operation: str
) -> None:
    class Died(BaseException):
        """The function's process ends."""

    def die(**_: Any) -> None:
        events.unregister(f"before-call.{service}.{operation}", die)
        raise Died

    broken = sorted([cluster.list_group("ranking-a")[0], cluster.list_group("large-b")[0]])
    for instance_id in broken:
        cluster.fail(instance_id)
    events = cluster.clients[service].meta.events
    events.register(f"before-call.{service}.{operation}", die)
    with pytest.raises(Died):
        cluster.handle()
    assert cluster.list_unhealthy() != broken
    cluster.handle()
    assert cluster.list_draining() == cluster.list_unhealthy() == broken


def test_an_instance_that_goes_before_it_drains_stops_nothing(cluster: FaultyCluster) -> None:
    gone, broken = cluster.list_group("ranking-a")[0], cluster.list_group("large-b")[0]
    cluster.fail(gone, ago=HOUR)
    cluster.fail(broken)
    events = cluster.clients["ecs"].meta.events

    def take_away(**_: Any) -> None:
        events.unregister("before-call.ecs.PutAttributes", take_away)
        cluster.end(gone)

    events.register("before-call.ecs.PutAttributes", take_away)
    cluster.handle()
    assert cluster.list_draining() == cluster.list_unhealthy() == [broken]


def test_a_drain_without_end_has_its_tasks_stopped_and_no_other_instances(
    cluster: FaultyCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    [broken, well, *_] = cluster.list_group("ranking-a")
    started = cluster.start_tasks(broken, well)
    cluster.fail(broken)
    cluster.handle()
    cluster.handle()
    assert cluster.read_status(started[broken]) == "RUNNING"
    monkeypatch.setattr(gpu_repair, "DRAIN_LIMIT", datetime.timedelta(seconds=-1))
    cluster.handle()
    assert [cluster.read_status(started[name]) for name in (broken, well)] == ["STOPPED", "RUNNING"]


def test_a_capacity_block_s_instances_start_with_it_and_are_drained_with_their_tasks_before_it_ends(
    cluster: FaultyCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    """EC2 begins to end them 30 minutes before the block's end, and announces it 10 minutes earlier."""
    blocks = [{"id": f"cr-{zone}", "pool": "large", "group": f"large-{zone}"} for zone in "ab"]
    body = json.dumps({"cluster": "demo", "blocks": [*blocks, {"id": "cr-gone", "pool": "ranking", "group": "x"}]})
    held = sorted([*cluster.list_group("large-a"), *cluster.list_group("large-b")])
    broken = cluster.list_group("ranking-a")[0]
    started = cluster.start_tasks(held[0], broken)
    now = datetime.datetime.now(datetime.UTC)

    def set_blocks(state: str, end: datetime.timedelta) -> None:
        cluster.blocks = dict.fromkeys(("cr-a", "cr-b"), (state, now + end))
        capsys.readouterr()
        cluster.handle(body)

    person = {"AutoScalingGroupName": "large-b", "ScalingProcesses": ["Launch"]}
    cluster.clients["autoscaling"].suspend_processes(**person)
    set_blocks("scheduled", HOUR * 24)
    assert cluster.list_suspended() == {"large-a": ["Launch"], "large-b": ["Launch"]}
    set_blocks("active", datetime.timedelta(minutes=41))
    assert cluster.list_suspended() == {"large-b": ["Launch"]}, "a person's suspension stays"
    assert not cluster.list_draining()
    cluster.clients["autoscaling"].resume_processes(**person)
    set_blocks("scheduled", HOUR * 24)
    assert cluster.list_suspended() == {"large-a": ["Launch"], "large-b": ["Launch"]}
    set_blocks("active", datetime.timedelta(minutes=41))
    assert not cluster.list_suspended()
    cluster.clients["autoscaling"].suspend_processes(**person)
    cluster.handle(body)
    assert cluster.list_suspended() == {"large-b": ["Launch"]}, "a person's suspension stays"
    cluster.fail(broken)
    cluster.fail(held[1])
    set_blocks("active", datetime.timedelta(minutes=40))
    assert cluster.list_suspended().keys() == {"large-a", "large-b"}
    assert cluster.list_draining() == sorted([*held, broken])
    assert cluster.list_unhealthy() == [broken], "a block about to end has no other instance"
    assert [cluster.read_status(started[name]) for name in (held[0], broken)] == ["STOPPED", "RUNNING"]
    lines = [line for line in read_lines(capsys) if line.get("action") == "drain: its Capacity Block ends"]
    assert sorted(line["instance"] for line in lines) == held
    cluster.handle(body)
    assert set(cluster.drained.values()) == {1}


@pytest.fixture
def released(cluster: FaultyCluster) -> list[Any]:
    """Requests that end the hold of managed draining; moto knows no hooks."""
    requests: list[Any] = []

    def complete(model: Any, params: Mapping[str, Any], **_: Any) -> tuple[Any, dict[str, Any]]:
        requests.append(params["body"])
        return AWSResponse("", 200, {}, None), {}

    cluster.clients["autoscaling"].meta.events.register("before-call.autoscaling.CompleteLifecycleAction", complete)
    return requests


def test_an_instance_whose_tasks_do_not_stop_is_released_from_managed_draining(
    cluster: FaultyCluster, released: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two that are drained, ECS holds the first only."""
    held, other = cluster.list_group("ranking-a")[0], cluster.list_group("large-b")[0]

    def hold(parsed: dict[str, Any], **_: Any) -> None:
        for state in parsed["AutoScalingInstances"]:
            if state["InstanceId"] == held and state["HealthStatus"].upper() == "UNHEALTHY":
                state["LifecycleState"] = "Terminating:Wait"

    events = cluster.clients["autoscaling"].meta.events
    events.register("after-call.autoscaling.DescribeAutoScalingInstances", hold)
    for instance_id in (held, other):
        cluster.fail(instance_id)
    cluster.handle()
    cluster.handle()
    assert not released, "it still drains"
    monkeypatch.setattr(gpu_repair, "END_LIMIT", datetime.timedelta(seconds=-1))
    cluster.handle()
    [body] = released
    assert (body["InstanceId"], body["AutoScalingGroupName"]) == (held, "ranking-a")
    assert (body["LifecycleHookName"], body["LifecycleActionResult"]) == (gpu_repair.DRAIN_HOOK, "CONTINUE")


def test_a_broken_instance_that_a_refresh_ends_is_released_too_and_one_that_a_person_drains_is_left(
    cluster: FaultyCluster, released: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    ended, inspected = cluster.list_group("ranking-a")[0], cluster.list_group("large-b")[0]

    def hold(parsed: dict[str, Any], **_: Any) -> None:
        for state in parsed["AutoScalingInstances"]:
            if state["InstanceId"] == ended:
                state["LifecycleState"] = "Terminating:Wait"

    events = cluster.clients["autoscaling"].meta.events
    events.register("after-call.autoscaling.DescribeAutoScalingInstances", hold)
    arns = [cluster.describe()[instance_id]["containerInstanceArn"] for instance_id in (ended, inspected)]
    cluster.clients["ecs"].update_container_instances_state(cluster="demo", containerInstances=arns, status="DRAINING")
    cluster.handle()
    monkeypatch.setattr(gpu_repair, "END_LIMIT", datetime.timedelta(seconds=-1))
    cluster.handle()
    assert not released, "neither is broken"
    for instance_id in (ended, inspected):
        cluster.fail(instance_id)
    cluster.handle()
    cluster.handle()
    assert [body["InstanceId"] for body in released] == [ended]
    assert cluster.list_unhealthy() == []


def test_a_storm_replaces_nothing_until_a_person_takes_the_tag_away(
    cluster: FaultyCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = cluster.list_group("ranking-a")  # a third of them
    for instance_id in broken:
        cluster.fail(instance_id)
    lines = cluster.handle()
    assert {line["action"] for line in lines} == {"wait: the cluster has the tag gpu-repair=stopped"}
    assert len(lines) == 4 and not cluster.list_draining()
    said = read_lines(capsys)
    assert said[0] == {"cluster": "demo", "action": "stop: more than 20% failed at once"}
    assert said[-1]["unrepaired"] == 4
    for instance_id in broken[1:]:
        del cluster.health[instance_id]
    assert [line["instance"] for line in cluster.handle()] == [broken[0]], (
        "the storm is over, and the tag is still there"
    )
    assert not cluster.list_draining()
    [arn] = [one["clusterArn"] for one in cluster.clients["ecs"].describe_clusters(clusters=["demo"])["clusters"]]
    cluster.clients["ecs"].untag_resource(resourceArn=arn, tagKeys=["gpu-repair"])
    cluster.handle()
    assert cluster.list_draining() == [broken[0]]


def test_faults_that_come_slowly_and_out_of_order_are_each_replaced_once_within_the_limits(
    cluster: FaultyCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_repair, "MAX_SHARE", 0.34)  # two of six instances of a zone, and one of four of a pool
    draw = random.Random(7)
    broken = draw.sample(sorted(cluster.describe()), 8)
    for instance_id in broken:
        cluster.fail(instance_id, ago=HOUR * draw.random() + HOUR)
    limits = {"ranking": 2, "large": 1, "us-west-2a": 2, "us-west-2b": 2}
    replaced = 0
    for _ in range(8):
        for _ in range(draw.randint(1, 3)):
            cluster.handle()
        draining = [one for one in cluster.describe().values() if one["status"] == "DRAINING"]
        places = Counter(attribute.get("value") for one in draining for attribute in one["attributes"])
        assert all(places[place] <= limit for place, limit in limits.items()), places
        replaced += cluster.replace_unhealthy()
    assert replaced == len(cluster.drained) == 8
    assert set(cluster.drained.values()) == {1}
    assert cluster.handle() == []
