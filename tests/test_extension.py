"""An engine, a framework, a family, a pattern, a kind, a stack and a target: one folder or one row each, in a copy."""

from __future__ import annotations

import filecmp
import json
import os
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from llm_serving.catalog import frameworks
from tests.charts.conftest import Helm, helm

__all__ = ["helm"]  # a fixture

ROOT = Path(__file__).parents[1]
EXTENSION = Path(__file__).with_name("extension")
"""A kind of work, with its pattern, image and stack, as somebody would add it."""

COPIED = ("blueprints", "charts", "images", "infra", "src", "fleet.yaml")

BLUEPRINT = """\
pattern: aggregated
model: tiny
roles: {worker: {pool: general}}
traffic: {users: 1, requests: 4, input_tokens: 8..16, output_tokens: 4}
slo: {errors: 0%}
"""

ENGINE = """\
source: this test
read_on: "2026-11-22"
memory: vllm
router: vllm-router
command: [parrot, --listen, "{host}:{port}", --model, "{weights}", --name, "{served_model}"]
image: example.com/parrot:1.0
platforms:
  cpu: {kv_block: 16, device: cpu}
  gpu: {kv_block: 16, device: cuda}
streaming: {loader: parrot, arguments: [--stream]}
health: /health
metrics_path: /metrics
"""

ARITHMETIC = '''\
"""The memory of the engine parrot: ten times a model's weights."""

from llm_serving.engines.memory import Batch, Fit, compute_rank_bytes

UTILIZATION = 0.5


def select_batch(device):
    return Batch(tokens=64, sequences=4)


def compute_cpu_cache_bytes(model, load):
    return load.sequences * load.context


def compute_fit(model, instance, setup):
    device = instance.accelerators
    batch = setup.batch or select_batch(device)
    share = setup.utilization or UTILIZATION
    budget = int((compute_rank_bytes(device) if device else instance.memory_mib * 2**20) * share)
    free = budget - 10 * model.weight_bytes
    return Fit(
        instance=instance.name, tensor_parallel=setup.tensor, fits=free > 0, budget_bytes=budget,
        why="" if free > 0 else f"parrot repeats its weights ten times, in {batch.tokens} tokens",
        weight_bytes=10 * model.weight_bytes, reserve_bytes=0, cache_bytes=free, cache_tokens=free,
        context=setup.context, calibrated=True,
    )


def count_running(model, cache_bytes, setup, tokens):
    return None


def describe_indivisible(model, split):
    return ""
'''

FRAMEWORK = """
flock:
  source: this test
  read_on: "2026-11-22"
  router: vllm-router
"""

FAMILY = """
zebra:
  source: this test
  tensors: [*ends, *norms, *heads, {name: stripes, in: layers, rows: stripes, columns: hidden}, *feed_forward]
"""

STACK = '''\
"""The stack `garden`: a bucket of its own, after storage."""

from infra.bindings import aws
from infra.stacks import base

NAME = "garden"
NEEDS = ("storage",)


def is_enabled(fleet):
    """Every fleet has it."""
    return True


def add(app, document):
    """Add the stack to the app."""
    stack = base.create_stack(app, NAME, document)
    aws.sqs_queue.SqsQueue(stack, "queue", name=f"{document.value.name}-garden", sqs_managed_sse_enabled=True)
'''

TARGET = '''\
"""The target `moon`: renders, and refuses to run anything."""

from llm_serving.settings.errors import Unavailable
from llm_serving.targets.base import Target
from llm_serving.services.environment import Conventions, Environment


class MoonTarget(Target):
    name = "moon"
    conventions = Conventions(title="the moon", url="http://{deployment}.moon:{port}")
    needs_aws = False

    def assume_environment(self, blueprint, fleet, *, cores):
        return Environment(target="moon", conventions=self.conventions, region=fleet.region, bucket="models")

    def resolve_environment(self, directory, blueprint, fleet, *, account, port):
        return self.assume_environment(blueprint, fleet, cores=0)

    def deploy(self, plan, confirm, *, force=False):
        raise Unavailable("the moon is out of reach")

    diff = read_status = read_starts = show_logs = open_validation = destroy = deploy


TARGET = MoonTarget()
'''


class Copy:
    """A copy of the repository, and the files that differ from the original."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def write(self, path: str, text: str) -> None:
        """Write a file of the copy."""
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def run(self, *command: str, cwd: Path, code: int = 0) -> str:
        """Run a command line of the copy's `blueprint`; returns what it prints."""
        return self._python("-c", "from llm_serving.cli.main import main; main()", *command, cwd=cwd, code=code)

    def run_python(self, text: str, cwd: Path) -> str:
        """Run Python of the copy; returns what it prints."""
        return self._python("-c", text, cwd=cwd, code=0)

    def synthesize(self, out: Path, cwd: Path | None = None) -> None:
        """Run the copy's CDKTF app for the fleet file in `cwd`, by default the repository's."""
        self._python("-m", "infra.main", cwd=cwd or self.root, code=0, CDKTF_OUTDIR=str(out))

    def _python(self, *words: str, cwd: Path, code: int, **variables: str) -> str:
        result = subprocess.run(
            [sys.executable, *words],
            cwd=cwd,
            env={
                **os.environ,
                **variables,
                "PYTHONPATH": f"{self.root / 'src'}{os.pathsep}{self.root}",
                "PYTHONDONTWRITEBYTECODE": "",
                "AWS_EC2_METADATA_DISABLED": "true",
                "COLUMNS": "200",
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=300,
            check=False,
        )
        assert result.returncode == code, result.stdout
        return result.stdout

    @property
    def touched(self) -> set[str]:
        """Files that the original does not have, or has with another content; a new folder counts as one."""
        return {_find_new_root(self.root, path) for path in self._list_changed()}

    def _list_changed(self) -> Iterator[Path]:
        for path in self.root.rglob("*"):
            relative = path.relative_to(self.root)
            original = ROOT / relative
            if (
                path.is_file()
                and path.suffix != ".pyc"
                and not (original.is_file() and filecmp.cmp(path, original, shallow=False))
            ):
                yield relative


def _find_new_root(root: Path, path: Path) -> str:
    """The topmost folder of `path` that the original lacks; the file itself where its folder is there."""
    new = [parent for parent in path.parents if not (ROOT / parent).exists()]
    assert root.is_dir()
    return str(new[-1] if new else path)


@pytest.fixture
def tree(tmp_path: Path) -> Copy:
    """A copy of what the command line needs of the repository."""
    root = tmp_path / "tree"
    root.mkdir()
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():  # with its byte code, which each of the many processes would compile anew
            # Python writes byte code under such a name, which other tests' processes may rename meanwhile.
            shutil.copytree(source, root / name, ignore=shutil.ignore_patterns("*.egg-info", "*.pyc.*"))
        else:
            shutil.copy(source, root / name)
    return Copy(root)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A working directory with a fleet file and a blueprint, outside of the copy."""
    working = tmp_path / "work"
    blueprint = working / "mine"
    shutil.copytree(ROOT / "blueprints" / "aggregated", blueprint)
    shutil.copy(ROOT / "fleet.yaml", working)
    (blueprint / "blueprint.yaml").write_text(BLUEPRINT)
    return working


def test_a_fresh_copy_has_no_changes(tree: Copy) -> None:
    assert tree.touched == set()


def test_one_file_adds_an_engine_to_the_repository(tree: Copy, folder: Path) -> None:
    tree.write("src/llm_serving/catalog/engines/parrot.yaml", ENGINE)
    (folder / "mine" / "blueprint.yaml").write_text(f"engine: parrot\n{BLUEPRINT}")
    tree.run("render", "mine", cwd=folder)
    rendered = (folder / "rendered" / "mine" / "local" / "local.conf").read_text()
    assert "parrot" in rendered
    assert "--model s3://" in " ".join(rendered.split())
    assert len(tree.touched) == 1


def test_one_file_and_one_module_add_an_engine_with_its_own_arithmetic(tree: Copy, folder: Path) -> None:
    tree.write("src/llm_serving/catalog/engines/parrot.yaml", ENGINE.replace("memory: vllm", "memory: parrot"))
    blueprint = f"engine: parrot\n{BLUEPRINT}"
    (folder / "mine" / "blueprint.yaml").write_text(blueprint)
    refusal = 'engine: "parrot" has no memory arithmetic: memory is "parrot" in catalog/engines/parrot.yaml.'
    assert refusal in tree.run("check", "mine", "--target", "eks", cwd=folder, code=2)
    tree.write("src/llm_serving/engines/parrot.py", ARITHMETIC)
    tree.run("render", "mine", "--target", "eks", cwd=folder)
    (folder / "mine" / "blueprint.yaml").write_text(blueprint.replace("tiny", "Qwen/Qwen3-8B"))
    refusal = tree.run("check", "mine", "--target", "eks", cwd=folder, code=2)
    assert "parrot repeats its weights ten times, in 64 tokens" in refusal
    assert tree.touched == {"src/llm_serving/catalog/engines/parrot.yaml", "src/llm_serving/engines/parrot.py"}


def test_one_row_adds_a_framework(tree: Copy, folder: Path, helm: Helm) -> None:
    file = "src/llm_serving/catalog/frameworks.yaml"
    tree.write(file, (tree.root / file).read_text() + FRAMEWORK)
    (folder / "mine" / "blueprint.yaml").write_text(f"framework: flock\n{BLUEPRINT}")
    tree.run("render", "mine", "--target", "eks", cwd=folder)
    rendered = folder / "rendered" / "mine" / "eks" / "eks.yaml"
    chart = str(tree.root / "charts/inference")
    result = helm("template", "mine", chart, "--namespace", "serving", "--values", str(rendered))
    assert result.returncode == 0, result.stderr
    assert "kind: Deployment" in result.stdout
    # Control: the chart refuses objects that it does not have.
    refused = helm("template", "mine", chart, "--values", str(rendered), "--set", "framework=flock")
    assert "at '/framework': value must be one of 'plain', 'ray'" in refused.stderr
    assert tree.touched == {file}


def test_the_chart_has_the_objects_of_every_framework() -> None:
    folders = {folder.name for folder in (ROOT / "charts/inference/templates").iterdir() if folder.is_dir()}
    assert {row.objects for row in frameworks.load_frameworks().values()} <= folders - {"tests"}


def test_one_row_adds_a_family_of_models(tree: Copy, folder: Path) -> None:
    file = "src/llm_serving/catalog/families.yaml"
    tree.write(file, (tree.root / file).read_text() + FAMILY)
    numbers = {
        "model_type": "zebra",
        "num_hidden_layers": 4,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_attention_heads": 2,
        "vocab_size": 1000,
        "max_position_embeddings": 512,
        "stripes": 7,
    }
    (folder / "config.json").write_text(json.dumps(numbers))
    fit = json.loads(tree.run("model", "fit", str(folder), "--type", "g6e.xlarge", "--json", cwd=folder))
    layer = 2 * 64 + 4 * 64 * 64 + 7 * 64 + 3 * 64 * 128
    assert fit["model"]["parameters"] == 2 * 1000 * 64 + 64 + 4 * layer
    assert tree.touched == {file}


def test_one_folder_adds_a_pattern(tree: Copy, folder: Path) -> None:
    shutil.copytree(tree.root / "blueprints/aggregated", tree.root / "blueprints/flat")
    tree.write("blueprints/flat/blueprint.yaml", BLUEPRINT.replace("aggregated", "flat"))
    assert "flat" in {pattern["name"] for pattern in json.loads(tree.run("list", "--json", cwd=folder))}
    tree.run("new", "yours", "--from", "flat", cwd=folder)
    assert "pattern: flat" in (folder / "yours" / "blueprint.yaml").read_text()
    tree.run("check", "yours", cwd=folder)
    assert tree.touched == {"blueprints/flat"}


@pytest.fixture
def diary(tree: Copy, tmp_path: Path) -> Path:
    """A working directory with a copy of the pattern of the kind `diary`, which the copy of the repository has."""
    shutil.copytree(EXTENSION / "kinds" / "diary", tree.root / "src/llm_serving/kinds/diary")
    shutil.copytree(EXTENSION / "patterns" / "diary", tree.root / "blueprints/diary")
    shutil.copytree(EXTENSION / "images" / "diary", tree.root / "images/diary")
    shutil.copy(EXTENSION / "stacks" / "diary.py", tree.root / "infra/stacks")
    working = tmp_path / "diaries"
    working.mkdir()
    shutil.copy(ROOT / "fleet.yaml", working)
    tree.run("new", "mine", "--from", "diary", cwd=working)
    return working


DIARY_FILES = {"src/llm_serving/kinds/diary", "blueprints/diary", "images/diary", "infra/stacks/diary.py"}


def test_one_package_adds_a_kind_of_work(tree: Copy, diary: Path) -> None:
    assert "good-morning" in tree.run("check", "mine", cwd=diary)
    tree.run("render", "mine", cwd=diary)
    rendered = (diary / "rendered" / "mine" / "local" / "local.conf").read_text()
    assert all(f"[program:{name}]" in rendered for name in ("aws", "shelf", "writer", "reader"))
    assert "`blueprint sweep` does not work with this kind" in tree.run("sweep", "mine", cwd=diary, code=2)
    assert tree.touched == DIARY_FILES


def test_networks_costs_and_registries_ask_an_added_kind(tree: Copy, diary: Path) -> None:
    fleet = json.loads(tree.run("fleet", "show", "--json", cwd=diary))
    assert "kms-key for diary" in json.dumps(fleet)
    tree.synthesize(diary / "cdktf.out")
    network = (diary / "cdktf.out/stacks/network/cdk.tf.json").read_text()
    assert ".kinesis-streams" in network
    storage = json.loads((diary / "cdktf.out/stacks/storage/cdk.tf.json").read_text())
    assert "diary" in json.dumps(storage["resource"]["aws_ecr_repository"])
    asked = tree.run_python(
        "from pathlib import Path; from llm_serving.fleet.loading import load_fleet; from llm_serving.aws.preflight import permissions; "
        "print(permissions.list_actions_by_kind(load_fleet(Path('fleet.yaml')).value)['diary'])",
        cwd=diary,
    )
    assert "kinesis:CreateStream" in asked


def test_an_added_kind_is_a_stack_with_its_services_on_ecs(tree: Copy, diary: Path) -> None:
    (diary / "fleet.yaml").write_text((ROOT / "infra/fleets/one-gpu.yaml").read_text())
    tree.run("render", "mine", "--target", "ecs", cwd=diary)
    tree.synthesize(diary / "cdktf.out", cwd=diary)  # which holds the stacks against infra.stack_rules
    stack = json.loads((diary / "cdktf.out/stacks/diary-mine/cdk.tf.json").read_text())
    assert stack["//"]["needs"] == ["ecs", "storage"]
    assert len(stack["resource"]["aws_ecs_service"]) == 2
    assert len(stack["resource"]["aws_sqs_queue"]) == 1
    assert "sqs:SendMessage" in json.dumps(stack)
    assert tree.touched == DIARY_FILES


def test_an_added_kind_is_a_stack_and_a_release_on_eks(tree: Copy, diary: Path, helm: Helm) -> None:
    tree.run("render", "mine", "--target", "eks", cwd=diary)
    tree.synthesize(diary / "cdktf.out", cwd=diary)
    stack = json.loads((diary / "cdktf.out/stacks/diary-mine/cdk.tf.json").read_text())
    assert len(stack["resource"]["aws_eks_pod_identity_association"]) == 2
    values = diary / "rendered/mine/eks/eks.yaml"
    run = helm("template", "mine", str(tree.root / "charts/batch"), "--namespace", "serving", "--values", str(values))
    assert run.returncode == 0, run.stderr
    objects = [row for row in yaml.safe_load_all(run.stdout) if row]
    deployments = {row["metadata"]["name"] for row in objects if row["kind"] == "Deployment"}
    assert deployments == {"mine-writer", "mine-reader"}


@pytest.mark.terraform
@pytest.mark.timeout(900)
def test_an_added_kind_is_deployed_validated_and_destroyed(tree: Copy, diary: Path) -> None:
    try:
        deployed = tree.run("deploy", "mine", "--yes", cwd=diary)
        assert "Set up shelf" in deployed
        assert "mine is up" in deployed
        status = json.loads(tree.run("status", "mine", "--json", cwd=diary))
        assert {process["name"]: process["state"] for process in status["processes"]} == {
            "aws": "ready",
            "shelf": "ready",
            "writer": "ready",
            "reader": "ready",
        }
        assert tree.run("logs", "mine", "writer", cwd=diary) == "good-morning\n"
        ports = json.loads((diary / ".blueprint/mine/ports.json").read_text())
        with urllib.request.urlopen(f"http://127.0.0.1:{ports['shelf']}/words.txt", timeout=60) as response:
            assert response.read() == b"good-morning\n"
        assert "read good-morning" in tree.run("validate", "mine", cwd=diary)
    finally:
        tree.run("destroy", "mine", "--yes", cwd=diary)
    assert not (diary / ".blueprint" / "mine").exists()
    with pytest.raises(OSError):
        urllib.request.urlopen(f"http://127.0.0.1:{ports['shelf']}/words.txt", timeout=60)


def test_an_unknown_workload_kind_is_refused_with_the_known_ones(tree: Copy, folder: Path) -> None:
    (folder / "mine" / "blueprint.yaml").write_text("kind: diary\nwords: good-morning\n")
    refusal = tree.run("check", "mine", cwd=folder, code=2)
    assert "mine/blueprint.yaml:1:" in refusal
    assert "there is no such kind. Fix: write serving" in refusal


def test_one_module_adds_a_stack(tree: Copy, tmp_path: Path) -> None:
    tree.write("infra/stacks/garden.py", STACK)
    out = tmp_path / "cdktf.out"
    tree.synthesize(out)
    stack = json.loads((out / "stacks" / "garden" / "cdk.tf.json").read_text())
    assert set(stack["resource"]) == {"aws_sqs_queue"}
    assert stack["//"]["needs"] == ["storage"]
    assert tree.touched == {"infra/stacks/garden.py"}


def test_one_package_adds_a_target(tree: Copy, folder: Path) -> None:
    tree.write("src/llm_serving/targets/moon/__init__.py", "")
    tree.write("src/llm_serving/targets/moon/target.py", TARGET)
    (folder / "mine" / "moon.txt.j2").write_text("{{ deployment.name }} at {{ deployment.url }}\n")
    tree.run("render", "mine", "--target", "moon", cwd=folder)
    assert (folder / "rendered" / "mine" / "moon" / "moon.txt").read_text() == "mine at http://mine.moon:8080\n"
    assert "the moon is out of reach" in tree.run("deploy", "mine", "--target", "moon", "--yes", cwd=folder, code=3)
    assert tree.touched == {"src/llm_serving/targets/moon"}
