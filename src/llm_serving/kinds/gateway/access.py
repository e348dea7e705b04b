"""How a gateway is administered: on this machine by files of the user, on AWS with the user's own rights there."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llm_serving.aws import session
from llm_serving.kinds.gateway import audit, cloud, cloud_program, database, meter, usage
from llm_serving.kinds.gateway.client import AdminClient
from llm_serving.kinds.gateway.deployment import DATABASE, GATEWAY, GatewayDeployment
from llm_serving.kinds.gateway.usage import Period, Records
from llm_serving.settings.errors import InputError, Unavailable
from llm_serving.targets import planning, registry
from llm_serving.targets.deployment_plan import DeploymentPlan
from llm_serving.targets.on_aws.aws_target import AwsTarget

_READ_LIMIT_S = 1000.0
"""Beyond that of the database's statements, which says more."""


@dataclass(frozen=True)
class LocalAccess:
    """A deployed gateway on this machine."""

    deployment: GatewayDeployment

    @contextlib.contextmanager
    def connect(self) -> Iterator[AdminClient]:
        """Open its administration for the block.

        Raises:
            Unavailable: the gateway was never started, or cannot be reached.
        """
        yield AdminClient(self.deployment.admin_url, self._login.password)

    def read_records(self, period: Period) -> Records:
        """Read what teams used in a time.

        Raises:
            Unavailable: the database does not answer.
        """
        meter.record(self._login, meter.list_metered(self.deployment.backends))
        return usage.read(self._login, period, self.deployment.name)

    def read_audit(self, since_s: float) -> list[dict[str, Any]]:
        """Read the audit of the last seconds.

        Raises:
            Unavailable: the database does not answer.
        """
        return audit.read(self._login, usage.build_last(since_s), audit.MAX_ENTRIES + 1)

    @property
    def _login(self) -> database.Login:
        folder = Path(self.deployment.environment.data_folder) / DATABASE
        return database.read_login(self.deployment.database_port, folder)


@dataclass(frozen=True)
class CloudAccess:
    """One on AWS: by a tunnel to one of its replicas, and a program in it."""

    deployment: GatewayDeployment
    plan: DeploymentPlan
    target: AwsTarget

    @contextlib.contextmanager
    def connect(self) -> Iterator[AdminClient]:
        assert self.deployment.stack
        with session.translate_errors():
            place = cloud_program.read_place(self.plan.aws.client("ssm"), self.deployment.stack.place)
            secret = cloud_program.read_secret(self.plan.aws.client("secretsmanager"), place.secret)
        with self.target.open_tunnel(self.plan, cloud.ADMIN_PORT) as url:
            yield AdminClient(url, secret)

    def read_records(self, period: Period) -> Records:
        return Records(**self._run(cloud_program.USAGE, *map(str, period), self.deployment.name))

    def read_audit(self, since_s: float) -> list[dict[str, Any]]:
        entries: list[dict[str, Any]] = self._run(cloud_program.AUDIT, f"{since_s:.0f}")
        return entries

    def _run(self, *words: str) -> Any:
        containers = self.target.list_containers(self.plan, GATEWAY)
        if not containers:
            raise Unavailable(f"{self.deployment.name}: no replica runs on {self.target.name}. Fix: deploy it first.")
        return parse_rows(containers[0].run(list(cloud.build_command(*words)), limit_s=_READ_LIMIT_S))


def parse_rows(text: str) -> Any:
    """Find the program's line of JSON among those of the session that ran it.

    Raises:
        Unavailable: there is none; with the last line.
    """
    lines = [line.strip() for line in text.splitlines() if line.strip()] or ["no output"]
    for line in lines:
        if line.startswith(cloud_program.ROWS_BEGIN):
            return json.loads(line.removeprefix(cloud_program.ROWS_BEGIN))
    raise Unavailable(f"the gateway's database does not answer: {lines[-1]}. Fix: see `blueprint logs`.")


@contextlib.contextmanager
def open_access(folder: Path, fleet: Path, target_name: str) -> Iterator[LocalAccess | CloudAccess]:
    """Open a deployed gateway.

    Raises:
        InputError: the deployment is of another kind.
        Unavailable: it is not deployed.
    """
    target = registry.load_target(target_name)
    if isinstance(target, AwsTarget):
        plan = planning.plan(folder, fleet, target=target.name)
        yield CloudAccess(_narrow(folder, plan.deployment), plan, target)
        return
    with target.open_validation(folder, fleet, None) as inputs:
        yield LocalAccess(_narrow(folder, inputs.deployment))


def _narrow(folder: Path, deployment: Any) -> GatewayDeployment:
    if not isinstance(deployment, GatewayDeployment):
        raise InputError(f"{folder}: kind: {deployment.kind}: it has no keys. Fix: name a gateway blueprint.")
    return deployment
