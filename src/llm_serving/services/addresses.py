"""Addresses that blueprints of several kinds name: their forms, and what is to be known of one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator

from llm_serving.loopback import is_loopback
from llm_serving.services.formats import FORMATS
from llm_serving.settings.document import Conflict
from llm_serving.settings.units import build_error
from llm_serving.settings.yaml_source import KeyPath


def check_port(address: str) -> str:
    """Return a URL, or NAME:PORT; refuse one with a port that there cannot be."""
    try:
        _ = urlsplit(address if "//" in address else f"//{address}").port
    except ValueError:
        raise build_error("its port is above 65535", "use a port that there is") from None
    return address


EndpointUrl = Annotated[str, FORMATS["endpoint-url"], AfterValidator(check_port)]
CacheUrl = Annotated[str, FORMATS["cache-url"], AfterValidator(check_port)]


def find_port(url: str) -> int:
    """Return the port of a URL, by its scheme where it names none."""
    address = urlsplit(url)
    return address.port or (443 if address.scheme == "https" else 80)


def check_reachable(url: str | None, key_path: KeyPath, who: str) -> Iterator[Conflict]:
    """Yield a URL of this machine.

    Args:
        who: what runs elsewhere, such as `workers on ECS do not reach`.
    """
    if is_loopback(urlsplit(url or "").netloc):
        yield Conflict(key_path, f"{who} this machine", "use an address in the fleet's network", url)
