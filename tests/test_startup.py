"""Programs that import much do not look for garbage while they do."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAMS = {
    "the command line": (100_000, "from llm_serving.cli import main; sys.argv = ['blueprint', 'list']; main.main()"),
    "a synthesis": (
        0,
        "os.environ['BLUEPRINT_FLEET'] = os.devnull; runpy.run_module('infra.main', run_name='__main__')",
    ),
    "the embedded AWS": (
        100_000,
        "sys.argv = ['moto_server', '--help']; "
        "runpy.run_module('llm_serving.rehearsal.moto_server', run_name='__main__')",
    ),
}
"""The threshold of each program, and its start with arguments that end it soon."""


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_looks_for_garbage_rarely_and_not_at_its_end(program: str) -> None:
    threshold, start = PROGRAMS[program]
    code = (
        "import atexit, gc, os, runpy, sys\n"
        "atexit.register(lambda: print('at the end', gc.get_threshold()[0], gc.get_freeze_count() > 0))\n"
        f"{start}"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=False)
    assert f"at the end {threshold} True" in result.stdout, result.stderr


def test_a_module_that_is_imported_leaves_the_collector_as_it_is() -> None:
    code = "import gc, infra.main, llm_serving.cli.main, llm_serving.rehearsal.moto_server; print(gc.get_threshold())"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=True)
    assert result.stdout == "(700, 10, 10)\n"
