"""Commands of the pages in docs/ parse, and the files that they name exist."""

from __future__ import annotations

import datetime
import re
import shlex
from pathlib import Path

import pytest
import yaml

from llm_serving import paths
from llm_serving.catalog import eks
from llm_serving.cli import main
from llm_serving.fleet import loading, names
from llm_serving.services.traffic import Slo
from llm_serving.targets.eks import namespace

ROOT = Path(__file__).parents[1]
PAGES = sorted((ROOT / "docs").glob("*.md"))
EXAMPLE_PAGES = [page for page in PAGES if "infra/fleets/" in page.read_text("utf-8")]
FLEET_PAGES = [page for page in PAGES if "```yaml\nname: " in page.read_text("utf-8")]
COMMANDS = [
    (page.name, line)
    for page in PAGES
    for block in re.findall(r"^```sh\n(.*?)^```", page.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    for line in block.splitlines()
    if line.startswith("blueprint ")
]


WORKFLOWS = sorted((ROOT / "docs" / "workflows").glob("*.yaml"))
STEPS = [
    (file.name, step)
    for file in WORKFLOWS
    for job in yaml.safe_load(file.read_text("utf-8"))["jobs"].values()
    for step in job["steps"]
]
COMMANDS += [
    (name, command.partition(">")[0].strip())
    for name, step in STEPS
    for command in step.get("run", "").split(" && ")
    if command.startswith("blueprint ")
]


def _parse(line: str) -> int:
    """The exit code of a command whose options are parsed, and that then shows its help instead of running."""
    return main.run([*shlex.split(line)[1:], "--help"])


@pytest.mark.parametrize(("page", "line"), COMMANDS)
def test_every_command_of_a_page_parses(page: str, line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert _parse(line) == 0, (page, capsys.readouterr().err)


def test_a_workflow_takes_others_actions_by_their_commit_and_no_more_rights_than_it_uses() -> None:
    actions = [step["uses"] for _, step in STEPS if "uses" in step]
    assert actions
    assert [action for action in actions if not re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}", action)] == []
    for file in WORKFLOWS:
        assert yaml.safe_load(file.read_text("utf-8"))["permissions"] == {"contents": "read", "id-token": "write"}


def test_every_objective_has_a_row_on_the_page_of_validations() -> None:
    rows = re.findall(r"^\| (`.*?) \|", (ROOT / "docs/validation.md").read_text("utf-8"), re.MULTILINE)
    written = {name for row in rows for name in re.findall(r"`(\w+): ", row)}
    missing = Slo.model_fields.keys() - written
    assert missing == {"itl_ms", "e2e_ms"}, "those are named in the row of ttft_ms"


def test_an_unknown_option_or_command_would_be_noticed(capsys: pytest.CaptureFixture[str]) -> None:
    codes = [_parse("blueprint preflight --flet fleet.yaml"), _parse("blueprint fleet aply")]
    assert codes == [2, 2], capsys.readouterr().err


@pytest.mark.parametrize("page", EXAMPLE_PAGES, ids=lambda page: page.name)
def test_every_fleet_that_a_page_names_is_an_example(page: Path) -> None:
    names = set(re.findall(r"infra/fleets/[\w.-]+\.yaml", page.read_text("utf-8")))
    assert names
    assert [name for name in sorted(names) if not (ROOT / name).is_file()] == []


@pytest.mark.parametrize("page", FLEET_PAGES, ids=lambda page: page.name)
def test_every_fleet_on_a_page_can_be_rented_even_in_extended_support(
    monkeypatch: pytest.MonkeyPatch, page: Path, tmp_path: Path
) -> None:
    monkeypatch.setattr(eks, "read_today", lambda: datetime.date.max)
    blocks = re.findall(r"^```yaml\n(name: .*?)^```", page.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    assert blocks
    for block in blocks:
        (tmp_path / "fleet.yaml").write_text(block)
        loading.load_fleet(tmp_path / "fleet.yaml")


def test_a_command_of_a_runbook_on_pods_or_a_release_names_their_namespace() -> None:
    texts = [page.read_text("utf-8") for page in (ROOT / "docs" / "runbook").glob("*.md")]
    commands = [
        command for text in texts for command in re.findall(r"`((?:helm|kubectl (?:logs|\w+ pods?)) [^`]+)`", text)
    ]
    assert len(commands) > 8
    namespaces = (f" -n {names.SERVING_NAMESPACE} ", " -n kube-system ", " -A ")
    assert [command for command in commands if not any(words in f"{command} " for words in namespaces)] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_within_a_page_leads_to_a_heading(page: Path) -> None:
    text = page.read_text("utf-8")
    headings = {
        re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in re.findall(r"^#+ (.*)", text, re.M)
    }
    assert [link for link in re.findall(r"\]\(#([\w-]+)\)", text) if link not in headings] == []


def test_argo_cd_and_flux_install_a_chart_with_the_values_that_are_rendered() -> None:
    text = (ROOT / "docs/gitops.md").read_text("utf-8")
    blocks = re.findall(r"^```yaml\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    shared, application, flux = map(yaml.safe_load, blocks)
    chart, values = application["spec"]["sources"]
    name = application["metadata"]["name"]
    # Whoever deletes the deployment's Application deletes what that has.
    assert shared["metadata"]["name"] != name
    assert "prune" not in shared["spec"]["syncPolicy"]["automated"]
    assert shared["spec"]["source"]["path"] == f"rendered/{name}/eks"
    assert shared["spec"]["source"]["directory"] == {"include": namespace.FILE}
    assert (ROOT / chart["path"].removeprefix("blueprint/") / "Chart.yaml").is_file()
    assert chart["helm"]["valueFiles"] == [f"${values['ref']}/rendered/{name}/eks/eks.yaml"]
    assert application["spec"]["destination"]["namespace"] == names.SERVING_NAMESPACE
    assert flux["metadata"] == {"name": name, "namespace": names.SERVING_NAMESPACE}, "by which Flux names the release"
    source = flux["spec"]["chart"]["spec"]
    # Flux takes none but those, and has no defaults of the chart without its own file.
    assert source["valuesFiles"] == [f"{chart['path']}/values.yaml", f"rendered/{name}/eks/eks.yaml"]
    assert source["chart"] == chart["path"]
    rows = re.findall(r"^\| ([\w, -]+) \| `charts/(\w+)` \|", text, re.MULTILINE)
    charts = {pattern: chart_name for patterns, chart_name in rows for pattern in patterns.split(", ")}
    assert charts.keys() == {file.parent.name for file in paths.PATTERNS.glob("*/eks.yaml.j2")} - {"templates"}
    assert set(charts.values()) == {file.parent.name for file in paths.CHARTS.glob("*/Chart.yaml")}
