"""Reads a settings file into plain data with positions of keys and values; no file can hang it or run code.

Accepts the subset of YAML that every reader understands alike: mappings, lists, texts, decimal numbers, true and false.
What YAML 1.1 would turn into something else (yes, on, 010, 1:30, 2026-01-31) stays the text that was written.
"""

from __future__ import annotations

import codecs
import difflib
import functools
import itertools
import os
import re
import stat
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import yaml

from llm_serving.settings import os_errors, own_yaml
from llm_serving.settings.errors import InputError, Mistake, build_file_error
from llm_serving.settings.untrusted_file import NotAFile, open_regular

MAX_BYTES = 200_000
"""Settings are written by hand; a larger file is another file given by mistake."""

DEFAULT_FLEET = Path("fleet.yaml")
"""The file that commands read without --fleet."""

MAX_DEPTH = 20
MAX_VALUES = 20_000
"""Keys and items in all, aliases counted each time they are used: a few lines of them can stand for billions."""

_SYNTAX_ERRORS_FILE = Path(__file__).with_name("syntax_errors.yaml")

KeyPath = tuple[str | int, ...]
"""The way to a value: keys and indices from the top, such as ("pools", "general", "zones", 0)."""


class Position(NamedTuple):
    """Position of a field, counted from 1: line and column of its value and of its key."""

    line: int
    column: int
    key_line: int
    key_column: int


@dataclass
class YamlFile:
    """A file's data, the spot of each value in it, and what is wrong with its YAML."""

    path: Path
    data: Any = None
    positions: dict[KeyPath, Position] = field(default_factory=dict)
    mistakes: list[Mistake] = field(default_factory=list)
    rejected: set[KeyPath] = field(default_factory=set)
    """Fields that `mistakes` already speaks of."""


def read(path: Path) -> YamlFile:
    """Read the YAML file `path`.

    Raises:
        InputError: the file cannot be read, or is no YAML at all. Lesser mistakes are gathered in the source.
    """
    return parse(path, _read_text(path))


def parse(path: Path, text: str) -> YamlFile:
    """Read a text as the file `path` would be with it.

    Raises:
        InputError: it is no YAML at all. Lesser mistakes are gathered in the source.
    """
    try:
        node, tagged = _compose(text)
    except yaml.MarkedYAMLError as error:
        raise InputError([_build_syntax_mistake(path, error)]) from None
    if node is None:
        fix = "write at least its required keys; `blueprint schema fleet` or `blueprint schema blueprint` lists them"
        raise build_file_error(path, "it is empty", fix)
    yaml_file = YamlFile(path)
    _Builder(yaml_file, tagged).build(node)
    return yaml_file


@functools.lru_cache(maxsize=16)  # a command reads its blueprint twice, for its kind and as a whole
def _compose(text: str) -> tuple[yaml.Node | None, Sequence[tuple[str, yaml.Mark]]]:
    """Return a text's tree, which nobody changes, and its tags."""
    loader = _Loader(text)
    try:
        return loader.get_single_node(), loader.tagged
    finally:
        loader.dispose()


def format_key_path(key_path: Sequence[str | int]) -> str:
    """Return `pools.general.zones[0]`: the way to a value as messages name it."""
    text = ""
    for step in key_path:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else str(step)
    return text


def _read_text(path: Path) -> str:
    raw = _read_bytes(path)
    if raw.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise build_file_error(path, "it is text in UTF-16, not UTF-8", "save the file as UTF-8")
    raw = raw.removeprefix(codecs.BOM_UTF8)
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        if re.search(rb"[\0-\x08\x0e-\x1f]", raw):
            raise build_file_error(path, "it is binary, not text in UTF-8", "name a YAML file") from None
        line, column = _locate_end(raw[: error.start].decode())
        reason = f"the byte {raw[error.start]:02X} is not UTF-8: the text is in another encoding"
        raise InputError([Mistake(path, line, column, "", "", reason, "save the file as UTF-8")]) from None
    if "\0" in text:
        raise build_file_error(path, "it is binary, not text", "name a YAML file")
    mistakes = []
    for match in itertools.islice(_UNPRINTABLE.finditer(text), 10):
        reason = f"the character U+{ord(match[0]):04X} is invisible, and YAML does not allow it"
        line, column = _locate_end(text[: match.start()])
        mistakes.append(Mistake(path, line, column, "", "", reason, "write the line without it"))
    if mistakes:
        raise InputError(mistakes)
    return text


def _locate_end(text: str) -> tuple[int, int]:
    *_, last = lines = re.split(r"\r\n|\r|\n", text)
    return len(lines), len(last) + 1


# Beyond YAML's own list: line breaks that editors do not count, and marks that turn the direction of a text around.
_UNPRINTABLE = re.compile(
    "[^\t\n\r\x20-\x7e\xa0-\u2027\u202f-\u2065\u206a-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]"
)


def _read_bytes(path: Path) -> bytes:
    try:
        descriptor = open_regular(str(path), os.O_RDONLY)
    except NotAFile:
        raise build_file_error(path, "it is a pipe or a device, not a file", "name the path of a file") from None
    except FileNotFoundError:
        raise build_file_error(path, "there is no such file", _suggest_path(path)) from None
    except ValueError:
        raise build_file_error(path, "a path holds no NUL character", "name the path of a file that exists") from None
    except OSError as error:
        raise build_file_error(
            path, f"it cannot be read: {os_errors.describe(error)}", "name the path of a file that you may read"
        ) from None
    try:
        return _read_descriptor(path, descriptor)
    except OSError as error:
        raise build_file_error(
            path, f"it cannot be read: {os_errors.describe(error)}", "name the path of a file on a healthy disk"
        ) from None
    finally:
        os.close(descriptor)


def _read_descriptor(path: Path, descriptor: int) -> bytes:
    status = os.fstat(descriptor)
    if stat.S_ISDIR(status.st_mode):
        is_named_as_file = path.suffix in (".yaml", ".yml")
        path_fix = f"name the path of the file, such as {path / 'fleet.yaml'}"
        fix = "put a YAML file of that name there" if is_named_as_file else path_fix
        raise build_file_error(path, "it is a directory", fix)
    with os.fdopen(descriptor, "rb", closefd=False) as file:
        raw = file.read(MAX_BYTES + 1)
    if len(raw) > MAX_BYTES:
        reason = f"it holds {max(status.st_size, len(raw)):,} bytes, and settings hold at most {MAX_BYTES:,}"
        raise build_file_error(path, reason, "name settings of a screenful, not a data file")
    return raw


def _suggest_path(path: Path) -> str:
    try:
        names = [entry.name for entry in os.scandir(path.parent) if entry.is_file()]
    except OSError:
        names = []
    yamls = [name for name in names if name.endswith((".yaml", ".yml")) and not name.startswith(".")]
    # In a blueprint's folder `blueprint.yaml` alone looks like the name of a fleet.
    matches = difflib.get_close_matches(path.name, yamls, n=1, cutoff=0.7)
    if path == DEFAULT_FLEET and not matches:
        return "go to the folder that holds it, or use --fleet FILE; `blueprint new` creates one"
    matches = matches or sorted(yamls)[:1]
    return "name the path of a file that exists" + (f", such as {path.with_name(matches[0])}" if matches else "")


class _Loader(yaml.SafeLoader):
    """YAML's tree with fewer guesses: no tags, no words that mean something else than they say, a limit on depth."""

    yaml_implicit_resolvers: ClassVar[dict[str, Any]] = {}  # type: ignore[misc]

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.depth = 0
        self.tagged: list[tuple[str, yaml.Mark]] = []

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]
        tag = getattr(event, "tag", None)
        if tag is not None:
            self.tagged.append((tag, event.start_mark))
            event.tag = None
            if isinstance(event, yaml.ScalarEvent):
                event.implicit = (True, False)
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise yaml.composer.ComposerError(
                None, None, f"it is nested deeper than {MAX_DEPTH} levels", event.start_mark
            )
        try:
            return super().compose_node(parent, index)
        finally:
            self.depth -= 1


_INTEGER = r"-?(?:0|[1-9][0-9]{0,17})"
_FLOAT = r"-?(?:0|[1-9][0-9]{0,17})(?:\.[0-9]{1,18}(?:[eE][-+]?[0-9]{1,2})?|[eE][-+]?[0-9]{1,2})"
for _tag, _pattern, _first in (
    ("null", "~|null|Null|NULL|", "~nN"),
    ("bool", "true|True|TRUE|false|False|FALSE", "tTfF"),
    ("int", _INTEGER, "-0123456789"),
    ("float", _FLOAT, "-0123456789"),
    ("merge", "<<", "<"),
):
    # PyYAML looks up resolvers by a text's first character; the empty text has a separate list.
    _Loader.add_implicit_resolver(
        f"tag:yaml.org,2002:{_tag}", re.compile(f"(?:{_pattern})\\Z"), [*_first, *([""] if _tag == "null" else [])]
    )


class _Builder:
    """Convert YAML's tree into plain data, and report what settings do not allow."""

    def __init__(self, yaml_file: YamlFile, tagged: Sequence[tuple[str, yaml.Mark]]) -> None:
        self.yaml_file = yaml_file
        self.count = 0
        self.tagged = {mark.index for _, mark in tagged}
        for tag, mark in tagged:
            self._add_mistake(
                (), mark, f"the tag {tag} says how to build the value, and settings take values only", "remove the tag"
            )

    def build(self, node: yaml.Node) -> None:
        self.yaml_file.positions[()] = Position(1, 1, 1, 1)
        self.yaml_file.data = self._build_value(node, (), ())

    def _add_mistake(
        self, key_path: KeyPath, mark: yaml.Mark, reason: str, fix: str, position: Position | None = None
    ) -> None:
        line, column = (position.line, position.column) if position else (mark.line + 1, mark.column + 1)
        name = format_key_path(key_path)
        self.yaml_file.mistakes.append(Mistake(self.yaml_file.path, line, column, name, "", reason, fix))

    def _count_value(self) -> None:
        self.count += 1
        if self.count > MAX_VALUES:
            reason = f"it holds more than {MAX_VALUES:,} values, aliases counted each time they are used"
            raise build_file_error(self.yaml_file.path, reason, "name settings of a screenful, not a data file")

    def _build_value(self, node: yaml.Node, key_path: KeyPath, parents: tuple[yaml.Node, ...]) -> Any:
        self._count_value()
        if node in parents:
            self._reject(node, key_path, "the alias refers to a node that contains it", "write the value itself")
            return None
        if isinstance(node, yaml.MappingNode):
            return self._build_mapping(node, key_path, (*parents, node))
        if isinstance(node, yaml.SequenceNode):
            return [
                self._build_item(item, (*key_path, index), (*parents, node)) for index, item in enumerate(node.value)
            ]
        return self._parse_scalar(node, key_path)

    def _build_item(self, node: yaml.Node, key_path: KeyPath, parents: tuple[yaml.Node, ...]) -> Any:
        line, column = node.start_mark.line + 1, node.start_mark.column + 1
        self.yaml_file.positions[key_path] = Position(line, column, line, column)
        return self._build_value(node, key_path, parents)

    def _build_mapping(
        self, node: yaml.MappingNode, key_path: KeyPath, parents: tuple[yaml.Node, ...]
    ) -> dict[str, Any]:
        data: dict[str, Any] = {}
        for key, value in self._collect_pairs(node, key_path, parents):
            name, child_path = key.value, (*key_path, key.value)
            line, column = key.start_mark.line + 1, key.start_mark.column + 1
            # A value that starts on another line (a block, an alias) is best found by its key.
            start = value.start_mark if value.start_mark.line == key.start_mark.line else key.start_mark
            self.yaml_file.positions[child_path] = Position(start.line + 1, start.column + 1, line, column)
            problem = _find_text_problem(name)
            if problem:
                self._reject(key, child_path, *problem)
            data[name] = self._build_value(value, child_path, parents)
        return data

    def _collect_pairs(
        self, node: yaml.MappingNode, key_path: KeyPath, parents: tuple[yaml.Node, ...]
    ) -> list[tuple[yaml.ScalarNode, yaml.Node]]:
        """Return the mapping's keys and values, and those merged into it (`<<: *other`) where it has not its own."""
        own: dict[str, tuple[yaml.ScalarNode, yaml.Node]] = {}
        merged: list[yaml.Node] = []
        for key, value in node.value:
            self._count_value()
            if key.tag == "tag:yaml.org,2002:merge":
                merged += value.value if isinstance(value, yaml.SequenceNode) else [value]
            elif not isinstance(key, yaml.ScalarNode):
                node_type = "a mapping" if isinstance(key, yaml.MappingNode) else "a list"
                fix = "write quotes around a text with { or [ in it"
                if key_path:
                    self.yaml_file.rejected.add(key_path)
                self._add_mistake(key_path, key.start_mark, f"{node_type} instead of a key", fix)
            elif key.value in own:
                line = own[key.value][0].start_mark.line + 1
                self._add_mistake(
                    (*key_path, key.value), key.start_mark, f"duplicate key, first on line {line}", "remove one"
                )
            else:
                own[key.value] = (key, value)
        for other in merged:
            if isinstance(other, yaml.MappingNode) and other not in parents:
                for key, value in self._collect_pairs(other, key_path, (*parents, other)):
                    own.setdefault(key.value, (key, value))
            else:
                self._add_mistake(
                    key_path,
                    other.start_mark,
                    "only a mapping that is complete can be merged with <<",
                    "write <<: *NAME of a mapping above",
                )
        return list(own.values())

    def _parse_scalar(self, node: yaml.Node, key_path: KeyPath) -> Any:
        text = str(node.value)
        tag = node.tag.rpartition(":")[2]
        if node.start_mark.index in self.tagged:
            self.yaml_file.rejected.add(key_path)
        if tag == "null":
            reason = "the item has no value" if key_path and isinstance(key_path[-1], int) else "the key has no value"
            self._reject(node, key_path, reason, "write a value, or leave it out")
            return None
        if tag == "bool":
            return text.lower() == "true"
        if tag in ("int", "float"):
            return int(text) if tag == "int" else float(text)
        problem = _find_text_problem(text)
        if problem:
            self._reject(node, key_path, *problem)
        return text

    def _reject(self, node: yaml.Node, key_path: KeyPath, reason: str, fix: str) -> None:
        """Add a mistake; the field's other mistakes are then not reported."""
        self.yaml_file.rejected.add(key_path)
        self._add_mistake(key_path, node.start_mark, reason, fix, self.yaml_file.positions.get(key_path))


def _find_text_problem(text: str) -> tuple[str, str] | None:
    """Return why a text is not allowed in settings, which reach Terraform's files and command lines, and the fix."""
    if "${" in text or "%{" in text:
        return (
            "it holds ${ or %{, which Terraform would read as an expression; settings hold plain values",
            "write the value itself",
        )
    if any(not char.isprintable() for char in text):
        return "it holds a line break or another character that cannot be printed", "write it on one line"
    return None


def _build_syntax_mistake(path: Path, error: yaml.MarkedYAMLError) -> Mistake:
    problem = " ".join((error.problem or error.context or "it cannot be read").split())
    parser_text = f"{error.context or ''} {problem}"
    mark = error.problem_mark or error.context_mark
    cause, fix = problem, "write KEY: VALUE lines, indented by spaces"
    if "'\\t'" in problem:
        cause, fix = "a tab, but YAML is indented by spaces", "use spaces in its place"
    else:
        for sign, texts in own_yaml.read(_SYNTAX_ERRORS_FILE).items():
            if sign in parser_text:
                cause, fix = texts["cause"].format(problem=problem), texts["fix"]
                if "starts here" in cause:
                    mark = error.context_mark or mark
                break
    line, column = (mark.line + 1, mark.column + 1) if mark else (1, 1)
    return Mistake(path, line, column, "", "", f"it is not YAML: {cause}", fix)


def get_value(data: Any, key_path: Sequence[str | int]) -> Any:
    """Return the value at `key_path`; None if there is none."""
    for step in key_path:
        if not isinstance(data, dict | list):
            return None
        try:
            data = data[step]  # type: ignore[index]
        except (KeyError, IndexError, TypeError):
            return None
    return data
