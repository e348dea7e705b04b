"""Deploys a blueprint on this machine, in steps that callers can overlap.

plan -> resource_check -> [supervisor] -> start_emulator -> create_bucket -> serve
"""

from __future__ import annotations

import difflib
import functools
import re
import shutil
from collections.abc import Callable

from llm_serving import console, processes
from llm_serving.rehearsal import emulator
from llm_serving.services import deployments
from llm_serving.services.service import Service
from llm_serving.settings.errors import Unavailable
from llm_serving.settings.units import format_bytes
from llm_serving.targets import planning, render
from llm_serving.targets.deployment_dir import DeploymentDir
from llm_serving.targets.deployment_plan import DeploymentPlan
from llm_serving.targets.local import (
    engine_setups,
    environment,
    readiness,
    resource_check,
    servers,
    supervisor,
    weights,
)
from llm_serving.targets.local.supervisor import Supervisor

_S3_HOME = "us-east-1"
"""The region whose buckets are created without naming it."""

EMULATOR_TIMEOUT_S = 120.0
"""Longest start of the embedded AWS, in seconds."""


def diff(plan: DeploymentPlan) -> str:
    """Return what `deploy` would change, as a unified diff; empty if nothing."""
    config = plan.directory.config
    deployed = config.read_text(encoding="utf-8") if plan.directory.load_deployment() and config.exists() else ""
    labels = ("deployed", console.shorten_path(plan.rendered / config.name))
    lines = difflib.unified_diff(deployed.splitlines(), plan.text.splitlines(), *labels, lineterm="")
    return "\n".join(lines)


def write_config(plan: DeploymentPlan) -> None:
    """Render the blueprint for a person to read, and write the supervisor's configuration.

    Raises:
        InputError: the rendered file was edited by hand.
    """
    planning.write_rendered(plan)
    plan.directory.create()
    plan.directory.config.write_text(plan.text, encoding="utf-8")


def start_emulator(plan: DeploymentPlan, supervisord: Supervisor) -> None:
    """Start the embedded AWS and wait until it is ready.

    Raises:
        RoleFailed: it ended, or was not ready in time.
    """
    endpoint = plan.deployment.environment.s3_endpoint or ""
    with console.step("Start the embedded AWS") as step:
        supervisord.start(environment.AWS)
        is_ready = functools.partial(emulator.is_reachable, endpoint)
        readiness.wait_for(supervisord, environment.AWS, is_ready, EMULATOR_TIMEOUT_S)
        step.note = endpoint


def create_bucket(plan: DeploymentPlan) -> None:
    """Create the model bucket in the embedded AWS unless it is there.

    It is all of the fleet that a deployment here uses. `./install.sh` and `blueprint rehearse` apply whole stacks with
    Terraform, whose provider waits for most of a minute for a bucket's lifecycle rules.

    Raises:
        Unavailable: the embedded AWS refuses.
    """
    from botocore.exceptions import BotoCoreError, ClientError

    target = plan.deployment.environment
    s3 = emulator.create_client("s3", target.s3_endpoint or "", target.region)
    region = {} if target.region == _S3_HOME else {"CreateBucketConfiguration": {"LocationConstraint": target.region}}
    try:
        if target.bucket not in {bucket["Name"] for bucket in s3.list_buckets()["Buckets"]}:
            s3.create_bucket(Bucket=target.bucket, **region)
    except (BotoCoreError, ClientError) as error:
        raise Unavailable(f"the embedded AWS creates no bucket {target.bucket}: {error}") from None


def start_roles(plan: DeploymentPlan, supervisord: Supervisor) -> None:
    """Start the servers, the workers and the router, wait until each answers, and save what is deployed.

    Raises:
        RoleFailed: one ended, or was not ready in time.
    """
    servers.start(plan, supervisord)
    with console.step(f"Start the workers{' and the router' if plan.deployment.entries else ''}") as step:
        _start_workers(plan, supervisord)
        for process in plan.deployment.entries:
            supervisord.start(process.name)
        readiness.wait(supervisord, plan.deployment.services, lambda text: setattr(step, "note", text))
        plan.directory.save_deployment(plan.deployment)
        step.note = ", ".join(filter(None, ["all ready", plan.deployment.url]))


def _start_workers(plan: DeploymentPlan, supervisord: Supervisor) -> None:
    """Start those that do not run yet; the others already read the files that this would copy."""
    starting = [process for process in plan.deployment.workers if not supervisord.read_state(process.name).pid]
    if plan.deployment.loaded_models:
        engine_setups.find(plan.deployment.engine, plan.deployment.framework).prepare(
            plan.directory.get_cache_path(name) for process in starting for name in process.caches or (process.name,)
        )
    for process in starting:
        supervisord.start(process.name)


def bring_up(plan: DeploymentPlan, supervisord: Supervisor) -> None:
    """Start everything in order, with progress.

    Raises:
        BlueprintError: a step failed.
    """
    start_emulator(plan, supervisord)
    create_bucket(plan)
    serve(plan, supervisord)


def serve(plan: DeploymentPlan, supervisord: Supervisor) -> None:
    """Upload the models to the bucket and start all other processes, with progress.

    Raises:
        BlueprintError: a step failed.
    """
    _upload_weights(plan)
    start_roles(plan, supervisord)


def is_bucket_ready(plan: DeploymentPlan) -> bool:
    """Return whether the bucket has its lifecycle rules, which Terraform creates last and then waits for."""
    from botocore.exceptions import BotoCoreError, ClientError

    target = plan.deployment.environment
    s3 = emulator.create_client("s3", target.s3_endpoint or "", target.region)
    try:
        s3.get_bucket_lifecycle_configuration(Bucket=target.bucket)
    except (BotoCoreError, ClientError):
        return False
    return True


def update(plan: DeploymentPlan, supervisord: Supervisor) -> None:
    """Update a running deployment to `plan`; processes that do not change keep running.

    Raises:
        BlueprintError: a step failed.
    """
    deployed = plan.directory.load_deployment()
    if deployed is None or deployed.environment.bucket != plan.deployment.environment.bucket:
        create_bucket(plan)
    if deployed is None or deployed.loaded_models != plan.deployment.loaded_models:
        _upload_weights(plan)
    else:
        weights.check(plan.deployment)
    write_config(plan)
    with console.step("Restart changed processes") as step:
        step.note = ", ".join(supervisord.update()) or "none"
    start_roles(plan, supervisord)


def _upload_weights(plan: DeploymentPlan) -> None:
    if not plan.deployment.loaded_models:
        return
    model_names = " and ".join(loaded_model.model for loaded_model in plan.deployment.loaded_models)
    uris = ", ".join(loaded_model.weights.uri for loaded_model in plan.deployment.loaded_models)
    with console.step(f"Upload model {model_names} to S3") as step:
        weights.upload_models(plan.directory, plan.deployment, step.note_bytes)
        step.note = f"{format_bytes(weights.check(plan.deployment))} at {uris}"


def exists(directory: DeploymentDir) -> bool:
    """Return whether anything of a deployment is left: its directory, or processes that outlived it."""
    return directory.data.exists() or supervisor.find_orphan(directory) is not None


def stop(directory: DeploymentDir) -> bool:
    """Stop every process of a deployment and keep its directory; return whether any ran."""
    supervisord = supervisor.find_running(directory)
    if supervisord is not None:
        supervisord.shut_down()
    orphan = supervisor.find_orphan(directory)
    if orphan is not None:
        supervisor.end_orphan(orphan)
    directory.remove_sockets()
    directory.clear_deployment()
    return supervisord is not None or orphan is not None


def find_callers(directory: DeploymentDir) -> list[str]:
    """Return the other deployments on this machine that name the URL of this one."""
    deployment = directory.load_deployment()
    if deployment is None:
        return []
    url = re.compile(re.escape(deployment.url) + r"(?!\d)")
    files = sorted(directory.data.parent.glob(f"*/{deployments.FILE}"))
    return [
        file.parent.name
        for file in files
        if file.parent != directory.data and url.search(file.read_text(encoding="utf-8"))
    ]


def destroy(directory: DeploymentDir) -> bool:
    """Stop every process of a deployment and remove its directory; return whether there was anything."""
    existed = directory.data.exists()
    stopped = stop(directory)
    render.remove(directory.get_rendered_path(environment.NAME))
    directory.remove()
    return existed or stopped


def deploy(plan: DeploymentPlan, confirm: Callable[[str], None], *, force: bool = False) -> DeploymentPlan | None:
    """Deploy a blueprint, or update what runs; return None if nothing changes. After a failed step nothing runs."""
    with plan.directory.lock():
        supervisord = _find_healthy_supervisor(plan)
        if (
            supervisord is not None
            and plan.directory.config.read_text(encoding="utf-8") == plan.text
            and all(readiness.is_answering(process) for process in plan.deployment.all_services if process.probe)
        ):
            plan.directory.save_deployment(plan.deployment)  # a changed traffic or SLO needs no restart
            return None
        orphan = supervisor.find_orphan(plan.directory)
        if orphan is None:  # before anybody reads the changes
            resource_check.check(plan, _list_missing_processes(plan))
        confirm(diff(plan))
        if orphan is not None:  # it has the memory that this deployment needs
            supervisor.end_orphan(orphan)
            resource_check.check(plan, _list_missing_processes(plan))
        # All that can refuse runs before anything that serves is touched.
        planning.write_rendered(plan, force=force)
        plan.directory.save_ports(plan.deployment.environment.ports)  # another plan may have chosen others meanwhile
        try:
            if supervisord is not None:
                update(plan, supervisord)
            else:
                prepare_start(plan)
                bring_up(plan, supervisor.start_detached(plan.directory, list_direct_hosts(plan)))
        except BaseException:
            with processes.ignore_signals():
                stop(plan.directory)
            raise
        return plan


def prepare_start(plan: DeploymentPlan) -> None:
    """Stop what an earlier deployment left, and write the configuration of a new one.

    Raises:
        InputError: the rendered file was edited by hand.
    """
    stop(plan.directory)
    # A validation's among them: what is read there is of this deployment.
    shutil.rmtree(plan.directory.logs, ignore_errors=True)
    write_config(plan)


def list_direct_hosts(plan: DeploymentPlan) -> dict[str, str]:
    """Return the variables by which all processes ask each other directly, whatever proxy the user has."""
    return emulator.build_no_proxy(plan.deployment.environment.hidden_host)


def _find_healthy_supervisor(plan: DeploymentPlan) -> Supervisor | None:
    """Find the supervisor, if it and the embedded AWS run: without the latter the bucket is lost."""
    supervisord = supervisor.find_running(plan.directory) if plan.directory.config.exists() else None
    states = supervisord.list_states() if supervisord else []
    services = {process.name for process in plan.deployment.environment.services}
    running = {state.name for state in states if state.state in ("STARTING", "RUNNING")}
    return supervisord if services <= running else None


def _list_missing_processes(plan: DeploymentPlan) -> list[Service]:
    supervisord = supervisor.find_running(plan.directory)
    running = {state.name for state in supervisord.list_states() if state.pid} if supervisord else set()
    return [process for process in plan.deployment.all_services if process.name not in running]
