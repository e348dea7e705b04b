"""Commands to use a deployment on this machine."""

from __future__ import annotations

import json
import shlex

from rich.console import Group, RenderableType
from rich.text import Text

from llm_serving.catalog.models import RANDOM_NOTICE
from llm_serving.kinds.serving.deployment import ServingDeployment, narrow
from llm_serving.services import tasks
from llm_serving.services.deployment import Deployment


def render_usage(deployment: Deployment, folder: str) -> RenderableType:
    """Render the commands to call, validate, watch and remove a deployment of the blueprint in `folder`."""
    folder = shlex.quote(folder)
    commands = {
        **({"request": format_request(narrow(deployment))} if deployment.served_models else {}),
        "validate": f"blueprint validate {folder}",
        "status": f"blueprint status {folder}; blueprint logs {folder} --follow",
        "destroy": f"blueprint destroy {folder}",
    }
    return Group(
        Text(" at ".join(filter(None, [f"{deployment.name} is up", deployment.url]))),
        *(
            [Text(RANDOM_NOTICE, "yellow")]
            if any(served_model.weights.random for served_model in deployment.served_models)
            else []
        ),
        *(Text(f"  {action:<9} {command}") for action, command in commands.items()),
    )


def format_request(deployment: ServingDeployment) -> str:
    """Format a curl command that sends a request of the deployment's task."""
    model, pooled = deployment.served_models[0].name, tasks.POOLED.get(deployment.task)
    body = pooled.build(["Hello"]) if pooled else {"messages": [{"role": "user", "content": "Hello"}]}
    path = pooled.path if pooled else "/v1/chat/completions"
    text = json.dumps({"model": model, **body})
    return f"curl {deployment.url}{path} -H 'Content-Type: application/json' -d {shlex.quote(text)}"
