"""`blueprint catalog refresh`: reads the catalogue of instance types anew from EC2."""

from __future__ import annotations

import contextlib
import datetime
import json
import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer

from llm_serving import console
from llm_serving.settings.errors import InputError

_WITHOUT_ACCOUNT = ", or take the copy of EC2's answers that the embedded AWS carries: `--endpoint embedded`"


def refresh(
    region: Annotated[
        list[str] | None,
        typer.Option("--region", help="Ask only this region; may be repeated. Left out: all that the account may use."),
    ] = None,
    endpoint: Annotated[
        str | None,
        typer.Option(help="`embedded`: the copy of EC2's answers that the embedded AWS carries. Left out: AWS itself."),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="The file to refresh; the product's own where left out.")] = None,
) -> None:
    """Reads instance types, zones and prices anew from EC2, and says what changed."""
    if endpoint not in (None, "embedded"):
        raise InputError(
            f"--endpoint: now {endpoint!r}: there is no such source. Write --endpoint embedded, or leave it out."
        )
    from llm_serving.aws.instance_types import rows
    from llm_serving.catalog import instances

    for name in region or ():
        _is_region(name)
    file = out or instances.GENERATED
    old = json.loads(file.read_text("utf-8")) if file.exists() else {}
    asked, refusal = _ask(region, embedded=endpoint == "embedded")
    new = rows.merge(old, asked)
    file.write_text(rows.dump(new), "utf-8")
    _show(rows.changes(old, new), new, file, refusal)


def _is_region(name: str) -> None:
    from pydantic import TypeAdapter, ValidationError

    from llm_serving.fleet.model import Region

    try:
        TypeAdapter(Region).validate_python(name)
    except ValidationError as error:
        said = error.errors()[0]["ctx"]
        raise InputError(f"--region: now {name!r}: {said['why']}. Write {said['write']}.") from None


def _ask(regions: list[str] | None, *, embedded: bool) -> tuple[dict[str, Any], str]:
    """Each region's answers, and why prices were not read where that was refused."""
    from llm_serving.aws import session as clients
    from llm_serving.aws.instance_types import fetch
    from llm_serving.rehearsal import emulator

    today = datetime.date.today()
    with contextlib.ExitStack() as held:
        held.enter_context(clients.refusals(_WITHOUT_ACCOUNT))
        if embedded:
            data = held.enter_context(tempfile.TemporaryDirectory(prefix="blueprint-"))
            at = held.enter_context(emulator.running(Path(data), bare=True))
            aws = fetch.Aws(at, environment=emulator.client_environment(at, fetch.PRICE_REGION))
        else:
            aws = fetch.Aws()
        names = regions or aws.regions()
        with console.step(f"Ask {aws.source()} about {len(names)} region{'s'[: len(names) > 1]}") as step:
            asked = {name: aws.region(name, today) for name in names}
            silent = [name for name in regions or () if not asked[name]["zones"]]
            if silent:
                raise InputError(
                    f"--region: {', '.join(silent)} offers none of the catalogue's families. Write another."
                )
            step.note = f"{len({one for said in asked.values() for one in said['zones']})} types"
        return asked, aws.price_refusal


def _show(changed: list[str], new: dict[str, Any], out: Path, refusal: str) -> None:
    for line in changed:
        console.out.print(line, markup=False)
    if refusal:
        console.err.print(f"prices stay as they were: AWS refused the price list: {refusal}", markup=False)
    count = f"{len(new['types'])} types in {len(new['regions'])} regions"
    console.out.print(f"{out}: {count}, {len(changed) or 'none'} changed", markup=False)
