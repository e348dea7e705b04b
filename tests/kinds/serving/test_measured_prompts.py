"""Which report's share of the prompts decides on a router's policy that the blueprint leaves open."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from llm_serving.kinds.serving import blueprint, measurements
from llm_serving.services.runs import compute_prompts_digest
from llm_serving.targets import planning
from llm_serving.targets.deployment_plan import DeploymentPlan

FLEET = """\
name: demo
region: us-west-2
zones: [us-west-2a, us-west-2b]
pools: {general: {types: g6e.2xlarge, size: 0..4}}
"""
DATA = "users: 4, output_tokens: 8, data: own.jsonl"
OLD, NEW = "2026-11-20T10-00-00Z", "2026-11-21T10-00-00Z"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "own.jsonl").write_text('{"prompt": "one"}\n{"prompt": "two"}\n')
    (tmp_path / "fleet.yaml").write_text(FLEET)
    return tmp_path


def write_blueprint(root: Path, traffic: str = DATA, router: str = "{}") -> Path:
    folder = root / "mine"
    (folder / "blueprint.yaml").write_text(
        "pattern: aggregated\nmodel: Qwen/Qwen3-0.6B\n"
        f"roles:\n  worker: {{pool: general, replicas: 2}}\n  router: {router}\ntraffic: {{{traffic}}}\nslo: {{}}\n"
    )
    notes = "{% for note in deployment.notes %}# {{ note }}\n{% endfor %}"
    (folder / "eks.yaml.j2").write_text(notes + '{% include "templates/eks.yaml.j2" %}')
    return folder


def write_report(root: Path, time: str, **shared: Any) -> None:
    """Write a report, by default of the blueprint's current traffic."""
    document = blueprint.read(root / "mine")
    prompt_settings = compute_prompts_digest(document.value.traffic, root / "mine")
    entry = {"prompts": 0.5, "of": 2, "cached": 0.1, "traffic": prompt_settings, **shared}
    file = root / "runs" / "mine" / time / "report.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps({"started_at": f"at {time}", "shared": entry}))


def find_share(root: Path) -> float | None:
    measurement = measurements.find_prompts(blueprint.read(root / "mine"), root)
    return measurement.shared_prefix if measurement else None


def test_the_newest_report_counts(root: Path) -> None:
    write_blueprint(root)
    assert find_share(root) is None
    write_report(root, NEW, prompts=0.7)
    write_report(root, OLD, prompts=0.2)
    assert find_share(root) == 0.7


def test_reports_without_a_measurement_are_skipped(root: Path) -> None:
    write_blueprint(root)
    write_report(root, OLD, prompts=0.2)
    before_it_was_measured = root / "runs" / "mine" / NEW / "report.json"
    before_it_was_measured.parent.mkdir(parents=True)
    for text in ('{"verdict": "pass", "started_at": "then"}', "{", "[]", '{"shared": null}'):
        before_it_was_measured.write_text(text)
        assert find_share(root) == 0.2
    write_report(root, NEW, prompts=None, of=0)
    assert find_share(root) == 0.2


@pytest.mark.parametrize(
    ("now", "counts"),
    [
        (f"{DATA}, arrivals: 2/s".replace("users: 4, ", ""), True),
        (f"{DATA}, requests: 30, deadline: 5s", True),
        (f"{DATA}, api: completions", False),
        ("users: 4, input_tokens: 64, output_tokens: 8", False),
    ],
)
def test_a_share_of_other_prompts_is_ignored(root: Path, now: str, counts: bool) -> None:
    write_blueprint(root)
    write_report(root, NEW)
    write_blueprint(root, now)
    assert find_share(root) == (0.5 if counts else None)


def test_a_share_of_a_changed_file_is_ignored(root: Path) -> None:
    write_blueprint(root)
    write_report(root, NEW)
    (root / "mine" / "own.jsonl").write_text('{"prompt": "three"}\n')
    assert find_share(root) is None


def test_the_blueprints_own_setting_overrides_the_measurement(root: Path) -> None:
    write_blueprint(root)
    write_report(root, NEW)
    write_blueprint(root, router="{policy: random}")
    assert find_share(root) is None
    write_blueprint(root, f"{DATA}, shared_prefix: 0%")
    assert find_share(root) is None


@pytest.mark.parametrize(
    ("share", "policy", "beside"), [(0.62, "cache-aware", "more"), (0.3, "load-aware", "not more")]
)
def test_the_measured_share_sets_the_next_deployments_policy_with_a_note(
    root: Path, share: float, policy: str, beside: str
) -> None:
    folder = write_blueprint(root)

    def make_plan() -> DeploymentPlan:
        return planning.plan(folder, root / "fleet.yaml", target="eks", root=root, account="123456789012")

    pending_note = "The router's policy is load-aware, until `blueprint validate` has measured what the prompts of own.jsonl share."
    assert make_plan().deployment.notes[:1] == (pending_note,)
    write_report(root, NEW, prompts=share)
    measured_note = (
        f"The router's policy is {policy}, since by the validation of at {NEW} earlier prompts begin with {share:.0%} of "
        f"each, {beside} than the 30% that it follows."
    )
    deployment_plan = make_plan()
    assert deployment_plan.deployment.notes[:1] == (measured_note,)
    command = deployment_plan.deployment.entries[0].command
    assert command[command.index("--policy") + 1] == {"cache-aware": "cache_aware"}.get(policy, "power_of_two")
    assert f"# {measured_note}" in deployment_plan.text
