"""`blueprint check`: all mistakes of both files in one go, or what was understood; and nothing else happens."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from llm_serving.cli import main

ROOT = Path(__file__).parents[3]
PATTERN = ROOT / "blueprints/aggregated"

FLEET = """\
name: demo
region: us-west-2
zones: [us-west-2a, us-west-2b]
pools:
  general: {types: g6e.2xlarge, size: 0..4}
"""
BLUEPRINT = """\
pattern: aggregated
model: tiny
roles: {worker: {pool: general, replicas: 2}}
traffic: {users: 8}
slo: {ttft_ms: {p95: 2000}, errors: 0.1%}
"""


@pytest.fixture(autouse=True)
def working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with a right fleet.yaml, a right blueprint in `mine`, and the pattern's template."""
    monkeypatch.chdir(tmp_path)
    Path("fleet.yaml").write_text(FLEET)
    Path("mine").mkdir()
    Path("mine/blueprint.yaml").write_text(BLUEPRINT)
    for template in PATTERN.glob("*.j2"):
        Path("mine", template.name).write_bytes(template.read_bytes())


def edit(file: str, old: str, new: str) -> None:
    text = Path(file).read_text()
    assert old in text
    Path(file).write_text(text.replace(old, new))


def check(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of `blueprint check`."""
    code = main.run(["check", *arguments])
    output = capsys.readouterr()
    return code, output.out, output.err


def test_check_prints_one_line_for_each_part(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = check(capsys, "mine")
    assert (code, err) == (0, "")
    fleet, support, *rest = [line.split(maxsplit=1) for line in out.splitlines()]
    assert support[0] == "EKS" and support[1].startswith("Kubernetes 1.35: standard support end")
    assert [fleet, *rest] == [
        ["fleet", "demo (fleet.yaml): us-west-2, eks"],
        ["pool", "general: 0..4 x g6e.2xlarge in us-west-2a, us-west-2b"],
        ["blueprint", "mine (mine/blueprint.yaml): aggregated for the target local"],
        ["model", "tiny on vllm, context 4096, 0.008 GB of weights"],
        ["worker", "2 x 1 accelerator(s) of g6e.2xlarge, pool general"],
        ["router", "load-aware"],
        ["traffic", "8 users, 256 tokens in, 64 out, 300 requests"],
        ["slo", "ttft p95 < 2000 ms, errors at most 0.1%"],
    ]


def test_check_says_what_the_engines_cost_on_aws(capsys: pytest.CaptureFixture[str]) -> None:
    price = "2 x 1 of g6e.2xlarge at 2.24208 USD/h on demand in us-west-2, 2026-01-21"
    assert check(capsys, "mine", "--target", "eks")[1].splitlines()[-1] == f"cost      4.48 USD/h: worker: {price}"
    edit("fleet.yaml", "pools:", "add_ons: {operators: on, observability: on}\npools:")
    edit("mine/blueprint.yaml", "replicas: 2", "replicas: 2..4, scale: {queue: 4}")
    assert (
        check(capsys, "mine", "--target", "eks")[1].splitlines()[-1] == f"cost      4.48 to 8.97 USD/h: worker: {price}"
    )
    edit("fleet.yaml", "us-west-2", "ca-central-1")
    assert "cost" not in check(capsys, "mine", "--target", "eks")[1], "no price is known there"


def test_check_prints_json(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = check(capsys, "mine", "--json")
    response = json.loads(out)
    assert (code, err, response["ok"], response["mistakes"]) == (0, "", True, [])
    assert response["deployment"]["name"] == "mine"
    assert response["deployment"]["roles"][0]["instance_types"] == ["g6e.2xlarge"]


def test_mistakes_of_both_files_are_reported_together(capsys: pytest.CaptureFixture[str]) -> None:
    edit("fleet.yaml", "0..4", "4..0")
    edit("mine/blueprint.yaml", "users: 8", "user: 8")
    edit("mine/blueprint.yaml", "errors: 0.1%", "errors: 0.1")
    messages = [
        'fleet.yaml:5:39: pools.general.size: "4..0": the least, 4, is more than the most, 0. Fix: write 0..4.',
        "mine/blueprint.yaml:4:11: traffic.user: unknown key. Fix: write users:.",
        "mine/blueprint.yaml:5:37: slo.errors: 0.1: it has no unit. Fix: use a percentage such as 5%.",
    ]
    code, out, err = check(capsys, "mine")
    assert (code, out, err.splitlines()) == (2, "", messages)
    code, out, err = check(capsys, "mine", "--json")
    response = json.loads(out)
    assert (code, err.splitlines(), response["ok"]) == (2, messages, False)
    assert [mistake["message"] for mistake in response["mistakes"]] == messages
    assert response["mistakes"][0] | {"message": ""} == {
        "file": "fleet.yaml",
        "line": 5,
        "column": 39,
        "field": "pools.general.size",
        "value": '"4..0"',
        "why": "the least, 4, is more than the most, 0",
        "write": "write 0..4",
        "message": "",
    }


def test_mistakes_of_fleet_and_blueprint_are_reported_together(
    capsys: pytest.CaptureFixture[str],
) -> None:
    edit("fleet.yaml", "g6e.2xlarge", "g6e.2xlrge")
    edit("fleet.yaml", "[us-west-2a, us-west-2b]", "[us-west-2a]")
    edit("mine/blueprint.yaml", "replicas: 2", "replicas: 0")
    code, _, err = check(capsys, "mine")
    assert code == 2
    assert [":".join(line.split(":")[:4]) for line in err.splitlines()] == [
        "fleet.yaml:3:8: zones",
        "fleet.yaml:5:20: pools.general.types",
        "mine/blueprint.yaml:3:43: roles.worker.replicas",
    ]


def test_the_resolvers_mistakes_have_their_lines(capsys: pytest.CaptureFixture[str]) -> None:
    edit("mine/blueprint.yaml", "pool: general", "pool: genral")
    code, _, err = check(capsys, "mine")
    assert code == 2
    assert err == (
        'mine/blueprint.yaml:3:24: roles.worker.pool: "genral": the fleet demo has no such pool. '
        "Fix: use one of its pools, general, or add genral to them.\n"
    )


def test_a_mistake_in_the_template_is_reported_at_its_line(capsys: pytest.CaptureFixture[str]) -> None:
    (template,) = Path("mine").glob("local.*.j2")
    lines = len(template.read_text().splitlines())
    template.write_text(template.read_text() + "{{ deployment.nme }}\n")
    code, _, err = check(capsys, "mine")
    assert code == 2
    assert err.startswith(f"{template}:{lines + 1}:1: ")
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "messages"),
    [
        (["nowhere"], ["nowhere: there is no such folder. Fix: name the folder of a blueprint; `blueprint new` creates one."]),
        (["mein"], ["mein: there is no such folder. Fix: name the folder of a blueprint, such as mine."]),
        (["fleet.yaml"], ["fleet.yaml: it is a file, and a blueprint is a folder. Fix: name the folder of a blueprint."]),
        (["."], [".: the folder holds no blueprint.yaml. Fix: name the folder of a blueprint; `blueprint new` creates one."]),
        (["mine", "--fleet", "no.yaml"], ["no.yaml: there is no such file. Fix: name the path of a file that exists, such as fleet.yaml."]),
        (["mine", "--fleet", "mine"], ["mine: it is a directory. Fix: name the path of the file, such as mine/fleet.yaml."]),
        (
            ["nowhere", "--fleet", "no.yaml"],
            [
                "no.yaml: there is no such file. Fix: name the path of a file that exists, such as fleet.yaml.",
                "nowhere: there is no such folder. Fix: name the folder of a blueprint; `blueprint new` creates one.",
            ],
        ),
    ],
)  # fmt: skip
def test_a_missing_path_is_one_line(
    arguments: list[str], messages: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = check(capsys, *arguments)
    assert (code, out, err.splitlines()) == (2, "", messages)


def test_a_blueprint_file_that_is_a_folder_or_a_loop_is_named_as_itself(capsys: pytest.CaptureFixture[str]) -> None:
    file = Path("mine/blueprint.yaml")
    file.unlink()
    file.symlink_to(file.name)
    loop = (
        f"{file}: it cannot be read: too many levels of symbolic links. Fix: name the path of a file that you may read."
    )
    assert check(capsys, "mine") == (2, "", f"{loop}\n")
    file.unlink()
    file.symlink_to("nowhere")
    assert check(capsys, "mine")[2].startswith(f"{file}: there is no such file.")
    file.unlink()
    file.mkdir()
    assert check(capsys, "mine") == (
        2,
        "",
        f"{file}: it is a directory. Fix: put a YAML file of that name there.\n",
    )


def test_a_target_without_a_template_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    Path("mine/eks.yaml.j2").unlink()
    code, _, err = check(capsys, "mine", "--target", "eks")
    assert code == 2
    assert "no template for the target eks" in err
    assert len(err.splitlines()) == 1


WATCHED = """
import sys
sys.dont_write_bytecode = True
from llm_serving.cli import main  # Python's own imports read much; what the command does is watched from here

seen = []
def watch(event, arguments):
    # rich and Python itself look at the terminal; none of these events is a look.
    if event == "open" and isinstance(arguments[1], str) and set(arguments[1]) & set("wax+"):
        seen.append((event, arguments[0]))
    elif event.startswith(("socket.", "subprocess.", "os.exec", "os.fork", "os.spawn", "os.posix_spawn", "os.system",
                           "os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.link", "os.symlink", "os.chmod",
                           "os.truncate", "os.utime", "shutil.", "tempfile.")):
        seen.append((event, arguments))
sys.addaudithook(watch)
code = main.run(sys.argv[1:])
print(seen, file=sys.stderr)
sys.exit(code)
"""


def run_watched(*arguments: str) -> tuple[int, str]:
    """Return a command's exit code and its writes, processes and network requests."""
    result = subprocess.run(
        [sys.executable, "-c", WATCHED, *arguments],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=240,
    )
    return result.returncode, result.stderr.splitlines()[-1]


def test_check_writes_starts_and_requests_nothing() -> None:
    before = sorted(Path().rglob("*"))
    # Templates render in a copy of this process, which is ended at a limit: no other program is started.
    assert run_watched("check", "mine") == (0, "[('os.fork', ())]")
    edit("mine/blueprint.yaml", "users: 8", "users: 0")
    assert run_watched("check", "mine", "--json") == (2, "[]")
    assert sorted(Path().rglob("*")) == before


def test_the_write_detector_reports_a_command_that_writes() -> None:
    code, last_event = run_watched("new", "other", "--from", "aggregated")
    assert code == 0
    assert "os.mkdir" in last_event
