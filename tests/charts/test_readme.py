"""The chart's README: its commands render, and the presets that it lists exist."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from llm_serving import paths
from tests.charts.conftest import CHART, PRESETS, Helm
from tests.infra import deployments

TEXT = (CHART / "README.md").read_text()
ROOT = CHART.parents[1]
_BLOCKS = "\n".join(re.findall(r"```sh\n(.*?)```", TEXT, re.S)).replace("\\\n", " ")
COMMANDS = [line for line in _BLOCKS.splitlines() if line.startswith(("helm install ", "helm upgrade "))]


@pytest.mark.parametrize("line", COMMANDS)
def test_its_install_commands_render(helm: Helm, line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    words = [word for word in shlex.split(line)[2:] if word != "--install"]
    run = helm("template", *words)
    assert run.returncode == 0, run.stderr
    assert run.stdout.count("kind:") >= 1


def test_the_readme_has_five_commands() -> None:
    assert len(COMMANDS) == 5


def test_its_table_lists_the_presets() -> None:
    assert sorted(re.findall(r"^\| `([\w.-]+)`", TEXT, re.M)) == sorted(file.stem for file in PRESETS.glob("*.yaml"))


def test_the_template_that_adds_an_ingress_renders(helm: Helm, tmp_path: Path) -> None:
    """As docs/templates.md has it."""
    [template] = re.findall(r"```jinja\n(.*?)```", (ROOT / "docs" / "templates.md").read_text(), re.S)
    text = (paths.PATTERNS / "aggregated" / "blueprint.yaml").read_text()
    folder = deployments.write_blueprint(tmp_path, "mine", text)
    (folder / "eks.yaml.j2").write_text(template)
    run = helm(
        "template",
        "mine",
        str(CHART),
        "--values",
        str(deployments.render(tmp_path, folder, ROOT / "fleet.yaml", "eks")),
    )
    assert run.returncode == 0, run.stderr
    assert "ingressClassName: nginx" in run.stdout
