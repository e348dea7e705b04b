from __future__ import annotations

import copy
from typing import Any

from llm_serving.rehearsal import override

STACK: dict[str, Any] = {
    "resource": {
        "aws_eks_addon": {"vpc-cni": {}, "coredns": {}},
        "aws_eks_access_entry": {"admin": {"for_each": '${toset(["a"])}'}},
        "aws_eks_cluster": {"cluster": {"name": "demo"}},
        "aws_eks_node_group": {"system": {"lifecycle": {"ignore_changes": ["scaling_config[0].desired_size"]}}},
        "aws_vpc_security_group_ingress_rule": {
            "efa": {"referenced_security_group_id": "sg-1"},
            "https": {"cidr_ipv4": "10.0.0.0/16"},
        },
        "aws_vpc": {"vpc": {}},
    }
}


def test_unsupported_resources_are_counted_by_kind() -> None:
    assert override.count_gaps(STACK) == {"aws_eks_access_entry": 1, "aws_eks_addon": 2}
    assert override.count_gaps({"data": {}}) == {}


def test_it_is_left_out_by_the_override_alone() -> None:
    before = copy.deepcopy(STACK)
    overrides = override.build_override(STACK)
    assert overrides["aws_eks_addon"] == {"vpc-cni": {"count": 0}, "coredns": {"count": 0}}
    assert overrides["aws_eks_access_entry"] == {"admin": {"for_each": "${toset([])}"}}
    assert "aws_vpc" not in overrides
    assert before == STACK


def test_attributes_not_returned_are_ignored_beside_the_stacks_own() -> None:
    ignored = override.build_override(STACK)["aws_eks_node_group"]["system"]["lifecycle"]["ignore_changes"]
    assert ignored == ["scaling_config[0].desired_size", "node_repair_config", "remote_access", "update_config"]


def test_only_the_rules_that_it_gets_wrong_are_ignored() -> None:
    assert list(override.build_override(STACK)["aws_vpc_security_group_ingress_rule"]) == ["efa"]
