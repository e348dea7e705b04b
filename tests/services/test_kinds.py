"""Workload kinds: discovered by their packages, selected at the top of blueprint.yaml."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from llm_serving.cli import main
from llm_serving.kinds.serving.kind import KIND
from llm_serving.services import inputs, kinds
from llm_serving.services.blueprint import DEFAULT_KIND
from llm_serving.services.kinds import Capability
from llm_serving.services.slo import BaseSlo
from llm_serving.settings.errors import InputError

ROOT = Path(__file__).parents[2]

BLUEPRINT = """\
pattern: aggregated
model: tiny
roles: {worker: {pool: general}}
traffic: {users: 8}
slo: {}
"""


def test_serving_is_the_default_workload_kind() -> None:
    assert kinds.list_kinds()[0] == DEFAULT_KIND == "serving"
    assert kinds.get("serving") is KIND


def test_the_kind_is_optional(tmp_path: Path) -> None:
    file = tmp_path / "blueprint.yaml"
    file.write_text(BLUEPRINT)
    without_kind = inputs.read_blueprint(tmp_path)
    file.write_text(f"kind: serving\n{BLUEPRINT}")
    with_kind = inputs.read_blueprint(tmp_path)
    assert without_kind.value == with_kind.value
    assert kinds.get_for(with_kind) is KIND


@pytest.mark.parametrize(("kind", "shown"), [("sailing", '"sailing"'), ("[batch]", "[batch]"), ("~", "empty")])
def test_an_unknown_kind_is_refused_with_the_known_ones(tmp_path: Path, kind: str, shown: str) -> None:
    file = tmp_path / "blueprint.yaml"
    file.write_text(f"kind: {kind}\n{BLUEPRINT}")
    with pytest.raises(InputError) as error:
        inputs.read_blueprint(tmp_path)
    choices = " or ".join(kinds.list_kinds())
    assert str(error.value) == f"{file}:1:7: kind: {shown}: there is no such kind. Fix: write {choices}."


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            "pattern: gateway\n",
            '1:10: pattern: "gateway": it is a pattern of the kind gateway. Fix: add kind: gateway.',
        ),
        (
            "kind: batch\npattern: aggregated\n",
            '2:10: pattern: "aggregated": it is a pattern of the kind serving. Fix: set kind: serving.',
        ),
    ],
)
def test_a_pattern_of_another_kind_names_its_kind(tmp_path: Path, text: str, told: str) -> None:
    file = tmp_path / "blueprint.yaml"
    file.write_text(text)
    with pytest.raises(InputError) as error:
        inputs.read_blueprint(tmp_path)
    assert str(error.value) == f"{file}:{told}"


@pytest.mark.parametrize(
    ("arguments", "capability"),
    [
        (["sweep", "offline"], Capability.SWEEP),
        (["tune", "offline", "--over", "limits.chunk=1Mi,2Mi"], Capability.TUNE),
        (["baseline", "offline"], Capability.BASELINE),
        (["switch", "offline", "--engine", "llama.cpp"], Capability.SWITCH),
        (["adapter", "load", "offline", "worker", "mine", "."], Capability.ADAPTER),
        (["adapter", "unload", "offline", "worker", "mine"], Capability.ADAPTER),
        (["shift", "chat", "offline=1"], Capability.SHIFT),
    ],
)
def test_a_command_that_a_kind_cannot_do_is_refused_by_kind_and_reason(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    capability: Capability,
) -> None:
    shutil.copytree(ROOT / "blueprints" / "offline-batch", tmp_path / "offline")
    shutil.copy(ROOT / "fleet.yaml", tmp_path)
    monkeypatch.chdir(tmp_path)
    file = Path("offline/blueprint.yaml")
    line = next(number for number, text in enumerate(file.read_text().splitlines(), 1) if text.startswith("kind: "))
    assert main.run(arguments) == 2
    assert capsys.readouterr().err.splitlines()[-1] == (
        f'{file}:{line}:7: kind: "batch": `blueprint {capability}` does not work with this kind: {capability.reason}. '
        "Fix: use a blueprint of the kind serving."
    )


@pytest.mark.parametrize("kind", kinds.list_kinds())
def test_every_slo_has_the_common_base(kind: str) -> None:
    slo = kinds.get(kind).SETTINGS.model_fields["slo"].annotation
    assert isinstance(slo, type)
    assert issubclass(slo, BaseSlo)
