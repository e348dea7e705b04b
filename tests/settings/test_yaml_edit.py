"""One line of a settings file changes, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_serving.settings import yaml_edit, yaml_source
from llm_serving.settings.errors import InputError


def change(folder: Path, text: str, value: str = "new") -> str:
    file = folder / "blueprint.yaml"
    file.write_bytes(text.encode())
    return yaml_edit.set_value(file, ("engine",), value, after="model")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("model: m\nengine: old\ncontext: 2k\n", "model: m\nengine: new\ncontext: 2k\n"),
        ("engine:   old   # why # so\nmodel: m\n", "engine:   new   # why # so\nmodel: m\n"),
        ("engine: 'old' # a 'b'\nmodel: m\n", "engine: new # a 'b'\nmodel: m\n"),
        ('engine: "o#l\\"d"\nmodel: m', "engine: new\nmodel: m"),
        ("engine: a#b\r\nmodel: m\r\n", "engine: new\r\nmodel: m\r\n"),
        ("# top\n\nmodel: m # which\nroles: {}\n", "# top\n\nmodel: m # which\nengine: new\nroles: {}\n"),
        ("roles: {}\r\nmodel: m", "roles: {}\r\nmodel: m\r\nengine: new\r\n"),
        ("roles: {a: {engine: old}}\n", "roles: {a: {engine: old}}\nengine: new\n"),
        ("engine: new\nmodel: m\n", "engine: new\nmodel: m\n"),
    ],
)
def test_the_value_changes_and_comments_and_layout_stay(tmp_path: Path, before: str, after: str) -> None:
    assert change(tmp_path, before) == after


@pytest.mark.parametrize(
    "text",
    [
        "{model: m, engine: old}\n",  # one mapping on one line
        "model: m\nengine: >\n  old\n",  # a value over several lines
        "a: &x old\nengine: *x\nmodel: m\n---\n",
        "- engine\n",
    ],
)
def test_a_file_that_one_line_cannot_change_is_refused_and_names_the_key(tmp_path: Path, text: str) -> None:
    with pytest.raises(InputError) as error:
        change(tmp_path, text)
    assert str(error.value).startswith(f"{tmp_path / 'blueprint.yaml'}:")


def test_the_refusal_says_what_to_write(tmp_path: Path) -> None:
    with pytest.raises(InputError) as error:
        change(tmp_path, "{model: m, engine: old}\n")
    assert str(error.value) == (
        f"{tmp_path / 'blueprint.yaml'}:1:20: engine: it is laid out so that no single line can be rewritten. "
        "Fix: write engine: new yourself."
    )


@given(value=st.text(max_size=12))
def test_no_value_can_change_more_than_its_key(tmp_path_factory: pytest.TempPathFactory, value: str) -> None:
    folder = tmp_path_factory.mktemp("any")
    try:
        text = change(folder, "model: m # x\nengine: old # y\nroles: {a: 1}\n", value)
    except (InputError, UnicodeEncodeError):
        return
    data = yaml_source.parse(folder / "blueprint.yaml", text).data
    assert data == {"model": "m", "engine": value, "roles": {"a": 1}}
    assert "# x" in text and "# y" in text


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (
            'name: m\neks:\n  version: "1.34" # why\n  al2023: v1\n',
            'name: m\neks:\n  version: "1.36" # why\n  al2023: v1\n',
        ),
        ('eks: {version: "1.34", al2023: v1}\nname: m\n', 'eks: {version: "1.36", al2023: v1}\nname: m\n'),
        ("name: m # which\npools: {}\n", 'name: m # which\neks: {version: "1.36"}\npools: {}\n'),
    ],
)
def test_a_value_below_another_key_changes_alone(tmp_path: Path, before: str, after: str) -> None:
    file = tmp_path / "fleet.yaml"
    file.write_text(before)
    assert yaml_edit.set_value(file, ("eks", "version"), '"1.36"', after="name") == after


def test_a_key_that_the_mapping_above_it_lacks_is_left_to_the_person(tmp_path: Path) -> None:
    file = tmp_path / "fleet.yaml"
    file.write_text("eks:\n  al2023: v1\n")
    with pytest.raises(InputError) as error:
        yaml_edit.set_value(file, ("eks", "version"), '"1.36"', after="name")
    assert str(error.value) == (
        f"{file}:1:1: eks.version: it is laid out so that no single line can be rewritten. "
        'Fix: write eks: {version: "1.36"} yourself.'
    )
