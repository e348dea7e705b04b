"""Commands of the command line in the test's own process: a process of their own takes a second to import them."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable
from typing import NamedTuple

import pytest

from llm_serving.cli import main


class Ended(NamedTuple):
    """A command that ended."""

    code: int
    out: str
    err: str


RunCommand = Callable[..., Ended]


@pytest.fixture
def run_command(capfd: pytest.CaptureFixture[str]) -> RunCommand:
    """Runs a command with variables of the environment, and nobody to answer."""

    def run(*words: str, **variables: str) -> Ended:
        capfd.readouterr()
        with pytest.MonkeyPatch.context() as patch:
            for name, value in variables.items():
                patch.setenv(name, value)
            patch.setattr(sys, "stdin", io.StringIO())
            code = main.run(list(words))
        return Ended(code, *capfd.readouterr())

    return run


@pytest.fixture
def without_aws(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hides the user's own AWS settings."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE", "HOME"):
        monkeypatch.setenv(name, os.devnull)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
