"""Arguments and options that several commands have."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import typer

from llm_serving.options import completions
from llm_serving.settings import yaml_source
from llm_serving.settings.errors import InputError, quote_value
from llm_serving.targets import registry
from llm_serving.targets.base import LoadOrigin


def require_url(url: str | None) -> str | None:
    """Return the value of --url.

    Raises:
        InputError: it is no URL of a server.
    """
    try:
        is_url = url is None or (re.fullmatch(r"https?://[^/\s]\S*", url) and urlsplit(url).port != 0)
    except ValueError:  # of a port that none can be, or of half an IPv6 address
        is_url = False
    if not is_url:
        raise InputError(f"--url: {quote_value(url)}: it is not a URL. Fix: use one such as http://127.0.0.1:8000.")
    return url


Folder = Annotated[Path, typer.Argument(metavar="DIR", help="The blueprint's folder.")]
Fleet = Annotated[Path, typer.Option("--fleet", metavar="FILE", help="The fleet file.")]
Target = Annotated[
    str,
    typer.Option(
        "--target",
        metavar="TARGET",
        help=f"Where to run: {', '.join(registry.list_targets())}.",
        autocompletion=completions.complete_targets,
    ),
]
Origin = Annotated[
    LoadOrigin | None,
    typer.Option(
        "--load-from",
        help="Where the load comes from on AWS: the fleet's network (default if its registry has the image "
        "load-driver), or this machine, through a tunnel to one router.",
    ),
]
Out = Annotated[Path, typer.Option("--out", metavar="DIR", help="Directory of the synthesized stacks.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Skip confirmation.")]
AsJson = Annotated[bool, typer.Option("--json", help="Output JSON.")]

FLEET = yaml_source.DEFAULT_FLEET
OUT = Path("cdktf.out")
TARGET = registry.DEFAULT
