"""The environment of a local deployment: this machine's ports and cores, and the embedded AWS beside it."""

from __future__ import annotations

import hashlib
import os
import sys

from llm_serving import paths, processes
from llm_serving.fleet import aws_limits
from llm_serving.fleet.model import Fleet
from llm_serving.rehearsal import emulator
from llm_serving.services import kinds
from llm_serving.services.blueprint import BaseBlueprint
from llm_serving.services.environment import Conventions, Environment
from llm_serving.services.service import LOOPBACK, Resources, Service
from llm_serving.settings.errors import Unavailable
from llm_serving.targets.deployment_dir import DeploymentDir
from llm_serving.targets.local import engine_setups, servers, subreaper, supervisor

CONVENTIONS = Conventions(title="this machine", is_local=True, url=f"http://{LOOPBACK}:{{port}}")

IMAGE_PROGRAMS = {
    "router-front": "router/router_front.py",
    "router-dns-discovery": "router/router_dns_discovery.py",
    "batch-worker": "batch-worker/batch_worker.py",
    "batch-api": "batch-worker/batch_api.py",
}
"""Programs of images/ by name, which run here as they do in their images."""

FETCHER = (sys.executable, "-m", "llm_serving.targets.local.fetch_weights")
"""Copies weights for engines that read them from a folder."""

NAME = "local"
AWS = "aws"
ROUTER = "router"

EMULATOR_BYTES = 300_000_000
"""Memory of the embedded AWS with network and storage applied, without the weights, which it holds in memory too."""

SHORTCUTS_VARIABLE = "BLUEPRINT_LOCAL_SHORTCUTS"
"""`off` runs the engine as production does, `early-fork` forks its processes before the first has threads; they read it
when they start (engine_plugins, engine_startup)."""

SHORTCUTS_NOTE = (
    "To save CPU time, engine processes fork after their imports where they can, search for garbage more rarely, leave "
    "out what compiles, and let NIXL's thread sleep while idle; production does not. "
    f"{SHORTCUTS_VARIABLE}=off turns this off."
)


def resolve_environment(
    directory: DeploymentDir,
    blueprint: BaseBlueprint,
    fleet: Fleet,
    *,
    account: str | None = None,  # noqa: ARG001 - the embedded AWS has its own
    port: int | None = None,
) -> Environment:
    """Resolve the environment of a deployment, and choose its ports."""
    kind = kinds.get(blueprint.kind)
    ports = _choose_ports(directory, [AWS, *servers.list_port_names(blueprint)], port)
    endpoint = f"http://127.0.0.1:{ports[AWS]}"
    key_variable = emulator.require_access_key(endpoint, _derive_bytes(directory, AWS).hex()[:32])
    hidden_host = _choose_hidden_host(directory)
    engine = engine_setups.find(kind.get_engine(blueprint), kind.get_framework(blueprint))
    has_shortcuts = os.environ.get(SHORTCUTS_VARIABLE) != "off"
    return Environment(
        target=NAME,
        conventions=CONVENTIONS,
        region=fleet.region,
        # As the storage stack names it in the embedded AWS's account.
        bucket=aws_limits.build_bucket_name(fleet.name, "models", emulator.ACCOUNT, fleet.region),
        s3_endpoint=endpoint,
        env=_build_env(endpoint, fleet.region, hidden_host, _select_shortcuts(blueprint) if has_shortcuts else "off"),
        engine_folder=str(engine.executables),
        data_folder=str(directory.data),
        socket_folder=str(directory.sockets),
        launcher=(sys.executable, subreaper.__file__),
        fetcher=FETCHER,
        image_programs={name: (sys.executable, str(paths.IMAGES / file)) for name, file in IMAGE_PROGRAMS.items()},
        hidden_host=hidden_host,
        module_folder=str(paths.IMAGES / "vllm"),
        services=(
            _build_emulator_process(directory, ports[AWS], key_variable),
            *servers.build_services(directory, blueprint, ports),
        ),
        ports=ports,
        cores=len(os.sched_getaffinity(0)),
        emulated=(*([SHORTCUTS_NOTE] if has_shortcuts and engine.has_shortcuts else []), emulator.EMULATION_NOTE),
    )


def _select_shortcuts(blueprint: BaseBlueprint) -> str:
    """Return what the engine's processes leave out of the shortcuts; empty for nothing."""
    return "" if kinds.get(blueprint.kind).can_fork(blueprint) else "early-fork"


def _build_env(endpoint: str, region: str, hidden_host: str, shortcuts: str) -> dict[str, str]:
    env = emulator.build_client_env(endpoint, region)
    limits = {SHORTCUTS_VARIABLE: shortcuts} if shortcuts else {}
    return {**env, **emulator.build_no_proxy(hidden_host), **limits}


def _build_emulator_process(directory: DeploymentDir, port: int, key_variable: dict[str, str]) -> Service:
    return Service(
        name=AWS,
        role=AWS,
        command=tuple(emulator.build_command(port)),
        # No stack applied here needs AWS's managed policies or machine images. TMPDIR has what moto does not hold in
        # memory.
        env={**emulator.build_server_env(bare=True), **key_variable, "TMPDIR": str(directory.sockets)},
        port=port,
        is_stateful=True,
        start_retries=0,
        resources=Resources(memory_bytes=EMULATOR_BYTES),
    )


def _choose_hidden_host(directory: DeploymentDir) -> str:
    """Choose the loopback address of all that clients do not call: the same at each deploy.

    A web page in the user's browser can send requests to any port of 127.0.0.1, and engines and metrics pages ask for
    no key; it does not know this address.
    """
    digest = _derive_bytes(directory, ROUTER)
    return f"127.{digest[0]}.{digest[1]}.{1 + digest[2] % 254}"


def _derive_bytes(directory: DeploymentDir, purpose: str) -> bytes:
    """Return bytes for a purpose that other users of this machine cannot guess: the same at each deploy."""
    return hashlib.sha256(f"{purpose} {directory.load_secret()}".encode()).digest()


def _choose_ports(directory: DeploymentDir, names: list[str], port: int | None) -> dict[str, int]:
    """Choose the saved ports that are still free, or its own where the deployment runs, and free ones for the rest."""
    own_ports = supervisor.find_running(directory) is not None
    chosen_ports = {
        name: saved_port
        for name, saved_port in directory.load_ports().items()
        if name in names and (saved_port != port or name == ROUTER) and (processes.claim(saved_port) or own_ports)
    }
    if port is not None and chosen_ports.get(ROUTER) != port:
        if not processes.claim(port):
            raise Unavailable(f"port {port} is in use. Fix: choose another --port, or leave it out for a free one.")
        chosen_ports[ROUTER] = port
    missing_names = [name for name in names if name not in chosen_ports]
    free = processes.claim_free_ports(len(missing_names))
    return {name: chosen_ports.get(name) or free.pop() for name in names}
