"""Python environments with the packages of locks with hashes, made by uv."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

from llm_serving import console
from llm_serving.settings.errors import Unavailable

NETWORK_HINT = (
    "Fix: correct what it names. If the package index cannot be reached, set HTTPS_PROXY behind a proxy, "
    "UV_DEFAULT_INDEX for a mirror, SSL_CERT_FILE for your own certificate; if a directory is full or not writable, "
    "UV_CACHE_DIR."
)


def create(
    folder: Path,
    locks: Iterable[Path],
    log: Path,
    *,
    python: str = sys.executable,
    on_progress: Callable[[str], None] = lambda _: None,
) -> Path:
    """Create an environment anew, and return its Python.

    Args:
        log: of uv, written anew.
        on_progress: called with the progress, in a few words.

    Raises:
        CommandFailed: packages cannot be downloaded or installed.
        Unavailable: uv is missing.
    """
    log.unlink(missing_ok=True)
    if folder.is_symlink():  # to another clone's, which stays
        folder.unlink()
    shutil.rmtree(folder, ignore_errors=True)
    uv, own_python = find_uv(), folder / "bin" / "python"
    on_progress("creating the environment")
    console.run([uv, "venv", "--quiet", "--python", python, str(folder)], log=log)
    # Locks are complete; the packages' own requirements name a torch build that no index has (engine-overrides.txt).
    requirements = ["--no-deps", "--require-hashes", *(word for lock in locks for word in ("-r", str(lock)))]
    console.run(
        [uv, "pip", "install", "--python", str(own_python), *requirements],
        log=log,
        on_poll=lambda: on_progress(describe_download(log.read_text(errors="replace"))),
    )
    return own_python


def find_uv() -> str:
    """Return the path of uv.

    Raises:
        Unavailable: it is missing.
    """
    sibling = Path(sys.executable).with_name("uv")
    path = str(sibling) if sibling.exists() else shutil.which("uv")
    if path is None:
        raise Unavailable("uv is missing. Fix: run scripts/setup, which installs it.")
    return path


IMPORTING = "importing the engine and writing its byte code"
_UNIT_BYTES = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30}


def describe_download(log: str) -> str:
    """Describe the progress of a set-up from uv's output, which has each large package at its start and its end."""
    if re.search(r"^Installed ", log, re.MULTILINE):
        return IMPORTING
    started = re.findall(r"^Downloading (\S+) \(([\d.]+)([KMG]iB)\)", log, re.MULTILINE)
    done = set(re.findall(r"^ ?Downloaded (\S+)", log, re.MULTILINE))
    if re.search(r"^Prepared ", log, re.MULTILINE):
        return "installing packages"
    if not started:
        return "resolving packages"
    sizes = {name: float(number) * _UNIT_BYTES[unit] for name, number, unit in started}
    done_bytes = sum(bytes_ for name, bytes_ in sizes.items() if name in done)
    return f"downloaded {done_bytes / 2**20:.0f} of {sum(sizes.values()) / 2**20:.0f} MiB of large packages"
