"""Models that see, on this machine: what is missing is named before anything starts, and no process forks."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from llm_serving import paths
from llm_serving.fleet.loading import load_fleet
from llm_serving.settings.document import load
from llm_serving.settings.errors import Unavailable
from llm_serving.targets.deployment_dir import DeploymentDir
from llm_serving.targets.local import engine_env, environment, vision
from llm_serving.targets.local.environment import SHORTCUTS_VARIABLE
from llm_serving.workloads.serving.blueprint import Blueprint

SEES, READS = "Qwen/Qwen2.5-VL-7B-Instruct", "tiny"


def test_a_model_that_sees_needs_a_package_that_others_do_not(tmp_path: Path) -> None:
    vision.check([READS, None, "someone/unknown"], tmp_path)
    with pytest.raises(Unavailable) as error:
        vision.check([READS, SEES], tmp_path)
    assert str(error.value) == (
        f"{tmp_path}/.venv-engine: torchvision is missing, which vLLM imports for models that see. Fix: uv pip install "
        f"--python .venv-engine/bin/python --no-deps torchvision==0.28.0, in the folder {tmp_path}."
    )
    (tmp_path / ".venv-engine/lib/python3.11/site-packages/torchvision").mkdir(parents=True)
    vision.check([SEES], tmp_path)


def test_the_package_is_the_release_for_the_torch_that_is_locked() -> None:
    """torchvision 0.N goes with torch 2.(N - 15)."""
    torch = re.search(r"^torch==2\.(\d+)\.", (engine_env.ROOT / engine_env.LOCK).read_text(), re.MULTILINE)
    package = re.fullmatch(r"torchvision==0\.(\d+)\.\d+", vision.PACKAGE)
    assert torch and package
    assert int(package[1]) - int(torch[1]) == 15


@pytest.mark.parametrize(("model", "switch"), [(READS, None), (SEES, "off")])
def test_processes_of_a_model_that_sees_are_not_forked(
    model: str, switch: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(SHORTCUTS_VARIABLE, raising=False)
    text = (paths.PATTERNS / "aggregated" / "blueprint.yaml").read_text()
    (tmp_path / "blueprint.yaml").write_text(text.replace("model: tiny", f"model: {model}"))
    blueprint = load(tmp_path / "blueprint.yaml", Blueprint).value
    fleet = load_fleet(paths.ROOT / "fleet.yaml").value
    resolved = environment.resolve_environment(DeploymentDir("mine", tmp_path), blueprint, fleet, own_ports=False)
    assert resolved.env.get(SHORTCUTS_VARIABLE) == switch
    assert (environment.SHORTCUTS_NOTE in resolved.emulated) == (switch is None)
