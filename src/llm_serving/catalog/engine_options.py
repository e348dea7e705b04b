"""What an engine's own code says that it takes: options, parsers of answers, environment variables, and architectures.

engines/NAME.options.json holds it for the version of the engine's row, written by the engine's own code
(scripts/record_vllm_options.py for vLLM). An engine without such a file takes no `engine_arguments`.
"""

from __future__ import annotations

import difflib
import functools
import itertools
import json
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Literal

from pydantic import JsonValue

from llm_serving.settings.plain import PlainData

FOLDER = Path(__file__).with_name("engines")

_BOUNDS = {"ge": "{:g} or more", "gt": "more than {:g}", "le": "{:g} or less", "lt": "less than {:g}"}


class EngineOption(PlainData):
    """One option of the command line."""

    type: Literal["switch", "flag", "int", "number", "text", "json"]
    """A switch has a form with `--no-`, and a flag has none."""

    list: Literal["", "words", "repeat"] = ""
    """Whether it takes several values: as words after it, or as the option once for each."""

    choices: tuple[str | int, ...] = ()

    bounds: Mapping[Literal["ge", "gt", "le", "lt"], float] = {}
    """Of a number, as pydantic names them."""

    word: str = ""
    """How the command line spells it; empty where that is its name with - for _."""

    def describe_mismatch(self, value: JsonValue) -> str:
        """Return what the option takes, where that is not `value`; empty where it is."""
        items = value if self.list and isinstance(value, list) else [value]
        if all(self._accepts(item) for item in items):
            return ""
        if self.choices:
            return f"one of {', '.join(map(str, self.choices))}"
        names = {
            "switch": "true or false",
            "flag": "true, or to be left out",
            "int": "a whole number",
            "number": "a number",
            "text": "a text",
            "json": "a mapping or a list",
        }
        bounds = "".join(f", {_BOUNDS[bound].format(number)}" for bound, number in self.bounds.items())
        return names[self.type] + bounds + (", or a list of such" if self.list else "")

    def _accepts(self, value: JsonValue) -> bool:
        if self.choices:
            return value in self.choices
        if isinstance(value, bool):
            return self.type == "switch" or (self.type == "flag" and value)
        accepted: dict[str, tuple[type, ...]] = {
            "int": (int,),
            "number": (int, float),
            "text": (str, int, float),
            "json": (dict, list, str),
        }
        if not isinstance(value, accepted.get(self.type, ())):
            return False
        return all(getattr(operator, bound)(value, number) for bound, number in self.bounds.items())

    def format_words(self, name: str, value: JsonValue) -> tuple[str, ...]:
        """Return the words of the command line for a value that the option takes."""
        word = self.word or f"--{name.replace('_', '-')}"
        if isinstance(value, bool):
            return (word if value else f"--no-{word.removeprefix('--')}",)
        if self.list and isinstance(value, list):
            texts = [str(item) for item in value]
            return (word, *texts) if self.list == "words" else tuple(part for text in texts for part in (word, text))
        return (word, json.dumps(value) if isinstance(value, dict | list) else str(value))

    def parse_words(self, words: Sequence[str]) -> JsonValue:
        parsers: dict[str, Callable[[str], JsonValue]] = {"int": int, "number": float, "json": json.loads}
        values = [parsers.get(self.type, str)(word) for word in words]
        return values if self.list else values[0]


class EngineOptions(PlainData):
    """All that the parser of one engine takes."""

    source: str
    read_on: str
    options: Mapping[str, EngineOption]
    """By name, with _ for -, and without dashes before it."""

    parsers: Mapping[Literal["tools", "reasoning"], tuple[str, ...]]
    """The engine's names of its parsers for calls of tools and for reasoning."""

    variables: tuple[str, ...]
    dropped_architectures: Mapping[str, str] = {}
    """Architectures of a config.json that it ran before, and its last version that did."""

    architectures_without_adapters: tuple[str, ...] = ()
    """Those that it runs, but not with LoRA adapters."""

    architectures: frozenset[str] = frozenset()
    """Those that it runs; empty where it hands the ones that it does not know to transformers' own code."""


def find_nearest(name: str, names: Iterable[str]) -> str:
    """Return the name that a misspelt one was meant for; empty where none is near."""
    return next(iter(difflib.get_close_matches(name, list(names), n=1)), "")


class EngineArguments(PlainData):
    """What the classes of one version of an engine take, where a framework calls them."""

    source: str
    read_on: str
    arguments: frozenset[str]


@functools.cache
def load_arguments(file: str) -> EngineArguments:
    """Return the arguments of an engine's classes, from a file that scripts/record_engine_arguments.py wrote."""
    return EngineArguments.model_validate_json((FOLDER / file).read_text(encoding="utf-8"))


def parse_command(engine: str, words: Sequence[str]) -> dict[str, JsonValue]:
    """Return the options among the words of an engine's command line, by name; the reverse of `format_words`.

    Raises:
        ValueError: a word is not an option of the engine.
    """
    options, values = get_options(engine), dict[str, JsonValue]()
    starts = [index for index, word in enumerate(words) if word.startswith("--")]
    for start, end in itertools.zip_longest(starts, starts[1:], fillvalue=len(words)):
        name = words[start].removeprefix("--").replace("-", "_")
        positive = name.removeprefix("no_")
        if name not in options and positive not in options:
            raise ValueError(f"{words[start]} is not an option of {engine}")
        option = options.get(name) or options[positive]
        is_switch = option.type in ("switch", "flag")
        values[name if name in options else positive] = (
            name in options if is_switch else option.parse_words(words[start + 1 : end])
        )
    return values


@functools.cache
def load(engine: str) -> EngineOptions | None:
    file = FOLDER / f"{engine}.options.json"
    return EngineOptions.model_validate_json(file.read_text(encoding="utf-8")) if file.exists() else None


def get_options(engine: str) -> Mapping[str, EngineOption]:
    """Return the options of an engine by name; none where none are recorded."""
    engine_options = load(engine)
    return engine_options.options if engine_options else {}
