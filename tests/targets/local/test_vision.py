"""Models that see, on this machine: the package that their code needs, and processes that fork before they have threads, if at all."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from llm_serving import paths
from llm_serving.fleet.loading import load_fleet
from llm_serving.kinds.serving.blueprint import Blueprint
from llm_serving.settings.document import load
from llm_serving.targets.deployment_dir import DeploymentDir
from llm_serving.targets.local import engine_env, environment
from llm_serving.targets.local.environment import SHORTCUTS_VARIABLE

SEES, READS = "Qwen/Qwen2.5-VL-7B-Instruct", "tiny"


def test_the_package_is_the_release_for_the_torch_that_is_locked() -> None:
    """torchvision 0.N goes with torch 2.(N - 15)."""
    lock = (engine_env.ROOT / engine_env.LOCK).read_text()
    torch, torchvision = (int(number) for number in re.findall(r"^torch(?:vision)?==[02]\.(\d+)\.", lock, re.MULTILINE))
    assert torchvision - torch == 15


@pytest.mark.parametrize(("model", "switch"), [(READS, None), (SEES, "early-fork")])
def test_processes_of_a_model_that_sees_fork_before_they_have_threads(
    model: str, switch: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(SHORTCUTS_VARIABLE, raising=False)
    text = (paths.PATTERNS / "aggregated" / "blueprint.yaml").read_text()
    (tmp_path / "blueprint.yaml").write_text(text.replace("model: tiny", f"model: {model}"))
    blueprint = load(tmp_path / "blueprint.yaml", Blueprint).value
    fleet = load_fleet(paths.ROOT / "fleet.yaml").value
    resolved = environment.resolve_environment(DeploymentDir("mine", tmp_path), blueprint, fleet)
    assert resolved.env.get(SHORTCUTS_VARIABLE) == switch
    assert environment.SHORTCUTS_NOTE in resolved.emulated
