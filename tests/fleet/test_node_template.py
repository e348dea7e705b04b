"""What cluster-autoscaler is told of a node group without nodes."""

from __future__ import annotations

import pytest

from llm_serving.fleet import groups, node_template
from llm_serving.fleet.model import Fleet

PREFIX = "k8s.io/cluster-autoscaler/node-template/resources/"


def build_tags(**pool: object) -> dict[str, str]:
    fleet = Fleet(
        name="demo",
        region="us-west-2",
        zones=("us-west-2b", "us-west-2c"),
        pools={"aa": {"size": "0..4", "by": "node-groups", "zones": "us-west-2b", **pool}},
    )
    (group,) = groups.resolve_all(fleet)
    tags = node_template.build_tags(group)
    assert all(key.startswith(PREFIX) and len(key) <= 128 for key in tags)
    return {key.removeprefix(PREFIX): value for key, value in tags.items()}


@pytest.mark.parametrize(
    ("pool", "expected"),
    [
        # 900 GB of NVMe; a volume of 500 GiB, or of 100 GiB without accelerators.
        ({"types": "g6e.4xlarge"}, {"ephemeral-storage": "447Gi", "nvidia.com/gpu": "1"}),
        ({"types": "g6e.4xlarge", "disk": "gp3"}, {"ephemeral-storage": "400Gi", "nvidia.com/gpu": "1"}),
        ({"types": "inf2.24xlarge"}, {"ephemeral-storage": "400Gi", "aws.amazon.com/neuron": "6"}),
        (
            {"types": "p5en.48xlarge", "zones": "us-west-2c", "efa": True, "disk": "gp3"},
            {
                "ephemeral-storage": "400Gi",
                "nvidia.com/gpu": "8",
                "vpc.amazonaws.com/efa": "16",
                "hugepages-2Mi": "10256Mi",
            },
        ),
        ({"types": "m8g.2xlarge"}, {"ephemeral-storage": "80Gi"}),
    ],
)
def test_every_resource_that_pods_ask_for_is_known_before_the_first_node(
    pool: dict[str, object], expected: dict[str, str]
) -> None:
    assert build_tags(**pool) == expected
