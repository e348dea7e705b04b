"""The control plane's programs, and the building of them beside other work: `python -m tests.control_plane.programs`.

The first build takes about ten minutes of a core; scripts/test begins it before pytest and does not wait for it.
"""

from __future__ import annotations

import sys
from pathlib import Path

from llm_serving import processes
from tests import go_programs
from tests.go_programs import Program

MODULE = Path(__file__).parent

_KUBERNETES = "v1.36.3"
_STAMPS = {
    f"k8s.io/component-base/version.git{field}": value
    for field, value in (("Version", _KUBERNETES), ("Major", "1"), ("Minor", "36"))
}


def _build_kubernetes_program(name: str) -> Program:
    package = f"k8s.io/kubernetes/cmd/{name}"
    # At least what the fleets' clusters are by default.
    return Program(
        name,
        package,
        _KUBERNETES,
        min_version=(1, 35),
        version_arguments=("--version",),
        linker_variables=_STAMPS,
        tool_module=MODULE,
    )


ETCD = Program(
    "etcd",
    "go.etcd.io/etcd/server/v3",
    "v3.6.8",
    min_version=(3, 5),
    version_arguments=("--version",),
    tool_module=MODULE,
)
API_SERVER = _build_kubernetes_program("kube-apiserver")
CONTROLLERS = _build_kubernetes_program("kube-controller-manager")
SCHEDULER = _build_kubernetes_program("kube-scheduler")
KWOK = Program(
    "kwok",
    "sigs.k8s.io/kwok/cmd/kwok",
    "v0.8.0",
    min_version=(0, 8),
    version_arguments=("--version",),
    tool_module=MODULE,
)
ALL_PROGRAMS = (ETCD, API_SERVER, CONTROLLERS, SCHEDULER, KWOK)


def main() -> int:
    """Has all of them ready; ends with what started it."""
    processes.end_with_parent()
    return go_programs.prepare(ALL_PROGRAMS)


if __name__ == "__main__":
    sys.exit(main())
