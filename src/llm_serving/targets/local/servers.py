"""The servers that a blueprint's kind needs on this machine: set up, given ports, and waited for."""

from __future__ import annotations

import functools

from llm_serving import console
from llm_serving.services import kinds
from llm_serving.services.blueprint import BaseBlueprint
from llm_serving.services.local_server import LocalServer
from llm_serving.services.service import Service
from llm_serving.targets.deployment_dir import DeploymentDir
from llm_serving.targets.deployment_plan import DeploymentPlan
from llm_serving.targets.local import readiness
from llm_serving.targets.local.supervisor import Supervisor


def list_servers(blueprint: BaseBlueprint) -> tuple[LocalServer, ...]:
    """List the servers of a blueprint, in the order of starting."""
    return kinds.get(blueprint.kind).list_local_servers(blueprint)


def list_port_names(blueprint: BaseBlueprint) -> list[str]:
    """List the ports that a blueprint's servers and processes listen on."""
    names = [server.NAME for server in list_servers(blueprint)]
    return [*names, *kinds.get(blueprint.kind).list_port_names(blueprint)]


def install_missing(blueprint: BaseBlueprint) -> None:
    """Install the servers whose programs are not on this machine.

    Raises:
        Unavailable: the programs cannot be had.
    """
    for server in list_servers(blueprint):
        if not server.is_installed():
            with console.step(f"Set up {server.NAME}") as step:
                server.install(functools.partial(setattr, step, "note"))


def build_services(directory: DeploymentDir, blueprint: BaseBlueprint, ports: dict[str, int]) -> tuple[Service, ...]:
    servers = list_servers(blueprint)
    return tuple(server.build_service(ports[server.NAME], directory.data / server.NAME) for server in servers)


def start(plan: DeploymentPlan, supervisord: Supervisor) -> None:
    """Start the servers that do not run, one after the other; wait until each is ready.

    Raises:
        RoleFailed: one ended, or was not ready in time.
    """
    for server in list_servers(plan.blueprint.value):
        with console.step(f"Start {server.NAME}"):
            if not supervisord.read_state(server.NAME).pid:
                (plan.directory.data / server.NAME).mkdir(exist_ok=True)
                supervisord.start(server.NAME)
            is_ready = functools.partial(server.is_ready, plan.deployment.environment.ports[server.NAME])
            readiness.wait_for(supervisord, server.NAME, is_ready, server.START_S)
