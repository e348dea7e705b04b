"""What the targets on AWS share: the fleet's account, files checked in S3, a tunnel for validations."""

# ruff: noqa: ARG002 - a target takes what others need

from __future__ import annotations

import abc
import contextlib
import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from llm_serving import console
from llm_serving.aws import session as clients
from llm_serving.aws.session import AwsSession
from llm_serving.catalog.registry import format_registry
from llm_serving.fleet import image_cache
from llm_serving.fleet.aws_limits import build_bucket_name
from llm_serving.fleet.model import Fleet
from llm_serving.rehearsal import emulator
from llm_serving.services import kinds, rendered
from llm_serving.services.blueprint import BaseBlueprint
from llm_serving.services.environment import Environment
from llm_serving.services.load_program import LoadProgram
from llm_serving.settings.errors import InputError, quote_value
from llm_serving.targets import planning, registry, render
from llm_serving.targets.base import Confirm, DeploymentStatus, LoadOrigin, Target, ValidationInputs
from llm_serving.targets.deployment_dir import DeploymentDir
from llm_serving.targets.deployment_plan import DeploymentPlan
from llm_serving.targets.on_aws import load_drivers, remote_files
from llm_serving.targets.on_aws.replicas import ReplicaContainer, ReplicaStatus
from llm_serving.targets.starts import Start
from llm_serving.validation.base import LoadSource, MetricsPage, ValidationOptions
from llm_serving.validation.remote.play import Containers

_NO_ACCOUNT = (
    "There are no AWS credentials, or AWS does not take them: names contain the embedded AWS's account "
    f"{emulator.ACCOUNT}, not yours. Fix: sign in, or write `account` in the fleet file."
)

_SCRATCH = "/scratch"
"""Directory that an engine's container may write to, besides /tmp."""


class AwsTarget(Target):
    """A target in the fleet's AWS account.

    Its methods raise Unavailable where a program is missing, AWS or the cluster refuses or does not answer; and
    CommandFailed where Terraform or helm fails.
    """

    needs_aws = True

    service_account = ""
    """Kubernetes service account of the engines."""

    rehearsal_limit: str
    """Why a rehearsal against the embedded AWS ends before the deployment."""

    def resolve_environment(
        self, directory: DeploymentDir, blueprint: BaseBlueprint, fleet: Fleet, *, account: str | None, port: int | None
    ) -> Environment:
        return self.build_environment(fleet, account)

    def assume_environment(self, blueprint: BaseBlueprint, fleet: Fleet, *, cores: int) -> Environment:
        return self.build_environment(fleet, emulator.ACCOUNT)

    def build_environment(self, fleet: Fleet, account: str | None) -> Environment:
        """Return the environment of the fleet's account, which `account` is; the embedded AWS's if None."""
        account_id = account or emulator.ACCOUNT
        host = format_registry(account_id, fleet.region)
        return Environment(
            target=self.name,
            conventions=self.conventions,
            region=fleet.region,
            account=account_id,
            bucket=build_bucket_name(fleet.name, "models", account_id, fleet.region),
            results_bucket=build_bucket_name(fleet.name, "results", account_id, fleet.region),
            env={"AWS_REGION": fleet.region},
            data_folder=_SCRATCH,
            socket_folder="/tmp",
            registry=f"{host}/{fleet.name}",
            image_prefixes=image_cache.build_prefixes(fleet, host),
            namespace=self.format_namespace(fleet),
            service_account=self.service_account,
            emulated=() if account else (_NO_ACCOUNT,),
        )

    @abc.abstractmethod
    def format_namespace(self, fleet: Fleet) -> str:
        """Return the Kubernetes namespace, or the private DNS namespace on ECS."""

    def list_warnings(self, fleet: Fleet) -> list[str]:
        """List what a user should know before the stacks are created."""
        return []

    @abc.abstractmethod
    def list_tools(self, fleet: Fleet) -> Mapping[str, str]:
        """List the programs that a deployment and its validation call, each with its installation guide."""

    def reach_cluster(self, aws: AwsSession, fleet: Fleet, data: Path) -> AbstractContextManager[None]:
        """Open a way to the fleet's cluster for the time of the block, where this machine has none."""
        return contextlib.nullcontext()

    def open_session(self, aws: AwsSession, data: Path) -> AwsSession:
        """Return the session by which the target's tools reach the fleet's own cluster.

        Args:
            data: the fleet's data directory.
        """
        return aws

    def installs_charts(self, fleet: Fleet) -> bool:
        """Return whether the fleet's own cluster gets the platform's charts; one that exists has its own."""
        return False

    def list_cluster_commands(self, fleet: Fleet, fleet_file: Path) -> list[Sequence[str]]:
        """List the commands that prepare a cluster for the first deployment."""
        return []

    def deploy(self, plan: DeploymentPlan, confirm: Confirm, *, force: bool = False) -> DeploymentPlan | None:
        """Check the files in S3 that the blueprint names, then bring up the plan and wait until it is ready.

        Raises:
            InputError: one of the files does not do; nothing was changed.
        """
        remote_files.check(plan)
        kinds.get(plan.deployment.kind).prepare(plan.deployment)
        return plan if self.apply(plan, confirm, force=force) else None

    @abc.abstractmethod
    def apply(self, plan: DeploymentPlan, confirm: Confirm, *, force: bool) -> bool:
        """Bring up the plan and wait until it is ready; returns whether anything changed."""

    def read_status(self, folder: Path, fleet_file: Path) -> DeploymentStatus:
        plan = self._plan(folder, fleet_file)
        deployment = plan.deployment
        rows = [dataclasses.asdict(replica) for replica in self.list_replicas(plan)]
        with clients.translate_errors():
            rows += kinds.get(deployment.kind).list_managed(deployment, plan.aws.client)
        missing = f"{deployment.name}: not deployed on {self.name}"
        notes = self.list_notes(plan) if rows else []
        return DeploymentStatus(deployment.name, deployment.url, "members", rows, missing, notes)

    def list_notes(self, plan: DeploymentPlan) -> list[str]:
        """List what does not work beside the replicas."""
        return []

    def read_starts(self, folder: Path, fleet_file: Path) -> list[Start]:
        return self.list_starts(self._plan(folder, fleet_file))

    @abc.abstractmethod
    def list_starts(self, plan: DeploymentPlan) -> list[Start]:
        """List how long the replicas that run took to start, by role and name."""

    @abc.abstractmethod
    def list_replicas(self, plan: DeploymentPlan) -> list[ReplicaStatus]:
        """List the running replicas, by role and name."""

    @abc.abstractmethod
    def list_containers(self, plan: DeploymentPlan, role: str) -> list[ReplicaContainer]:
        """List the containers of a role's replicas, in which commands can be run."""

    def show_logs(self, folder: Path, fleet_file: Path, process: str | None, *, lines: int, follow: bool) -> None:
        self.show_role_logs(self._plan(folder, fleet_file), process, lines=lines, follow=follow)

    @abc.abstractmethod
    def show_role_logs(self, plan: DeploymentPlan, role: str | None, *, lines: int, follow: bool) -> None:
        """Print the log output of the replicas of one role, or of all."""

    @contextlib.contextmanager
    def open_validation(
        self,
        folder: Path,
        fleet_file: Path,
        url: str | None,
        *,
        aws: AwsSession | None = None,
        origin: LoadOrigin | None = None,
    ) -> Iterator[ValidationInputs]:
        """Send the load from inside the fleet's network where its registry has the image of load drivers.

        From here a load goes through a tunnel to one router, unless `url` names an endpoint that can be reached.
        """
        plan = self._plan(folder, fleet_file, aws)
        deployment, directory, kind = plan.deployment, plan.directory, kinds.get(plan.deployment.kind)
        connection: AbstractContextManager[str | None] = contextlib.nullcontext(url)
        source: LoadSource | None = None
        if program := kind.build_load_program(deployment):
            if origin is LoadOrigin.HERE:
                raise InputError('--load-from: "here": only the fleet\'s network reaches it. Fix: leave it out.')
            self.wait_until_ready(plan)
            with clients.translate_errors():
                deployment = kind.find_addresses(deployment, plan.aws.client)
            launch = functools.partial(self.launch_drivers, plan, program=program)
            source = load_drivers.build_program_source(plan, launch)
        elif not deployment.served_models:  # no load is sent: what runs there makes its own
            if origin is LoadOrigin.CLUSTER:
                raise InputError('--load-from: "cluster": no load is sent to it. Fix: leave it out.')
            connection = connection if url else self.open_tunnel(plan)
        elif load_drivers.choose_origin(plan, origin, url) is LoadOrigin.CLUSTER:
            launch = functools.partial(self.launch_drivers, plan)
            source = load_drivers.build_source(plan, launch, self.list_metrics_pages(plan))
        elif not url:
            connection, source = self.open_tunnel(plan), load_drivers.TUNNEL
        with connection as its_url:
            options = ValidationOptions(
                logs=directory.logs, runs=directory.reports, folder=folder, url=its_url, load_source=source
            )
            yield ValidationInputs(deployment, options)

    @abc.abstractmethod
    def launch_drivers(
        self, plan: DeploymentPlan, urls: Sequence[str], limit_s: int, program: LoadProgram | None = None
    ) -> AbstractContextManager[Containers]:
        """Run a load driver in the fleet's network for each input's URL, and remove them after the block.

        Args:
            limit_s: seconds after which they end by themselves.
            program: what they run; the image of load drivers if None.

        Raises:
            CheckFailed: the orchestrator starts none; with its reason.
            Unavailable: the deployment lacks what they need.
        """

    @abc.abstractmethod
    def wait_until_ready(self, plan: DeploymentPlan) -> None:
        """Wait until a deployment without replicas that answer requests does its work.

        Raises:
            CheckFailed: it does not in time; says how far it is.
            Unavailable: it is not deployed.
        """

    @abc.abstractmethod
    def list_metrics_pages(self, plan: DeploymentPlan) -> list[MetricsPage]:
        """List the metrics pages of the replicas that run, by their addresses in the fleet's network."""

    @abc.abstractmethod
    def open_tunnel(self, plan: DeploymentPlan, port: int = 0) -> AbstractContextManager[str]:
        """Open a tunnel to what clients call and return its URL on this machine.

        Args:
            port: another port of a replica than that of clients.
        """

    def destroy(self, folder: Path, fleet_file: Path, confirm: Confirm, *, aws: AwsSession | None = None) -> bool:
        plan = self._plan(folder, fleet_file, aws)
        planning.print_callers(
            plan.deployment.name, rendered.find_callers(plan.deployment.name, plan.fleet, Path(), self.name)
        )
        confirm(f"Remove {plan.deployment.name} from {self.name}?")
        is_removed = self.remove(plan)
        render.remove(plan.rendered)  # the fleet's costs, and who calls what, go by these files
        if not is_removed:
            console.out.print(f"{plan.deployment.name}: not deployed on {self.name}", markup=False)
        return is_removed

    @abc.abstractmethod
    def remove(self, plan: DeploymentPlan) -> bool:
        """Remove what runs and wait until it is gone; returns whether anything ran."""

    def _plan(self, folder: Path, fleet_file: Path, aws: AwsSession | None = None) -> DeploymentPlan:
        plan = planning.plan(folder, fleet_file, target=self.name, aws=aws)
        planning.print_notes(plan)
        return plan


def load_aws_target(name: str) -> AwsTarget:
    """Return the target `name`.

    Raises:
        InputError: there is no such target, or it does not run on AWS.
    """
    target = registry.load_target(name)
    if not isinstance(target, AwsTarget):
        names = [name for name in registry.list_targets() if registry.load_target(name).needs_aws]
        raise InputError(f"--target: {quote_value(name)}: it does not run on AWS. Fix: use {' or '.join(names)}.")
    return target
