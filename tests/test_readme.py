"""Run the commands of README: each ```sh block, in the order of the page."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
from collections.abc import Container, Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text("utf-8")
BLOCKS = [match[1] for match in re.finditer(r"^```sh\n(.*?)^```", README, re.MULTILINE | re.DOTALL)]
FIRST, SECOND, COPY, PATTERNS, AWS = BLOCKS


def _run(
    script: str,
    cwd: Path,
    limit_s: float,
    environment: Mapping[str, str] | None = None,
    accepted: Container[int] = (0,),
) -> str:
    result = subprocess.run(
        ["bash", "-e", "-c", script],
        cwd=cwd,
        env={**os.environ, **(environment or {})},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=limit_s,
        check=False,
    )
    # The end says what went wrong; a runner may keep only so much of a message.
    assert result.returncode in accepted, result.stdout[-4000:]
    return result.stdout


def _find_leftovers(path: str, cwd: Path | None = None) -> list[list[str]]:
    """Processes that name a run's folder; where given, those alone that run in `cwd`."""
    return [
        process.info["cmdline"]
        for process in psutil.process_iter(["cmdline", "cwd"])
        if any(path in word for word in process.info["cmdline"] or ())
        and (cwd is None or process.info["cwd"] == str(cwd))
    ]


def _require_all_but_speed(report: Mapping[str, Any], requests: int) -> None:
    """Other tests share the processor: they may spoil how fast the answers came, and nothing else."""
    missed = {objective["metric"].split(".")[0] for objective in report["missed"]}
    assert missed <= {"ttft_ms", "itl_ms", "e2e_ms"}
    assert report["verdict"] in (("fail", "not shown") if missed or report["not_shown"] else ("pass",))
    assert report["requests"]["total"] >= requests
    assert report["requests"]["failed"] == 0


@pytest.mark.engine
@pytest.mark.xdist_group("commands")
@pytest.mark.timeout(1500)
def test_the_first_command_ends_with_a_report_and_leaves_nothing_running() -> None:
    assert FIRST == "./install.sh\n"
    output = _run(FIRST, ROOT, 1400, accepted=(0, 1))
    report = json.loads((ROOT / "runs" / "latest" / "report.json").read_text())
    _require_all_but_speed(report, 300)
    assert len(report["replicas"]) == 2
    assert all(replica["requests"] > 0 for replica in report["replicas"])
    weights = report["weights"]
    assert weights["source"].startswith("s3://")
    # Each byte of the bucket's model came over the wire, by the engine's own log.
    assert weights["bytes"] > 1_000_000
    assert weights["seconds"] > 0
    report_match = re.search(rf"^{report['verdict'].upper()} (\S+/report\.html)$", output, re.MULTILINE)
    assert report_match
    assert (ROOT / report_match[1]).read_text().startswith("<!doctype html>")
    for step in (
        "In the background: Apply network and storage",
        "Check for drift: network, storage",
        "Validate against the SLO",
        "Stop everything",
    ):
        assert re.search(rf"^{step}.* \d+\.\d s$", output, re.MULTILINE), step
    assert "random numbers" in output
    assert not _find_leftovers(f"{ROOT}/.blueprint")


def test_the_second_command_runs_this_test_suite() -> None:
    assert SECOND == "./scripts/test\n"
    assert "pytest" in (ROOT / "scripts" / "test").read_text()


@pytest.mark.engine
@pytest.mark.xdist_group("commands")
@pytest.mark.timeout(900)
def test_a_copy_outside_the_repository_is_edited_deployed_validated_and_destroyed(tmp_path: Path) -> None:
    script = COPY.replace("source .venv", f"source {shlex.quote(str(ROOT / '.venv'))}", 1)
    # The first command proves vLLM; these commands are the same with the engine that starts in a second.
    script = script.replace("--from aggregated\n", "--from aggregated --preset quick\n", 1)
    script = script.replace("s|arrivals: 10/s|", "s|arrivals: 20/s|", 1)  # what the preset sends
    script = script.replace("blueprint validate mine\n", "blueprint validate mine || test $? = 1\n", 1)
    assert script.count(str(ROOT)) == script.count("--preset quick") == script.count("test $? = 1") == 1
    try:
        output = _run(script, tmp_path, 850)
    finally:
        program = shlex.quote(str(ROOT / ".venv" / "bin" / "blueprint"))
        _run(f"{program} destroy mine --yes", tmp_path, 240)
    assert "aggregated" in output
    report = json.loads((tmp_path / "runs" / "latest" / "report.json").read_text())
    _require_all_but_speed(report, 64)
    assert "worker-0" in output and "worker-1" not in output
    assert not (tmp_path / ".blueprint").exists()
    assert not _find_leftovers(f"{tmp_path}/.blueprint")


def test_the_pattern_section_prints_the_matrix_and_copies_a_preset(tmp_path: Path) -> None:
    path = f"{ROOT / '.venv' / 'bin'}:{os.environ['PATH']}"
    output = _run(PATTERNS, tmp_path, 240, {"PATH": path, "COLUMNS": "120"})
    assert all(name in output for name in ("aggregated", "disaggregated", "distributed", "multi-model", "ads-scale"))
    assert (tmp_path / "talk" / "blueprint.yaml").is_file()


@pytest.mark.terraform
@pytest.mark.timeout(900)
def test_the_workflow_on_aws_is_rehearsed_up_to_the_first_instance(tmp_path: Path) -> None:
    no_credentials = {"AWS_ACCESS_KEY_ID": "", "AWS_CONFIG_FILE": os.devnull, "AWS_SHARED_CREDENTIALS_FILE": os.devnull}
    path = f"{ROOT / '.venv' / 'bin'}:{os.environ['PATH']}"
    script = re.sub(r"(new|--blueprint) first\b", rf"\1 {tmp_path}/first", AWS)
    output = _run(script, ROOT, 850, {**no_credentials, "PATH": path, "AWS_EC2_METADATA_DISABLED": "true"})
    for step in ("Plan network, storage, ecs", "Apply network, storage", "Apply ecs", "Destroy the instances of ecs"):
        assert re.search(rf"^{step}.* \d+\.\d s$", output, re.MULTILINE), step
    assert "Rehearsal" in output
    remaining = f"blueprint validate {tmp_path}/first --target ecs --fleet infra/fleets/one-gpu.yaml"
    assert remaining in output, "it ends with an answer, not with the fleet"
    assert "the embedded ECS starts no instances, so no task can run" in output
    assert "USD/h on demand" in output
    assert not _find_leftovers(".blueprint/fleet.one-gpu", cwd=ROOT)
    assert not (ROOT / ".blueprint" / "fleet.one-gpu" / "rehearsal.json").exists()


def test_every_file_and_folder_that_the_page_names_exists() -> None:
    section = README[README.index("## Repository layout") :]
    paths = re.findall(r"`([a-z][\w./-]*)`", section[: section.index("Reports are in")]) + re.findall(
        r"\]\((\S+)\)", section
    )
    assert len(paths) > 10
    for name in paths:
        assert (ROOT / name).exists(), name


def test_the_blueprint_of_the_example_on_aws_fits_its_fleet(tmp_path: Path) -> None:
    [preset] = re.findall(r"blueprint new first --from aggregated --preset (\S+)", AWS)
    [target, fleet] = re.findall(r"install\.sh --target (\S+) --fleet (\S+) --blueprint first", AWS)[0]
    blueprint = ROOT / ".venv" / "bin" / "blueprint"
    check = f"{blueprint} check first --fleet {ROOT / fleet} --target {target}"
    assert "first" in _run(f"{blueprint} new first --from aggregated --preset {preset} && {check}", tmp_path, 240)
    with pytest.raises(AssertionError, match="the pool general grows to 1 nodes, which fit 1"):  # the pattern's own
        _run(f"rm -r first && {blueprint} new first --from aggregated && {check}", tmp_path, 240)
