"""Names of different things differ."""

from __future__ import annotations

from pathlib import Path

from llm_serving.fleet import names
from llm_serving.fleet.model import Fleet
from llm_serving.settings.document import load

FLEET = """\
name: NAME
region: us-west-2
zones: us-west-2a
orchestrator: ecs
pools:
  general: {types: g6e.xlarge, size: 0..2}
"""


def load_fleet(folder: Path, name: str) -> Fleet:
    file = folder / f"{name}.yaml"
    file.write_text(FLEET.replace("NAME", name))
    return load(file, Fleet).value


def test_no_dashboard_has_the_name_of_another_fleets(tmp_path: Path) -> None:
    short, long = load_fleet(tmp_path, "ml"), load_fleet(tmp_path, "ml-us-west-2-serving-eval")
    ours = names.format_dashboard_name(short, "serving-eval-us-west-2-ecs")
    theirs = names.format_dashboard_name(long, "ecs")
    assert ours.replace("_", "-") == theirs.replace("_", "-"), "all parts may have -"
    assert ours != theirs
