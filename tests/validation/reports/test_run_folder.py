from __future__ import annotations

import errno
import os
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from llm_serving.kinds.batch.validation.report import BatchReport
from llm_serving.settings.errors import InputError, Unavailable
from llm_serving.validation import run
from llm_serving.validation.reports import run_folder
from tests.validation.conftest import TargetFactory, build_options


class _Report:
    """What a report is to its folder."""

    started_at = "2026-11-24T10:00:00+00:00"

    def model_dump_json(self, **_: Any) -> str:
        return "{}"


def test_a_folder_that_cannot_hold_reports_is_refused_before_a_load_is_sent(
    make_target: TargetFactory, tmp_path: Path
) -> None:
    (tmp_path / "runs").write_text("not a folder")
    deployment = make_target("http://127.0.0.1:9", {"users": 1})
    with pytest.raises(Unavailable, match=r"runs: no report can be written there: it is a file\. Fix: use a directory"):
        run.validate(deployment, build_options(tmp_path))
    assert not (tmp_path / "logs").exists()


def test_a_deployment_named_as_the_link_to_the_newest_run_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "runs" / run_folder.LATEST
    reason = re.escape(f"name: latest: {folder} is the link to the newest validation. Fix: use another name.")
    with pytest.raises(InputError, match=reason):
        run_folder.require_writable(folder)


def test_a_read_only_folder_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    run_folder.require_writable(tmp_path / "runs" / "known")
    monkeypatch.setattr(os, "access", lambda path, _: Path(path) != tmp_path)
    with pytest.raises(Unavailable, match="it is read-only, or another user's"):
        run_folder.require_writable(tmp_path / "runs" / "known")


def test_a_full_disk_is_one_message_and_leaves_no_part_of_a_report(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    work, runs = tmp_path / "work", tmp_path / "runs" / "known"
    work.mkdir()
    (work / "requests.jsonl").write_text("")
    monkeypatch.chdir(tmp_path)

    def copy(*_: Path) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    report: BatchReport = _Report()  # type: ignore[assignment]
    with monkeypatch.context() as patched, pytest.raises(Unavailable) as error:
        patched.setattr(shutil, "copy", copy)
        run_folder.publish(report, "", work, runs)
    assert str(error.value) == (
        "the report cannot be written to runs/known: No space left on device. The files of the load are in work until "
        "the next one. Fix: make room there, then validate again."
    )
    assert list(runs.iterdir()) == []
    folder = run_folder.publish(report, "", work, runs)
    assert (folder / "requests.jsonl").is_file()
