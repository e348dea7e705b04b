"""Triton: its OpenAI frontend in the place of the engine's server.

The frontend starts the server in its own process, and its vLLM backend the engine, from a repository of models: a
folder with the model's name, a configuration, and the engine's arguments as JSON. The command writes the folder first.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from llm_serving.catalog import engine_options
from llm_serving.engines import vllm
from llm_serving.kinds.serving.context import Context
from llm_serving.kinds.serving.frameworks.base import SERVER_OPTIONS, Adapted, check_engine, split_command
from llm_serving.services.service import Service
from llm_serving.settings.document import Conflict

FRONTEND = "/opt/tritonserver/python/openai/openai_frontend/main.py"
"""In its image. Source: Triton r26.08 (6fa22ae), python/openai/README.md."""

MODEL_VERSION = "1"
"""Folder of the model's only version."""

CONFIG = """\
backend: "vllm"
instance_group [ { count: 1 kind: KIND_MODEL } ]
parameters { key: "REPORT_CUSTOM_METRICS" value { string_value: "true" } }
"""
"""The engine chooses its accelerators, of which KIND_GPU would give it one; by default its metrics are not reported.
Source: vllm_backend r26.01 (c70d654), README.md and src/model.py."""

OWN_OPTIONS = SERVER_OPTIONS | {"enable_auto_tool_choice", "tool_call_parser", "reasoning_parser", "chat_template"}
"""Options in whose place the frontend has its own. It ends when the requests under way have."""

PROGRAM = Path(__file__).with_name("triton_frontend.py")


def check(context: Context) -> Iterator[Conflict]:
    """Yield what its version of the engine does not have, and names that are no folder's."""
    yield from check_engine(context, asked_parsers_only=True)
    for name, role in context.blueprint.roles.models.items():
        if role.served_name and "/" in role.served_name:
            fix = f"set served_name: {role.served_name.rpartition('/')[2]}"
            path = ("roles", "models", name, "served_name")
            yield Conflict(path, "Triton names a model by its folder", fix, role.served_name)
    for placed in context.placed_roles:
        cut = vllm.describe_indivisible(placed.model, placed.role.split, whole_blocks=True)
        # Placement has refused all that vLLM 0.32.0 does not split, of a model whose numbers are known.
        if cut and placed.model.is_known:
            fix = "set expert: on, or use framework: plain"
            yield placed.refuse("accelerators", f"{cut}; Triton's vLLM needs whole ones", fix)


def adapt(context: Context, services: Sequence[Service]) -> Adapted:
    """Return Triton's frontends, and the router as it is, last."""
    *workers, router = services
    return Adapted([*(_adapt_worker(context, worker) for worker in workers), router], {})


def _adapt_worker(context: Context, worker: Service) -> Service:
    prefix, words = split_command(worker)
    options = engine_options.parse_command(context.blueprint.engine, words)
    name = str(options["served_model_name"][0])  # type: ignore[index]
    repository = f"{context.environment.data_folder}/triton"
    folder, template = f"{repository}/{name}", f"{repository}-chat-template.jinja"
    arguments = {key: value for key, value in options.items() if key not in OWN_OPTIONS}
    files = {
        f"{folder}/config.pbtxt": CONFIG,
        f"{folder}/{MODEL_VERSION}/model.json": json.dumps({"model": words[2], **arguments}, indent=1),
    }
    if "chat_template" in options:
        files[template] = str(options["chat_template"])
    command = (
        # On one line, as a task's command is.
        *("python3", "-c", f"exec({PROGRAM.read_text(encoding='utf-8')!r})", json.dumps(files)),
        *(FRONTEND, "--model-repository", repository, "--tokenizer", words[2]),
        *("--host", str(options["host"]), "--openai-port", str(options["port"])),
        # By default 16; the engine ends an answer at its context.
        *("--default-max-tokens", str(options["max_model_len"])),
        # Probes and Prometheus ask every few seconds.
        *("--uvicorn-log-level", "warning"),
        *(("--tool-call-parser", str(parser)) if (parser := options.get("tool_call_parser")) else ()),
        *(("--chat-template", template) if template in files else ()),
    )
    return worker.model_copy(update={"command": (*prefix, *command)})
