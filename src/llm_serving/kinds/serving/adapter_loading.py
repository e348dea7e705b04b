"""LoRA adapters at run time: loads them on every replica of a role, and unloads them, over the engine's API.

On AWS `adapter_program` does it in each replica's container, where the adapter has to be copied to. The router needs no
notice: its discovery lists each engine's models every few seconds.
"""

from __future__ import annotations

import base64
import functools
import json
import urllib.error
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple, NoReturn, TypeVar

from llm_serving.catalog import engines
from llm_serving.catalog.engines import AdapterApi
from llm_serving.kinds.serving import adapter_program, adapters
from llm_serving.kinds.serving.deployment import Role, ServingDeployment, narrow
from llm_serving.services.service import Service
from llm_serving.settings.errors import CheckFailed, InputError, Unavailable, quote_value
from llm_serving.targets.deployment_plan import DeploymentPlan
from llm_serving.targets.on_aws import remote_files
from llm_serving.targets.on_aws.aws_target import AwsTarget
from llm_serving.targets.on_aws.replicas import ReplicaContainer

T = TypeVar("T")

_RUN_TIMEOUT_S = 300.0
"""Longest that one container takes, in seconds: to copy an adapter from S3, and its engine to load it."""

_RUN_PROGRAM = "import base64,sys;exec(base64.b64decode(sys.argv.pop(1)))"
"""Runs the program in its first argument, in letters that every shell passes on."""


class Outcome(NamedTuple):
    """What came of it in one container."""

    replica: str
    done: str
    """Empty where it failed."""

    error: str = ""


def parse_folder(text: str) -> Path:
    """Parse the argument FOLDER.

    Raises:
        InputError: it is a location in S3, which replicas on this machine do not copy.
    """
    if text.startswith("s3://"):
        reason = "replicas on this machine load from a local directory"
        fix = f"name a directory; `aws s3 cp --recursive {text} FOLDER` creates one"
        raise InputError(f"FOLDER: {quote_value(text)}: {reason}. Fix: {fix}.")
    return Path(text)


def load(deployment: ServingDeployment, role: str, name: str, folder: Path) -> None:
    """Load the adapter in `folder` as `name` on every replica of `role`, or the rest of them after one that failed.

    Raises:
        InputError: there is no such role, or the adapter is of another model.
        CheckFailed: an engine refuses.
        Unavailable: an engine does not answer.
    """
    deployed_role = _require_role(deployment, role)
    _require_own_name(deployment, deployed_role, name)
    if problem := adapters.find_folder_error(folder, *_describe_base(deployment, deployed_role)):
        _refuse_location(folder, problem)
    api, path = _get_api(deployment), str(folder.resolve())
    for service in deployment.list_services(deployed_role):
        if _find_loaded(service, name) != path:
            _post(service, api.load, {api.name_field: name, api.path_field: path})


def change_remote(plan: DeploymentPlan, target: AwsTarget, role: str, name: str, location: str = "") -> list[Outcome]:
    """Load the adapter at `location` as `name` on every replica of `role` on AWS, or unload it where that is empty.

    Raises:
        CheckFailed: no replica runs.
        InputError: there is no such role, or its replicas cannot load the adapter.
        Unavailable: the replicas cannot be listed.
    """
    deployment = narrow(plan.deployment)
    deployed_role = _require_role(deployment, role)
    if location:
        _require_own_name(deployment, deployed_role, name)
    api, service = _get_api(deployment), deployment.list_services(deployed_role)[0]
    files = _sign_files(plan, deployed_role, location) if location else {}
    request: adapter_program.Request = {"name": name, "files": files, "api": None}
    answering = {**request, "api": {"url": f"http://{service.host}:{service.port}", **api.model_dump()}}
    containers = target.list_containers(plan, role)
    if not containers:
        raise CheckFailed(f"{deployment.name}: no replica of {role} runs on {target.name}. Fix: deploy it first.")
    outcomes: list[Outcome] = []
    with ThreadPoolExecutor(len(containers)) as executor:
        # The first node of a replica has its others read what they were to copy before.
        for answers in (False, True):
            run = functools.partial(_run_in_container, answering if answers else request)
            outcomes += executor.map(run, [entry for entry in containers if entry.answers == answers])
    return outcomes


def _sign_files(plan: DeploymentPlan, role: Role, location: str) -> dict[str, str]:
    """Return presigned URLs of the adapter's files, for containers that may not read them by themselves."""
    if not location.startswith("s3://"):
        _refuse_location(location, adapters.describe_unreachable(plan.deployment.target))
    names_and_text = remote_files.read_files(plan.aws, location, adapters.CONFIG)
    if names_and_text is None:
        raise Unavailable(f"{location}: replicas copy it with your own permission to read it, and you have none")
    if problem := adapters.find_error(*names_and_text, location, *_describe_base(narrow(plan.deployment), role)):
        _refuse_location(location, problem)
    return remote_files.sign_files(plan.aws, location, (adapters.CONFIG, adapters.WEIGHTS))


def _describe_base(deployment: ServingDeployment, role: Role) -> tuple[str, tuple[str, ...]]:
    """Return the model of a role, and the modules that adapters may change there."""
    row = engines.load_engines()[deployment.engine]
    return role.served_model.model if role.served_model else "", row.list_adapter_modules(role.engine_arguments)


def _refuse_location(location: str | Path, problem: tuple[str, str]) -> NoReturn:
    raise InputError(f"FOLDER: {quote_value(location)}: {problem[0]}. Fix: {problem[1]}.")


def _run_in_container(request: adapter_program.Request, container: ReplicaContainer) -> Outcome:
    program = base64.b64encode(Path(adapter_program.__file__).read_bytes()).decode()
    try:
        text = container.run(["python3", "-c", _RUN_PROGRAM, program], json.dumps(request), limit_s=_RUN_TIMEOUT_S)
    except Unavailable as error:
        return Outcome(container.name, "", str(error))
    answers = [line.strip() for line in text.splitlines() if line.startswith(adapter_program.MARK)]
    if not answers:
        return Outcome(container.name, "", f"no answer: {' '.join(text.split())[-300:]}")
    return Outcome(container.name, **{"done": "", **json.loads(answers[-1].removeprefix(adapter_program.MARK))})


def unload(deployment: ServingDeployment, role: str, name: str) -> None:
    """Unload the adapter `name` from every replica of `role` that has it.

    Raises:
        InputError: there is no such role.
        CheckFailed: an engine refuses.
        Unavailable: an engine does not answer.
    """
    deployed_role, api = _require_role(deployment, role), _get_api(deployment)
    services = deployment.list_services(deployed_role)
    for service in [service for service in services if _find_loaded(service, name)] or services:
        _post(service, api.unload, {api.name_field: name})


def _get_api(deployment: ServingDeployment) -> AdapterApi:
    api = engines.load_engines()[deployment.engine].adapter_api
    if api is None:
        reason = f"the engine {deployment.engine} loads adapters only when it starts"
        raise InputError(f"ROLE: {reason}. Fix: add the adapter to the blueprint and deploy it.")
    return api


def _require_role(deployment: ServingDeployment, name: str) -> Role:
    roles = {name: role for role in deployment.engine_roles for name in (role.name, *role.sleepers)}
    if name not in roles:
        reason = f"{deployment.name} has no such role"
        raise InputError(f"ROLE: {quote_value(name)}: {reason}. Fix: use {' or '.join(roles)}.")
    role = roles[name]
    if role.sleepers:
        reason = "its models take turns on the same accelerators, and load adapters only when they start"
        raise InputError(f"ROLE: {quote_value(name)}: {reason}. Fix: add the adapter to the blueprint and deploy it.")
    if not role.served_model or not role.served_model.adapters:
        reason = "its engines started without adapters, and then load none"
        raise InputError(f"ROLE: {quote_value(name)}: {reason}. Fix: add an adapter to the blueprint and deploy it.")
    return role


def _require_own_name(deployment: ServingDeployment, role: Role, name: str) -> None:
    """Refuse a name that a role of another model answers to: the router would send each request of it to either."""
    own = [model.name for model in role.served_models]
    for other in deployment.engine_roles:
        models = [model for model in other.served_models if model.name not in own]
        if any(name in (model.name, *model.adapters) for model in models):
            reason = f"clients put it in `model` for {other.name} too"
            raise InputError(f"NAME: {quote_value(name)}: {reason}. Fix: use a name of its own.")


def _find_loaded(service: Service, name: str) -> str | None:
    return _ask(service, "", lambda url: adapter_program.find_loaded(url, name))


def _post(service: Service, path: str, body: dict[str, str]) -> None:
    _ask(service, path, lambda url: adapter_program.post(url, body))


def _ask(service: Service, path: str, ask: Callable[[str], T]) -> T:
    """Return what `ask` does of the URL of an engine's path."""
    try:
        return ask(f"http://{service.host}:{service.port}{path}")
    except urllib.error.HTTPError as error:
        raise CheckFailed(f"{service.name} refuses: {adapter_program.read_error_message(error)}") from None
    except OSError as error:
        raise Unavailable(f"{service.name} does not answer: {error}") from None
