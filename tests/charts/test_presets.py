"""Each preset: valid for Kubernetes, right for its machines, its memory and its engine."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import pytest

from llm_serving.catalog import engines, instances, models, routers
from llm_serving.catalog.instances import Instance
from llm_serving.engines import memory, vllm
from llm_serving.engines.memory import ReplicaSetup
from llm_serving.kinds.serving import answer_parsers, engine_process
from llm_serving.settings import own_yaml
from tests import engines_own
from tests.charts import objects
from tests.charts.conftest import CHART, EFA_IMAGE, PRESETS, ROUTER_OPTION, Helm, Render
from tests.engines_own import EngineProbe

NAMES = sorted(file.stem for file in PRESETS.glob("*.yaml"))
DEFAULTS = own_yaml.read(CHART / "values.yaml")["defaults"]
Preset = Callable[[str], dict[str, Any]]


class Engine(NamedTuple):
    """A role of a preset, as far as machines and memory matter."""

    name: str
    role: Mapping[str, Any]

    def read_flag(self, flag: str, default: int = 1) -> int:
        """A flag's value in the command line."""
        flag_values = [word.partition("=")[2] for word in self.role["command"] if word.startswith(f"--{flag}=")]
        return int(flag_values[0]) if flag_values else default

    def get_resource(self, name: str) -> Any:
        """A resource of a pod."""
        return {**DEFAULTS["engine"]["resources"], **self.role.get("resources", {})}[name]

    @property
    def accelerators(self) -> int:
        return int({"count": 1, **self.get_resource("accelerator")}["count"])

    @property
    def types(self) -> list[Instance]:
        return [instances.load()[name] for name in self.role["placement"]["instanceTypes"]]


def list_engines(values: Mapping[str, Any]) -> list[Engine]:
    return [Engine(name, role) for name, role in values["roles"].items() if role["kind"] == "engine"]


def list_cases() -> Iterator[Any]:
    """Every engine role of every preset."""
    for name in NAMES:
        values = own_yaml.read(PRESETS / f"{name}.yaml")
        for engine in list_engines(values):
            yield pytest.param(values, engine, id=f"{name}-{engine.name}")


each_engine = pytest.mark.parametrize(("values", "engine"), tuple(list_cases()))
each_preset = pytest.mark.parametrize("name", NAMES)


@each_preset
def test_helm_lint_passes(helm: Helm, name: str) -> None:
    file = str(PRESETS / f"{name}.yaml")
    run = helm("lint", str(CHART), "--strict", "-f", file, "--set", f"image={EFA_IMAGE}", *ROUTER_OPTION)
    assert run.returncode == 0, run.stdout + run.stderr


def test_their_objects_match_the_schemas_of_kubernetes_and_the_custom_kinds(
    render_chart: Render, preset: Preset, schema_location: str
) -> None:
    rendered = {name: render_chart(preset(name)) for name in NAMES}
    assert objects.validate_each(rendered, schema_location) == {name: [] for name in NAMES}


@each_engine
def test_its_engine_splits_the_model_over_the_requested_accelerators(values: Mapping[str, Any], engine: Engine) -> None:
    degrees = [engine.read_flag(f"{kind}-parallel-size") for kind in ("tensor", "pipeline", "data")]
    for row in engine.types:
        assert row.accelerators
        assert math.prod(degrees) == engine.accelerators * row.accelerators.ranks * engine.role.get("nodes", 1)


@each_engine
def test_a_read_of_weights_that_s3_refuses_is_sent_again(values: Mapping[str, Any], engine: Engine) -> None:
    streaming = engines.load_engines()["vllm"].streaming
    assert streaming
    name = "RUNAI_STREAMER_S3_TIMEOUT"
    is_streamed = f"--load-format={streaming.loader}" in engine.role["command"]
    assert engine.role.get("env", {}).get(name) == (streaming.environment[name] if is_streamed else None)


def compute_fit(values: Mapping[str, Any], engine: Engine, row: Instance) -> memory.Fit:
    tensor_parallel, pipeline = engine.read_flag("tensor-parallel-size"), engine.read_flag("pipeline-parallel-size")
    context = engine.read_flag("max-model-len")
    return vllm.compute_fit(
        models.find(values["model"]["name"]), row, ReplicaSetup(tensor_parallel, pipeline=pipeline, context=context)
    )


@each_engine
def test_weights_and_a_request_of_the_whole_context_fit_on_each_of_its_types(
    values: Mapping[str, Any], engine: Engine
) -> None:
    for row in engine.types:
        fit = compute_fit(values, engine, row)
        assert fit.fits, f"{row.name}: {fit.why}"


def test_a_model_with_too_little_parallelism_is_detected(preset: Preset) -> None:
    values = preset("qwen3-32b-g6e-12xlarge")
    engine = list_engines(values)[0]
    words = [word.replace("parallel-size=4", "parallel-size=1") for word in engine.role["command"]]
    changed_engine = Engine(engine.name, {**engine.role, "command": words})
    assert "more than the" in compute_fit(values, changed_engine, changed_engine.types[0]).why


# What the kubelet and the system keep for themselves, roughly: EKS reserves 11 MiB a pod and a few per cent.
_AVAILABLE_SHARE = 0.93


@each_engine
def test_a_machine_of_each_type_fits_as_many_pods_as_its_accelerators_allow(
    values: Mapping[str, Any], engine: Engine
) -> None:
    for row in engine.types:
        assert row.accelerators
        pods = row.accelerators.count // engine.accelerators
        assert pods >= 1, row.name
        assert pods * engine.get_resource("efa") <= row.efa_interfaces, row.name
        assert pods * float(engine.get_resource("cpu")) < row.vcpus, row.name
        assert pods * parse_gib(engine.get_resource("memory")) <= row.memory_mib / 1024 * _AVAILABLE_SHARE, row.name
        disk = parse_gib(engine.role.get("scratch", DEFAULTS["engine"]["scratch"]))
        assert pods * disk <= row.nvme_gb / 1.074 * _AVAILABLE_SHARE, row.name


@each_engine
def test_efa_is_requested_only_with_rdma_and_evenly_by_accelerator(values: Mapping[str, Any], engine: Engine) -> None:
    for row in engine.types:
        if engine.get_resource("efa"):
            assert row.gpudirect_rdma and row.accelerators, row.name
            assert engine.get_resource("efa") == row.efa_interfaces * engine.accelerators // row.accelerators.count, (
                row.name
            )


def parse_gib(text: str) -> float:
    return float(text.removesuffix("Gi")) if text.endswith("Gi") else float(text.removesuffix("Mi")) / 1024


@each_engine
def test_shared_memory_and_huge_pages_fit_the_node(values: Mapping[str, Any], engine: Engine) -> None:
    shared = parse_gib(engine.role.get("sharedMemory", DEFAULTS["engine"]["sharedMemory"]))
    assert shared < parse_gib(engine.get_resource("memory")) / 2
    assert bool(engine.get_resource("hugepages")) == bool(engine.get_resource("efa"))


@each_engine
def test_weights_stream_with_clients_and_memory_that_the_machine_has(values: Mapping[str, Any], engine: Engine) -> None:
    """Each accelerator has a reader, which the engine's processes of a pod share the memory of."""
    configs = [word.partition("=")[2] for word in engine.role["command"] if "loader-extra-config=" in word]
    assert bool(configs) == ("--load-format=runai_streamer" in engine.role["command"])
    shared = parse_gib(engine.role.get("sharedMemory", DEFAULTS["engine"]["sharedMemory"]))
    for config in map(json.loads, configs):
        assert config["concurrency"] == engine_process.compute_stream_clients(engine.types)
        assert config.get("distributed", False) == (engine.accelerators > 1)
        limit = config.get("memory_limit", engine_process.MAX_STREAM_BYTES)
        free = (parse_gib(engine.get_resource("memory")) - shared) * 2**30
        assert limit <= free * engine_process.STREAM_SHARE


@each_engine
def test_a_start_may_take_as_long_as_weights_from_a_hub_do(values: Mapping[str, Any], engine: Engine) -> None:
    probe = {**DEFAULTS["engine"]["probes"]["startup"], **engine.role.get("probes", {}).get("startup", {})}
    device = engine.types[0].accelerators
    assert device
    start_s = engines.load_engines()["vllm"].platforms[device.kind].start_s
    load_s = models.find(values["model"]["name"]).weight_bytes / engine_process.MIN_LOAD_BYTES_S
    assert probe["periodSeconds"] * probe["failureThreshold"] >= start_s + load_s


@each_engine
def test_answers_are_read_with_the_parsers_of_the_model(values: Mapping[str, Any], engine: Engine) -> None:
    """Without them vLLM refuses a request with tools, and thoughts are part of the answer."""
    model = models.find(values["model"]["name"])
    row, words = answer_parsers.find_row("vllm", model), engine.role["command"]
    tools = ("--enable-auto-tool-choice", *(f"--tool-call-parser={name}" for name in row.tools[:1]))
    thoughts = [f"--reasoning-parser={name}" for name in row.reasoning[:1]]
    config = [f"--hf-overrides={row.model_config_json}"] if row.model_config_json else []
    assert {*(tools if row.tools else ()), *thoughts, *config} <= {*words}
    is_own_image = "image" in values and values["image"]
    assert bool(row.tools and row.chat_template and not is_own_image) == any(
        "--chat-template=" in word for word in words
    )


@each_engine
def test_requests_in_flight_can_end_before_the_kill(values: Mapping[str, Any], engine: Engine) -> None:
    drain = {**DEFAULTS["engine"]["drain"], **engine.role.get("drain", {})}
    assert 0 < engine.read_flag("shutdown-timeout", 0) <= drain["graceSeconds"] - drain["preStopSeconds"]


@each_engine
def test_it_listens_on_the_chart_s_port(values: Mapping[str, Any], engine: Engine) -> None:
    assert engine.read_flag("port", 0) == engine.role.get("port", DEFAULTS["engine"]["port"])


def test_the_disaggregated_preset_fills_two_machines(preset: Preset) -> None:
    roles = {engine.name: engine for engine in list_engines(preset("qwen3-235b-a22b-p6-b300-disaggregated"))}
    shape = {name: (engine.role.get("replicas", 1), engine.accelerators) for name, engine in roles.items()}
    assert shape == {"prefill": (12, 1), "decode": (1, 4)}
    row = roles["decode"].types[0]
    assert row.accelerators
    assert sum(count * per_replica for count, per_replica in shape.values()) == 2 * row.accelerators.count
    assert 12 * roles["prefill"].get_resource("efa") + roles["decode"].get_resource("efa") == 2 * row.efa_interfaces


@each_preset
def test_the_routers_selectors_find_the_pods_that_listen(render_chart: Render, preset: Preset, name: str) -> None:
    templates = objects.list_pods(render_chart(preset(name)))
    for router in (template for template in templates if get_component(template) == "router"):
        container = router["spec"]["containers"][0]
        words = [resolve_word(word, container) for word in container["command"]]
        port = next(word for word in words if word.startswith("--service-discovery-port=")).partition("=")[2]
        for selector in find_selectors(words):
            matches = [template for template in templates if selector.items() <= template["metadata"]["labels"].items()]
            assert len(matches) == 1, selector
            assert matches[0]["spec"]["containers"][0]["ports"][0]["containerPort"] == int(port)


def get_component(template: Mapping[str, Any]) -> str:
    return str(template["metadata"]["labels"]["app.kubernetes.io/component"])


def resolve_word(word: str, container: Mapping[str, Any]) -> str:
    """The word as Kubernetes hands it to the process, as far as values are known before there is a pod."""
    variables = {variable["name"]: variable.get("value", f"<{variable['name']}>") for variable in container["env"]}
    variables |= {"LWS_WORKER_INDEX": "1", "LWS_LEADER_ADDRESS": "leader"}
    return re.sub(r"\$\((\w+)\)", lambda match: variables[match[1]], word)


def find_selectors(words: list[str]) -> list[dict[str, str]]:
    """Labels after each flag that ends in `selector`."""
    labels: list[dict[str, str]] = []
    in_selector = False
    for word in words:
        if word.startswith("--"):
            in_selector = word.endswith("selector")
            labels += [{}] if in_selector else []
        elif in_selector:
            key, _, value = word.partition("=")
            labels[-1][key] = value
    return labels


@each_preset
def test_every_name_in_a_command_is_one_that_its_container_has(render_chart: Render, preset: Preset, name: str) -> None:
    for container in (pod["spec"]["containers"][0] for pod in objects.list_pods(render_chart(preset(name)))):
        for word in container["command"]:
            resolve_word(word, container)


@pytest.mark.engine
def test_the_engine_parses_every_command_line_of_every_preset(
    render_chart: Render, preset: Preset, engine_probe: EngineProbe
) -> None:
    # The engine asks whether a template is there, which lies in its image.
    lines = [
        [re.sub("=/vllm-workspace/.*", f"={__file__}", word) for word in command]
        for command in list_commands("engine", render_chart, preset)
    ]
    answers = engine_probe("vllm", [words[2:] for words in lines] + [[*lines[0][2:], "--no-such-flag"]])
    assert answers == [{"result": 8000}] * len(lines) + [{"refused": 2}]


@pytest.mark.engine
def test_the_router_parses_every_command_line_of_every_preset(
    render_chart: Render, preset: Preset, engine_probe: EngineProbe
) -> None:
    lines = [words[5:] for words in list_commands("router", render_chart, preset)]
    answers = engine_probe("vllm-router", [*lines, [*lines[0], "--no-such-flag"]])
    assert answers == [{"result": 8001}] * len(lines) + [{"refused": 2}]


def test_clients_of_every_preset_reach_the_inference_api_alone(render_chart: Render, preset: Preset) -> None:
    for words in list_commands("router", render_chart, preset):
        front = ["router-front", "--listen=0.0.0.0:8000", "--router=127.0.0.1:8001", "--", "vllm-router"]
        assert words[:7] == [*front, "--host=127.0.0.1", "--port=8001"]


def list_commands(kind: str, render_chart: Render, preset: Preset) -> Iterator[list[str]]:
    """All command lines of engines or routers, as processes get them."""
    for name in NAMES:
        for container in (pod["spec"]["containers"][0] for pod in objects.list_pods(render_chart(preset(name)))):
            if container["name"] == kind:
                yield [resolve_word(word, container) for word in container["command"]]


@pytest.mark.engine
def test_scaling_and_alerts_use_metrics_of_the_engines_and_routers() -> None:
    packages = next((engines_own.find_executables().parent / "lib").glob("python3*/site-packages"))
    sources = [*(packages / "vllm/v1/metrics").rglob("*.py"), *(packages / "vllm/distributed").rglob("*.py")]
    engine = "".join(file.read_text() for file in sources)
    router = (packages / "vllm_router_rs.abi3.so").read_bytes()
    for name in engines.load_engines()["vllm"].metrics.values():
        # Prometheus' client puts _total behind a counter's name, and _count behind a histogram's.
        written = name.removesuffix("_count") if name.endswith("_count") else name.removesuffix("_total")
        assert f'"{written}"' in engine, name
    for names in routers.load_routers()["vllm-router"].metrics.values():
        assert all(name.encode() in router for text in names.values() for name in text.split("|")), names


def test_the_chart_s_metric_names_are_the_catalog_s() -> None:
    metrics = own_yaml.read(CHART / "values.yaml")["metrics"]
    vllm, router = engines.load_engines()["vllm"], routers.load_routers()["vllm-router"]
    assert metrics["engine"] == {name: vllm.metrics.get(name) for name in metrics["engine"]}
    for name, pattern in metrics["router"].items():
        # A router before prefill and decode has names of its own, and a release may be either.
        parts = [part for names in router.metrics.values() for part in names[name].split("|")]
        assert all(re.fullmatch(pattern, part) for part in parts)


def test_json_in_command_lines_is_json(preset: Preset) -> None:
    json_words = [
        json.loads(word.partition("=")[2])
        for name in NAMES
        for engine in list_engines(preset(name))
        for word in engine.role["command"]
        if "={" in word
    ]
    assert len(json_words) >= 5
