"""The workflow that publishes the charts packages each of them, with all that a user of the package needs."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest
import yaml

from llm_serving import paths
from tests.charts.conftest import Helm

CHARTS = sorted(file.parent.name for file in paths.CHARTS.glob("*/Chart.yaml"))
WORKFLOW = yaml.safe_load((paths.CHARTS.parent / "docs" / "workflows" / "charts.yaml").read_text())


def test_the_workflow_publishes_and_attests_every_chart() -> None:
    job = WORKFLOW["jobs"]["charts"]
    assert sorted(job["strategy"]["matrix"]["chart"]) == CHARTS
    assert job["permissions"]["attestations"] == "write"
    [attest] = [step for step in job["steps"] if step.get("uses", "").startswith("actions/attest-build-provenance@")]
    pushed = "${{ steps.push.outputs.digest }}"
    assert attest["with"]["subject-digest"] == pushed, "of what was pushed, not of a file that could differ"


@pytest.mark.parametrize("chart", CHARTS)
def test_a_package_has_the_version_of_its_tag_and_installs_alone(helm: Helm, tmp_path: Path, chart: str) -> None:
    run = helm("package", str(paths.CHARTS / chart), "--version", "1.4.0", "--destination", str(tmp_path))
    assert run.returncode == 0, run.stderr
    package = tmp_path / f"{chart}-1.4.0.tgz"
    with tarfile.open(package) as archive:
        files = set(archive.getnames())
    assert {f"{chart}/{name}" for name in ("values.yaml", "values.schema.json", "README.md", "VALUES.md")} <= files
    refused = helm("template", "mine", str(package), "--set", "queeu=x")
    assert "additional properties 'queeu' not allowed" in refused.stderr
