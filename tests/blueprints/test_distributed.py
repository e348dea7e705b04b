"""A replica of several ranks as real processes: what is split gives the same text, and each rank does its share."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path

import psutil
import pytest

from llm_serving.targets.local import supervisor
from llm_serving.targets.local.deploy import Plan
from tests import serving

pytestmark = pytest.mark.engine

ROOT = Path(__file__).resolve().parents[2]
BringUp = Callable[[Path, Path], AbstractContextManager[Plan]]


def _pattern(root: Path, split: str) -> Path:
    folder = root / "mine"
    shutil.copytree(ROOT / "blueprints" / "distributed", folder)
    file = folder / "blueprint.yaml"
    text = file.read_text()
    assert "accelerators: 2}" in text
    file.write_text(text.replace("accelerators: 2}", f"{split}}}"))
    return folder


def test_two_data_parallel_ranks_each_answer_their_share(tmp_path: Path, brought_up: BringUp) -> None:
    with brought_up(_pattern(tmp_path, "accelerators: 2, data: 2"), tmp_path) as plan:
        (worker,) = plan.deployment.replicas
        with ThreadPoolExecutor(8) as users:
            said = list(users.map(lambda number: serving.text(plan.deployment.url, prompt=f"{number}"), range(24)))
        shares = [serving.counter(worker, "vllm:request_success_total", engine=str(rank)) for rank in (0, 1)]
    assert all(said)
    assert min(shares) > 0, shares
    assert sum(shares) >= len(said)


@pytest.fixture(scope="module")
def tensor(tmp_path_factory: pytest.TempPathFactory, brought_up: BringUp) -> Iterator[Plan]:
    """The pattern as it is copied, up: each layer over two ranks."""
    root = tmp_path_factory.mktemp("tensor")
    with brought_up(_pattern(root, "accelerators: 2"), root) as plan:
        yield plan


def test_two_ranks_that_each_hold_half_of_every_layer_say_what_one_process_says(tensor: Plan, served: Plan) -> None:
    prompts = [f"{serving.PROMPT} {number}" for number in range(6)]
    # Halves are added up in another order, so that numbers of 16 bits may tip where two tokens are about as likely.
    split, whole = ([serving.text(up.deployment.url, prompt=prompt) for prompt in prompts] for up in (tensor, served))
    assert sum(one == other for one, other in zip(split, whole, strict=True)) >= 4
    assert len(set(whole)) > 1, "the texts depend on their prompts"


def test_the_ranks_take_no_more_memory_than_the_resolver_counts_on(tensor: Plan) -> None:
    up = supervisor.running(tensor.run)
    assert up is not None
    for process in tensor.deployment.replicas:
        family = psutil.Process(up.state(process.name).pid).children(recursive=True)
        assert sum(member.memory_full_info().pss for member in family) < process.memory_bytes
