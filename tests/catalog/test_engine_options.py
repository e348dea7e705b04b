"""The record of what an engine's parser takes, held against that parser."""

from __future__ import annotations

import json
from typing import Any

import pytest

from llm_serving.catalog import engine_options, engines, models
from llm_serving.catalog.engine_options import EngineOption
from tests.engines_own import EngineProbe

ENGINES = [name for name in engines.load_engines() if engine_options.load(name)]
EXAMPLES: dict[str, Any] = {"switch": False, "flag": True, "int": 3, "number": 0.5, "text": "word", "json": {}}


def _load(engine: str) -> engine_options.EngineOptions:
    recorded = engine_options.load(engine)
    assert recorded
    return recorded


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        (EngineOption(type="int"), 64, ("--max-num-seqs", "64")),
        (EngineOption(type="int", bounds={"ge": 1, "lt": 65}), 64, ("--max-num-seqs", "64")),
        (EngineOption(type="switch"), True, ("--max-num-seqs",)),
        (EngineOption(type="switch"), False, ("--no-max-num-seqs",)),
        (EngineOption(type="json"), {"a": [1]}, ("--max-num-seqs", '{"a": [1]}')),
        (EngineOption(type="int", list="words"), [1, 2], ("--max-num-seqs", "1", "2")),
        (EngineOption(type="text", list="repeat"), ["a", "b"], ("--max-num-seqs", "a", "--max-num-seqs", "b")),
        (EngineOption(type="text", list="words"), "a", ("--max-num-seqs", "a")),
    ],
)
def test_a_value_becomes_the_words_of_the_command_line(
    option: EngineOption, value: Any, words: tuple[str, ...]
) -> None:
    assert option.describe_mismatch(value) == ""
    assert option.format_words("max_num_seqs", value) == words


@pytest.mark.parametrize(
    ("option", "value", "description"),
    [
        (EngineOption(type="int"), "64", "a whole number"),
        (EngineOption(type="int"), True, "a whole number"),
        (EngineOption(type="int"), 0.5, "a whole number"),
        (EngineOption(type="int"), None, "a whole number"),
        (EngineOption(type="switch"), "on", "true or false"),
        (EngineOption(type="flag"), False, "true, or to be left out"),
        (EngineOption(type="text"), [], "a text"),
        (EngineOption(type="int", list="words"), [1, "a"], "a whole number, or a list of such"),
        (EngineOption(type="text", choices=("a", "b")), "c", "one of a, b"),
        (EngineOption(type="int", bounds={"ge": 1}), 0, "a whole number, 1 or more"),
        (EngineOption(type="number", bounds={"gt": 0, "le": 1}), 1.5, "a number, more than 0, 1 or less"),
        (EngineOption(type="number", bounds={"gt": 0, "le": 1}), 0, "a number, more than 0, 1 or less"),
    ],
)
def test_a_value_of_another_type_is_named(option: EngineOption, value: Any, description: str) -> None:
    assert option.describe_mismatch(value) == description


@pytest.mark.parametrize("engine", ENGINES)
def test_every_option_that_the_row_names_is_recorded(engine: str) -> None:
    row, recorded = engines.load_engines()[engine], _load(engine)
    named = {*row.written_arguments, *row.reckoned_arguments, *row.argument_keys, *row.code_arguments}
    named |= {name for refused in row.refused_arguments for name in refused.names}
    named |= {*row.whole_encoder, *filter(None, (row.adapter_modules, row.media_limits, row.text_only))}
    assert named - recorded.options.keys() == set()
    assert {name for refused in row.refused_variables for name in refused.names} <= {*recorded.variables}


@pytest.mark.parametrize("engine", ENGINES)
def test_every_parser_that_the_row_names_is_recorded(engine: str) -> None:
    row, recorded = engines.load_engines()[engine], _load(engine)
    assert {name for parsers in row.answer_parsers for name in parsers.tools} <= {*recorded.parsers["tools"]}
    assert {name for parsers in row.answer_parsers for name in parsers.reasoning} <= {*recorded.parsers["reasoning"]}


@pytest.mark.engine
def test_the_record_is_what_the_engines_own_parser_has(engine_probe: EngineProbe) -> None:
    architectures = sorted({name for model in models.load().values() for name in model.architectures})
    [answer] = engine_probe("options", [architectures])
    recorded = _load("vllm").model_dump(mode="json", exclude_defaults=True) | {"read_on": ""}
    own = "architectures_without_adapters"
    assert answer["result"] == json.loads(json.dumps(recorded)) | {own: sorted({*recorded[own]} & {*architectures})}


@pytest.mark.engine
def test_the_engine_parses_every_option_of_a_blueprint_with_a_value_of_its_type(engine_probe: EngineProbe) -> None:
    row, lines = engines.load_engines()["vllm"], []
    closed = {
        *row.written_arguments,
        *row.argument_keys,
        *(name for rule in row.refused_arguments for name in rule.names),
    }
    for name, option in _load("vllm").options.items():
        value = option.choices[0] if option.choices else EXAMPLES[option.type]
        if name not in closed:
            lines.append(["model", *option.format_words(name, value), "--port", "8000"])
    assert len(lines) > 150
    answers = engine_probe("vllm", [*lines, ["model", "--max-num-seqs", "word", "--port", "8000"]])
    refused = [line for line, answer in zip(lines, answers, strict=False) if "result" not in answer]
    assert refused == []
    assert answers[-1] == {"refused": 2}, "a value of another type"


def test_a_command_line_is_read_back_as_the_options_that_it_was_written_from() -> None:
    values: dict[str, Any] = {
        "max_model_len": 8000,
        "kv_offloading_size": 1.5,
        "speculative_config": {"method": "ngram"},
        "enable_prefix_caching": False,
        "enable_lora": True,
        "lora_modules": ["a=b", "c=d"],
        "tool_call_parser": "hermes",
    }
    options = _load("vllm").options
    words = [word for name, value in values.items() for word in options[name].format_words(name, value)]
    assert engine_options.parse_command("vllm", ["vllm", "serve", "folder", *words]) == values
    with pytest.raises(ValueError, match=r"^--colour is not an option of vllm$"):
        engine_options.parse_command("vllm", ["vllm", "serve", "folder", "--colour", "red"])
