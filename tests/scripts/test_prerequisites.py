from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from scripts import prerequisites

ROOT = Path(__file__).parents[2]


def _write_program(folder: Path, name: str, output: str) -> None:
    program = folder / name
    program.write_text(f"#!/bin/sh\necho '{output}'\n")
    program.chmod(0o755)


@pytest.fixture
def path_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A PATH of only what a test writes to it."""
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin")
    monkeypatch.delenv("TERRAFORM_BINARY_NAME", raising=False)
    return tmp_path


@pytest.mark.parametrize(
    ("name", "output", "ok"),
    [
        ("terraform", "Terraform v1.11.4", True),
        ("tofu", "OpenTofu v1.10.0", True),
        ("terraform", "Terraform v1.9.8", False),
        ("terraform", "nonsense", False),
    ],
)
def test_terraform_or_opentofu_from_1_10_is_accepted(path_folder: Path, name: str, output: str, ok: bool) -> None:
    _write_program(path_folder, name, output)
    assert prerequisites.check_terraform().ok is ok


def test_a_missing_terraform_is_named_with_installation_instructions(path_folder: Path) -> None:
    finding = prerequisites.check_terraform()
    assert not finding.ok and finding.detail == "terraform or tofu not found on PATH" and "OpenTofu" in finding.remedy


def test_too_little_memory_and_disk_name_what_is_required(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(prerequisites, "MEMORY_GIB", 10_000)
    monkeypatch.setattr(prerequisites, "DISK_GIB", 10_000_000)
    assert not prerequisites.check_memory().ok and "10000 GiB" in prerequisites.check_memory().remedy
    assert not prerequisites.check_disk(tmp_path).ok and "10000000 GiB" in prerequisites.check_disk(tmp_path).remedy


def test_checks_run_on_the_standard_library_and_exit_3_if_one_fails(path_folder: Path) -> None:
    # Without -P the program's directory comes first on the path: no neighbour may hide a module that it imports.
    command = [sys.executable, "-E", "-S", str(ROOT / "scripts" / "prerequisites.py")]
    result = subprocess.run(command, cwd=path_folder, capture_output=True, text=True, check=False)
    assert result.returncode == 3
    assert "✗ Terraform: terraform or tofu not found on PATH. Fix: install" in result.stderr
    assert "✓ Python" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "is_local"),
    [
        ([], True),
        (["--target", "local"], True),
        (["--fleet", "f.yaml", "--target", "eks"], False),
        (["--target=ecs"], False),
        (["--destroy"], False),
    ],
)
def test_serving_on_aws_requires_no_particular_processor(arguments: list[str], is_local: bool) -> None:
    assert prerequisites.needs_engine(arguments) is is_local
    item_names = {finding.item for finding in prerequisites.run_checks(Path.cwd(), engine=is_local)}
    assert item_names == (
        {"Python", "Terraform", "Processor", "libnuma", "Memory", "Disk"} if is_local else {"Python", "Terraform"}
    )
