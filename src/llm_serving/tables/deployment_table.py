"""What is up on this machine, in the terminal: how to ask it, load it, watch it and end it."""

from __future__ import annotations

import shlex

from rich.console import Group, RenderableType
from rich.text import Text

from llm_serving.catalog.models import RANDOM_NOTICE
from llm_serving.workloads.serving.deployment import Deployment


def render_usage(deployment: Deployment, folder: str) -> RenderableType:
    """How to use a deployment of the blueprint in `folder`."""
    folder = shlex.quote(folder)
    commands = {
        "ask": format_request(deployment),
        "load": f"blueprint validate {folder}",
        "watch": f"blueprint status {folder}; blueprint logs {folder} --follow",
        "end": f"blueprint destroy {folder}",
    }
    return Group(
        Text(f"{deployment.name} is up at {deployment.url}"),
        *(
            [Text(RANDOM_NOTICE, "yellow")]
            if any(served_model.weights.random for served_model in deployment.served_models)
            else []
        ),
        *(Text(f"  {action:<6} {command}") for action, command in commands.items()),
    )


def format_request(deployment: Deployment) -> str:
    """A line that asks the deployment something."""
    body = f'{{"model": "{deployment.served_models[0].name}", "messages": [{{"role": "user", "content": "Hello"}}]}}'
    return f"curl {deployment.url}/v1/chat/completions -H 'Content-Type: application/json' -d {shlex.quote(body)}"
