"""The benchmark of the engines: what it starts, and the table that it prints."""

from __future__ import annotations

import itertools
from pathlib import Path

from rich.console import Console

from llm_serving.catalog import engines
from scripts.benchmarks import engines as benchmark
from scripts.benchmarks.engines import Result


def test_each_engine_gets_its_own_row_s_command_with_one_thread(tmp_path: Path) -> None:
    for engine, weights in {"vllm": "/model", "llama.cpp": "/model/model.gguf"}.items():
        command, environment = benchmark.build_command(engine, weights, tmp_path, 8000)
        assert Path(command[0]).name == engines.load_engines()[engine].command[0]
        assert weights in command, "a folder for one, its file for the other"
        assert "1" in (
            environment.get("OMP_NUM_THREADS"),
            dict(itertools.pairwise(command)).get("--threads"),
        )


def test_the_table_has_medians_and_their_ratio() -> None:
    slow, fast = Result(40.0, 8.0, 10**9, 50.0, 200.0, 1.0), Result(1.0, 0.1, 10**8, 100.0, 100.0, 2.0)
    console = Console(width=160)
    with console.capture() as capture:
        console.print(
            benchmark.render({"vllm": [slow, slow._replace(first_answer_s=400.0), slow], "llama.cpp": [fast]})
        )
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in capture.get().splitlines() if "│" in line]
    assert rows == [
        ["vllm", "40.00", "8.00", "1,000", "50", "200", "1.00"],
        ["llama.cpp", "1.00", "0.10", "100", "100", "100", "2.00"],
        ["ratio", "40.0", "80.0", "10.0", "0.5", "2.0", "0.5"],
    ]
