"""The real Helm on the chart, and the schemas of its objects."""

from __future__ import annotations

import hashlib
import os
import pickle
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from llm_serving import processes
from llm_serving.console import CommandFailed
from llm_serving.settings import own_yaml
from llm_serving.settings.errors import Unavailable
from tests import go_programs
from tests.charts import objects

CHART = Path(__file__).parents[2] / "charts" / "inference"
PRESETS = CHART / "presets"
EFA_IMAGE = "registry.example/vllm-efa:0.32.0"
"""What a user would name for presets that leave it open."""


ROUTER_IMAGE = "registry.example/router:0.1.17-15"
"""What a user names for every preset with a router."""

ROUTER_OPTION = ("--set", f"defaults.router.image={ROUTER_IMAGE}")


class Helm:
    """The program, away from the user's own settings."""

    def __init__(self, program: str, home: Path) -> None:
        self._program = program
        self._home = home

    def __call__(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Runs it; nothing is raised where it fails."""
        home = {f"HELM_{kind}_HOME": str(self._home) for kind in ("CACHE", "CONFIG", "DATA")}
        environment = {**os.environ, **home, **objects.NO_COLLECTION, "KUBECONFIG": "/dev/null"}
        command = [self._program, *words]
        return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=environment)


@pytest.fixture(scope="session")
def helm(tmp_path_factory: pytest.TempPathFactory) -> Helm:
    """Helm: the one on PATH if it is new enough, else built."""
    try:
        return Helm(go_programs.find_or_build(go_programs.HELM), tmp_path_factory.mktemp("helm"))
    except (Unavailable, CommandFailed) as error:
        pytest.skip(f"no Helm: {error}")


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of all of pytest's processes."""
    folder = tmp_path_factory.getbasetemp()
    return folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder


@pytest.fixture(scope="session")
def schema_location(shared: Path) -> str:
    """Where kubeconform finds the schemas, which the first of pytest's processes writes for all."""
    folder, part = shared / "schemas", shared / "schemas.part"
    try:
        go_programs.find_or_build(go_programs.KUBECONFORM)
        with processes.lock_file(shared / "schemas.lock"):
            if not folder.exists():
                part.mkdir(exist_ok=True)
                objects.write_schemas(part)
                part.rename(folder)
        return objects.format_location(folder)
    except (Unavailable, CommandFailed) as error:
        pytest.skip(f"nothing to hold objects against: {error}")


@pytest.fixture(scope="session")
def preset() -> Callable[[str], dict[str, Any]]:
    """Values of a preset, the image filled in where it is left to the user."""

    def read(name: str) -> dict[str, Any]:
        values: dict[str, Any] = yaml.safe_load((PRESETS / f"{name}.yaml").read_text())
        return {**values, "image": EFA_IMAGE} if values.get("image") == "" else values

    return read


Render = Callable[..., list[dict[str, Any]]]


@pytest.fixture(scope="session")
def render_chart(helm: Helm, shared: Path) -> Render:
    """The objects that values make as the release `mine` in the namespace `serving`; the chart may be a changed copy.

    What one of pytest's processes has rendered, none renders again.
    """
    folder = shared / "rendered-charts"
    folder.mkdir(exist_ok=True)

    def render(values: Mapping[str, Any], chart: Path = CHART) -> list[dict[str, Any]]:
        text = yaml.dump(dict(values), Dumper=yaml.CSafeDumper)
        file = folder / hashlib.sha256(f"{chart}\n{text}".encode()).hexdigest()
        if not file.exists():
            part = folder / f"{file.name}.{os.getpid()}"
            part.write_text(text)
            options = () if chart.name in ("batch", "streaming") else ROUTER_OPTION
            run = helm("template", "mine", str(chart), "--namespace", "serving", *options, "--values", str(part))
            assert run.returncode == 0, run.stderr
            part.write_bytes(pickle.dumps(own_yaml.parse_all(run.stdout)))
            part.rename(file)
        rendered: list[dict[str, Any]] = pickle.loads(file.read_bytes())
        return rendered

    return render


@pytest.fixture
def get_helm_error(helm: Helm, tmp_path: Path) -> Callable[[Mapping[str, Any]], str]:
    """Return Helm's error for invalid values."""

    def get_error(values: Mapping[str, Any]) -> str:
        file = tmp_path / "values.yaml"
        file.write_text(yaml.safe_dump(dict(values)))
        run = helm("template", "mine", str(CHART), "--namespace", "serving", *ROUTER_OPTION, "--values", str(file))
        assert run.returncode != 0, "Helm took them"
        return run.stderr

    return get_error
