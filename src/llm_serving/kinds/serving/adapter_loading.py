"""LoRA adapters at run time: loads them on every replica of a role, and unloads them, over the engine's API.

The router needs no notice: its discovery lists each engine's models every few seconds.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from pathlib import Path

from llm_serving.catalog import engines
from llm_serving.catalog.engines import AdapterApi
from llm_serving.kinds.serving import adapters
from llm_serving.kinds.serving.deployment import Role, ServingDeployment
from llm_serving.services.service import Service
from llm_serving.settings.errors import CheckFailed, InputError, Unavailable, quote_value

_LOAD_TIMEOUT_S = 60.0
"""Longest that an engine takes to load one, in seconds."""


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
    """Load the adapter in `folder` as `name` on every replica of `role`.

    Raises:
        InputError: there is no such role, or the adapter is of another model.
        CheckFailed: an engine refuses.
        Unavailable: an engine does not answer.
    """
    deployed_role = _require_role(deployment, role)
    mismatch = adapters.find_folder_error(
        folder, deployed_role.served_model.model if deployed_role.served_model else ""
    )
    if mismatch:
        raise InputError(f"FOLDER: {quote_value(folder)}: {mismatch[0]}. Fix: {mismatch[1]}.")
    api = _get_api(deployment)
    for service in deployment.list_services(deployed_role):
        _post(service, api.load, {api.name_field: name, api.path_field: str(folder.resolve())})


def unload(deployment: ServingDeployment, role: str, name: str) -> None:
    """Unload the adapter `name` from every replica of `role`.

    Raises:
        InputError: there is no such role.
        CheckFailed: an engine refuses.
        Unavailable: an engine does not answer.
    """
    deployed_role, api = _require_role(deployment, role), _get_api(deployment)
    for service in deployment.list_services(deployed_role):
        _post(service, api.unload, {api.name_field: name})


def _get_api(deployment: ServingDeployment) -> AdapterApi:
    api = engines.load_engines()[deployment.engine].adapter_api
    if api is None:
        reason = f"the engine {deployment.engine} loads adapters when it starts alone"
        raise InputError(f"ROLE: {reason}. Fix: add the adapter to the blueprint and deploy it.")
    return api


def _require_role(deployment: ServingDeployment, name: str) -> Role:
    """Return the role, if its engines accept adapters."""
    roles = {role.name: role for role in deployment.engine_roles}
    if name not in roles:
        raise InputError(
            f"ROLE: {quote_value(name)}: {deployment.name} has no such role. Fix: use {' or '.join(roles)}."
        )
    role = roles[name]
    if not role.served_model or not role.served_model.adapters:
        reason = "its engines started without adapters, and then load none"
        raise InputError(f"ROLE: {quote_value(name)}: {reason}. Fix: add an adapter to the blueprint and deploy it.")
    return role


def _post(service: Service, path: str, body: dict[str, str]) -> None:
    request = urllib.request.Request(
        f"http://127.0.0.1:{service.port}{path}",
        data=json.dumps(body).encode(),
        headers={"Content-Type": "application/json"},
    )
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        opener.open(request, timeout=_LOAD_TIMEOUT_S).close()
    except urllib.error.HTTPError as error:
        raise CheckFailed(f"{service.name} refuses: {_read_error_message(error)}") from None
    except OSError as error:
        raise Unavailable(f"{service.name} does not answer: {error}") from None


def _read_error_message(error: urllib.error.HTTPError) -> str:
    """Return the engine's message, or the status code if it has none."""
    try:
        return str(json.load(error)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return f"status {error.code}"
