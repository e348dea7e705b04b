"""The target local: real processes on this machine under supervisord, next to an embedded AWS."""

# ruff: noqa: ARG002 - a target takes what others need

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from llm_serving import console, processes
from llm_serving.aws.session import AwsSession
from llm_serving.fleet.model import Fleet
from llm_serving.services import inputs, kinds
from llm_serving.services.blueprint import BaseBlueprint, resolve_name
from llm_serving.services.deployment import Deployment
from llm_serving.services.environment import Environment
from llm_serving.settings.errors import InputError, Unavailable
from llm_serving.targets import planning, render
from llm_serving.targets.base import Confirm, DeploymentStatus, LoadOrigin, Target, ValidationInputs
from llm_serving.targets.deployment_dir import DeploymentDir
from llm_serving.targets.deployment_plan import DeploymentPlan
from llm_serving.targets.local import deploy, engine_setups, environment, logs, servers, status, supervisor
from llm_serving.targets.local.environment import CONVENTIONS
from llm_serving.targets.starts import Start
from llm_serving.validation.base import ValidationOptions

_FIRST_ASSUMED_PORT = 20000


class LocalTarget(Target):
    """Processes on this machine."""

    name = environment.NAME
    conventions = CONVENTIONS
    needs_aws = False
    diff = staticmethod(deploy.diff)
    find_mistakes = staticmethod(supervisor.find_mistakes)
    resolve_environment = staticmethod(environment.resolve_environment)

    def assume_environment(self, blueprint: BaseBlueprint, fleet: Fleet, *, cores: int) -> Environment:
        """Return an environment with ports that nothing has claimed."""
        ports = {name: _FIRST_ASSUMED_PORT + number for number, name in enumerate(servers.list_port_names(blueprint))}
        return Environment(
            target=self.name,
            conventions=self.conventions,
            region=fleet.region,
            bucket="models",
            fetcher=environment.FETCHER,
            ports=ports,
            cores=cores,
        )

    def deploy(self, plan: DeploymentPlan, confirm: Confirm, *, force: bool = False) -> DeploymentPlan | None:
        """Set up the engine if models are served, then bring up the plan and wait until every process answers."""
        with processes.handle_interrupts():
            engine = engine_setups.find(plan.deployment.engine, plan.deployment.framework)
            if plan.deployment.loaded_models and not engine.is_ready():
                with console.step("Set up the engine's environment") as step:
                    engine.ensure(on_progress=lambda text: setattr(step, "note", text))
            servers.install_missing(plan.blueprint.value)
            return deploy.deploy(plan, confirm, force=force)

    def read_status(self, folder: Path, fleet_file: Path) -> DeploymentStatus:
        directory = self.find_directory(folder)
        deployment = directory.load_deployment()
        ports = directory.load_ports()
        rows = [{**asdict(state), "port": ports.get(state.name)} for state in status.list_process_states(directory)]
        missing = f"{directory.name}: not deployed here. Fix: run blueprint deploy {console.shorten_path(folder)}"
        notes = tuple(status.list_awake(directory)) if rows else ()
        return DeploymentStatus(
            directory.name, deployment.url if deployment else None, "processes", rows, missing, notes
        )

    def read_starts(self, folder: Path, fleet_file: Path) -> list[Start]:
        return status.list_starts(self.find_directory(folder))

    def show_logs(self, folder: Path, fleet_file: Path, process: str | None, *, lines: int, follow: bool) -> None:
        logs.show_logs(self.find_directory(folder), process, lines=lines, follow=follow)

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
        """Return the deployment with those settings of the blueprint as it is now that need no new deploy.

        Raises:
            InputError: the load is to come from a cluster.
            Unavailable: the blueprint is not deployed from here, or its embedded AWS has stopped.
        """
        if origin is LoadOrigin.CLUSTER:
            raise InputError('--load-from: "cluster": the target local is this machine. Fix: use --target eks or ecs.')
        blueprint = inputs.read_blueprint(folder).value
        directory = self.find_directory(folder)
        deployment = self.require_deployment(folder)
        status.require_services(directory, deployment)
        deployment = kinds.get(deployment.kind).refresh(deployment, blueprint)
        options = ValidationOptions(logs=directory.logs, runs=directory.reports, folder=folder, url=url)
        yield ValidationInputs(deployment, options)

    def destroy(self, folder: Path, fleet_file: Path, confirm: Confirm, *, aws: AwsSession | None = None) -> bool:
        directory = self.find_directory(folder)
        if not deploy.exists(directory):
            console.out.print(f"{directory.name}: not deployed here", markup=False)
            return False
        planning.print_callers(directory.name, deploy.find_callers(directory))
        confirm(f"Stop {directory.name} and delete {console.shorten_path(directory.data)}?")
        with directory.lock(), console.step(f"Destroy {directory.name}"):
            return deploy.destroy(directory)

    def require_deployment(self, folder: Path) -> Deployment:
        """Return what is deployed of the blueprint in `folder`.

        Raises:
            Unavailable: nothing is, or its processes outlived its directory.
        """
        directory = self.find_directory(folder)
        status.raise_if_orphaned(directory)
        deployment = directory.load_deployment()
        if deployment is None:
            raise Unavailable(
                f"{directory.name}: not deployed here. Fix: run blueprint deploy {console.shorten_path(folder)}"
            )
        return deployment

    def find_directory(self, folder: Path) -> DeploymentDir:
        """Return the deployment's directory, also while the user is editing the blueprint.

        Raises:
            InputError: the folder has no blueprint and nothing of it is deployed, it has no template for the target, or
                it is deployed from another directory.
        """
        fallback = DeploymentDir(folder.resolve().name, Path.cwd())
        try:
            document = inputs.read_blueprint(folder)
        except InputError:
            if fallback.data.is_dir():
                return fallback
            raise
        render.find_template(folder, self.name)
        directory = DeploymentDir(resolve_name(document), Path.cwd())
        _require_same_root(directory, folder)
        return directory


def _require_same_root(directory: DeploymentDir, folder: Path) -> None:
    """Refuse a deployment that is not here and was deployed from a directory above its blueprint."""
    for root in () if deploy.exists(directory) else folder.resolve().parents:
        if DeploymentDir(directory.name, root).config.exists():
            fix = "run the command in that directory"
            raise InputError(f"{directory.name}: deployed from {root}, and not from {directory.root}. Fix: {fix}.")


TARGET = LocalTarget()
