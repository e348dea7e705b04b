"""A replica of several ranks as real processes: what is split gives the same text, and each rank does its share."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path

import psutil
import pytest

from llm_serving.targets.deployment_plan import DeploymentPlan
from llm_serving.targets.local import supervisor
from tests import serving

pytestmark = pytest.mark.engine

ROOT = Path(__file__).resolve().parents[2]
StartBlueprint = Callable[[Path, Path], AbstractContextManager[DeploymentPlan]]


def _copy_pattern(root: Path, parallelism: str) -> Path:
    folder = root / "mine"
    shutil.copytree(ROOT / "blueprints" / "distributed", folder)
    file = folder / "blueprint.yaml"
    text = file.read_text()
    assert "accelerators: 2}" in text
    file.write_text(text.replace("accelerators: 2}", f"{parallelism}}}"))
    return folder


def test_two_data_parallel_ranks_each_answer_their_share(tmp_path: Path, start_blueprint: StartBlueprint) -> None:
    with start_blueprint(_copy_pattern(tmp_path, "accelerators: 2, data: 2"), tmp_path) as plan:
        (worker,) = plan.deployment.workers
        with ThreadPoolExecutor(8) as users:
            texts = list(users.map(lambda number: serving.complete(plan.deployment.url, prompt=f"{number}"), range(24)))
        shares = [serving.read_counter(worker, "vllm:request_success_total", engine=str(rank)) for rank in (0, 1)]
    assert all(texts)
    assert min(shares) > 0, shares
    assert sum(shares) >= len(texts)


@pytest.fixture(scope="module")
def tensor_parallel_plan(
    tmp_path_factory: pytest.TempPathFactory, start_blueprint: StartBlueprint
) -> Iterator[DeploymentPlan]:
    """The pattern as it is copied, up: each layer over two ranks."""
    root = tmp_path_factory.mktemp("tensor")
    with start_blueprint(_copy_pattern(root, "accelerators: 2"), root) as plan:
        yield plan


def test_two_tensor_parallel_ranks_give_the_text_of_one_process(
    tensor_parallel_plan: DeploymentPlan, running_plan: DeploymentPlan
) -> None:
    prompts = [f"{serving.PROMPT} {number}" for number in range(6)]
    # Halves are added up in another order, so that numbers of 16 bits may tip where two tokens are about as likely.
    split_texts, whole_texts = (
        [serving.complete(plan.deployment.url, prompt=prompt) for prompt in prompts]
        for plan in (tensor_parallel_plan, running_plan)
    )
    assert sum(text == other for text, other in zip(split_texts, whole_texts, strict=True)) >= 4
    assert len(set(whole_texts)) > 1, "the texts depend on their prompts"


def test_the_ranks_use_no_more_memory_than_the_resolver_assumes(tensor_parallel_plan: DeploymentPlan) -> None:
    supervisord = supervisor.find_running(tensor_parallel_plan.directory)
    assert supervisord is not None
    for process in tensor_parallel_plan.deployment.workers:
        family = psutil.Process(supervisord.read_state(process.name).pid).children(recursive=True)
        assert sum(child.memory_full_info().pss for child in family) < process.resources.memory_bytes
