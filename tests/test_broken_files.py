"""Broken variants of valid files, with a fixed seed: each parser reads or refuses every one, within its limits."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from llm_serving import paths
from llm_serving.catalog import gguf
from llm_serving.catalog.architecture import ModelError
from llm_serving.services.traffic import Traffic
from llm_serving.settings.errors import InputError
from llm_serving.validation.load import data_rows, trace
from tests import fuzzing


def _run(parser: str) -> dict[str, Any]:
    """Run a parser over its inputs, in a process that the kernel ends when it takes too much processor time."""
    result = subprocess.run(
        [sys.executable, "-m", "tests.fuzzing", parser],
        cwd=paths.ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )
    assert result.returncode == 0, result.stderr[-2000:]
    outcome: dict[str, Any] = json.loads(result.stdout)
    return outcome


@pytest.mark.parametrize("parser", fuzzing.PARSERS)
def test_every_broken_file_is_read_or_refused(parser: str) -> None:
    outcome = _run(parser)
    assert outcome["uncaught"] == []
    assert outcome["inputs"] == fuzzing.PARSERS[parser][1]


def test_the_harness_sees_what_a_careless_parser_does_not_catch() -> None:
    uncaught = "\n".join(_run("careless")["uncaught"])
    assert all(name in uncaught for name in ("RecursionError", "TypeError", "KeyError"))


def test_the_harness_ends_a_parser_that_never_ends() -> None:
    [uncaught] = _run("endless")["uncaught"]
    assert uncaught.startswith("0: TimeIsUp: more than 3 s")


@pytest.mark.parametrize(
    "read",
    [
        lambda file: data_rows.read_rows(file, Traffic(users=1)),
        lambda file: trace.read(file, 10),
        gguf.read_file,
    ],
    ids=["data rows", "trace", "GGUF"],
)
def test_a_pipe_is_refused_without_waiting(read: Callable[[Path], object], tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises((InputError, ModelError), match="It is a pipe or a device, not a file"):
        read(tmp_path / "pipe")
