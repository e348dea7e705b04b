"""Triton on EKS: its frontend's command line, the repository of models that it reads, and what it does not run."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from llm_serving.catalog import engine_options, frameworks
from llm_serving.kinds.serving.deployment import ServingDeployment
from llm_serving.services.service import Service
from llm_serving.settings.errors import InputError
from tests import engines_own, matrix_cells
from tests.kinds.serving import resolving
from tests.kinds.serving.frameworks import test_llm_d

FLEET = (
    test_llm_d.FLEET.replace("gateway: on", "operators: on, observability: on")
    + "  p5: {types: p5.48xlarge, size: 0..2}\n"
)

DATA = Path(__file__).with_name("triton")

PARSE_CONFIG = """\
import base64, json, sys
from google.protobuf import descriptor_pool, json_format, message_factory, text_format
pool = descriptor_pool.DescriptorPool()
pool.AddSerializedFile(base64.b64decode(json.load(open(sys.argv[1]))["descriptor"]))
config = message_factory.GetMessageClass(pool.FindMessageTypeByName("inference.ModelConfig"))()
text_format.Parse(sys.stdin.read(), config)
print(json_format.MessageToJson(config))
"""
"""What Triton reads its configurations with: protobuf's text format, by its own types."""

ROUTES = """\
class Router:
    routes = {}

    def add_api_route(self, path, endpoint):
        self.routes[path] = endpoint.__name__

router = Router()

def ready(request):
    pass
"""
"""What the command uses of the frontend's module of this name."""

MAIN = """\
import json, sys
from frontend.fastapi.routers import observability
print(json.dumps({"routes": observability.router.routes, "argv": sys.argv, "name": __name__}))
"""

FOUR_GPUS = "{pool: gpus, accelerators: 4}"


def format_blueprint(lines: str = "", **parts: str) -> str:
    return test_llm_d.format_blueprint(lines, **parts).replace("framework: llm-d", "framework: triton")


def resolve(folder: Path, text: str, target: str = "eks") -> ServingDeployment:
    return resolving.resolve_files(folder, text, FLEET, target)


def build_parser() -> argparse.ArgumentParser:
    """The frontend's own arguments, as its parser takes them."""
    parser = argparse.ArgumentParser(exit_on_error=False, allow_abbrev=False)
    for name, row in json.loads((DATA / "frontend-arguments.json").read_text())["arguments"].items():
        kind = {"type": {"str": str, "int": int}[row["type"]]} if "type" in row else {}
        parser.add_argument(name, **{**row, **kind})
    return parser


def split(service: Service) -> tuple[dict[str, str], argparse.Namespace]:
    """The files that a command writes, and the frontend's arguments after them."""
    python, flag, _, files, program, *words = service.command
    assert (python, flag) == ("python3", "-c")
    assert program == "/opt/tritonserver/python/openai/openai_frontend/main.py"
    return json.loads(files), build_parser().parse_args(words)


def test_the_frontend_takes_the_place_of_the_engines_server(tmp_path: Path) -> None:
    deployment = resolve(tmp_path, format_blueprint(worker=FOUR_GPUS))
    worker, router = deployment.services
    files, arguments = split(worker)
    assert (arguments.host, arguments.openai_port, arguments.model_repository) == ("0.0.0.0", 8000, "/scratch/triton")
    assert arguments.tokenizer == "/scratch/fetched/weights"
    assert arguments.default_max_tokens == 2000, "the whole context, and not 16"
    assert not arguments.enable_kserve_frontends, "its other API loads models of whoever calls it"
    assert arguments.model_control_mode is None
    assert set(files) == {
        "/scratch/triton/Qwen3-0.6B/config.pbtxt",
        "/scratch/triton/Qwen3-0.6B/1/model.json",
    }
    model = json.loads(files["/scratch/triton/Qwen3-0.6B/1/model.json"])
    assert model["model"] == "/scratch/fetched/weights"
    assert (model["max_model_len"], model["tensor_parallel_size"]) == (2000, 4)
    assert worker.prefetch and set(worker.prefetch.uris) == {"weights"}
    assert deployment.image_user == 1000
    plain = resolve(tmp_path, format_blueprint(worker=FOUR_GPUS).replace("framework: triton\n", ""))
    assert [router] == list(plain.entries)


def test_clients_name_the_model_by_the_folder_and_are_told(tmp_path: Path) -> None:
    deployment = resolve(tmp_path, format_blueprint())
    assert deployment.model_names == ("Qwen3-0.6B",)
    [worker] = deployment.workers
    assert worker.probe
    assert worker.probe.body["model"] == "Qwen3-0.6B"
    [note] = [note for note in deployment.notes if note.startswith("Triton")]
    assert note == frameworks.load_frameworks()["triton"].note
    plain = resolve(tmp_path, format_blueprint().replace("framework: triton\n", ""))
    assert plain.model_names == ("Qwen/Qwen3-0.6B",)
    assert not [note for note in plain.notes if note.startswith("Triton")]


def test_the_command_writes_the_repository_and_becomes_the_frontend_with_the_routers_page(tmp_path: Path) -> None:
    """Its own pages are /health/ready and /metrics: frontend/fastapi/routers/observability.py of r26.08."""
    routers = tmp_path / "openai_frontend/frontend/fastapi/routers"
    routers.mkdir(parents=True)
    (routers / "observability.py").write_text(ROUTES)
    main = tmp_path / "openai_frontend/main.py"
    main.write_text(MAIN)
    [worker] = resolve(tmp_path, format_blueprint()).workers
    _, flag, program, files, _, *words = (word.replace("/scratch", str(tmp_path)) for word in worker.command)
    assert "\n" not in program
    command = [sys.executable, flag, program, files, str(main), *words]
    for _ in range(2):  # a container that starts again finds what it wrote
        output = subprocess.run(command, check=True, capture_output=True).stdout
        started = json.loads(output)
        assert started == {"routes": {"/health": "ready"}, "argv": [str(main), *words], "name": "__main__"}
    written = {str(file): file.read_text() for file in (tmp_path / "triton").rglob("*") if file.is_file()}
    assert written == json.loads(files)


@pytest.mark.engine
def test_tritons_types_take_the_configuration(tmp_path: Path) -> None:
    files, _ = split(resolve(tmp_path, format_blueprint()).workers[0])
    config = files["/scratch/triton/Qwen3-0.6B/config.pbtxt"]
    assert read_config(config) == {
        "backend": "vllm",
        "instanceGroup": [{"count": 1, "kind": "KIND_MODEL"}],
        "parameters": {"REPORT_CUSTOM_METRICS": {"stringValue": "true"}},
    }
    with pytest.raises(subprocess.CalledProcessError, match="exit status 1"):
        read_config(config.replace("KIND_MODEL", "KIND_MODELS"))


def read_config(text: str) -> dict[str, Any]:
    python = str(engines_own.find_executables() / "python")
    command = [python, "-c", PARSE_CONFIG, str(DATA / "model-config.json")]
    output = subprocess.run(command, input=text.encode(), check=True, capture_output=True).stdout
    return dict(json.loads(output))


def test_the_version_under_triton_has_every_argument_that_is_rendered(tmp_path: Path) -> None:
    known = engine_options.load_arguments(frameworks.load_frameworks()["triton"].engines["vllm"].arguments).arguments
    rendered = [
        cell.deployment
        for cell in matrix_cells.build_all()
        if cell.framework == "triton" and isinstance(cell.deployment, ServingDeployment)
    ]
    assert {item.pattern for item in rendered} == {"aggregated", "distributed", "multi-model"}
    tuned = (
        "tuning: {quantization: fp8, kv_cache: fp8, batch_tokens: 4096, sequences: 32, prefix_cache: off, kv_offload: 8Gi, "
        "speculative: {method: ngram, tokens: 3}}\nengine_arguments: {enforce_eager: true}\n"
    )
    for deployment in (*rendered, resolve(tmp_path, format_blueprint(tuned))):
        for worker in deployment.workers:
            files, _ = split(worker)
            [model] = [json.loads(text) for name, text in files.items() if name.endswith("model.json")]
            assert model.keys() <= known
    assert model["speculative_config"]["num_speculative_tokens"] == 3, "JSON, and not its text"
    assert "logging_config" not in known, "which the row refuses"


@pytest.mark.parametrize(
    ("model", "parser"),
    [("Qwen/Qwen3-8B", None), ("meta-llama/Llama-3.1-8B-Instruct", "llama3")],
)
def test_calls_of_tools_are_read_where_triton_has_the_parser(tmp_path: Path, model: str, parser: str | None) -> None:
    [worker] = resolve(tmp_path, format_blueprint().replace("Qwen/Qwen3-0.6B", model)).workers
    files, arguments = split(worker)
    assert arguments.tool_call_parser == parser
    assert arguments.chat_template is None, "vLLM's own templates are not in Triton's image"
    assert not [name for name in files if name.endswith(".jinja")]


def test_the_users_chat_template_is_a_file_of_the_container(tmp_path: Path) -> None:
    (tmp_path / "chat.jinja").write_text("{{ messages }}\n")
    [worker] = resolve(tmp_path, format_blueprint("chat_template: chat.jinja\n")).workers
    files, arguments = split(worker)
    assert files[arguments.chat_template] == "{{ messages }}\n"
    assert not arguments.chat_template.startswith(f"{arguments.model_repository}/"), "each folder there is a model"


REFUSALS = [
    (
        format_blueprint("engine: sglang\n"),
        "eks",
        'framework: "triton": triton 26.08 runs vllm 0.27.1, and not sglang. Fix: set engine: vllm, or another framework.',
    ),
    (
        format_blueprint(worker="{pool: on-ecs}"),
        "ecs",
        'framework: "triton": the framework does not run on the target ecs. Fix: use --target eks, or another framework.',
    ),
    (
        format_blueprint(worker="{pool: gpus, replicas: 1..2}"),
        "eks",
        "roles.worker.scale.queue: 4: triton reports no metric of it. Fix: set replicas: 2.",
    ),
    (
        format_blueprint(
            pattern="multi-model", roles="  models: {one: {model: Qwen/Qwen3-0.6B, served_name: me/a, pool: gpus}}\n"
        ),
        "eks",
        'roles.models.one.served_name: "me/a": Triton names a model by its folder. Fix: set served_name: a.',
    ),
    (
        format_blueprint("tools: hermes\n"),
        "eks",
        'tools: "hermes": triton reads answers itself, and has no parser hermes. Fix: set tools: off, or use another framework.',
    ),
    (
        format_blueprint("reasoning: qwen3\n"),
        "eks",
        'reasoning: "qwen3": triton reads answers itself, and has no parser qwen3. Fix: set reasoning: off',
    ),
    (
        format_blueprint("tuning: {priority: on}\n"),
        "eks",
        "tuning.priority: true: Triton's endpoint hands the engine no priority. Fix: set priority: off.",
    ),
    (
        format_blueprint("logs: json\n"),
        "eks",
        "Triton's own log has no JSON. Fix: set logs: text.",
    ),
    (
        format_blueprint().replace("Qwen/Qwen3-0.6B", "Qwen/Qwen2.5-VL-7B-Instruct"),
        "eks",
        "Triton's endpoint takes text only. Fix: set engine_arguments: {language_model_only: true} where requests have no "
        "pictures, or use a model that reads text only.",
    ),
    (
        format_blueprint(worker="{pool: p5, accelerators: 8}").replace("Qwen/Qwen3-0.6B", "Qwen/Qwen3-235B-A22B-FP8"),
        "eks",
        "which cuts the FP8 blocks of 128: fewer ways, or expert parallelism; Triton's vLLM needs whole ones. "
        "Fix: set expert: on, or use framework: plain.",
    ),
]


@pytest.mark.parametrize(("text", "target", "message"), REFUSALS)
def test_what_triton_does_not_run_is_refused_by_name(tmp_path: Path, text: str, target: str, message: str) -> None:
    with pytest.raises(InputError) as error:
        resolve(tmp_path, text, target)
    assert message in str(error.value)


def test_a_split_of_a_model_that_is_not_known_is_left_to_the_engine(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    config = {"model_type": "zebra", "num_attention_heads": 6, "num_hidden_layers": 4, "hidden_size": 64}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "model.safetensors.index.json").write_text('{"metadata": {"total_size": 1000000000}, "weight_map": {}}')
    text = format_blueprint("memory: unchecked\n", worker=FOUR_GPUS).replace("Qwen/Qwen3-0.6B", str(folder))
    assert resolve(tmp_path, text).framework == "triton"
