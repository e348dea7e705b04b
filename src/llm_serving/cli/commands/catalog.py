"""`blueprint catalog refresh`: updates the catalog of instance types from EC2."""

from __future__ import annotations

import contextlib
import datetime
import json
import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer

from llm_serving import console
from llm_serving.aws import session
from llm_serving.aws.instance_types import fetch, rows
from llm_serving.catalog import instances
from llm_serving.fleet.model import Region
from llm_serving.options import quantities
from llm_serving.rehearsal import emulator
from llm_serving.settings.errors import InputError, quote_value, require_choice

_NO_ACCOUNT_HINT = ", or use the embedded AWS's copy of EC2's data: `--endpoint embedded`"

app = typer.Typer(help="Update the catalog of instance types.", no_args_is_help=True)


@app.callback()
def catalog() -> None:
    """Update the catalog of instance types."""


@app.command()
def refresh(
    region: Annotated[
        list[str] | None,
        typer.Option("--region", help="A region to query; repeatable. All of the account's if left out."),
    ] = None,
    endpoint: Annotated[
        str | None, typer.Option(help="`embedded`: the embedded AWS's copy of EC2's data. AWS if left out.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The file to update; the built-in catalog if left out.")
    ] = None,
) -> None:
    """Update instance types, zones and prices from EC2."""
    if endpoint:
        require_choice("--endpoint", endpoint, "source", ("embedded",))
    for name in region or ():
        quantities.parse("--region", name, Region)
    file = out or instances.GENERATED
    old = _read_catalog(file) if file.exists() else {}
    fetched, price_refusal = _fetch_regions(region, embedded=endpoint == "embedded")
    new = rows.merge(old, fetched)
    file.write_text(rows.dump(new), "utf-8")
    _print_changes(rows.list_changes(old, new), new, file, price_refusal)


def _read_catalog(file: Path) -> dict[str, Any]:
    """Return what an earlier refresh wrote; refuses any other file, which this one would replace."""
    with contextlib.suppress(ValueError):
        document = json.loads(file.read_text("utf-8"))
        if isinstance(document, dict) and document.keys() <= {"about", "regions", "types"}:
            return document
    raise InputError(f"--out: {quote_value(file)}: it holds no catalog. Fix: use a file of a refresh, or a new one.")


def _fetch_regions(regions: list[str] | None, *, embedded: bool) -> tuple[dict[str, Any], str]:
    """Fetch each region's data; also return why AWS refused the price list, "" if it did not."""
    today = datetime.date.today()
    with contextlib.ExitStack() as stack:
        stack.enter_context(session.translate_errors(_NO_ACCOUNT_HINT))
        if embedded:
            data_folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="blueprint-"))
            endpoint = stack.enter_context(emulator.start(Path(data_folder), bare=True))
            aws = fetch.InstanceTypeApi(endpoint, environ=emulator.build_client_env(endpoint, fetch.PRICE_REGION))
        else:
            aws = fetch.InstanceTypeApi()
        names = regions or aws.list_regions()
        with console.step(f"Query {aws.describe_source()}: {len(names)} region{'s'[: len(names) > 1]}") as step:
            fetched = {name: aws.fetch_region(name, today) for name in names}
            empty_regions = [name for name in regions or () if not fetched[name]["zones"]]
            if empty_regions:
                names_text = ", ".join(empty_regions)
                raise InputError(
                    f"--region: {names_text}: no instance family of the catalog there. Fix: use another region."
                )
            types = {instance_type for region_data in fetched.values() for instance_type in region_data["zones"]}
            step.note = f"{len(types)} types"
        return fetched, aws.price_refusal


def _print_changes(changes: list[str], new: dict[str, Any], out: Path, price_refusal: str) -> None:
    for line in changes:
        console.out.print(line, markup=False)
    if price_refusal:
        console.err.print(f"Prices unchanged: AWS refused the price list: {price_refusal}", markup=False)
    summary = f"{len(new['types'])} types in {len(new['regions'])} regions"
    console.out.print(f"{out}: {summary}, {len(changes) or 'none'} changed", markup=False)
