from pathlib import Path

import pytest

from llm_serving.fleet import aws_limits
from llm_serving.fleet.model import Fleet
from llm_serving.settings.document import load

FLEET = """\
name: {name}
region: {region}
zones: [{region}a]
network: {{flow_logs: {flow_logs}}}
pools:
  general: {{types: g6e.2xlarge, size: 0..8}}
"""


def list_mistakes(folder: Path, *, name: str = "demo", region: str = "us-west-2", flow_logs: str = "30d") -> list[str]:
    file = folder / "fleet.yaml"
    file.write_text(FLEET.format(name=name, region=region, flow_logs=flow_logs))
    return [str(mistake).removeprefix(f"{file}:") for mistake in aws_limits.find_mistakes(load(file, Fleet))]


def test_an_unsupported_retention_is_refused_with_the_nearest(tmp_path: Path) -> None:
    [text] = list_mistakes(tmp_path, flow_logs="45d")
    assert text.startswith(
        "4:22: network.flow_logs: now '45d': CloudWatch Logs supports only certain retention periods. "
        "Fix: 30d, the nearest of 1, 3, 5, 7, 14, 30,"
    )


@pytest.mark.parametrize("days", aws_limits.LOG_RETENTION_DAYS)
def test_every_retention_of_cloudwatch_passes(tmp_path: Path, days: int) -> None:
    assert list_mistakes(tmp_path, flow_logs=f"{days}d") == []


def test_a_name_too_long_for_its_buckets_is_refused_with_the_length_that_fits(tmp_path: Path) -> None:
    [text] = list_mistakes(tmp_path, name="a" * 32, region="ap-southeast-2")
    assert text == (
        f"1:7: name: now '{'a' * 32}': in ap-southeast-2 the results bucket's name would have 68 characters, "
        "and S3 takes 63. Fix: a name of at most 27 characters."
    )
    assert list_mistakes(tmp_path, name="a" * 27, region="ap-southeast-2") == []


def test_a_zone_outside_the_address_plan_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "fleet.yaml"
    file.write_text(FLEET.format(name="demo", region="us-west-2", flow_logs="30d").replace("us-west-2a", "us-west-2h"))
    [mistake] = aws_limits.find_mistakes(load(file, Fleet))
    assert str(mistake).startswith(
        f"{file}:3:9: zones[0]: now 'us-west-2h': the address plan covers the zones a to g. "
        "Fix: another zone of the region, or a network of your own"
    )
