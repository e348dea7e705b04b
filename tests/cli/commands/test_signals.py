"""`blueprint signals`: a row for each program's name of a signal, with what it means and what to do."""

from __future__ import annotations

import json

import pytest

from llm_serving.catalog import signals
from llm_serving.cli import main


def test_json_has_every_field_of_each_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["signals", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    fields = {"name", "program", "program_name", "unit", "role", "meaning", "action"}
    assert all(row.keys() == fields and all(row.values()) for row in rows)
    assert {row["name"] for row in rows} == set(signals.load())
    names = {(row["name"], row["program"]): row["program_name"] for row in rows}
    assert names["queue", "vllm"] == "vllm:num_requests_waiting"
    assert names["queue", "llama.cpp"] == "llamacpp:requests_deferred"


def test_the_table_names_each_signal(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["signals"]) == 0
    output = capsys.readouterr().out
    names = [*signals.load(), *(row.name for row in signals.list_program_names())]
    assert [name for name in names if name not in output] == []
    assert max(map(len, output.splitlines())) <= 80
