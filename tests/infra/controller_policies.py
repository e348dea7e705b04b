"""What controllers' makers let them do in AWS, held against the roles of the synthesized stacks.

`policies/NAME.yaml` has what a maker publishes for the pinned version, as facts: actions, the kinds of resources, and the
condition keys. `left_out`, `narrowed` and `added` say why a role of ours differs. `python -m
tests.infra.controller_policies` prints the table.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from llm_serving.settings import own_yaml

FOLDER = Path(__file__).with_name("policies")
EVERY = "*"
"""A statement's resource that is every one."""

_REFERENCES = {"aws_sqs_queue": "queue", "aws_iam_role": "role", "aws_kms_key": "key"}
"""Kind of resource by the Terraform type that a statement refers to."""

Stack = Mapping[str, Any]
Stacks = Mapping[tuple[str, str], Stack]


class _Data(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Statement(_Data):
    """Actions on kinds of resources, if the request's keys fit."""

    actions: tuple[str, ...]
    resources: tuple[str, ...]
    keys: tuple[str, ...] = ()


class Difference(_Data):
    """Actions in which a role of ours differs, and why it may."""

    actions: tuple[str, ...]
    why: str


class Pin(_Data):
    """The version that the facts are of: a chart's, an EKS add-on's, or that of a policy of AWS's own."""

    version: str
    chart: str | None = None
    add_on: str | None = None


class ControllerPolicy(_Data):
    """One controller's permissions as its maker publishes them."""

    controller: str
    stack: str = "eks"
    roles: tuple[str, ...]
    """The last part of the roles' names."""

    pinned: Pin
    source: str
    managed: tuple[str, ...] = ()
    """AWS's own policies that the maker names for it, which then allow what `allow` lists."""

    allow: tuple[Statement, ...]
    left_out: tuple[Difference, ...]
    narrowed: tuple[Difference, ...]
    """On fewer resources than the maker's, or under a condition that the maker's lacks."""

    added: tuple[Difference, ...]

    @property
    def actions(self) -> list[str]:
        """All of them, AWS's own policies too."""
        return sorted({*self.managed, *(action for statement in self.allow for action in statement.actions)})


@dataclass(frozen=True)
class RolePermissions:
    """What one role of ours may do."""

    managed: frozenset[str]
    statements: tuple[Statement, ...]

    @property
    def actions(self) -> set[str]:
        """All of them, AWS's own policies too."""
        return {*self.managed, *(action for statement in self.statements for action in statement.actions)}


@dataclass(frozen=True)
class Comparison:
    """Actions in which a role differs from what its controller's maker publishes."""

    missing: set[str]
    narrower: set[str]
    extra: set[str]


def load_policies() -> dict[str, ControllerPolicy]:
    """All of them, by the file's name."""
    return {file.stem: ControllerPolicy.model_validate(own_yaml.read(file)) for file in sorted(FOLDER.glob("*.yaml"))}


def read_permissions(stack: Stack, role: str, cluster: str) -> RolePermissions | None:
    """What the role may do; None where the stack has no such role."""
    resources = stack["resource"]
    if f"{role}-role" not in resources.get("aws_iam_role", {}):
        return None
    reference = f"${{aws_iam_role.{role}-role.name}}"
    attachments = resources.get("aws_iam_role_policy_attachment", {}).values()
    documents = [
        json.loads(policy["policy"])
        for policy in resources.get("aws_iam_role_policy", {}).values()
        if policy["role"] == reference
    ]
    return RolePermissions(
        frozenset(item["policy_arn"].partition(":policy/")[2] for item in attachments if item["role"] == reference),
        tuple(_read_statement(statement, cluster) for document in documents for statement in document["Statement"]),
    )


def _read_statement(statement: Mapping[str, Any], cluster: str) -> Statement:
    keys = {
        key.replace(f"/{cluster}", "/CLUSTER") for names in statement.get("Condition", {}).values() for key in names
    }
    return Statement(
        actions=tuple(_ensure_list(statement["Action"])),
        resources=tuple({find_kind(resource) for resource in _ensure_list(statement["Resource"])}),
        keys=tuple(sorted(keys)),
    )


def find_kind(resource: str) -> str:
    """The kind of an ARN's resource, such as `volume`; `*` for every resource."""
    if resource == EVERY:
        return EVERY
    if reference := re.match(r"\$\{(aws_\w+)\.[^}]*\}$", resource):
        return _REFERENCES[reference[1]]
    _, _, service, _, _, name = re.sub(r"\$\{[^}]*\}", "TOKEN", resource).split(":", 5)
    if service == "s3":
        return "object" if "/" in name else "bucket"
    return re.split("[/:]", name)[0]


def compare(policy: ControllerPolicy, ours: RolePermissions) -> Comparison:
    """Compare action by action and kind by kind."""
    missing = {name for name in policy.managed if name not in ours.managed}
    narrower: set[str] = set()
    if policy.managed and not missing:
        # AWS's own policy allows what the maker's list says, less what another policy is for.
        missing |= {action for difference in policy.left_out for action in difference.actions}
    elif not policy.managed or policy.allow:
        for action, kind, keys in _list_rights(policy.allow):
            allowing = [
                statement
                for statement in ours.statements
                if action in statement.actions and (kind == EVERY or {kind, EVERY} & set(statement.resources))
            ]
            if not allowing:
                missing.add(action)
            elif not any(_covers(statement, kind, keys) for statement in allowing):
                narrower.add(action)
    return Comparison(missing, narrower, ours.actions - set(policy.actions))


def _list_rights(statements: Iterable[Statement]) -> Iterator[tuple[str, str, frozenset[str]]]:
    for statement in statements:
        for action in statement.actions:
            for kind in statement.resources:
                yield action, kind, frozenset(statement.keys)


def _covers(statement: Statement, kind: str, keys: frozenset[str]) -> bool:
    """Whether it allows no less: every resource of the kind, under no condition that the maker's lacks."""
    return bool({kind, EVERY} & set(statement.resources)) and set(statement.keys) <= keys


def list_actions(differences: Iterable[Difference]) -> set[str]:
    """The actions that differences explain."""
    return {action for difference in differences for action in difference.actions}


def _ensure_list(value: Any) -> list[str]:
    return value if isinstance(value, list) else [value]


def format_table(stacks: Stacks) -> str:
    """One line a controller: what its maker allows, what ours may, and what is left out.

    Args:
        stacks: by the fleet's shape and the stack's name.
    """
    lines = ["| Controller | Version | Maker's actions | Ours | Left out, and why |", "|---|---|---|---|---|"]
    for policy in load_policies().values():
        ours = next(iter(list_permissions(stacks, policy)))
        allowed = set(policy.actions) - compare(policy, ours).missing
        left_out = "; ".join(f"{', '.join(item.actions)}: {item.why}" for item in policy.left_out) or "-"
        lines.append(
            f"| {policy.controller} | {policy.pinned.version} | {len(policy.actions)} | {len(allowed)} | {left_out} |"
        )
    return "\n".join(lines)


def list_permissions(stacks: Stacks, policy: ControllerPolicy) -> Iterator[RolePermissions]:
    """What the controller's roles may do, in each stack that has them."""
    for (_, name), stack in stacks.items():
        # A cluster that exists brings its own controllers.
        if name == policy.stack and {"aws_eks_cluster", "aws_ecs_cluster"} & stack["resource"].keys():
            permissions = (read_permissions(stack, role, _get_cluster(stack)) for role in policy.roles)
            yield from (entry for entry in permissions if entry)


def _get_cluster(stack: Stack) -> str:
    kind = "aws_eks_cluster" if "aws_eks_cluster" in stack["resource"] else "aws_ecs_cluster"
    name: str = stack["resource"][kind]["cluster"]["name"]
    return name


def main() -> int:
    """Synthesize the fleets of the tests, and print the table."""
    from tests.infra.conftest import synthesize_all

    with tempfile.TemporaryDirectory() as folder:
        stacks = synthesize_all(Path(folder))
    print(format_table(stacks))
    return 0


if __name__ == "__main__":
    sys.exit(main())
