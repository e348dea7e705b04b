"""Programs that are Go modules: the user's own if new enough, else built once, of the pinned version.

Builds go to the user's cache directory, with a subdirectory for each version.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from llm_serving import console, processes
from llm_serving.settings.errors import BlueprintError, Unavailable

_MODULE_SUFFIXES = (".go", ".mod", ".sum")

_BUILD_TIMEOUT_S = 1200
"""Longest build on a busy machine, in seconds; the longest takes half of that alone."""


@dataclass(frozen=True)
class Program:
    """A program, and the Go module that builds it."""

    name: str
    package: str
    version: str
    min_version: tuple[int, int] = (0, 0)
    """Oldest version on PATH to accept; (0, 0) accepts any."""

    version_arguments: tuple[str, ...] = ("version",)
    """Arguments that print its version."""

    linker_variables: Mapping[str, str] = field(default_factory=dict)
    """Values that its own makefile passes to the linker, by variable."""

    tool_module: Path | None = None
    """Directory of a Go module that is the program, or names the package as a tool, for packages that `go install` cannot
    build. The program is built again when that module's go.mod or go.sum or its code changes."""

    @property
    def build_name(self) -> str:
        """Name of the build, different for each version and its pins."""
        if self.tool_module is None:
            return f"{self.name}-{self.version}"
        pins = b"".join(
            file.read_bytes() for file in sorted(self.tool_module.glob("*.*")) if file.suffix in _MODULE_SUFFIXES
        )
        return f"{self.name}-{self.version}-{hashlib.sha256(pins).hexdigest()[:12]}"


HELM = Program(
    "helm",
    "helm.sh/helm/v3/cmd/helm",
    "v3.22.0",
    min_version=(3, 18),  # the first to name the value that a schema refuses, and its path
    version_arguments=("version", "--short"),
    linker_variables={
        "helm.sh/helm/v3/internal/version.version": "v3.22.0",
        # The version of a cluster that `helm template` assumes without one: that of its client library.
        "helm.sh/helm/v3/pkg/chartutil.k8sVersionMajor": "1",
        "helm.sh/helm/v3/pkg/chartutil.k8sVersionMinor": "37",
    },
)
HELM_4 = Program(
    "helm",
    "helm.sh/helm/v4/cmd/helm",
    "v4.3.1",
    min_version=(4, 3),
    version_arguments=("version", "--short"),
    linker_variables={"helm.sh/helm/v4/internal/version.version": "v4.3.1"},
)
KUBECONFORM = Program(
    "kubeconform",
    "github.com/yannh/kubeconform/cmd/kubeconform",
    "v0.8.0",
    min_version=(0, 8),
    version_arguments=("-v",),
    linker_variables={"main.version": "v0.8.0"},
)
SCHEMA_FILTER = Program("schema-filter", ".", "v1", tool_module=Path(__file__).parent / "schema_filter")
VERSITYGW = Program("versitygw", "github.com/versity/versitygw/cmd/versitygw", "v1.8.0")


def find_or_build(program: Program) -> str:
    """Return the program's path: the first on PATH if new enough, else its build, which takes minutes the first time.

    KUBEBUILDER_ASSETS, the directory of Kubernetes' test programs, comes before PATH.

    Raises:
        Unavailable: neither the program nor Go is installed, or the cache directory is not writable.
        CommandFailed: the build failed.
    """
    if path := _find_own(program):
        return path
    binary = _locate_build(program)
    folder = binary.parent
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Unavailable(f"{folder}: {error.strerror}. Fix: make it writable, or install {program.name}.") from None
    with processes.lock_file(folder / "lock"):  # one process builds, others wait for it
        if not binary.exists():
            _build(program, folder, folder.parents[1] / f"{program.name}.log")
    return str(binary)


def is_ready(program: Program) -> bool:
    """Return whether a program needs no build."""
    return _locate_build(program).exists() or _find_own(program) is not None


def _find_own(program: Program) -> str | None:
    """Return the path of the user's own program, if it is new enough."""
    folders = (os.environ.get("KUBEBUILDER_ASSETS"), os.environ.get("PATH"))
    path = shutil.which(program.name, path=os.pathsep.join(filter(None, folders)))
    return path if path and _read_version(path, program) >= program.min_version else None


def _locate_build(program: Program) -> Path:
    return Path.home() / ".cache" / "llm-serving-blueprints" / "bin" / program.build_name / program.name


def _build(program: Program, folder: Path, log: Path) -> None:
    module = f"{program.package}@{program.version}"
    if not shutil.which("go"):
        raise Unavailable(f"{program.name}: not found on PATH. Fix: install it, or Go, which builds {module}.")
    linker_flags = [f"-X {variable}={value}" for variable, value in program.linker_variables.items()]
    # Debugging tables are an eighth of the compiler's work, and the linker would drop them.
    flags = ["-gcflags=all=-dwarf=false", "-ldflags", " ".join(["-s -w", *linker_flags])]
    partial = folder / "part" / program.name  # renamed when complete
    partial.parent.mkdir(exist_ok=True)
    environment = {"CGO_ENABLED": "0", "GOBIN": str(partial.parent)}
    command = ["go", "install", *flags, module]
    if program.tool_module:
        command = ["go", "build", *flags, "-o", str(partial), program.package]
    with console.step(f"Build {program.name} {program.version} (once)"):
        console.run(command, log=log, cwd=program.tool_module, environment=environment, timeout_s=_BUILD_TIMEOUT_S)
        partial.rename(folder / program.name)


def _read_version(path: str, program: Program) -> tuple[int, int]:
    """Read a program's version; (0, 0) if it prints none."""
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
    """Build programs before tests with time limits need them.

    Without Go this prints a line, and those tests are skipped with the reason.
    """
    for program in programs:
        try:
            find_or_build(program)
        except BlueprintError as error:
            console.print_error(error)
    return 0


def main() -> int:
    """Build what tests of charts and of stacks run."""
    return prepare((SCHEMA_FILTER, HELM, HELM_4, KUBECONFORM))


if __name__ == "__main__":
    sys.exit(main())
