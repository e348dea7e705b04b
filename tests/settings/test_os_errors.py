"""What the system refuses: the path, the reason and the fix."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from llm_serving.settings import os_errors

FULL = "no space left on device. Fix: make room on that disk."


def write_text(file: Path) -> None:
    file.write_text("a")


def write_line(file: Path) -> None:
    with file.open("wb") as output:
        output.write(b"a")


def copy(file: Path) -> None:
    source = file.with_name("source")
    source.write_text("a")
    shutil.copyfile(source, file)


def copy_tree(file: Path) -> None:
    source = file.with_name("folder")
    source.mkdir()
    (source / file.name).write_text("a")
    shutil.copytree(source, file.parent, dirs_exist_ok=True)


@pytest.mark.parametrize("write", [write_text, write_line, copy, copy_tree], ids=lambda write: write.__name__)
def test_the_file_on_a_full_disk_is_named(tmp_path: Path, write: Callable[[Path], None]) -> None:
    """Python itself names only a file that it cannot open."""
    file = tmp_path / "file"
    file.symlink_to("/dev/full")
    with pytest.raises(OSError) as error:
        write(file)
    assert str(os_errors.convert(error.value)) == f"{file}: {FULL}"


def test_a_file_that_is_read_is_not_taken_for_the_one_that_is_written(tmp_path: Path) -> None:
    (tmp_path / "read").write_text("a")
    with (tmp_path / "read").open() as source, pytest.raises(OSError) as error, Path("/dev/full").open("w") as output:
        output.write(source.read())
        output.flush()
    assert str(os_errors.convert(error.value)) == f"/dev/full: {FULL}"


def test_a_disk_without_room_for_temporary_files_names_their_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", lambda: ["/proc"])
    monkeypatch.setattr(tempfile, "tempdir", None)
    with pytest.raises(FileNotFoundError) as error:
        tempfile.mkdtemp()
    assert str(os_errors.convert(error.value)) == (
        "no usable temporary directory found in ['/proc']. "
        "Fix: make room in one of these, or set TMPDIR to a folder that can be written."
    )


def test_an_error_whose_fix_is_not_known_stays_as_it_is_but_for_a_path_that_is_to_be_written() -> None:
    error = OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG), "/x")
    assert os_errors.convert(error) is None
    assert str(os_errors.explain(error, "/y")) == "/y: file name too long. Fix: use another folder."
