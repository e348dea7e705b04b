"""`blueprint state`: the S3 bucket of Terraform's state."""

from __future__ import annotations

import typer

from llm_serving import console
from llm_serving.aws import state_bucket
from llm_serving.aws.session import AwsSession
from llm_serving.fleet.model import Fleet
from llm_serving.options import arguments
from llm_serving.settings.document import load

app = typer.Typer(help="Create and delete the bucket of Terraform's state.", no_args_is_help=True)


@app.command()
def make(fleet: arguments.Fleet = arguments.FLEET, yes: arguments.Yes = False) -> None:
    """Create or repair the bucket of `state`.

    Sets up versioning, encryption, TLS-only access and the public access block.
    """
    document = load(fleet, Fleet)
    is_changed = state_bucket.ensure_state_bucket(
        document.value,
        AwsSession.from_environment(document.value.region),
        confirm=lambda: yes or typer.confirm("Create or update it?", err=True),
    )
    if not is_changed:
        console.out.print(f"{document.value.state}: the bucket is up to date", markup=False)


@app.command()
def remove(fleet: arguments.Fleet = arguments.FLEET, yes: arguments.Yes = False) -> None:
    """Delete the bucket of `state`.

    Refuses while a state in it still has resources.
    """
    document = load(fleet, Fleet)
    question = "Permanently delete it with all old versions?"
    is_removed = state_bucket.remove_state_bucket(
        document.value,
        AwsSession.from_environment(document.value.region),
        confirm=lambda: yes or typer.confirm(question, err=True),
    )
    if not is_removed:
        console.out.print(f"{document.value.state}: the bucket does not exist", markup=False)
