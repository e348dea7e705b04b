"""Several models that take turns in the replicas of one role: what is refused, and the one service that it comes to."""

from __future__ import annotations

from pathlib import Path

import pytest

from llm_serving.kinds.serving import adapter_loading, measurements, predicted_load, price, summary
from llm_serving.kinds.serving.blueprint import Blueprint
from llm_serving.kinds.serving.context import list_port_names
from llm_serving.kinds.serving.deployment import ServingDeployment
from llm_serving.kinds.serving.validation import validate
from llm_serving.services.service import Service
from llm_serving.settings.document import load
from llm_serving.settings.errors import InputError
from tests.kinds.serving import resolving

FLEET = """\
name: demo
region: us-east-2
zones: [us-east-2a, us-east-2b]
orchestrator: both
pools:
  gpus: {types: TYPES, size: 0..6, buy: on-demand, orchestrator: ORCHESTRATOR}
  cpus: {types: m8g.8xlarge, size: 0..6, buy: on-demand, orchestrator: ORCHESTRATOR}
"""

BLUEPRINT = """\
name: mine
pattern: multi-model
roles:
  models:
    chat: {model: Qwen/Qwen3-1.7B, pool: gpus, replicas: 2, environment: {NCCL_DEBUG: WARN}}
    code: {model: Qwen/Qwen3-4B, shares: chat, context: 8k, environment: {NCCL_DEBUG: INFO}}
    embed: {model: Qwen/Qwen3-0.6B, shares: chat}
traffic: {arrivals: 1/s, input_tokens: 1000, output_tokens: 200}
slo: {}
"""

APART = BLUEPRINT.replace("shares: chat", "pool: gpus, replicas: 2")


def resolve_text(
    folder: Path, text: str = BLUEPRINT, target: str = "eks", types: str = "g6e.2xlarge"
) -> ServingDeployment:
    fleet = FLEET.replace("ORCHESTRATOR", target if target != "local" else "eks").replace("TYPES", types)
    return resolving.resolve_files(folder, text, fleet, target)


def split_engines(service: Service) -> tuple[list[str], list[list[str]]]:
    """Return the program before the engines with its options, and the engines' commands."""
    groups: list[list[str]] = [[]]
    for word in service.command:
        if word == "--engine":
            groups.append([])
        else:
            groups[-1].append(word)
    return groups[0], groups[1:]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (("shares: chat}", "shares: chat, pool: gpus}"),
         '7:57: roles.models.embed.pool: "gpus": it runs in the replicas of chat, which says it. Fix: remove pool.'),
        (("shares: chat}", "shares: chat, replicas: 2}"),
         "7:61: roles.models.embed.replicas: 2: it runs in the replicas of chat, which says it. Fix: remove replicas."),
        (("shares: chat}", "shares: chat, scale: {queue: 4}}"),
         "7:58: roles.models.embed.scale: it runs in the replicas of chat, which says it. Fix: remove scale."),
        (("shares: chat}", "shares: chat, pipeline: 2}"),
         "7:61: roles.models.embed.pipeline: 2: it runs in the replicas of chat, which says it. Fix: remove pipeline."),
        (("shares: chat}", "shares: chat, switch: {waiting: 8}}"),
         "7:59: roles.models.embed.switch: it runs in the replicas of chat, which says it. Fix: remove switch."),
        ((", shares: chat}", "}"),
         "7:5: roles.models.embed.pool: required field is missing. Fix: set pool: NAME of the fleet, or shares: ROLE."),
        (("shares: chat}", "shares: chatt}"),
         '7:45: roles.models.embed.shares: "chatt": there is no such role of a model. Fix: name one of chat.'),
        (("shares: chat}", "shares: embed}"),
         '7:45: roles.models.embed.shares: "embed": it is the role itself. Fix: name one of chat.'),
        (("shares: chat}", "shares: code}"),
         '7:45: roles.models.embed.shares: "code": code itself shares the replicas of chat. Fix: name one of chat.'),
        (("shares: chat}", "shares: chat, max_requests: 8}"),
         "7:65: roles.models.embed.max_requests: 8: models take turns here, and each engine would count its own, without "
         "those that wait for it to wake. Fix: remove max_requests."),
        (("pool: gpus,", "pool: gpus, accelerators: 2, data: 2,"),
         "5:71: roles.models.chat.data: 2: models take turns here, and vLLM was not tried so with data-parallel "
         "ranks. Fix: remove data."),
        (("replicas: 2,", "replicas: 1..2, scale: {kv_usage: 80%},"),
         '5:82: roles.models.chat.scale.kv_usage: "80%": models take turns here, and the caches of those that sleep are empty, '
         "which makes the average low. Fix: set scale: {queue: 4}."),
        (("replicas: 2,", "replicas: 1..2, scale: {queue: 4, slo: on},"),
         '5:87: roles.models.chat.scale.slo: "on": models take turns here, and the wait for a model\'s turn, which '
         "latencies have then, is hardly shorter with more replicas. Fix: set scale: {queue: 4}."),
        (("shares: chat}", "pool: gpus, switch: {waiting: 8}}"),
         "7:57: roles.models.embed.switch: no other model shares its accelerators. Fix: remove switch, or set shares: embed "
         "for one."),
    ],
)  # fmt: skip
def test_what_no_group_of_models_can_be_is_refused_at_its_line(
    tmp_path: Path, change: tuple[str, str], expected: str
) -> None:
    assert change[0] in BLUEPRINT
    file = tmp_path / "blueprint.yaml"
    file.write_text(BLUEPRINT.replace(*change))
    with pytest.raises(InputError) as error:
        load(file, Blueprint)
    assert str(error.value) == f"{file}:{expected}"


@pytest.mark.parametrize(
    ("change", "target", "expected"),
    [
        (("pattern:", "engine: sglang\npattern:"), "eks", r"models\.code\.shares: \"chat\": "),
        (("pattern:", "framework: ray\npattern:"), "eks", "Ray starts engines itself"),
        (("pattern:", "framework: dynamo\npattern:"), "local", "Dynamo's workers run an engine each"),
        (("pattern:", "framework: triton\npattern:"), "eks", "Triton starts engines itself"),
        (("Qwen/Qwen3-0.6B", "Qwen/Qwen3-32B"), "eks", "it does not fit into 1 accelerator of the pool gpus"),
        (("", ""), "eks", ""),
    ],
)
def test_what_cannot_take_turns_is_refused(tmp_path: Path, change: tuple[str, str], target: str, expected: str) -> None:
    text = BLUEPRINT.replace(*change) if change[0] else BLUEPRINT
    if not expected:
        assert resolve_text(tmp_path, text, target)
        return
    with pytest.raises(InputError, match=expected):
        resolve_text(tmp_path, text, target)


def test_each_model_must_fit_into_all_types_of_the_replicas(tmp_path: Path) -> None:
    types = "[g6.8xlarge, g6e.4xlarge]"
    large = BLUEPRINT.replace("Qwen/Qwen3-0.6B", "Qwen/Qwen3-14B")
    assert resolve_text(tmp_path, types=types).engine_roles[0].instance_types == ("g6.8xlarge", "g6e.4xlarge")
    expected = 'shares: "chat": its replicas may run on g6.8xlarge, into which Qwen/Qwen3-14B does not fit'
    with pytest.raises(InputError, match=expected):
        resolve_text(tmp_path, large, types=types)


@pytest.mark.parametrize("target", ["eks", "ecs"])
def test_the_models_are_one_service_whose_replicas_start_all_engines(tmp_path: Path, target: str) -> None:
    deployment, apart = resolve_text(tmp_path, target=target), resolve_text(tmp_path, APART, target)
    assert [service.name for service in apart.workers] == ["chat", "code", "embed"]
    [service], [role] = deployment.workers, deployment.engine_roles
    assert (service.name, role.name, role.replicas.max) == ("chat", "chat", 2)
    assert deployment.model_names == apart.model_names == ("chat", "code", "embed")
    assert role.image.endswith("/vllm:0.32.0-efa.8")
    program, engines = split_engines(service)
    assert program == [
        "python3", "/opt/vllm/model_switch.py", "--listen", "0.0.0.0:8000", "--max-waiting", "256",
        "--max-bytes", "536870912", "--least-awake", "10", "--finish", "10",
    ]  # fmt: skip
    for command, alone in zip(engines, apart.workers, strict=True):
        start = command.index(alone.command[0])
        variables = dict(word.split("=", 1) for word in command[1:start])
        turns = command.index("--enable-sleep-mode")
        assert command[turns + 1 : turns + 3] == ["--sleep-mode-offload-cudagraph", "--gpu-memory-utilization"]
        words = (*command[start:turns], *command[turns + 4 :])
        # Queues of more engines leave less memory to weights on their way from S3.
        limits = [word for word in (*words, *alone.command) if "memory_limit" in word]
        assert [word for word in words if word not in limits] == [word for word in alone.command if word not in limits]
        own = {name: text.replace("/cache", f"/cache/{alone.name}") for name, text in alone.env.items()}
        assert command[0] == "env" and service.env | variables == own | {"DRAIN_S": "120"}
    assert "NCCL_DEBUG=INFO" in engines[1] and "NCCL_DEBUG" not in service.env, "chat's is not code's"
    probes = [alone.probe for alone in apart.workers if alone.probe]
    assert service.probe and service.probe.body == probes[0].body, "of the model that is awake first"
    assert service.probe.deadline_s == sum(probe.deadline_s for probe in probes)
    shared_memory = {"shared_memory_bytes": 3 * apart.workers[0].resources.shared_memory_bytes}
    assert service.resources == apart.workers[0].resources.model_copy(update=shared_memory), "its share of the node"


def test_the_program_before_the_engines_logs_as_they_do(tmp_path: Path) -> None:
    [service] = resolve_text(tmp_path, f"{BLUEPRINT}logs: json\n").workers
    program, engines = split_engines(service)
    assert program[program.index("--log") + 1] == "json"
    assert all("--logging-config" in command for command in engines)


def test_copied_weights_have_a_folder_each(tmp_path: Path) -> None:
    text = BLUEPRINT.replace("traffic:", "tuning: {stream_weights: off}\ntraffic:")
    [service] = resolve_text(tmp_path, text).workers
    assert service.prefetch and list(service.prefetch.uris) == ["weights-chat", "weights-code", "weights-embed"]
    folders = [command[command.index("serve") + 1] for command in split_engines(service)[1]]
    assert folders == [f"/scratch/fetched/{name}" for name in service.prefetch.uris]
    assert service.prefetch.disk_bytes > 2 * (2 + 4 + 0.6) * 1e9


def test_here_one_process_has_the_memory_of_all_and_a_probe_that_wakes_none(tmp_path: Path) -> None:
    deployment, apart = resolve_text(tmp_path, target="local"), resolve_text(tmp_path, APART, "local")
    assert [service.name for service in deployment.workers] == ["chat-0", "chat-1"]
    assert [service.name for service in apart.workers[:3]] == ["chat-0", "chat-1", "code-0"]
    assert any("all models of chat stay in memory" in note for note in deployment.notes)
    first, alone = deployment.workers[0], [apart.workers[number] for number in (0, 2, 4)]
    assert first.resources.memory_bytes == sum(service.resources.memory_bytes for service in alone) + 512 * 2**20
    assert first.probe and "model" not in first.probe.body
    router = deployment.entries[0]
    assert router.probe and (router.probe.path, router.probe.body) == ("/v1/models", {})
    [other] = [role.name for role in apart.engine_roles if role.name == "embed"]
    mixed = resolve_text(tmp_path, BLUEPRINT.replace("Qwen3-0.6B, shares: chat", "Qwen3-0.6B, pool: gpus"), "local")
    assert mixed.entries[0].probe and mixed.entries[0].probe.body["model"] == other, "it has its replicas alone"


def test_ports_are_claimed_and_accelerators_paid_once(tmp_path: Path) -> None:
    deployment, apart = resolve_text(tmp_path), resolve_text(tmp_path, APART)
    file = tmp_path / "blueprint.yaml"
    file.write_text(BLUEPRINT)
    names = list_port_names(load(file, Blueprint).value)
    assert "chat-1" in names and not [name for name in names if name.startswith(("code", "embed"))]
    costs = [price.price_deployment(each) for each in (deployment, apart)]
    assert costs[0] and costs[1] and costs[1][0] == pytest.approx(3 * costs[0][0])
    # Three roles of three replicas need nine nodes of a pool that has six.
    with pytest.raises(InputError, match="nodes of the pool gpus"):
        resolve_text(tmp_path, APART.replace("replicas: 2", "replicas: 3"))
    assert resolve_text(tmp_path, BLUEPRINT.replace("replicas: 2", "replicas: 3"))


def test_tables_name_the_models_and_nothing_is_predicted_or_loaded_at_run_time(tmp_path: Path) -> None:
    deployment = resolve_text(tmp_path)
    rows = summary.describe(load(tmp_path / "blueprint.yaml", Blueprint), deployment)
    assert dict(rows)["chat"].endswith("for chat, code and embed in turns")
    assert [label for label, _ in rows].count("model") == 3
    assert predicted_load.predict_requests_per_s(deployment) is None
    [remark] = validate.list_remarks(deployment)
    assert remark == (
        "chat, code and embed take turns on the same accelerators: latencies have the wait for a turn, the engine's too."
    )
    assert not list(validate.list_remarks(resolve_text(tmp_path, APART)))
    for role in ("chat", "code"):  # whose replicas it is, and which shares them
        with pytest.raises(InputError, match=f'ROLE: "{role}": its models take turns on the same accelerators'):
            adapter_loading.load(deployment, role, "tone", tmp_path)


def test_what_was_measured_with_other_turns_is_no_measurement_of_these(tmp_path: Path) -> None:
    def compute_key(switch: str = "") -> str:
        text = BLUEPRINT.replace("pool: gpus, ", f"pool: gpus, {switch}")
        return measurements.compute_key(resolve_text(tmp_path, text))

    key = compute_key()
    assert compute_key("switch: {least_awake: 10s, finish: 10s, waiting: 256}, ") == key, "the defaults, written"
    others = [compute_key(f"switch: {{{setting}}}, ") for setting in ("least_awake: 60s", "finish: 5s", "waiting: 8")]
    assert len({key, *others}) == 4
