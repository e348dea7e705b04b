from pathlib import Path

import pytest

from llm_serving.fleet import aws_limits, checks
from llm_serving.fleet.model import Fleet
from llm_serving.settings.document import load

FLEET = """\
name: {name}
region: {region}
zones: [{region}a, {region}b]
network: {{flow_logs: {flow_logs}}}
pools:
  general: {{types: g6e.2xlarge, size: 0..8}}
"""


def list_mistakes(folder: Path, *, name: str = "demo", region: str = "us-west-2", flow_logs: str = "30d") -> list[str]:
    file = folder / "fleet.yaml"
    file.write_text(FLEET.format(name=name, region=region, flow_logs=flow_logs))
    mistakes = checks.find_mistakes(load(file, Fleet))
    return [str(mistake).removeprefix(f"{file}:") for mistake in mistakes if mistake.field == "name"]


def test_a_name_too_long_for_its_buckets_is_refused_with_the_length_that_fits(tmp_path: Path) -> None:
    [text] = list_mistakes(tmp_path, name="a" * 32, region="ap-southeast-2")
    assert text == (
        f'1:7: name: "{"a" * 32}": in ap-southeast-2 the results bucket\'s name would have 68 characters, '
        "and S3 takes 63. Fix: use a name of at most 27 characters."
    )
    assert list_mistakes(tmp_path, name="a" * 27, region="ap-southeast-2") == []


def test_a_name_that_no_security_group_may_have_is_refused(tmp_path: Path) -> None:
    assert list_mistakes(tmp_path, name="sg-prod", region="ap-southeast-1") == [
        '1:7: name: "sg-prod": security groups would have names that begin with it, and EC2 takes none that begins '
        "with sg-. Fix: use another name."
    ]
    assert list_mistakes(tmp_path, name="sgp", region="ap-southeast-1") == []


def test_a_zone_outside_the_address_plan_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "fleet.yaml"
    file.write_text(FLEET.format(name="demo", region="us-west-2", flow_logs="30d").replace("us-west-2a", "us-west-2h"))
    [mistake] = aws_limits.find_mistakes(load(file, Fleet))
    assert str(mistake).startswith(
        f'{file}:3:9: zones[0]: "us-west-2h": the address plan covers the zones a to g. '
        "Fix: use another zone of the region, or a network of your own"
    )


@pytest.mark.parametrize("orchestrator", ["eks", "both"])
def test_a_cluster_in_one_zone_is_refused(orchestrator: str, tmp_path: Path) -> None:
    file = tmp_path / "fleet.yaml"
    pools = "pools:\n  general: {types: g6e.2xlarge, size: 0..8}\n"
    head = f"name: demo\nregion: us-west-2\norchestrator: {orchestrator}\n"
    file.write_text(f"{head}zones: [us-west-2a]\n{pools}")
    [text] = map(str, aws_limits.find_mistakes(load(file, Fleet)))
    assert text == (
        f"{file}:4:8: zones: [us-west-2a]: EKS takes subnets in 2 zones or more for a cluster; a pool may be in one "
        "of them. Fix: set zones: [us-west-2a, us-west-2b], and zones: us-west-2a in the pools that stay in it."
    )


def test_a_pool_of_a_cluster_may_be_in_one_zone_and_a_fleet_on_ecs_too(tmp_path: Path) -> None:
    file = tmp_path / "fleet.yaml"
    pools = "pools:\n  general: {types: g6e.2xlarge, size: 0..8, zones: us-west-2a}\n"
    for rest in ("zones: [us-west-2a, us-west-2b]\n", "zones: [us-west-2a]\norchestrator: ecs\n"):
        file.write_text(f"name: demo\nregion: us-west-2\n{rest}{pools}")
        assert aws_limits.find_mistakes(load(file, Fleet)) == []
