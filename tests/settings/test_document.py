"""Typed settings: each kind of mistake has its message, all of a file come at once, each at its own line."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

import pytest
from pydantic import Field, ValidationError

from llm_serving.settings.document import Conflict, OneOrMore, Settings, load, parse_default
from llm_serving.settings.errors import InputError
from llm_serving.settings.units import Duration, Switch, TextFormat

Word = Annotated[str, TextFormat("[a-z]+", "a word: a-z", "plum")]


class Crate(Settings):
    """A crate."""

    least: int = Field(1, ge=1)
    """Fewest."""

    most: int = Field(9, le=9)
    """Most."""

    def _check_order(self) -> Iterator[Conflict]:
        if self.least > self.most:
            yield Conflict(("least",), f"it is more than the most, {self.most}", f"{self.most} or less")


class Orchard(Settings):
    """An orchard."""

    name: Word
    """Its name."""

    fruits: OneOrMore[Word]
    """What grows."""

    kind: Literal["old", "new"] = "old"
    """Its kind."""

    weight: float = Field(1.0, gt=0)
    """Tonnes."""

    open: Annotated[bool, Switch()] = False
    """To visitors."""

    ripe: Duration = parse_default("30d")
    """How long it takes."""

    crates: dict[Word, Crate] = Field(default_factory=dict)
    """Crates by name."""

    main_crate: Crate = Field(Crate(), alias="main-crate")
    """The crate used first."""

    def _check_first_fruit(self) -> Iterator[Conflict]:
        if self.fruits[0] == self.name:
            yield Conflict(("fruits", 0), "it has the orchard's name", "another fruit")

    def _check_crate_names(self) -> Iterator[Conflict]:
        for name, crate in self.crates.items():
            if name not in self.fruits:
                yield Conflict(("crates", name), f"no such fruit grows, and {crate.most} are to be crated", "a fruit")


VALID = "name: avalon\nfruits: [apple, pear]\n"


@pytest.fixture(autouse=True)
def working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The current folder is an empty one."""
    monkeypatch.chdir(tmp_path)


def list_errors(text: str) -> list[str]:
    """The messages about a file `o.yaml` that holds `text`."""
    Path("o.yaml").write_text(text)
    try:
        load(Path("o.yaml"), Orchard)
    except InputError as error:
        assert str(error).splitlines() == [str(mistake) for mistake in error.mistakes]
        return str(error).splitlines()
    return []


def test_a_valid_file_becomes_a_frozen_model_with_positions() -> None:
    Path("o.yaml").write_text(VALID + "main-crate: {least: 2}\nopen: on\n")
    document = load(Path("o.yaml"), Orchard)
    assert document.value.fruits == ("apple", "pear")
    assert document.value.main_crate == Crate(least=2)
    assert document.value.open is True
    assert document.value.ripe == 30 * 86400
    with pytest.raises(ValidationError, match="frozen"):
        document.value.name = "other"
    mistake = document.build_mistake(("fruits", 1), "pear", "it is out of season", "apple")
    assert str(mistake) == 'o.yaml:2:17: fruits[1]: "pear": it is out of season. Fix: apple.'
    mistake = document.build_mistake(("main-crate", "most"), None, "it is not said", "it")
    assert str(mistake) == "o.yaml:3:1: main-crate.most: empty: it is not said. Fix: it."


@pytest.mark.parametrize(
    ("text", "messages"),
    [
        ("- a\n", ['o.yaml:1:1: [a]: the file is not a mapping of keys to values. Fix: write KEY: VALUE lines.']),
        ("text\n", ['o.yaml:1:1: "text": the file is not a mapping of keys to values. Fix: write KEY: VALUE lines.']),
        ("name: avalon\n", ["o.yaml:1:1: fruits: required field is missing. Fix: set fruits: [plum]."]),
        (VALID + "wieght: 2\n", ["o.yaml:3:1: wieght: unknown key. Fix: write weight:."]),
        (
            VALID + "zzz: 2\n",
            ["o.yaml:3:1: zzz: unknown key. Fix: use one of crates, kind, main-crate, open, ripe, weight."],
        ),
        # A misspelt key that is required is one mistake, not two.
        ("nam: avalon\nfruits: apple\n", ["o.yaml:1:1: nam: unknown key. Fix: write name:."]),
        # The name of the field in Python is no key.
        (VALID + "main_crate: {}\n", ["o.yaml:3:1: main_crate: unknown key. Fix: write main-crate:."]),
        (
            VALID + "main-crate: {least: 1, mots: 2}\n",
            ["o.yaml:3:24: main-crate.mots: unknown key. Fix: write most:."],
        ),
        (VALID + "least: 1\n", ["o.yaml:3:1: least: unknown key. Fix: write it below main-crate:."]),
        (VALID + "main-crate: {ripe: 3d}\n", ["o.yaml:3:14: main-crate.ripe: unknown key. Fix: write it at the top of the file."]),
        ("name: 5\nfruits: apple\n", ['o.yaml:1:7: name: 5: it is not a word: a-z. Fix: use a word such as plum.']),
        ("name: true\nfruits: apple\n", ["o.yaml:1:7: name: true: it is not text. Fix: write it in quotes: 'true'."]),
        ("name: [a]\nfruits: apple\n", ['o.yaml:1:7: name: [a]: it is not a word: a-z. Fix: use a word such as plum.']),
        ("name: Avalon\nfruits: apple\n", ['o.yaml:1:7: name: "Avalon": it is not a word: a-z. Fix: use a word such as plum.']),
        ("name: avalon\nfruits: []\n", ['o.yaml:2:9: fruits: []: it is empty. Fix: name at least one.']),
        ("name: avalon\nfruits: [a, B]\n", ['o.yaml:2:13: fruits[1]: "B": it is not a word: a-z. Fix: use a word such as plum.']),
        ("name: avalon\nfruits: B\n", ['o.yaml:2:9: fruits: "B": it is not a word: a-z. Fix: use a word such as plum.']),
        (VALID + "kind: ancient\n", ["o.yaml:3:7: kind: \"ancient\": not one of the choices. Fix: use one of 'old' or 'new'."]),
        (VALID + "kind: [old]\n", ["o.yaml:3:7: kind: [old]: not one of the choices. Fix: use one of 'old' or 'new'."]),
        (VALID + "kind: olds\n", ["o.yaml:3:7: kind: \"olds\": not one of the choices. Fix: use old; the choices are 'old' or 'new'."]),
        (VALID + "kind: NEW\n", ["o.yaml:3:7: kind: \"NEW\": not one of the choices. Fix: use new; the choices are 'old' or 'new'."]),
        (VALID + "weight: heavy\n", ['o.yaml:3:9: weight: "heavy": it is a text. Fix: use a number.']),
        (VALID + "weight: 0\n", ['o.yaml:3:9: weight: 0: it is too small. Fix: use a number above 0.']),
        (VALID + "open: yes\n", ['o.yaml:3:7: open: "yes": it is neither true nor false. Fix: use true or false (on and off mean the same).']),
        (VALID + "ripe: 30\n", ['o.yaml:3:7: ripe: 30: it has no unit. Fix: use a length of time in s, min, h or d, such as 30s.']),
        (VALID + "crates: 5\n", ['o.yaml:3:9: crates: 5: it is a whole number. Fix: use a mapping of keys to values.']),
        (VALID + "crates: {apple: 5}\n", ['o.yaml:3:17: crates.apple: 5: it is a whole number. Fix: use a mapping of keys to values; the keys are least, most.']),
        (VALID + "crates: {Apple: {}}\n", ["o.yaml:3:10: crates.Apple: it is not a word: a-z. Fix: use a word such as plum."]),
        (VALID + "main-crate: {least: 1.5}\n", ['o.yaml:3:21: main-crate.least: 1.5: it is a number with a fraction. Fix: use a whole number.']),
        (VALID + "main-crate: {least: 0}\n", ['o.yaml:3:21: main-crate.least: 0: it is too small. Fix: use 1 or more.']),
        (VALID + "main-crate: {most: 10}\n", ['o.yaml:3:20: main-crate.most: 10: it is too large. Fix: use 9 or less.']),
        (VALID + "main-crate:\n  least: 5\n  most: 4\n", ['o.yaml:4:10: main-crate.least: 5: it is more than the most, 4. Fix: 4 or less.']),
        # A value that YAML itself has reported is one mistake, not two.
        ("null\n", ["o.yaml:1:1: empty: the file is not a mapping of keys to values. Fix: write KEY: VALUE lines."]),
        (VALID + "weight: !Ref heavy\n", ["o.yaml:3:9: the tag !Ref says how to build the value, and settings take values only. Fix: remove the tag."]),
        (VALID + "weight: {{ weight }}\n", ["o.yaml:3:10: weight: a mapping instead of a key. Fix: write quotes around a text with { or [ in it."]),
        (VALID + "weight:\n", ["o.yaml:3:8: weight: the key has no value. Fix: write a value, or leave it out."]),
        (VALID + "main-crate: [1]\n", ['o.yaml:3:13: main-crate: [1]: it is a list. Fix: use a mapping of keys to values; the keys are least, most.']),
    ],
)  # fmt: skip
def test_each_kind_of_mistake_has_its_message(text: str, messages: list[str]) -> None:
    assert list_errors(text) == messages


def test_all_mistakes_of_a_file_are_reported_together_in_file_order() -> None:
    text = "name: avalon\nname: camelot\nfruits: !!seq [avalon, B]\nwieght: 1\nkind:\ncrates:\n  plum: {least: 5, most: 4}\n  fig: {least: 0}\n"
    # Position and field; the whole message where it names no field.
    summaries = [re.findall(r"^\S+: \S+(?=: )|^.*", message)[0] for message in list_errors(text)]
    assert summaries == [
        "o.yaml:2:1: name",
        "o.yaml:3:9: the tag tag:yaml.org,2002:seq says how to build the value, and settings take values only. Fix: remove the tag.",
        "o.yaml:3:24: fruits[1]",
        "o.yaml:4:1: wieght",
        "o.yaml:5:6: kind",
        "o.yaml:7:17: crates.plum.least",
        "o.yaml:8:16: crates.fig.least",
    ]


def test_conflicts_between_valid_fields_are_reported_beside_invalid_ones() -> None:
    assert list_errors("name: avalon\nfruits: [avalon]\nweight: -1\n") == [
        'o.yaml:2:10: fruits[0]: "avalon": it has the orchard\'s name. Fix: another fruit.',
        "o.yaml:3:9: weight: -1: it is too small. Fix: use a number above 0.",
    ]
    # One contradiction does not hide another further up.
    assert list_errors("name: avalon\nfruits: [avalon]\nmain-crate: {least: 5, most: 4}\n") == [
        'o.yaml:2:10: fruits[0]: "avalon": it has the orchard\'s name. Fix: another fruit.',
        "o.yaml:3:21: main-crate.least: 5: it is more than the most, 4. Fix: 4 or less.",
    ]


def test_no_conflict_is_reported_with_an_invalid_field() -> None:
    # `least` would be more than the default of `most`, which is meant to be something else.
    assert list_errors(VALID + "main-crate: {least: 20, mots: 30}\n") == [
        "o.yaml:3:25: main-crate.mots: unknown key. Fix: write most:."
    ]
    assert list_errors(VALID + "main-crate: {least: 20, most: x}\n") == [
        'o.yaml:3:31: main-crate.most: "x": it is a text. Fix: use a whole number.'
    ]
    # A rule that needs the crate's most is not heard; the one about the first fruit is.
    assert list_errors("name: apple\nfruits: apple\ncrates: {fig: {most: 99}}\n") == [
        'o.yaml:2:9: fruits: "apple": it has the orchard\'s name. Fix: another fruit.',
        "o.yaml:3:22: crates.fig.most: 99: it is too large. Fix: use 9 or less.",
    ]


def test_a_long_value_is_cut_to_a_line() -> None:
    (message,) = list_errors(f"name: {'A' * 1000}\nfruits: apple\n")
    assert message == f'o.yaml:1:7: name: "{"A" * 57}...": it is not a word: a-z. Fix: use a word such as plum.'
    (message,) = list_errors(VALID + f"weight: [{', '.join(map(str, range(1000)))}]\n")
    assert len(message) < 160


def test_no_mistake_names_a_class_or_a_pattern_of_the_program() -> None:
    text = "name: [1]\nfruits: {a: 1}\nkind: 1\nweight: x\nopen: 1\nripe: x\ncrates: {B: 1, c: {d: 1, least: x}}\n"
    joined = "\n".join(list_errors(text))
    assert len(joined.splitlines()) == 10
    for inner in ("Orchard", "Crate", "Word", "function", "tuple", "dict", "[a-z]", "pydantic", "model_type"):
        assert inner not in joined
