"""What this machine and the containers of a load tell each other. No input or output."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Sequence
from typing import Any

from pydantic import Field

from llm_serving.settings.plain import PlainData
from llm_serving.validation.load.driver_result import Progress
from llm_serving.validation.load.load_plan import LoadPlan

USER_FILE, DATA_FILE = "user.py", "prompts"
"""Names, in the driver's folder, of the files with the Locust user and with the user's own prompts: none of a name that
the driver has for its own."""

INPUTS_VARIABLE = "BLUEPRINT_LOAD_INPUTS"
"""Where containers that have no file of their own find the URLs of all inputs, packed."""


def pack_urls(urls: Sequence[str]) -> str:
    """Pack URLs, which repeat one another: 64 of them are longer than a secret may be."""
    return base64.b64encode(zlib.compress(json.dumps(list(urls)).encode(), 9)).decode()


def unpack_urls(packed: str) -> list[str]:
    return list(json.loads(zlib.decompress(base64.b64decode(packed))))


class DriverInput(PlainData):
    """What one container needs; rewritten with new URLs before the old ones expire."""

    plan: LoadPlan
    """The whole load; its folder is of another machine, and its `data` is DATA_FILE."""

    shard: int
    files: dict[str, str]
    """Texts by name: USER_FILE and DATA_FILE."""

    input_url: str
    """To read this object again."""

    state_url: str
    """To write DriverState."""

    archive_url: str
    """To write the driver's folder, a tar archive with gzip."""

    peer_urls: dict[int, str]
    """To read the states of the processes that it waits for: all others for the first one, the first one for others."""


class ProgramInput(PlainData):
    """What a container needs that runs another program than this package; rewritten as `DriverInput` is."""

    plan: dict[str, Any]
    input_url: str
    state_url: str
    result_urls: dict[str, str]
    """To write each of its files, by name."""


class DriverState(PlainData):
    """How far one container is."""

    files: dict[str, str] = Field(default={})
    """Those of the meeting's files that its process wrote, by name."""

    progress: Progress | None = None

    exit_code: int | None = None
    """Of its process, once that has ended and the archive is written."""

    log: str = ""
    """Last lines of its process, once that has ended."""
