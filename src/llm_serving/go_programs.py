"""Programs that are Go modules: the user's own where new enough, else built once, of the pinned version.

What is built lies in the user's cache folder, a folder a version, outside of this repository.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from llm_serving import console
from llm_serving.settings.errors import BlueprintError, Unavailable

_BUILD_TIMEOUT_S = 1200
"""One build, on a machine with other work; the longest takes half of that alone."""


@dataclass(frozen=True)
class Program:
    """A program, and the module that it is built from."""

    name: str
    package: str
    version: str
    min_version: tuple[int, int] = (0, 0)
    """Oldest version that PATH's own may have; (0, 0) asks for none."""

    version_arguments: tuple[str, ...] = ("version",)
    """Arguments by which it tells its version."""

    linker_variables: Mapping[str, str] = field(default_factory=dict)
    """What its own makefile has the linker write into it, by variable."""

    tool_module: Path | None = None
    """Folder of a Go module that names the package as a tool, for one that `go install` cannot build by itself. What
    is built is that module's: it is built anew when its go.mod or go.sum changes."""

    @property
    def build_name(self) -> str:
        """What no other build of the program is called."""
        if self.tool_module is None:
            return f"{self.name}-{self.version}"
        pins = b"".join((self.tool_module / name).read_bytes() for name in ("go.mod", "go.sum"))
        return f"{self.name}-{self.version}-{hashlib.sha256(pins).hexdigest()[:12]}"


HELM = Program(
    "helm",
    "helm.sh/helm/v3/cmd/helm",
    "v3.22.0",
    min_version=(3, 18),  # the first that says which value a schema refuses, and where
    version_arguments=("version", "--short"),
    linker_variables={
        "helm.sh/helm/v3/internal/version.version": "v3.22.0",
        # What `helm template` takes for the cluster's version where there is no cluster: that of its client library.
        "helm.sh/helm/v3/pkg/chartutil.k8sVersionMajor": "1",
        "helm.sh/helm/v3/pkg/chartutil.k8sVersionMinor": "37",
    },
)
KUBECONFORM = Program(
    "kubeconform",
    "github.com/yannh/kubeconform/cmd/kubeconform",
    "v0.8.0",
    min_version=(0, 8),
    version_arguments=("-v",),
    linker_variables={"main.version": "v0.8.0"},
)
VERSITYGW = Program("versitygw", "github.com/versity/versitygw/cmd/versitygw", "v1.8.0")


def find_or_build(program: Program) -> str:
    """The program's path: the first on PATH that is new enough, else the built one, else a new build of it (minutes).

    The folder that KUBEBUILDER_ASSETS names, where Kubernetes' programs for tests lie, comes before PATH.

    Raises:
        Unavailable: it is not there, and there is no Go to build it with.
        CommandFailed: the build failed.
    """
    folders = (os.environ.get("KUBEBUILDER_ASSETS"), os.environ.get("PATH"))
    path = shutil.which(program.name, path=os.pathsep.join(filter(None, folders)))
    if path and _read_version(path, program) >= program.min_version:
        return path
    cache = Path.home() / ".cache" / "llm-serving-blueprints"
    folder = cache / "bin" / program.build_name
    binary = folder / program.name
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        # One process builds, others wait for it.
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not binary.exists():
            _build(program, folder, cache / f"{program.name}.log")
    return str(binary)


def _build(program: Program, folder: Path, log: Path) -> None:
    module = f"{program.package}@{program.version}"
    if not shutil.which("go"):
        raise Unavailable(f"{program.name} is not on PATH; install it, or Go, with which {module} is built")
    linker_flags = [f"-X {variable}={value}" for variable, value in program.linker_variables.items()]
    # Debugging tables are an eighth of a compiler's work, and the linker would drop them.
    flags = ["-gcflags=all=-dwarf=false", "-ldflags", " ".join(["-s -w", *linker_flags])]
    environment = {"CGO_ENABLED": "0"}
    with console.step(f"Build {program.name} {program.version}, once"):
        if program.tool_module is None:
            install_environment = {**environment, "GOBIN": str(folder)}
            console.run(
                ["go", "install", *flags, module], log=log, environment=install_environment, timeout_s=_BUILD_TIMEOUT_S
            )
            return
        partial = folder / "part"  # its name is the program's when it is whole
        command = ["go", "build", *flags, "-o", str(partial), program.package]
        console.run(command, log=log, cwd=program.tool_module, environment=environment, timeout_s=_BUILD_TIMEOUT_S)
        partial.rename(folder / program.name)


def _read_version(path: str, program: Program) -> tuple[int, int]:
    """(0, 0) where it does not say."""
    if program.min_version == (0, 0):
        return (0, 0)
    try:
        result = subprocess.run(
            [path, *program.version_arguments], capture_output=True, text=True, timeout=60, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return (0, 0)
    version_match = re.search(r"v?(\d+)\.(\d+)\.\d+", result.stdout)
    return (int(version_match[1]), int(version_match[2])) if version_match else (0, 0)


def prepare(programs: Iterable[Program]) -> int:
    """Has programs ready before tests that have limits on their time ask for them.

    Without Go there is nothing to build with: a line says so, and those tests are skipped with the reason.
    """
    for program in programs:
        try:
            find_or_build(program)
        except BlueprintError as error:
            console.print_error(error)
    return 0


def main() -> int:
    """What tests of the chart run."""
    return prepare((HELM, KUBECONFORM))


if __name__ == "__main__":
    sys.exit(main())
