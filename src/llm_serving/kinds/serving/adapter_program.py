"""Load or unload a LoRA adapter in an engine's container: `python3 -c PROGRAM [REQUEST]`, where REQUEST is a JSON
object, the first line of the input if left out.

Needs no AWS SDK and no rights: the adapter's files have presigned URLs. Prints one line, `MARK` and a JSON object with
`done` or `error`.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

MARK = "adapter: "

FOLDER = Path(tempfile.gettempdir()) / "adapters"
"""Holds NAME/CONTENT/, both as digests: other content is another path, whose cached prompts the engine keeps apart."""

UNLOADED, KEPT_S = "unloaded", 86_400.0
"""File beside those of an adapter that was unloaded, and how long they stay, in seconds: as long as a router lets a
request take at the most. A request that waits still reads them, and vLLM ends where they are gone (tried: 0.32.0)."""

_TIMEOUT_S = 60.0
"""Longest silence of S3, and longest that an engine takes to load an adapter, in seconds."""

Request = dict[str, Any]
"""`name`; `files`, each with its URL, none to unload; `api`, the engine's `url` and what `AdapterApi` holds, null on a
node that computes for another and needs the files only.
"""


def main(request: Request) -> dict[str, str]:
    """Do what the request asks for, and return what was done or why not."""
    _remove_old()
    try:
        return {"done": load(request) if request["files"] else unload(request)}
    except urllib.error.HTTPError as error:
        return {"error": f"the engine refuses: {read_error_message(error)}"}
    except (OSError, ValueError, KeyError) as error:
        return {"error": str(error)}


def load(request: Request) -> str:
    """Copy the adapter from S3 and load it, unless the engine has this very one."""
    api = request["api"]
    loaded_from = find_loaded(api["url"], request["name"]) if api else None
    with contextlib.ExitStack() as until_copied:
        bodies = {name: until_copied.enter_context(_open_object(name, url)) for name, url in request["files"].items()}
        folder = _get_folder(request["name"]) / _digest(*(body.headers["ETag"] for body in bodies.values()))
        if loaded_from == str(folder):
            return "loaded already"
        if loaded_from is not None:
            raise ValueError(f"it has another adapter of this name, from {loaded_from}. Fix: unload it first.")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / UNLOADED).unlink(missing_ok=True)
        for name, body in bodies.items():
            _copy(body, folder / name)
    if not api:
        return "copied"
    post(f"{api['url']}{api['load']}", {api["name_field"]: request["name"], api["path_field"]: str(folder)})
    return "loaded"


def unload(request: Request) -> str:
    """Unload the adapter, if the engine has it; what was copied for it goes later."""
    api = request["api"]
    is_loaded = bool(api) and find_loaded(api["url"], request["name"]) is not None
    if is_loaded:
        post(f"{api['url']}{api['unload']}", {api["name_field"]: request["name"]})
    for folder in _get_folder(request["name"]).glob("*"):
        if not (folder / UNLOADED).exists():
            (folder / UNLOADED).touch()
    return "unloaded" if is_loaded or not api else "not loaded"


def _remove_old() -> None:
    """Remove what was copied for adapters that were unloaded long ago."""
    for mark in FOLDER.glob(f"*/*/{UNLOADED}"):
        if time.time() - mark.stat().st_mtime > KEPT_S:
            shutil.rmtree(mark.parent, ignore_errors=True)


def post(url: str, body: dict[str, str]) -> None:
    """Post to the engine's API."""
    headers = {"Content-Type": "application/json"}
    _open(urllib.request.Request(url, data=json.dumps(body).encode(), headers=headers)).close()


def read_error_message(error: urllib.error.HTTPError) -> str:
    """Return the engine's message, or the status code if it has none."""
    try:
        return str(json.load(error)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return f"status {error.code}"


def find_loaded(url: str, name: str) -> str | None:
    """Return the folder of an engine's adapter of the name; None where it has none."""
    with _open(urllib.request.Request(f"{url}/v1/models")) as answer:
        models = json.load(answer)["data"]
    return next((str(model.get("root")) for model in models if model["id"] == name), None)


def _open(request: urllib.request.Request) -> Any:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    return opener.open(request, timeout=_TIMEOUT_S)


def _open_object(name: str, url: str) -> Any:
    try:
        return urllib.request.urlopen(url, timeout=_TIMEOUT_S)
    except urllib.error.HTTPError as error:
        raise ValueError(f"S3 refuses {name}: status {error.code}") from None


def _copy(body: Any, file: Path) -> None:
    """Copy a response into a file, which appears whole or not at all."""
    part = file.with_name(f"{file.name}.part")
    with part.open("wb") as output:
        shutil.copyfileobj(body, output)
    if part.stat().st_size != int(body.headers["Content-Length"]):
        raise OSError(f"S3 broke off within {file.name}")
    part.replace(file)


def _get_folder(name: str) -> Path:
    return FOLDER / _digest(name)


def _digest(*words: str) -> str:
    return hashlib.sha256("\0".join(words).encode()).hexdigest()[:16]


if __name__ == "__main__":
    os.umask(0o022)  # ECS Exec is root, and the engine may be another user
    print(MARK + json.dumps(main(json.loads(sys.argv[1] if sys.argv[1:] else sys.stdin.readline()))))
