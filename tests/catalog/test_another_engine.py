"""Another engine is one file of the catalog; what its row lacks is refused where a blueprint needs it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import ValidationError

from llm_serving.catalog import engines, frameworks, routers
from llm_serving.engines import base, llama_cpp, vllm
from llm_serving.kinds.serving.blueprint import Blueprint
from llm_serving.settings import schema
from llm_serving.settings.errors import InputError
from tests.kinds.serving import resolving

SLIM = """\
source: a test
read_on: "2026-11-22"
memory: vllm
router: vllm-router
command: [slim, "{weights}", --name, "{served_model}", --port, "{port}"]
image: example/slim:1.0
options:
  tensor: {arguments: [--split, "{tensor}"]}
platforms:
  gpu: {kv_block: 16, device: cuda}
health: /health
metrics_path: /metrics
"""
FLEET = """\
name: demo
region: us-west-2
zones: [us-west-2a]
pools:
  gpus: {types: p5en.48xlarge, size: 0..8, efa: on}
  trainium: {types: trn2.48xlarge, size: 0..8}
"""


@pytest.fixture(autouse=True)
def slim_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A copy of the engines' folder with the smallest row that works."""
    folder = tmp_path / "engines"
    shutil.copytree(engines.FOLDER, folder)
    (folder / "slim.yaml").write_text(SLIM)
    monkeypatch.setattr(engines, "FOLDER", folder)
    for read in (engines.load_engines, frameworks.get_engine):
        read.cache_clear()
    yield
    for read in (engines.load_engines, frameworks.get_engine):
        read.cache_clear()


def _format_blueprint(roles: str = "worker: {pool: gpus}", extra: str = "", pattern: str = "aggregated") -> str:
    return (
        f"pattern: {pattern}\nengine: slim\nname: mine\nmodel: Qwen/Qwen3-0.6B\nroles:\n  {roles}\n"
        f"traffic: {{users: 2}}\nslo: {{}}\n{extra}"
    )


def test_one_file_adds_an_engine(tmp_path: Path) -> None:
    deployment = resolving.resolve_files(
        tmp_path, _format_blueprint("worker: {pool: gpus, accelerators: 2}"), FLEET, "eks"
    )
    role = deployment.roles[0]
    assert (deployment.engine, role.image) == ("slim", "example/slim:1.0")
    [worker] = deployment.workers
    assert worker.command == (
        "slim", "/scratch/fetched/weights", "--name", "Qwen/Qwen3-0.6B", "--port", "8000", "--split", "2",
    )  # fmt: skip
    assert worker.prefetch and "weights" in worker.prefetch.uris, "it streams none, so they are copied before it starts"
    assert '"slim"' in schema.render(Blueprint, "blueprint.yaml")


def test_its_row_names_the_arithmetic_of_its_memory() -> None:
    assert base.get_memory_model("slim") is vllm  # type: ignore[comparison-overlap]
    assert base.get_memory_model("llama.cpp") is llama_cpp  # type: ignore[comparison-overlap]


def test_a_row_without_arithmetic_is_refused_and_no_other_takes_its_place() -> None:
    (engines.FOLDER / "slim.yaml").write_text(SLIM.replace("memory: vllm\n", ""))
    engines.load_engines.cache_clear()
    with pytest.raises(ValidationError, match=r"memory\n  Field required"):
        engines.load_engines()


def test_arithmetic_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    (engines.FOLDER / "slim.yaml").write_text(SLIM.replace("memory: vllm", "memory: slim"))
    engines.load_engines.cache_clear()
    with pytest.raises(InputError) as error:
        resolving.resolve_files(tmp_path, _format_blueprint(), FLEET, "eks")
    assert str(error.value) == (
        'engine: "slim" has no memory arithmetic: memory is "slim" in catalog/engines/slim.yaml. '
        "Fix: write engines/slim.py, or name a module of engines/ that computes as this engine does."
    )


def test_the_router_is_the_engines_own_unless_the_framework_brings_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = routers.ROUTERS_FILE.read_text()
    own = "own-router: {source: a test, read_on: '2026-11-22', image: example/own:1.0, command: [own], base_bytes: 1, "
    own += "discovery: {labels: {aggregated: {}}}, policies: {load-aware: own}, cache_aware_share: 0.3}\n"
    herd = "herd: {source: a test, read_on: '2026-11-22', router: vllm-router}\n"
    (tmp_path / "routers.yaml").write_text(rows + own)
    (tmp_path / "frameworks.yaml").write_text(frameworks.FRAMEWORKS_FILE.read_text() + herd)
    monkeypatch.setattr(routers, "ROUTERS_FILE", tmp_path / "routers.yaml")
    monkeypatch.setattr(frameworks, "FRAMEWORKS_FILE", tmp_path / "frameworks.yaml")
    (engines.FOLDER / "slim.yaml").write_text(SLIM.replace("router: vllm-router", "router: own-router"))
    loaders = (engines.load_engines, routers.load_routers, frameworks.load_frameworks, frameworks.get_engine)
    try:
        for load in loaders:
            load.cache_clear()
        assert frameworks.get_router("slim", "plain").image == "example/own:1.0"
        assert frameworks.get_router("vllm", "plain").image == frameworks.get_router("slim", "herd").image
        blueprint = _format_blueprint(extra="").replace("roles:", "roles:\n  router: {policy: load-aware}")
        deployment = resolving.resolve_files(tmp_path, blueprint, FLEET, "eks")
        assert deployment.entries[0].command == ("own",)
    finally:
        monkeypatch.undo()
        for load in loaders:
            load.cache_clear()


def test_an_unknown_engine_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(InputError) as error:
        resolving.resolve_files(tmp_path, _format_blueprint().replace("slim", "slum"), FLEET, "eks")
    assert str(error.value).endswith(
        "not one of the choices. Fix: use slim; the choices are 'diffusion', 'llama.cpp', 'sglang', 'slim', 'tensorrt-llm' or 'vllm'."
    )


@pytest.mark.parametrize(
    ("text", "target", "message"),
    [
        (
            _format_blueprint(),
            "local",
            '2:9: engine: "slim": the engine does not run on CPU, and the target local has no accelerators. '
            "Fix: use a target with accelerators: --target TARGET.",
        ),
        (
            _format_blueprint("worker: {pool: trainium, accelerators: 8}"),
            "eks",
            '6:18: roles.worker.pool: "trainium": trn2.48xlarge has Trainium2, on which the engine slim does not run. '
            "Fix: use a pool of types with gpu, or another engine.",
        ),
        (
            _format_blueprint("prefill: {pool: gpus}\n  decode: {pool: gpus}", pattern="disaggregated"),
            "eks",
            '1:10: pattern: "disaggregated": the engine slim has no option for it in the catalog. '
            "Fix: set pattern: aggregated, or choose pools of GPUs.",
        ),
        (
            _format_blueprint("worker: {pool: gpus, accelerators: 16, pipeline: 2}", pattern="distributed"),
            "eks",
            "6:52: roles.worker.pipeline: 2: the engine slim has no option for it in the catalog. Fix: set pipeline: 1.",
        ),
        (
            _format_blueprint(extra="tuning: {kv_cache: fp8}\n"),
            "eks",
            '9:20: tuning.kv_cache: "fp8": the engine slim has no option for it in the catalog. Fix: set kv_cache: auto.',
        ),
    ],
)
def test_an_option_missing_from_its_row_is_refused_at_its_line(
    tmp_path: Path, text: str, target: str, message: str
) -> None:
    with pytest.raises(InputError) as error:
        resolving.resolve_files(tmp_path, text, FLEET, target)
    assert f"{tmp_path}/blueprint.yaml:{message}" in str(error.value)
