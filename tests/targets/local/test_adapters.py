"""Adapters at run time: every replica is told, and what cannot be is said in one line."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from llm_serving import processes
from llm_serving.cli import main
from llm_serving.hub import make_tiny
from llm_serving.settings.errors import AnswerIsNo, InputError, Unavailable
from llm_serving.targets.local import adapters, deploy
from llm_serving.workloads.serving.deployment import Deployment

ROOT = Path(__file__).resolve().parents[3]


class _Engine(http.server.BaseHTTPRequestHandler):
    """Takes any adapter but one that is called `twice`."""

    told: list[tuple[str, dict[str, str]]]

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.told.append((self.path, body))
        refused = body["lora_name"] == "twice"
        answer = json.dumps({"error": {"message": "it has already been loaded"}}).encode() if refused else b"Success"
        self.send_response(400 if refused else 200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_: object) -> None:
        """Nothing."""


@pytest.fixture
def up(work: Path) -> Iterator[tuple[Deployment, list[tuple[str, dict[str, str]]]]]:
    """Many models, of which `long` has an adapter, as if they were up; and what its engine was told."""
    blueprint = (ROOT / "blueprints/multi-model/blueprint.yaml").read_text()
    (work / "mine/blueprint.yaml").write_text(blueprint.replace("# adapters:", "adapters:"))
    make_tiny.make_adapter(work / "mine/adapters/tone")
    _Engine.told = []
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Engine) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        made = deploy.plan(work / "mine", work / "fleet.yaml").deployment
        (process,) = made.engines[1].processes
        there = made.engines[1].model_copy(
            update={"processes": (process.model_copy(update={"port": server.server_port}),)}
        )
        yield made.model_copy(update={"roles": (made.engines[0], there, made.router)}), _Engine.told
        server.shutdown()


Up = tuple[Deployment, list[tuple[str, dict[str, str]]]]


def test_the_engine_is_told_of_an_adapter_and_of_its_end(up: Up, tmp_path: Path) -> None:
    deployment, told = up
    folder = make_tiny.make_adapter(tmp_path / "late")
    adapters.load(deployment, "long", "late", folder)
    adapters.unload(deployment, "long", "late")
    assert told == [
        ("/v1/load_lora_adapter", {"lora_name": "late", "lora_path": str(folder)}),
        ("/v1/unload_lora_adapter", {"lora_name": "late"}),
    ]


def test_what_an_engine_refuses_is_said_in_its_own_words(up: Up, tmp_path: Path) -> None:
    with pytest.raises(AnswerIsNo) as refused:
        adapters.load(up[0], "long", "twice", make_tiny.make_adapter(tmp_path / "late"))
    assert str(refused.value) == "long-0 refuses: it has already been loaded"


def test_an_engine_that_does_not_answer_is_said(up: Up) -> None:
    role = up[0].engines[1]
    silent = role.processes[0].model_copy(update={"port": processes.free_ports(1)[0]})
    there = role.model_copy(update={"processes": (silent,)})
    with pytest.raises(Unavailable, match=r"^long-0 does not answer: .*refused"):
        adapters.unload(up[0].model_copy(update={"roles": (there, up[0].router)}), "long", "tone")


def test_what_cannot_be_loaded_is_refused_before_an_engine_is_asked(up: Up, tmp_path: Path) -> None:
    deployment, told = up
    folder = make_tiny.make_adapter(tmp_path / "late")
    for role, why in (
        ("other", "ROLE: now 'other': mine has no such role. Write small or long."),
        (
            "small",
            "ROLE: now 'small': its engines were started without any adapter, and such take none. "
            "Write one adapter in the blueprint, and deploy it.",
        ),
    ):
        with pytest.raises(InputError) as refused:
            adapters.load(deployment, role, "late", folder)
        assert str(refused.value) == why
    config = folder / "adapter_config.json"
    config.write_text(config.read_text().replace('"tiny"', '"Qwen/Qwen3-8B"'))
    with pytest.raises(InputError) as refused:
        adapters.load(deployment, "long", "late", folder)
    assert str(refused.value) == (
        f"FOLDER: now '{folder}': it was made for Qwen/Qwen3-8B, and the role serves tiny. "
        "Write an adapter of tiny, or a role of Qwen/Qwen3-8B."
    )
    assert told == []


def test_nothing_is_loaded_where_nothing_is_up(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert work.is_dir()
    code = main.run(["adapter", "unload", "mine", "worker", "tone"])
    said = capsys.readouterr().err
    assert (code, said) == (3, "mine is not up on this machine; `blueprint deploy mine` brings it up\n")


def test_a_place_in_s3_is_no_folder_of_this_machine() -> None:
    with pytest.raises(InputError) as refused:
        adapters.folder("s3://mine/sql")
    assert str(refused.value) == (
        "FOLDER: now 's3://mine/sql': replicas on this machine load what lies in a folder of it. "
        "Write a folder; `aws s3 cp --recursive s3://mine/sql FOLDER` fills one."
    )
    assert adapters.folder("mine/sql") == Path("mine/sql")
