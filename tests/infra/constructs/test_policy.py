"""Policies that are files in IAM's own form."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from infra.constructs import iam

STACK: Any = SimpleNamespace(
    account=SimpleNamespace(id="123456789012", partition="aws-cn", region="cn-north-1", dns_suffix="amazonaws.com.cn"),
    cluster_name="demo",
    fleet=SimpleNamespace(name="demo"),
)

STATEMENT = """\
- Effect: Allow
  Action: [sqs:SendMessage]
  Resource: "arn:${partition}:sqs:${region}:${account}:${queue}"
  Condition:
    StringEquals: {"aws:ResourceTag/${cluster}": owned}
"""


@pytest.fixture(autouse=True)
def _policies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "send.yaml").write_text(STATEMENT)
    monkeypatch.setattr(iam, "_FOLDER", tmp_path)


def test_keys_are_filled_in_wherever_they_stand() -> None:
    assert iam.read_statements(STACK, "send", queue="jobs") == [
        {
            "Effect": "Allow",
            "Action": ["sqs:SendMessage"],
            "Resource": "arn:aws-cn:sqs:cn-north-1:123456789012:jobs",
            "Condition": {"StringEquals": {"aws:ResourceTag/demo": "owned"}},
        }
    ]


def test_a_key_without_a_value_is_refused() -> None:
    with pytest.raises(KeyError, match="queue"):
        iam.read_statements(STACK, "send")


def test_a_list_takes_the_place_of_a_key_alone_and_no_resource_leaves_the_statement_out(tmp_path: Path) -> None:
    own = '- {Effect: Allow, Action: [a, "${more}"], Resource: ["${one}", "${all}"]}\n'
    (tmp_path / "take.yaml").write_text(f'{own}- {{Effect: Allow, Action: b, Resource: "${{all}}"}}\n')
    taken = {"Effect": "Allow", "Action": ["a", "c"], "Resource": ["x", "y", "z"]}
    statements = iam.read_statements(STACK, "take", more="c", one="x", all=["y", "z"])
    assert statements == [taken, {"Effect": "Allow", "Action": "b", "Resource": ["y", "z"]}]
    assert iam.read_statements(STACK, "take", more=[], one="x", all=[]) == [
        {"Effect": "Allow", "Action": ["a"], "Resource": ["x"]}
    ]
