"""What all tests share."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from scripts.local import deploy, engine_env, supervisor
from scripts.local.deploy import Plan
from scripts.rehearsal import embedded_aws

ROOT = Path(__file__).resolve().parents[1]

# A busy machine is no failure. Where CI is set, Hypothesis' own profile says the same, and draws the same each time.
settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
if not os.environ.get("CI"):
    settings.load_profile("busy")


ENGINE, STACKS = "engine", "stacks"


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What tests share is set up once: they run on one worker, one after the other; the longest begin first.

    The engine is one group, since two at a time would measure each other; the synthesized stacks are one; else a file.
    """
    for item in items:
        item.add_marker(pytest.mark.xdist_group(_group(item)))
    items.sort(key=_length, reverse=True)


def _group(item: pytest.Item) -> str:
    if item.get_closest_marker("engine"):
        return ENGINE
    if "synthesized" in getattr(item, "fixturenames", ()):
        return STACKS
    return str(item.path.relative_to(ROOT / "tests"))


def _length(item: pytest.Item) -> tuple[bool, bool, bool]:
    """Greater for what takes longer; of the engine's tests, those that share no running engine come first."""
    engine, terraform = (item.get_closest_marker(name) is not None for name in ("engine", "terraform"))
    return engine, engine and "served" not in getattr(item, "fixturenames", ()), terraform


@pytest.fixture(scope="session")
def make_bucket() -> Callable[[Plan], str]:
    """Makes the model bucket of a plan as the storage stack would, without Terraform."""

    def made(plan: Plan) -> str:
        place = plan.deployment.place
        client = embedded_aws.client("s3", place.s3_endpoint or "", place.region)
        client.create_bucket(Bucket=place.bucket, CreateBucketConfiguration={"LocationConstraint": place.region})
        return place.bucket

    return made


@pytest.fixture(scope="session")
def brought_up(make_bucket: Callable[[Plan], str]) -> Callable[[Path, Path], AbstractContextManager[Plan]]:
    """Brings a blueprint up on the real engine below a folder that is there, and ends it after the block."""

    @contextlib.contextmanager
    def up(blueprint: Path, root: Path) -> Iterator[Plan]:
        engine_env.executables()
        plan = deploy.plan(blueprint, ROOT / "fleet.yaml", root=root)
        deploy.check_machine(plan)
        deploy.start_afresh(plan)
        with supervisor.supervised(plan.run) as supervised:
            yield deploy.bring_up(plan, supervised, make_bucket)

    return up


@pytest.fixture(scope="session")
def served(
    tmp_path_factory: pytest.TempPathFactory, brought_up: Callable[[Path, Path], AbstractContextManager[Plan]]
) -> Iterator[Plan]:
    """The aggregated pattern, up on the real engine for the whole session: embedded AWS, two replicas, the router.

    A test that disturbs it leaves it as it was. The home folder of all its processes is empty, at `HOME` below the run.
    """
    root = tmp_path_factory.mktemp("served")
    shutil.copytree(ROOT / "blueprints" / "aggregated", root / "mine")
    home = root / "home"
    home.mkdir()
    with contextlib.ExitStack() as until_the_end:
        # For what is started here alone: other tests' own processes fill the home folder that they find.
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("HOME", str(home))
            plan = until_the_end.enter_context(brought_up(root / "mine", root))
        yield plan
