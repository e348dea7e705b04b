from __future__ import annotations

import errno
import json
import os
import re
from pathlib import Path

import pytest

from infra import main
from llm_serving.cli import main as cli
from llm_serving.fleet.loading import load_fleet
from llm_serving.terraform import runner

ROOT = Path(__file__).parents[2]


def test_cdktf_and_the_command_line_refuse_the_same_fleets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "fleet.yaml"
    file.write_text((ROOT / "fleet.yaml").read_text().replace("100 USD/h", "1 USD/h"))
    monkeypatch.setenv("BLUEPRINT_FLEET", str(file))
    monkeypatch.setenv("CDKTF_OUTDIR", str(tmp_path / "out"))
    with pytest.raises(SystemExit, match="2"):
        main.main()
    errors = capsys.readouterr().err
    assert errors.startswith(f'{file}:8:14: spend_limit: "1 USD/h": at full size the fleet costs ')
    assert not (tmp_path / "out").exists()
    assert cli.run(["fleet", "synth", "--fleet", str(file), "--out", str(tmp_path / "out")]) == 2
    assert capsys.readouterr().err == errors


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), 3, "no space left on device. Fix: make room on that disk."),
        (
            RuntimeError("Error: EROFS: read-only file system, mkdir '/x/stacks'\n  at mkdirSync"),
            3,
            "/x/stacks: read-only file system. Fix: use a folder on a disk that can be written.",
        ),
        (RuntimeError("ENONE: nothing that there is, open '/x'"), 70, "RuntimeError: ENONE"),
    ],
)
def test_what_the_system_refuses_ends_with_one_message(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: Exception, code: int, message: str
) -> None:
    def fail(_: object) -> None:
        raise error

    monkeypatch.setattr(main, "run", fail)
    with pytest.raises(SystemExit, match=str(code)):
        main.main()
    errors = capsys.readouterr().err
    assert errors == f"{message}\n" if code == 3 else message in errors


def test_a_full_disk_ends_cdktf_with_one_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "stacks/storage").mkdir(parents=True)
    (tmp_path / "stacks/storage/cdk.tf.json").symlink_to("/dev/full")
    monkeypatch.setenv("BLUEPRINT_FLEET", str(ROOT / "fleet.yaml"))
    monkeypatch.setenv("BLUEPRINT_STACKS", "storage")
    monkeypatch.setenv("CDKTF_OUTDIR", str(tmp_path))
    with pytest.raises(SystemExit, match="3"):
        main.main()
    assert capsys.readouterr().err == "no space left on device. Fix: make room on that disk.\n"


def test_every_stack_has_the_hashes_of_the_provider_and_the_least_version_of_terraform(tmp_path: Path) -> None:
    folders = main.synthesize(load_fleet(ROOT / "fleet.yaml"), tmp_path, stack_names=("network", "storage"))
    assert sorted(folders) == ["network", "storage"]
    for folder in folders.values():
        terraform = json.loads((folder / "cdk.tf.json").read_text())["terraform"]
        assert terraform["required_version"] == f">= {'.'.join(map(str, runner.MIN_VERSION))}"
        lock = (folder / ".terraform.lock.hcl").read_text()
        (version,) = re.findall(r'  version     = "(.*)"', lock)
        assert version == terraform["required_providers"]["aws"]["version"]
        # One archive a platform, and the registry's own manifest.
        assert (len(re.findall('"h1:', lock)), len(re.findall('"zh:', lock))) == (14, 15)


def test_hashes_that_opentofu_has_locked_stay(tmp_path: Path) -> None:
    folder = tmp_path / "stacks" / "storage"
    folder.mkdir(parents=True)
    lock = 'provider "registry.opentofu.org/hashicorp/aws" {\n}\n'
    (folder / ".terraform.lock.hcl").write_text(lock)
    main.synthesize(load_fleet(ROOT / "fleet.yaml"), tmp_path, stack_names=("storage",))
    assert (folder / ".terraform.lock.hcl").read_text() == lock


def test_stacks_that_the_fleet_has_no_more_are_removed(tmp_path: Path) -> None:
    """A loop over the folders would apply them; a state that lies there is kept."""
    for name, file in (("eks", "cdk.tf.json"), ("ecs", "terraform.tfstate"), ("notes", "mine.txt")):
        (tmp_path / "stacks" / name).mkdir(parents=True)
        (tmp_path / "stacks" / name / file).write_text("{}")
    (tmp_path / "stacks/ecs/cdk.tf.json").write_text("{}")
    document = load_fleet(ROOT / "fleet.yaml")
    main.synthesize(document, tmp_path, stack_names=("storage",))
    assert (tmp_path / "stacks/eks/cdk.tf.json").exists(), "the other stacks of a fleet stay beside one of them"
    folders = main.synthesize(document, tmp_path)
    stacks = {file.parent.name for file in tmp_path.glob("stacks/*/cdk.tf.json")}
    assert stacks == set(folders) == set(json.loads((tmp_path / "manifest.json").read_text())["stacks"])
    assert not (tmp_path / "stacks/eks").exists() or "eks" in folders
    assert (tmp_path / "stacks/ecs/terraform.tfstate").exists()
    assert (tmp_path / "stacks/notes/mine.txt").exists()


@pytest.mark.parametrize(("line", "allowed"), [('account: "123456789012"\n', ["123456789012"]), ("", None)])
def test_the_provider_takes_no_other_account_than_the_fleets(tmp_path: Path, line: str, allowed: list[str]) -> None:
    file = tmp_path / "fleet.yaml"
    file.write_text(line + (ROOT / "fleet.yaml").read_text())
    folders = main.synthesize(load_fleet(file), tmp_path / "out", stack_names=("storage",))
    (provider,) = json.loads((folders["storage"] / "cdk.tf.json").read_text())["provider"]["aws"]
    assert provider.get("allowed_account_ids") == allowed


def test_a_budget_is_the_month_of_the_spend_limit_by_the_fleets_tag_in_its_region(tmp_path: Path) -> None:
    file = tmp_path / "fleet.yaml"
    file.write_text("budget_to: platform@example.com\n" + (ROOT / "fleet.yaml").read_text())
    folders = main.synthesize(load_fleet(file), tmp_path / "out", stack_names=("storage",))
    resources = json.loads((folders["storage"] / "cdk.tf.json").read_text())["resource"]
    budget = resources["aws_budgets_budget"]["budget"]
    assert (budget["limit_amount"], budget["limit_unit"], budget["time_unit"]) == ("73000.00", "USD", "MONTHLY")
    filters = {entry["name"]: entry["values"] for entry in budget["cost_filter"]}
    assert filters == {"TagKeyValue": ["user:fleet$demo"], "Region": ["us-west-2"]}
    alerts = {(alert["notification_type"], alert["threshold"]) for alert in budget["notification"]}
    assert alerts == {("ACTUAL", 80), ("FORECASTED", 100)}
    assert {tuple(alert["subscriber_email_addresses"]) for alert in budget["notification"]} == {
        ("platform@example.com",)
    }


def test_without_addresses_there_is_no_budget(tmp_path: Path) -> None:
    folders = main.synthesize(load_fleet(ROOT / "fleet.yaml"), tmp_path / "out", stack_names=("storage",))
    assert "aws_budgets_budget" not in json.loads((folders["storage"] / "cdk.tf.json").read_text())["resource"]


def test_cdktf_changes_no_tracked_file_and_runs_on_the_users_own_node() -> None:
    """cdktf-cli 0.21.0 writes a projectId where there is none; its native modules fit the Node that npx installs them for."""
    assert json.loads((ROOT / "cdktf.json").read_text())["projectId"]
    assert not [name for name in ("node", "npm", "npx") if (ROOT / ".venv" / "bin" / name).exists()]
