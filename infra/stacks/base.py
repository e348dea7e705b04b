"""What a stack is, and what every stack has: the provider with the fleet's tags, and a backend for its state.

A stack is a module of this directory with the four names of `Stack`; adding one is adding a file. A module that makes
several stacks, one for each deployment for example, has `list_stacks` instead.
"""

from __future__ import annotations

import graphlib
import importlib
import os
import pkgutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from infra.bindings import aws, cdktf
from infra.constructs.fleet_stack import FleetStack
from llm_serving.fleet import names
from llm_serving.fleet.model import Fleet
from llm_serving.services import rendered
from llm_serving.services.rendered import Rendered
from llm_serving.settings.document import Document, Settings
from llm_serving.settings.errors import InputError

REQUIRED_TERRAFORM = ">= 1.10"
"""First with a lock file beside a state in S3, of Terraform and of OpenTofu alike."""


class Stack(Protocol):
    """One state boundary: applied and destroyed on its own, after the stacks that it needs."""

    NAME: str
    """Unique; the directory and the state are named after it."""

    NEEDS: Sequence[str]
    """Names of the stacks whose resources it looks up."""

    def is_enabled(self, fleet: Fleet, /) -> bool:
        """Return whether the fleet has this stack."""

    def add(self, app: cdktf.App, document: Document[Fleet]) -> None:
        """Add the stack to the app: one `create_stack` with this name, and its resources."""


def discover(document: Document[Fleet], files: Sequence[Path] = ()) -> list[Stack]:
    """Return the stacks of the fleet and of rendered deployments, each after those that it needs.

    Raises:
        InputError: a rendered file is wrong.
    """
    enabled = {
        stack.NAME: stack
        for module in _import_modules()
        for stack in (module.list_stacks(document, files) if hasattr(module, "list_stacks") else [module])
        if stack.is_enabled(document.value)
    }
    return [enabled[name] for name in sort_by_needs({name: stack.NEEDS for name, stack in enabled.items()})]


DataT = TypeVar("DataT", bound=Settings)


class DeploymentStack(Generic[DataT]):
    """The stack of one deployment: beside what runs its programs, or the network where AWS's own services do."""

    def __init__(self, deployment: Rendered[DataT], add: Callable[[FleetStack, Rendered[DataT]], None]) -> None:
        self.NAME = rendered.format_stack_name(deployment.kind, deployment.name)
        self.NEEDS = (getattr(deployment.stack, "orchestrator", "network"), "storage")
        self._deployment, self._add = deployment, add

    def is_enabled(self, fleet: Fleet) -> bool:
        """Return whether the fleet has what runs the programs."""
        return self.NEEDS[0] in ("network", *fleet.orchestrators)

    def add(self, app: cdktf.App, document: Document[Fleet]) -> None:
        self._add(create_stack(app, self.NAME, document), self._deployment)


def list_deployments(
    kind: str,
    read: Callable[[Path, Document[Fleet]], Rendered[DataT]],
    add: Callable[[FleetStack, Rendered[DataT]], None],
    document: Document[Fleet],
    files: Sequence[Path],
) -> list[DeploymentStack[DataT]]:
    """Return the stack of each rendered deployment of a kind; one that is rendered for two targets is an InputError."""
    stacks: dict[str, DeploymentStack[DataT]] = {}
    for file in files:
        if rendered.read_kind(file, document.value) != kind:
            continue
        stack = DeploymentStack(read(file, document), add)
        if stack.NAME in stacks:
            raise InputError(
                f"{file}: both targets have the stack {stack.NAME}. Fix: delete the folder of the target that does not "
                "run, or set another name."
            )
        stacks[stack.NAME] = stack
    return list(stacks.values())


def sort_by_needs(needs: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the names with each after those that it needs; a need that the fleet does not have is left out."""
    graph = {name: [need for need in required if need in needs] for name, required in sorted(needs.items())}
    return list(graphlib.TopologicalSorter(graph).static_order())


def _import_modules() -> Iterator[Any]:
    package = importlib.import_module(__package__)
    for module in pkgutil.iter_modules(package.__path__):
        if module.name != "base":
            yield importlib.import_module(f"{__package__}.{module.name}")


def create_stack(app: cdktf.App, name: str, document: Document[Fleet]) -> FleetStack:
    fleet = document.value
    stack = FleetStack(app, name, fleet)
    provider = aws.provider
    provider.AwsProvider(
        stack,
        "aws",
        region=fleet.region,
        # The provider refuses any other account, whoever runs it: a wrong profile plans nothing.
        allowed_account_ids=[fleet.account] if fleet.account else None,
        default_tags=[provider.AwsProviderDefaultTags(tags={**names.build_tags(fleet), "stack": name})],
    )
    stack.add_override("terraform.required_version", REQUIRED_TERRAFORM)
    if fleet.state == "local":
        _add_local_state(stack, name, Path(app.outdir), document)
    else:
        _add_s3_state(stack, name)
    return stack


def add_dependencies(app: cdktf.App, stacks: Sequence[Stack]) -> None:
    """Declare the needs of the stacks that were added, in the two places where tools look for them.

    CDKTF's own dependencies order `cdktf deploy`. `//.needs` in the stack's own text, which Terraform skips, tells
    the command line the same, and goes along with a stack that is copied elsewhere.
    """
    terraform_stacks = {child.node.id: child for child in app.node.children if isinstance(child, cdktf.TerraformStack)}
    for stack in stacks:
        terraform_stacks[stack.NAME].add_override("//.needs", list(stack.NEEDS))
        for need in stack.NEEDS:
            if need in terraform_stacks:
                terraform_stacks[stack.NAME].add_dependency(terraform_stacks[need])


def _add_local_state(stack: FleetStack, name: str, output_dir: Path, document: Document[Fleet]) -> None:
    """Keep the state beside the fleet file: `cdktf.out` may be deleted at any time, the state may not.

    The path is relative to the directory that Terraform runs in, so that the same fleet gives the same text anywhere.
    """
    file = document.path.resolve().parent / f"terraform.{document.value.name}.{name}.tfstate"
    cdktf.LocalBackend(stack, path=os.path.relpath(file, output_dir.resolve() / "stacks" / name))


def _add_s3_state(stack: FleetStack, name: str) -> None:
    bucket, _, prefix = stack.fleet.state.removeprefix("s3://").partition("/")
    key = "/".join(filter(None, [prefix.strip("/"), stack.fleet.name, f"{name}.tfstate"]))
    cdktf.S3Backend(stack, bucket=bucket, key=key, region=stack.fleet.region, encrypt=True)
    # CDKTF ended before Terraform's own lock file came (1.10), so its bindings do not know the switch.
    stack.add_override("terraform.backend.s3.use_lockfile", True)


def add_output(stack: FleetStack, name: str, value: Any, description: str) -> None:
    """Add an output, for other stacks, the command line and people."""
    cdktf.TerraformOutput(stack, name, value=value, description=description)
