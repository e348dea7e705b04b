"""The first day of an account: what AWS requires that no schema says is refused before anything is rented."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from llm_serving.cli import main

ROOT = Path(__file__).parents[1]
TABLE = yaml.safe_load(Path(__file__).with_name("first_day.yaml").read_text())
WORKING = TABLE["working"]


def _merge(base: Any, change: Any) -> Any:
    """A copy of `base` with `change` merged into its mappings; null removes a key, all else replaces a value."""
    if not isinstance(base, Mapping) or not isinstance(change, Mapping):
        return copy.deepcopy(change)
    merged = {key: value for key, value in base.items() if key not in change}
    return merged | {key: _merge(base.get(key), value) for key, value in change.items() if value is not None}


def _check(
    folder: Path, row: Mapping[str, Any], capsys: pytest.CaptureFixture[str]
) -> tuple[int, list[dict[str, Any]]]:
    """Check the working files with the row's change: the exit code and the mistakes."""
    fleet_file, blueprint = folder / "fleet.yaml", folder / "mine"
    blueprint.mkdir()
    settings = _merge(WORKING["blueprint"], row.get("blueprint", {}))
    fleet_file.write_text(yaml.safe_dump(_merge(WORKING["fleet"], row.get("fleet", {})), sort_keys=False))
    (blueprint / "blueprint.yaml").write_text(yaml.safe_dump(settings, sort_keys=False))
    for template in (ROOT / "blueprints" / settings["pattern"]).glob("*.j2"):
        (blueprint / template.name).write_bytes(template.read_bytes())
    arguments = ["check", str(blueprint), "--fleet", str(fleet_file), "--json"]
    exit_code = main.run([*arguments, "--target", row.get("target", WORKING["target"])])
    return exit_code, json.loads(capsys.readouterr().out)["mistakes"]


@pytest.mark.parametrize("target", ["eks", "ecs"])
def test_the_working_files_are_accepted(target: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    row = {"fleet": {"orchestrator": target}, "target": target}
    assert _check(tmp_path, row, capsys) == (0, [])


REFUSED = [row for row in TABLE["rows"] if "refused" in row]
KEPT = [row for row in TABLE["rows"] if "refused" not in row]


@pytest.mark.parametrize("row", REFUSED, ids=[row["requirement"] for row in REFUSED])
def test_a_fleet_that_breaks_a_requirement_is_refused_with_a_fix(
    row: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    exit_code, mistakes = _check(tmp_path, row, capsys)
    assert exit_code == 2
    refusals = [mistake for mistake in mistakes if mistake.get("field") == row["refused"]]
    assert refusals, [mistake["message"] for mistake in mistakes]
    assert any(row["because"] in mistake["why"] for mistake in refusals), [mistake["why"] for mistake in refusals]
    assert all(mistake["write"] for mistake in refusals)


def test_every_requirement_names_its_source() -> None:
    assert [row["requirement"] for row in TABLE["rows"] if not row.get("source")] == []


@pytest.mark.parametrize("row", KEPT, ids=[row["requirement"] for row in KEPT])
def test_a_requirement_that_no_file_can_break_names_the_test_that_shows_it(row: dict[str, Any]) -> None:
    file, _, name = row["kept_by"].partition("::")
    assert f"\ndef {name}(" in (ROOT / file).read_text()
