from __future__ import annotations

from pathlib import Path

import pytest

from llm_serving.operations.checkpoints import Journal, digest


def test_what_was_done_with_the_same_is_known_to_the_next_run(tmp_path: Path) -> None:
    file = tmp_path / "journal.json"
    Journal(file, "account 1").note("chart karpenter", digest("1.14.1"), "")
    again = Journal(file, "account 1")
    assert again.done("chart karpenter", digest("1.14.1"))
    assert not again.done("chart karpenter", digest("1.15.0"))
    assert not again.done("chart keda", digest("1.14.1"))


def test_what_was_done_in_another_account_counts_for_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "journal.json"
    Journal(file, "account 1").note("weights")
    assert not Journal(file, "account 2").done("weights")
    assert "speaks of account 1, and this is account 2: it begins anew" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("text", ['{"place": "account 1", "done": {"weig', "[]", '{"place": "account 1", "done": [1]}'])
def test_a_damaged_journal_begins_anew(tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "journal.json"
    file.write_text(text)
    journal = Journal(file, "account 1")
    assert "cannot be read: it begins anew" in capsys.readouterr().err
    journal.note("weights")
    assert Journal(file, "account 1").done("weights")


def test_what_was_undone_is_forgotten(tmp_path: Path) -> None:
    file = tmp_path / "journal.json"
    journal = Journal(file, "account 1")
    journal.note("weights")
    journal.forget()
    assert not file.exists()
    assert not Journal(file, "account 1").done("weights")


def test_what_counts_no_longer_is_dropped_alone(tmp_path: Path) -> None:
    file = tmp_path / "journal.json"
    journal = Journal(file, "account 1")
    journal.note("agreed")
    journal.note("preflight")
    journal.drop("agreed")
    journal.drop("never there")
    again = Journal(file, "account 1")
    assert again.done("preflight") and not again.done("agreed")
