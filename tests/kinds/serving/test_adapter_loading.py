"""Adapters at run time: every replica loads them, and errors are one line."""

from __future__ import annotations

import http.server
import json
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from llm_serving import processes
from llm_serving.cli import main
from llm_serving.hub import make_tiny
from llm_serving.kinds.serving import adapter_loading
from llm_serving.kinds.serving.deployment import ServingDeployment
from llm_serving.settings.errors import CheckFailed, InputError, Unavailable
from llm_serving.targets import planning
from tests.http_handler import QuietHandler

ROOT = Path(__file__).resolve().parents[3]


class _Engine(QuietHandler):
    """Loads an adapter unless it has one of the name, and unloads those that it has, as vLLM does."""

    requests: list[tuple[str, dict[str, str]]]
    folders: dict[str, str]

    def do_GET(self) -> None:
        models = [{"id": name, "root": folder} for name, folder in self.folders.items()]
        self.respond(200, json.dumps({"data": models}).encode())

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.requests.append((self.path, body))
        if ("lora_path" in body) == (body["lora_name"] in self.folders):
            message = "it has already been loaded" if "lora_path" in body else "it cannot be found"
            self.respond(400, json.dumps({"error": {"message": message}}).encode())
            return
        if "lora_path" in body:
            self.folders[body["lora_name"]] = body["lora_path"]
        else:
            del self.folders[body["lora_name"]]
        self.respond(200, b"Success")


@pytest.fixture
def working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's directory with a copy of a pattern in `mine` and a fleet file; it is the current one."""
    folder = tmp_path / "work"
    shutil.copytree(ROOT / "blueprints" / "aggregated", folder / "mine")
    shutil.copy(ROOT / "fleet.yaml", folder)
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def deployment_and_requests(
    working_folder: Path,
) -> Iterator[tuple[ServingDeployment, list[tuple[str, dict[str, str]]]]]:
    """A deployment of two models, of which `long` has an adapter, and the requests to its engine."""
    blueprint = (ROOT / "blueprints/multi-model/blueprint.yaml").read_text()
    (working_folder / "mine/blueprint.yaml").write_text(blueprint.replace("# adapters:", "adapters:"))
    make_tiny.make_adapter(working_folder / "mine/adapters/tone")
    _Engine.requests, _Engine.folders = [], {}
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Engine) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        deployment = planning.plan(working_folder / "mine", working_folder / "fleet.yaml", target="local").deployment
        yield _move_to_port(deployment, server.server_port), _Engine.requests
        server.shutdown()


def _move_to_port(deployment: ServingDeployment, port: int) -> ServingDeployment:
    """Return the deployment with the engine of the role `long` at another address."""
    services = tuple(
        service.model_copy(update={"host": "127.0.0.1", "port": port}) if service.role == "long" else service
        for service in deployment.services
    )
    return deployment.model_copy(update={"services": services})


DeploymentAndRequests = tuple[ServingDeployment, list[tuple[str, dict[str, str]]]]


def test_an_adapter_is_loaded_and_unloaded_over_the_engines_api(
    deployment_and_requests: DeploymentAndRequests, tmp_path: Path
) -> None:
    deployment, requests = deployment_and_requests
    folder = make_tiny.make_adapter(tmp_path / "late")
    # A second run finds what the first one, which a replica may have ended, did.
    adapter_loading.load(deployment, "long", "late", folder)
    adapter_loading.load(deployment, "long", "late", folder)
    adapter_loading.unload(deployment, "long", "late")
    assert requests == [
        ("/v1/load_lora_adapter", {"lora_name": "late", "lora_path": str(folder)}),
        ("/v1/unload_lora_adapter", {"lora_name": "late"}),
    ]
    with pytest.raises(CheckFailed, match=r"^long-0 refuses: it cannot be found$"):
        adapter_loading.unload(deployment, "long", "late")


def test_a_refusal_has_the_engines_message(deployment_and_requests: DeploymentAndRequests, tmp_path: Path) -> None:
    _Engine.folders["late"] = "/another"
    with pytest.raises(CheckFailed) as error:
        adapter_loading.load(deployment_and_requests[0], "long", "late", make_tiny.make_adapter(tmp_path / "late"))
    assert str(error.value) == "long-0 refuses: it has already been loaded"


def test_an_engine_that_does_not_answer_is_named(deployment_and_requests: DeploymentAndRequests) -> None:
    moved = _move_to_port(deployment_and_requests[0], processes.claim_free_ports(1)[0])
    with pytest.raises(Unavailable, match=r"^long-0 does not answer: .*refused"):
        adapter_loading.unload(moved, "long", "tone")


def test_an_invalid_adapter_is_refused_before_any_request(
    deployment_and_requests: DeploymentAndRequests, tmp_path: Path
) -> None:
    deployment, requests = deployment_and_requests
    folder = make_tiny.make_adapter(tmp_path / "late")
    for role, message in (
        ("other", 'ROLE: "other": mine has no such role. Fix: use small or long.'),
        (
            "small",
            'ROLE: "small": its engines started without adapters, and then load none. '
            "Fix: add an adapter to the blueprint and deploy it.",
        ),
    ):
        with pytest.raises(InputError) as error:
            adapter_loading.load(deployment, role, "late", folder)
        assert str(error.value) == message
    config = folder / "adapter_config.json"
    config.write_text(config.read_text().replace('"tiny"', '"Qwen/Qwen3-8B"'))
    with pytest.raises(InputError) as error:
        adapter_loading.load(deployment, "long", "late", folder)
    assert str(error.value) == (
        f'FOLDER: "{folder}": it was trained on Qwen/Qwen3-8B, and the role serves tiny. '
        "Fix: use an adapter of tiny, or a role of Qwen/Qwen3-8B."
    )
    assert requests == []


def test_an_adapter_under_the_name_of_another_roles_model_is_refused(
    deployment_and_requests: DeploymentAndRequests, tmp_path: Path
) -> None:
    deployment, requests = deployment_and_requests
    with pytest.raises(InputError, match=r'^NAME: "small": clients put it in `model` for small too\. Fix: use a name'):
        adapter_loading.load(deployment, "long", "small", make_tiny.make_adapter(tmp_path / "late"))
    assert requests == []


def test_loading_without_a_deployment_is_refused(working_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert working_folder.is_dir()
    code = main.run(["adapter", "unload", "mine", "worker", "tone"])
    error_text = capsys.readouterr().err
    assert (code, error_text) == (3, "mine: not deployed here. Fix: run blueprint deploy mine\n")


def test_a_location_in_s3_is_refused() -> None:
    with pytest.raises(InputError) as error:
        adapter_loading.parse_folder("s3://mine/sql")
    assert str(error.value) == (
        'FOLDER: "s3://mine/sql": replicas on this machine load from a local directory. '
        "Fix: name a directory; `aws s3 cp --recursive s3://mine/sql FOLDER` creates one."
    )
    assert adapter_loading.parse_folder("mine/sql") == Path("mine/sql")


def test_an_engine_without_such_an_api_is_refused(
    deployment_and_requests: tuple[ServingDeployment, list[tuple[str, dict[str, str]]]],
) -> None:
    deployment = deployment_and_requests[0].model_copy(update={"engine": "llama.cpp"})
    with pytest.raises(InputError) as error:
        adapter_loading.unload(deployment, "long", "tone")
    assert str(error.value) == (
        "ROLE: the engine llama.cpp loads adapters only when it starts. "
        "Fix: add the adapter to the blueprint and deploy it."
    )
