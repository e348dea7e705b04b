"""`blueprint state`: the bucket of Terraform's state, made once and taken away last."""

from __future__ import annotations

import typer

from llm_serving import console
from llm_serving.cli import arguments

app = typer.Typer(help="The bucket of Terraform's state: make it once, take it away last.", no_args_is_help=True)


@app.command()
def make(fleet: arguments.Fleet = arguments.FLEET, yes: arguments.Yes = False) -> None:
    """Make the bucket that `state` names, or what it lacks: versions, encryption, TLS only, closed to the public."""
    from llm_serving.aws import state_bucket
    from llm_serving.fleet.model import Fleet
    from llm_serving.settings.document import load

    document = load(fleet, Fleet)
    changed = state_bucket.ensure_state_bucket(
        document.value, confirm=lambda: yes or typer.confirm("Make it?", err=True)
    )
    if not changed:
        console.out.print(f"{document.value.state}: its bucket is as it should be; nothing was changed", markup=False)


@app.command()
def remove(fleet: arguments.Fleet = arguments.FLEET, yes: arguments.Yes = False) -> None:
    """Delete the bucket that `state` names, if no state in it still holds a resource."""
    from llm_serving.aws import state_bucket
    from llm_serving.fleet.model import Fleet
    from llm_serving.settings.document import load

    document = load(fleet, Fleet)
    question = "Delete it with all old versions?"
    removed = state_bucket.remove_state_bucket(document.value, confirm=lambda: yes or typer.confirm(question, err=True))
    if not removed:
        console.out.print(f"{document.value.state}: there is no such bucket", markup=False)
