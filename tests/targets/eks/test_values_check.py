"""What an edited template renders is held against the chart and the deployment, with the template's line."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from llm_serving import paths
from llm_serving.cli import main
from llm_serving.settings.errors import InputError
from llm_serving.targets import planning
from llm_serving.targets.eks import values_check
from tests import matrix_cells
from tests.charts import test_patterns
from tests.infra import deployments
from tests.infra.batch.conftest import FLEET, ON_EKS

FLEET_FILE = paths.PATTERNS.parent / "fleet.yaml"


@pytest.fixture
def edit(tmp_path: Path) -> Callable[[str, str], tuple[Path, int]]:
    """A copy of the pattern with a template of its own, in which a text is replaced; returns the file and the last line of the change."""
    folder = tmp_path / "mine"
    shutil.copytree(paths.PATTERNS / "aggregated", folder)
    template = folder / "eks.yaml.j2"
    shutil.copy(paths.PATTERNS / "templates" / "eks.yaml.j2", template)

    def change(old: str, new: str) -> tuple[Path, int]:
        text = template.read_text()
        assert text.count(old) == 1
        template.write_text(text.replace(old, new))
        return template, text[: text.index(old)].count("\n") + max(1, new.count("\n"))

    return change


def get_errors(tmp_path: Path) -> list[str]:
    with pytest.raises(InputError) as error:
        planning.plan_offline(tmp_path / "mine", FLEET_FILE, "eks")
    return str(error.value).splitlines()


Edit = Callable[[str, str], tuple[Path, int]]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "    nodes: {{ service.nodes }}\n",
            "    nodes: {{ service.nodes }}\n    replcas: 3\n",
            "roles.worker.replcas: 3: charts/inference has no such value. Fix: remove it, or take its name from charts/inference/VALUES.md.",
        ),
        (
            "    port: {{ service.port }}\n",
            "    port: 9000\n",
            "roles.worker.port: 9000: the command listens on 8000, and probes and clients would ask elsewhere. Fix: write {{ service.port }}.",
        ),
        (
            "count: {{ service.resources.accelerators }}}",
            "count: 4}",
            "roles.worker.resources.accelerator.count: 4: the command uses 1. Fix: write {{ service.resources.accelerators }}.",
        ),
        (
            "    nodes: {{ service.nodes }}\n",
            '    nodes: "one"\n',
            "roles.worker.nodes: \"one\": 'one' is not of type 'integer'. Fix: write what charts/inference/VALUES.md says.",
        ),
        (
            "framework: {{ deployment.objects }}\n",
            "framework: {{ deployment.objects }}\nfullnameOverride: other\n",
            'fullnameOverride: "other": deploy, status and logs find objects by the release\'s name. Fix: remove it, and choose `name` in blueprint.yaml.',
        ),
    ],
)
def test_a_value_that_cannot_work_is_refused_at_the_templates_line(
    tmp_path: Path, edit: Edit, old: str, new: str, message: str
) -> None:
    template, line = edit(old, new)
    assert f"{template}:{line}:1: {message}" in get_errors(tmp_path)


def test_names_beside_one_that_the_chart_refuses_are_no_mistakes(tmp_path: Path, edit: Edit) -> None:
    template, line = edit(
        "    nodes: {{ service.nodes }}\n", '    nodes: {{ service.nodes }}\n    labels: {"a b": x, team: ads}\n'
    )
    assert [error.partition(". Fix: ")[0] for error in get_errors(tmp_path)] == [
        f'{template}:{line}:1: roles.{role}.labels.a b: "x": charts/inference has no such value'
        for role in ("router", "worker")
    ]


def test_what_is_not_yaml_is_refused_at_the_templates_line(tmp_path: Path, edit: Edit) -> None:
    template, line = edit("image: {{ engines[0].image | yaml }}\n", 'image: {{ engines[0].image | yaml }}\nextra: "a\n')
    [error] = get_errors(tmp_path)
    assert error.startswith(f"{template}:")
    assert ": it is not YAML: " in error
    assert line > 1
    template.write_text(template.read_text().replace('extra: "a\n', "") + "extra: [\n")
    [error] = get_errors(tmp_path)
    last = len(template.read_text().splitlines())
    assert error.startswith(f"{template}:{last}:1: it is not YAML: "), "which is found where the text ends"


def test_a_role_that_the_template_leaves_out_is_named(tmp_path: Path, edit: Edit) -> None:
    edit("{% for service in deployment.services %}\n  {{", "{% for service in engines %}\n  {{")
    assert any(
        error.endswith("roles.router: it is missing. Fix: render a role for each of deployment.services.")
        for error in get_errors(tmp_path)
    )


def test_check_and_render_refuse_what_the_template_broke(
    tmp_path: Path, edit: Edit, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    template, line = edit("    port: {{ service.port }}\n", "    port: 9000\n")
    monkeypatch.chdir(tmp_path)
    for command in ("check", "render"):
        assert main.run([command, "mine", "--target", "eks", "--fleet", str(FLEET_FILE)]) == 2
        assert f"{template.relative_to(tmp_path)}:{line}:1: roles.worker.port: 9000: " in capfd.readouterr().err
    assert not (tmp_path / "rendered").exists()


def test_additions_that_the_chart_knows_are_accepted(tmp_path: Path, edit: Edit) -> None:
    edit("    nodes: {{ service.nodes }}\n", "    nodes: {{ service.nodes }}\n    runtimeClassName: gvisor\n")
    plan = planning.plan_offline(tmp_path / "mine", FLEET_FILE, "eks")
    assert "runtimeClassName: gvisor" in plan.text


def test_the_repositorys_own_templates_have_none_of_these_mistakes() -> None:
    cells = [cell for cell in test_patterns.CELLS if cell.pattern not in test_patterns.FEED_ANOTHER_DEPLOYMENT]
    assert len(cells) > 5
    for cell in cells:
        assert cell.deployment
        assert list(values_check.find_mistakes(cell.deployment, matrix_cells.render_text(cell))) == []


@pytest.mark.parametrize("shape", ON_EKS)
def test_a_batchs_services_are_held_against_the_deployment_too(tmp_path: Path, shape: str) -> None:
    (tmp_path / "fleet.yaml").write_text(FLEET)
    folder = deployments.write_blueprint(tmp_path, "mine", ON_EKS[shape])
    plan = planning.plan(folder, tmp_path / "fleet.yaml", target="eks", root=tmp_path, account=deployments.ACCOUNT)
    assert list(values_check.find_mistakes(plan.deployment, plan.text)) == []
    [mistake] = values_check.find_mistakes(plan.deployment, plan.text.replace("    port: 8080\n", "    port: 8081\n"))
    assert (mistake.value, mistake.fix) == ("8081", "write {{ service.port }}")
