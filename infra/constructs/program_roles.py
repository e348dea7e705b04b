"""Roles of a deployment's programs, for the calls of their code: tasks of ECS take them on, or pods of EKS."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from infra.bindings import aws
from infra.bindings.cdktf import ITerraformDependable
from infra.constructs import pod_identity, secrets
from infra.constructs.fleet_stack import FleetStack
from infra.constructs.policy import Statement
from infra.constructs.role import add_role, list_policies
from llm_serving.fleet import names
from llm_serving.services.rendered import Rendered
from llm_serving.services.service import Service


@dataclass(frozen=True)
class ProgramRoles:
    """What a role may do, by its program; each has one of its own."""

    stack: FleetStack
    deployment: Rendered[Any]
    secret_arns: Mapping[str, str]
    """ARNs of the secrets that programs read, by their name in the programs."""

    list_calls: Callable[[Service], tuple[str, Iterable[Statement]]]
    """Returns a word for the role's name, and what the program's code calls."""

    def add(
        self, service: Service, *, trust: str, statements: Iterable[Statement] = ()
    ) -> tuple[aws.iam_role.IamRole, list[ITerraformDependable]]:
        """Add the role of a program; returns its policies too.

        Args:
            statements: additional ones for the orchestrator.
        """
        word, calls = self.list_calls(service)
        purpose = names.format_deployment_purpose(self.deployment.name, word)
        reads = secrets.build_statements(service.secrets, self.secret_arns, self.stack.fleet.region)
        role = add_role(
            self.stack,
            purpose,
            description=f"{service.name} of {self.deployment.name}",
            trust=trust,
            statements=(*calls, *reads, *statements),
        )
        return role, list_policies(self.stack, purpose)

    def add_for_pods(self) -> None:
        """Add each role, tied to its program's own service account, which the deployment's chart names."""
        trust = pod_identity.build_trust_policy(self.stack)
        for service in self.deployment.services:
            role, _ = self.add(service, trust=trust)
            pod_identity.add_service_association(self.stack, self.deployment.name, service.name, role)
