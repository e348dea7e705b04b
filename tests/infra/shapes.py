"""Fixtures of a folder whose conftest has a fixture `shapes`: blueprints of one kind, rendered and synthesized once."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

from llm_serving.fleet import loading
from tests.infra import deployments
from tests.infra.deployments import Stack


class Shapes(NamedTuple):
    """Blueprints of one kind, each of another shape, on one fleet."""

    kind: str
    fleet_text: str
    """fleet.yaml."""

    targets: Mapping[str, str]
    """Target by shape."""

    write_blueprint: Callable[[Path, str], Path]
    """Writes the blueprint of a shape below a folder, and returns its own."""


@pytest.fixture(scope="session")
def fleet(shapes: Shapes, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The fleet's file."""
    file = tmp_path_factory.mktemp("fleet") / "fleet.yaml"
    file.write_text(shapes.fleet_text)
    return file


@pytest.fixture(scope="session")
def manifests(shapes: Shapes, fleet: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """What each shape is rendered to."""
    folder = tmp_path_factory.mktemp(shapes.kind)
    return {
        shape: deployments.render(folder, shapes.write_blueprint(folder, shape), fleet, target)
        for shape, target in shapes.targets.items()
    }


@pytest.fixture(scope="session")
def synth_folder(
    shapes: Shapes, manifests: dict[str, Path], fleet: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A folder with stacks/KIND-SHAPE/cdk.tf.json."""
    files = {f"{shapes.kind}-{shape}": file for shape, file in manifests.items()}
    return deployments.synthesize(tmp_path_factory.mktemp("synthesized"), fleet, files)


@pytest.fixture(scope="session")
def stacks(shapes: Shapes, synth_folder: Path) -> dict[str, Stack]:
    """Each synthesized stack by its shape."""
    return {shape: deployments.read_stack(synth_folder, f"{shapes.kind}-{shape}") for shape in shapes.targets}


@pytest.fixture(scope="session")
def all_stacks(fleet: Path, stacks: dict[str, Stack], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Stack]:
    """The stacks of every shape, and those of the fleet."""
    from infra import main

    folders = main.synthesize(loading.load_fleet(fleet), tmp_path_factory.mktemp("fleet-stacks"))
    return stacks | {name: json.loads((folder / "cdk.tf.json").read_text()) for name, folder in folders.items()}
