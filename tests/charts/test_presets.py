"""Each preset: valid for Kubernetes, right for its machines, its memory and its engine."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import pytest
import yaml

from llm_serving.catalog import instances, models
from llm_serving.catalog.instances import Instance
from llm_serving.engines import memory
from llm_serving.targets.local import engine_env
from tests.charts import objects
from tests.charts.conftest import CHART, EFA_IMAGE, PRESETS, Helm, Render
from tests.engines_own import Asked

NAMES = sorted(file.stem for file in PRESETS.glob("*.yaml"))
DEFAULTS = yaml.safe_load((CHART / "values.yaml").read_text())["defaults"]
Preset = Callable[[str], dict[str, Any]]


class Engine(NamedTuple):
    """A role of a preset, as far as machines and memory matter."""

    name: str
    role: Mapping[str, Any]

    def number(self, flag: str, default: int = 1) -> int:
        """A flag's value in the command line."""
        found = [word.partition("=")[2] for word in self.role["command"] if word.startswith(f"--{flag}=")]
        return int(found[0]) if found else default

    def wanted(self, name: str) -> Any:
        """A resource of a pod."""
        return {**DEFAULTS["engine"]["resources"], **self.role.get("resources", {})}[name]

    @property
    def accelerators(self) -> int:
        return int({"count": 1, **self.wanted("accelerator")}["count"])

    @property
    def types(self) -> list[Instance]:
        return [instances.load()[name] for name in self.role["placement"]["instanceTypes"]]


def engines(values: Mapping[str, Any]) -> list[Engine]:
    return [Engine(name, role) for name, role in values["roles"].items() if role["kind"] == "engine"]


def of_each() -> Iterator[Any]:
    """Every engine role of every preset."""
    for name in NAMES:
        values = yaml.safe_load((PRESETS / f"{name}.yaml").read_text())
        for engine in engines(values):
            yield pytest.param(values, engine, id=f"{name}-{engine.name}")


each_engine = pytest.mark.parametrize(("values", "engine"), tuple(of_each()))
each_preset = pytest.mark.parametrize("name", NAMES)


@each_preset
def test_helm_finds_nothing_against_it(helm: Helm, name: str) -> None:
    run = helm("lint", str(CHART), "--strict", "-f", str(PRESETS / f"{name}.yaml"), "--set", f"image={EFA_IMAGE}")
    assert run.returncode == 0, run.stdout + run.stderr


@each_preset
def test_kubernetes_own_schemas_and_those_of_the_custom_kinds_take_its_objects(
    rendered: Render, preset: Preset, location: str, name: str
) -> None:
    assert objects.mistakes(yaml.safe_dump_all(rendered(preset(name))), location) == []


@each_engine
def test_its_engine_splits_the_model_over_the_accelerators_it_asks_for(
    values: Mapping[str, Any], engine: Engine
) -> None:
    ways = [engine.number(f"{what}-parallel-size") for what in ("tensor", "pipeline", "data")]
    for row in engine.types:
        assert row.accelerators
        assert math.prod(ways) == engine.accelerators * row.accelerators.ranks * engine.role.get("nodes", 1)


def fits(values: Mapping[str, Any], engine: Engine, row: Instance) -> memory.Fit:
    tensor, pipeline = engine.number("tensor-parallel-size"), engine.number("pipeline-parallel-size")
    context = engine.number("max-model-len")
    return memory.fit(models.find(values["model"]["name"]), row, tensor, pipeline=pipeline, context=context)


@each_engine
def test_weights_and_a_request_of_the_whole_context_fit_on_each_of_its_types(
    values: Mapping[str, Any], engine: Engine
) -> None:
    for row in engine.types:
        fit = fits(values, engine, row)
        assert fit.fits, f"{row.name}: {fit.why}"


def test_a_model_split_too_few_ways_would_be_noticed(preset: Preset) -> None:
    values = preset("qwen3-32b-g6e-12xlarge")
    engine = engines(values)[0]
    words = [word.replace("parallel-size=4", "parallel-size=1") for word in engine.role["command"]]
    alone = Engine(engine.name, {**engine.role, "command": words})
    assert "more than the" in fits(values, alone, alone.types[0]).why


# What the kubelet and the system keep for themselves, roughly: EKS reserves 11 MiB a pod and a few per cent.
_OURS = 0.93


@each_engine
def test_a_machine_of_each_type_holds_as_many_pods_as_its_accelerators_allow(
    values: Mapping[str, Any], engine: Engine
) -> None:
    for row in engine.types:
        assert row.accelerators
        pods = row.accelerators.count // engine.accelerators
        assert pods >= 1, row.name
        assert pods * engine.wanted("efa") <= row.efa_interfaces, row.name
        assert pods * float(engine.wanted("cpu")) < row.vcpus, row.name
        assert pods * gib(engine.wanted("memory")) <= row.memory_mib / 1024 * _OURS, row.name
        disk = gib(engine.role.get("scratch", DEFAULTS["engine"]["scratch"]))
        assert pods * disk <= row.nvme_gb / 1.074 * _OURS, row.name


@each_engine
def test_efa_is_asked_for_only_with_rdma_and_evenly_by_accelerator(values: Mapping[str, Any], engine: Engine) -> None:
    for row in engine.types:
        if engine.wanted("efa"):
            assert row.gpudirect_rdma and row.accelerators, row.name
            assert engine.wanted("efa") == row.efa_interfaces * engine.accelerators // row.accelerators.count, row.name


def gib(text: str) -> float:
    return float(text.removesuffix("Gi")) if text.endswith("Gi") else float(text.removesuffix("Mi")) / 1024


@each_engine
def test_shared_memory_and_huge_pages_stay_within_reason(values: Mapping[str, Any], engine: Engine) -> None:
    shared = gib(engine.role.get("sharedMemory", DEFAULTS["engine"]["sharedMemory"]))
    assert shared < gib(engine.wanted("memory")) / 2
    assert bool(engine.wanted("hugepages")) == bool(engine.wanted("efa"))


@each_engine
def test_requests_under_way_may_end_before_the_kill(values: Mapping[str, Any], engine: Engine) -> None:
    drain = {**DEFAULTS["engine"]["drain"], **engine.role.get("drain", {})}
    assert 0 < engine.number("shutdown-timeout", 0) <= drain["graceSeconds"] - drain["preStopSeconds"]


@each_engine
def test_it_listens_where_the_chart_looks(values: Mapping[str, Any], engine: Engine) -> None:
    assert engine.number("port", 0) == engine.role.get("port", DEFAULTS["engine"]["port"])


def test_the_disaggregated_one_fills_two_machines(preset: Preset) -> None:
    roles = {engine.name: engine for engine in engines(preset("qwen3-235b-a22b-p6-b300-disaggregated"))}
    shape = {name: (engine.role.get("replicas", 1), engine.accelerators) for name, engine in roles.items()}
    assert shape == {"prefill": (12, 1), "decode": (1, 4)}
    row = roles["decode"].types[0]
    assert row.accelerators
    assert sum(count * each for count, each in shape.values()) == 2 * row.accelerators.count
    assert 12 * roles["prefill"].wanted("efa") + roles["decode"].wanted("efa") == 2 * row.efa_interfaces


@each_preset
def test_the_routers_selectors_find_the_pods_that_listen(rendered: Render, preset: Preset, name: str) -> None:
    templates = objects.pods(rendered(preset(name)))
    for router in (one for one in templates if component(one) == "router"):
        container = router["spec"]["containers"][0]
        words = [resolved(word, container) for word in container["command"]]
        port = next(word for word in words if word.startswith("--service-discovery-port=")).partition("=")[2]
        for selector in selectors(words):
            found = [one for one in templates if selector.items() <= one["metadata"]["labels"].items()]
            assert len(found) == 1, selector
            assert found[0]["spec"]["containers"][0]["ports"][0]["containerPort"] == int(port)


def component(template: Mapping[str, Any]) -> str:
    return str(template["metadata"]["labels"]["app.kubernetes.io/component"])


def resolved(word: str, container: Mapping[str, Any]) -> str:
    """The word as Kubernetes hands it to the process, as far as values are known before there is a pod."""
    known = {one["name"]: one.get("value", f"<{one['name']}>") for one in container["env"]}
    known |= {"LWS_WORKER_INDEX": "1", "LWS_LEADER_ADDRESS": "leader"}
    return re.sub(r"\$\((\w+)\)", lambda found: known[found[1]], word)


def selectors(words: list[str]) -> list[dict[str, str]]:
    """Labels after each flag that ends in `selector`."""
    found: list[dict[str, str]] = []
    inside = False
    for word in words:
        if word.startswith("--"):
            inside = word.endswith("selector")
            found += [{}] if inside else []
        elif inside:
            key, _, value = word.partition("=")
            found[-1][key] = value
    return found


@each_preset
def test_every_name_in_a_command_is_one_that_its_container_has(rendered: Render, preset: Preset, name: str) -> None:
    for container in (pod["spec"]["containers"][0] for pod in objects.pods(rendered(preset(name)))):
        for word in container["command"]:
            resolved(word, container)


@pytest.mark.engine
def test_the_engines_own_parser_takes_every_command_line_of_every_preset(
    rendered: Render, preset: Preset, asked: Asked
) -> None:
    lines = list(commands("engine", rendered, preset))
    said = asked("vllm", [words[2:] for words in lines] + [[*lines[0][2:], "--no-such-flag"]])
    assert said == [{"said": 8000}] * len(lines) + [{"refused": 2}]


@pytest.mark.engine
def test_the_routers_own_parser_takes_every_command_line_of_every_preset(
    rendered: Render, preset: Preset, asked: Asked
) -> None:
    lines = list(commands("router", rendered, preset))
    said = asked("vllm-router", [words[1:] for words in lines] + [[*lines[0][1:], "--no-such-flag"]])
    assert said == [{"said": 8000}] * len(lines) + [{"refused": 2}]


def commands(kind: str, rendered: Render, preset: Preset) -> Iterator[list[str]]:
    """All command lines of engines or routers, as processes get them."""
    for name in NAMES:
        for container in (pod["spec"]["containers"][0] for pod in objects.pods(rendered(preset(name)))):
            if container["name"] == kind:
                yield [resolved(word, container) for word in container["command"]]


@pytest.mark.engine
def test_the_metrics_that_are_scaled_and_alerted_by_are_the_engines_and_the_routers_own() -> None:
    packages = next((engine_env.executables().parent / "lib").glob("python3*/site-packages"))
    sources = [*(packages / "vllm/v1/metrics").rglob("*.py"), *(packages / "vllm/distributed").rglob("*.py")]
    engine = "".join(file.read_text() for file in sources)
    router = (packages / "vllm_router_rs.abi3.so").read_bytes()
    rows = yaml.safe_load((CHART / "files" / "engines.yaml").read_text())
    for name in rows["vllm"].values():
        # Prometheus' client puts _total behind a counter's name.
        assert f'"{name.removesuffix("_total")}"' in engine, name
    for name in rows["vllm-router"].values():
        # A router that knows prefill from decode has names of its own: either is what the expression finds.
        assert len(set(re.findall(name.encode(), router))) == 2, name


def test_json_in_command_lines_is_json(preset: Preset) -> None:
    found = [
        json.loads(word.partition("=")[2])
        for name in NAMES
        for engine in engines(preset(name))
        for word in engine.role["command"]
        if "={" in word
    ]
    assert len(found) >= 5
