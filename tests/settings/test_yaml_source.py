"""The YAML reader: what it takes it takes as written, and no file makes it hang, run something or fall over."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from llm_serving.settings import yaml_source
from llm_serving.settings.errors import InputError

EMPTY = (
    "it is empty. Fix: write at least its required keys; "
    "`blueprint schema fleet` or `blueprint schema blueprint` lists them."
)
BINARY = "it is binary, not text in UTF-8. Fix: name a YAML file."


@pytest.fixture
def working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder that is the current one, so that messages name plain files."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def read(text: str | bytes) -> yaml_source.YamlFile:
    """The source of a file `a.yaml` that holds `text`."""
    Path("a.yaml").write_bytes(text if isinstance(text, bytes) else text.encode())
    return yaml_source.read(Path("a.yaml"))


def list_errors(text: str | bytes) -> list[str]:
    """The messages about a file `a.yaml` that holds `text`."""
    try:
        return [str(mistake) for mistake in read(text).mistakes]
    except InputError as error:
        return str(error).splitlines()


@pytest.mark.usefixtures("working_folder")
@pytest.mark.parametrize(
    ("text", "data"),
    [
        ("a: 1", {"a": 1}),
        ("a: -1.5", {"a": -1.5}),
        ("a: 1e3", {"a": 1000.0}),
        ("a: True", {"a": True}),
        ("a: [x, 'y', \"z\"]", {"a": ["x", "y", "z"]}),
        # What YAML 1.1 makes something else of:
        ("a: yes", {"a": "yes"}),
        ("on: off", {"on": "off"}),
        ("a: 010", {"a": "010"}),
        ("a: 0x1F", {"a": "0x1F"}),
        ("a: 1_000", {"a": "1_000"}),
        ("a: 1:30", {"a": "1:30"}),
        ("a: 2026-01-31", {"a": "2026-01-31"}),
        ("a: .inf", {"a": ".inf"}),
        ("a: .nan", {"a": ".nan"}),
        ("1: a", {"1": "a"}),
        ("null: a", {"null": "a"}),
        ("a: 9999999999999999999999", {"a": "9999999999999999999999"}),
        ("a: 1e999", {"a": "1e999"}),
        ("a: 0x" + "f" * 5000, {"a": "0x" + "f" * 5000}),
        # Forms of the file that change nothing:
        (b"\xef\xbb\xbfa: 1", {"a": 1}),
        (b"a: 1\r\nb: 2\r\n", {"a": 1, "b": 2}),
        ("---\na: 1\n...\n", {"a": 1}),
        ("%YAML 1.1\n---\na: 1\n", {"a": 1}),
    ],
)
def test_the_archive_contains_the_handlers_source(text: str | bytes, data: Any) -> None:
    result = read(text)
    assert result.data == data
    assert result.mistakes == []


@pytest.mark.usefixtures("working_folder")
def test_aliases_and_merged_mappings_have_positions() -> None:
    result = read("base: &base\n  size: 1\n  zones: [a]\nother:\n  <<: *base\n  size: 2\nagain: *base\n")
    assert result.data["other"] == {"size": 2, "zones": ["a"]}
    assert result.data["again"] == {"size": 1, "zones": ["a"]}
    assert result.positions["other", "size"] == yaml_source.Position(6, 9, 6, 3)
    assert result.positions["other", "zones"] == yaml_source.Position(3, 10, 3, 3)
    assert result.positions["again",] == yaml_source.Position(7, 1, 7, 1)


@pytest.mark.usefixtures("working_folder")
def test_a_position_points_to_the_value_on_its_keys_line_or_to_the_key() -> None:
    result = read("a: {b: 1}\nlonger:\n  c: 2\n  d:\n    - 3\n    - {e: 4}\n")
    assert result.positions["a",] == yaml_source.Position(1, 4, 1, 1)
    assert result.positions["a", "b"] == yaml_source.Position(1, 8, 1, 5)
    assert result.positions["longer",] == yaml_source.Position(2, 1, 2, 1)
    assert result.positions["longer", "c"] == yaml_source.Position(3, 6, 3, 3)
    assert result.positions["longer", "d", 1, "e"] == yaml_source.Position(6, 11, 6, 8)


@pytest.mark.usefixtures("working_folder")
@pytest.mark.parametrize(
    ("text", "messages"),
    [
        ("", [f"a.yaml: {EMPTY}"]),
        ("# x\n", [f"a.yaml: {EMPTY}"]),
        (b"\x89PNG\r\n\x1a\n\xff", [f"a.yaml: {BINARY}"]),
        (b"a: \0", ["a.yaml: it is binary, not text. Fix: name a YAML file."]),
        (
            "# caf\u00e9\r\nb: na\u00efve\n".encode("latin-1"),
            ["a.yaml:1:6: the byte E9 is not UTF-8: the text is in another encoding. Fix: save the file as UTF-8."],
        ),
        (
            "\ufeffa: \u00e9\r\nb: ".encode() + b"\xff\n",
            ["a.yaml:2:4: the byte FF is not UTF-8: the text is in another encoding. Fix: save the file as UTF-8."],
        ),
        ("a: 1".encode("utf-16"), ["a.yaml: it is text in UTF-16, not UTF-8. Fix: save the file as UTF-8."]),
        (
            "a: 1\r\nb: x\x07\n",
            [
                "a.yaml:2:5: the character U+0007 is invisible, and YAML does not allow it. Fix: write the line without it."
            ],
        ),
        (
            "a: x\u202ey\n",
            [
                "a.yaml:1:5: the character U+202E is invisible, and YAML does not allow it. Fix: write the line without it."
            ],
        ),
        (
            "a:\n\tb: 1",
            ["a.yaml:2:1: it is not YAML: a tab, but YAML is indented by spaces. Fix: use spaces in its place."],
        ),
        (
            "a: b: c",
            [
                "a.yaml:1:5: it is not YAML: a second ': ', or the line is indented too far. "
                "Fix: write quotes around a text with ': ' in it, or align the key with its neighbours."
            ],
        ),
        (
            "a: 1\n b: 2",
            [
                "a.yaml:2:3: it is not YAML: a second ': ', or the line is indented too far. "
                "Fix: write quotes around a text with ': ' in it, or align the key with its neighbours."
            ],
        ),
        (
            "a:\n  b: 1\n c: 2",
            [
                "a.yaml:3:2: it is not YAML: the line is not aligned with its neighbours. "
                "Fix: align the keys of one mapping, indented by spaces."
            ],
        ),
        (
            "a: [1, 2\nb: 3",
            ["a.yaml:1:4: it is not YAML: the list that starts here is not closed. Fix: write a list such as [a, b]."],
        ),
        (
            "a: {b: 1\nc: 3\n",
            [
                "a.yaml:1:4: it is not YAML: the mapping that starts here is not closed. "
                "Fix: write a mapping such as {a: 1, b: 2}."
            ],
        ),
        (
            "a: 'x\nb: 1",
            ["a.yaml:1:4: it is not YAML: the quotation mark that starts here has no end. Fix: add one at its end."],
        ),
        (
            "a: @x",
            [
                "a.yaml:1:4: it is not YAML: found character '@' that cannot start any token. "
                "Fix: write quotes around a text that starts with a special character."
            ],
        ),
        (
            "a: 1\nb\nc: 2",
            ["a.yaml:3:1: it is not YAML: the line before has no ': ' after its key. Fix: write KEY: VALUE."],
        ),
        (
            "a: 1\n---\nb: 2",
            ["a.yaml:2:1: it is not YAML: a second document starts with ---. Fix: keep one document, without ---."],
        ),
        (
            "a: *b",
            [
                "a.yaml:1:4: it is not YAML: found undefined alias 'b'. Fix: write the value itself, or &NAME at an earlier value."
            ],
        ),
        ("a: 1\na: 2", ["a.yaml:2:1: a: duplicate key, first on line 1. Fix: remove one."]),
        (
            "a:\nb: ~",
            [
                "a.yaml:1:3: a: the key has no value. Fix: write a value, or leave it out.",
                "a.yaml:2:4: b: the key has no value. Fix: write a value, or leave it out.",
            ],
        ),
        ("a: [1, ]\nb:\n- \n", ["a.yaml:3:2: b[0]: the item has no value. Fix: write a value, or leave it out."]),
        (
            "name: {{ name }}",
            ["a.yaml:1:8: name: a mapping instead of a key. Fix: write quotes around a text with { or [ in it."],
        ),
        (
            "? [a, b]\n: 1",
            ["a.yaml:1:3: a list instead of a key. Fix: write quotes around a text with { or [ in it."],
        ),
        (
            "a: !!python/object/apply:os.system ['touch pwned']",
            [
                "a.yaml:1:4: the tag tag:yaml.org,2002:python/object/apply:os.system says how to build the value, "
                "and settings take values only. Fix: remove the tag."
            ],
        ),
        (
            "a: !!str 1",
            [
                "a.yaml:1:4: the tag tag:yaml.org,2002:str says how to build the value, "
                "and settings take values only. Fix: remove the tag."
            ],
        ),
        (
            "a: ${HOME}",
            [
                "a.yaml:1:4: a: it holds ${ or %{, which Terraform would read as an expression; "
                "settings hold plain values. Fix: write the value itself."
            ],
        ),
        (
            'a: "x\\ny"\nb: |\n  text\n',
            [
                "a.yaml:1:4: a: it holds a line break or another character that cannot be printed. Fix: write it on one line.",
                "a.yaml:2:4: b: it holds a line break or another character that cannot be printed. Fix: write it on one line.",
            ],
        ),
        (
            'a: "\\ud800"',
            [
                "a.yaml:1:4: a: it holds a line break or another character that cannot be printed. Fix: write it on one line."
            ],
        ),
        ("a: &a [*a]", ["a.yaml:1:4: a[0]: the alias refers to a node that contains it. Fix: write the value itself."]),
        (
            "a: &a\n  <<: *a\n  b: 1",
            [
                "a.yaml:1:4: a: only a mapping that is complete can be merged with <<. "
                "Fix: write <<: *NAME of a mapping above."
            ],
        ),
    ],
)
def test_an_invalid_settings_file_is_refused_with_a_reason(text: str | bytes, messages: list[str]) -> None:
    assert list_errors(text) == messages
    assert not Path("pwned").exists()


@pytest.mark.usefixtures("working_folder")
def test_deep_nesting_is_refused_at_its_position() -> None:
    assert list_errors("a: " + "[" * 100_000) == [
        "a.yaml:1:23: it is not YAML: it is nested deeper than 20 levels. "
        "Fix: write settings as `blueprint schema` describes them."
    ]


@pytest.mark.usefixtures("working_folder")
@pytest.mark.parametrize(
    ("first", "next_line", "times"),
    [("a0: &a0 [x, x]", "a{n}: &a{n} [{before}]", 10), ("a0: &a0 {{k: 1}}", "a{n}: &a{n}\n  <<: [{before}]", 20)],
    ids=["aliases", "merges"],
)
def test_a_few_lines_that_would_expand_without_end_are_refused(first: str, next_line: str, times: int) -> None:
    lines = [next_line.format(n=n, before=", ".join([f"*a{n - 1}"] * times)) for n in range(1, 15)]
    assert list_errors("\n".join([first.format(), *lines])) == [
        "a.yaml: it holds more than 20,000 values, aliases counted each time they are used. "
        "Fix: name settings of a screenful, not a data file."
    ]


@pytest.mark.usefixtures("working_folder")
def test_a_file_larger_than_memory_is_refused_unread() -> None:
    with Path("a.yaml").open("wb") as file:
        file.truncate(2**40)
    assert get_error(Path("a.yaml")) == (
        "a.yaml: it holds 1,099,511,627,776 bytes, and settings hold at most 200,000. "
        "Fix: name settings of a screenful, not a data file."
    )


def get_error(path: Path) -> str:
    with pytest.raises(InputError) as error:
        yaml_source.read(path)
    return str(error.value)


@pytest.mark.usefixtures("working_folder")
def test_a_missing_file_is_reported_with_a_similar_name() -> None:
    assert get_error(Path("fleet.yaml")) == (
        "fleet.yaml: there is no such file. "
        "Fix: go to the folder that holds it, or use --fleet FILE; `blueprint new` creates one."
    )
    for name in ("compose.yaml", "blueprint.yaml", ".checkov.yaml"):
        Path(name).write_text("a: 1")
    assert "--fleet FILE" in get_error(Path("fleet.yaml")), "another YAML file is no fleet"
    assert get_error(Path("other.yaml")).endswith("such as blueprint.yaml."), "no hidden file is meant"
    Path("fleet.yml").write_text("a: 1")
    assert get_error(Path("fleet.yaml")) == (
        "fleet.yaml: there is no such file. Fix: name the path of a file that exists, such as fleet.yml."
    )
    assert get_error(Path("no/fleet.yaml")) == (
        "no/fleet.yaml: there is no such file. Fix: name the path of a file that exists."
    )


@pytest.mark.usefixtures("working_folder")
def test_a_pipe_or_device_is_refused_without_waiting() -> None:
    os.mkfifo("pipe.yaml")
    Path("loop.yaml").symlink_to("loop.yaml")
    Path("folder").mkdir()
    Path("file").write_text("")
    device = "it is a pipe or a device, not a file. Fix: name the path of a file."
    assert get_error(Path("pipe.yaml")) == f"pipe.yaml: {device}"
    assert get_error(Path("/dev/zero")) == f"/dev/zero: {device}"
    assert get_error(Path("folder")) == (
        "folder: it is a directory. Fix: name the path of the file, such as folder/fleet.yaml."
    )
    readable = "Fix: name the path of a file that you may read."
    assert (
        get_error(Path("loop.yaml")) == f"loop.yaml: it cannot be read: too many levels of symbolic links. {readable}"
    )
    assert get_error(Path("file/a.yaml")) == f"file/a.yaml: it cannot be read: not a directory. {readable}"
    assert get_error(Path("x" * 300)) == f"{'x' * 300}: it cannot be read: file name too long. {readable}"
    assert get_error(Path("a\0b")) == (
        "a\\x00b: a path holds no NUL character. Fix: name the path of a file that exists."
    )


@pytest.mark.usefixtures("working_folder")
def test_an_unreadable_file_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    # Root may read everything, so the kernel's answer is given in its place.
    def refuse(*_: object) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "open", refuse)
    assert get_error(Path("a.yaml")) == (
        "a.yaml: it cannot be read: permission denied. Fix: name the path of a file that you may read."
    )


yamlish = st.text(st.sampled_from("ab:-[]{}&*!|>'\"%@`#,? \n\t0.~<\\\u2028é"), max_size=60)


@pytest.mark.usefixtures("working_folder")
@settings(max_examples=400, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.one_of(yamlish.map(str.encode), st.binary(max_size=60)))
def test_any_bytes_are_parsed_or_refused_with_one_line_a_mistake(text: bytes) -> None:
    for message in list_errors(text):
        assert message.startswith("a.yaml:")
        assert message.isprintable()
