"""`blueprint switch`: another engine or framework for a blueprint."""

from __future__ import annotations

from typing import Annotated

import typer

from llm_serving import console
from llm_serving.options.arguments import FLEET, TARGET, AsJson, Fleet, Folder, Target
from llm_serving.services import inputs
from llm_serving.services.kinds import Capability
from llm_serving.settings.errors import InputError
from llm_serving.targets import switch as switches


def switch(
    folder: Folder,
    fleet: Fleet = FLEET,
    target: Target = TARGET,
    engine: Annotated[str | None, typer.Option(metavar="NAME", help="Engine that runs the model.")] = None,
    framework: Annotated[str | None, typer.Option(metavar="NAME", help="Framework that runs the replicas.")] = None,
    as_json: AsJson = False,
) -> None:
    """Change a blueprint's engine or framework.

    Rewrites the line in blueprint.yaml, keeps its comments, and shows how the rendered file changes; deploys nothing.
    A change that cannot work is refused with every reason, and the file stays as it is.
    """
    values = {key: value for key, value in (("engine", engine), ("framework", framework)) if value is not None}
    if not values:
        raise InputError("nothing to switch. Fix: use --engine NAME, or --framework NAME.")
    inputs.require_capability(folder, Capability.SWITCH)
    change = switches.plan(folder, fleet, target, values)
    file = console.shorten_path(change.file)
    if as_json:
        change.write()
        payload = {"file": file, "values": values, "lines": list(change.lines), "rendered": list(change.rendered)}
        console.print_json(payload)
        return
    if not change.lines:
        console.out.print(f"{file}: no change", markup=False)
        return
    rendered = change.rendered or ("What is rendered stays the same.",)
    console.out.print("\n".join([*rendered, file, *change.lines]), markup=False, highlight=False)
    change.write()
    names = [console.shorten_path(folder), "--fleet", console.shorten_path(fleet), "--target", target]
    console.err.print(f"Next: {console.quote_command(['blueprint', 'deploy', *names])}", markup=False)
