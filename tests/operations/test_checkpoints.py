from __future__ import annotations

from pathlib import Path

import pytest

from llm_serving.operations.checkpoints import Checkpoints, compute_digest


def test_a_step_with_the_same_input_is_known_to_the_next_run(tmp_path: Path) -> None:
    file = tmp_path / "journal.json"
    Checkpoints(file, "account 1").record("chart karpenter", compute_digest("1.14.1"), "")
    reloaded = Checkpoints(file, "account 1")
    assert reloaded.find("chart karpenter", compute_digest("1.14.1"))
    assert not reloaded.find("chart karpenter", compute_digest("1.15.0"))
    assert not reloaded.find("chart keda", compute_digest("1.14.1"))


def test_steps_in_another_account_do_not_count(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "journal.json"
    Checkpoints(file, "account 1").record("weights")
    assert not Checkpoints(file, "account 2").find("weights")
    assert "belongs to account 1, and this is account 2: starting from the beginning" in " ".join(
        capsys.readouterr().err.split()
    )


@pytest.mark.parametrize("text", ['{"place": "account 1", "done": {"weig', "[]", '{"place": "account 1", "done": [1]}'])
def test_a_damaged_journal_begins_anew(tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "journal.json"
    file.write_text(text)
    progress = Checkpoints(file, "account 1")
    assert "cannot be read: starting from the beginning" in capsys.readouterr().err
    progress.record("weights")
    assert Checkpoints(file, "account 1").find("weights")


def test_undone_steps_are_removed(tmp_path: Path) -> None:
    file = tmp_path / "journal.json"
    progress = Checkpoints(file, "account 1")
    progress.record("weights")
    progress.clear()
    assert not file.exists()
    assert not Checkpoints(file, "account 1").find("weights")


def test_an_outdated_step_is_removed_alone(tmp_path: Path) -> None:
    file = tmp_path / "journal.json"
    progress = Checkpoints(file, "account 1")
    progress.record("agreed")
    progress.record("preflight")
    progress.remove("agreed")
    progress.remove("never there")
    reloaded = Checkpoints(file, "account 1")
    assert reloaded.find("preflight") and not reloaded.find("agreed")
