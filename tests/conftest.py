"""What all tests share."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from llm_serving.rehearsal import emulator
from llm_serving.targets import planning
from llm_serving.targets.local import deploy, engine_env, supervisor
from llm_serving.targets.planning import DeploymentPlan
from tests import engines_own

ROOT = Path(__file__).resolve().parents[1]

pytest_plugins = ["tests.control_plane.fixtures", "tests.guardian", "tests.hub.fixtures"]

# A shell has what it starts in the background ignore Ctrl-C, and all that is started from there would inherit it: nothing
# that tests interrupt would end.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# A busy machine is no failure. Where CI is set, Hypothesis' own profile says the same, and draws the same each time.
settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
if not os.environ.get("CI"):
    settings.load_profile("busy")


ENGINE, RUNNING_PLAN, STACKS, CONTROL_PLANE = "engine", "served", "stacks", "control plane"


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What tests share is set up once: they run on one worker, one after the other; the longest begin first.

    The engine is two groups, by whether a module asks for the deployment that stays up: what each brings up by itself is
    no more than two cores carry. The synthesized stacks are one group, and what meets the control plane; else a file.
    """
    modules = defaultdict(list)
    for item in items:
        modules[item.path].append(item)
    for item in items:
        if not item.get_closest_marker("xdist_group"):  # of its own
            item.add_marker(pytest.mark.xdist_group(_choose_group(item, modules[item.path])))
    # A module stays in one piece: what it has brought up goes with its last test.
    items.sort(key=lambda item: _compute_limit(modules[item.path]), reverse=True)
    # Kinds of Karpenter's own cannot be taken back: a busy API server can take minutes to let go of one.
    items.sort(key=lambda item: "karpenter_cluster" in _list_fixtures(item))


def _choose_group(item: pytest.Item, module: list[pytest.Item]) -> str:
    if "engine_probe" in _list_fixtures(item):
        return ENGINE
    if item.get_closest_marker("engine"):
        return RUNNING_PLAN if any("running_plan" in _list_fixtures(sibling) for sibling in module) else ENGINE
    if "synthesized" in _list_fixtures(item):
        return STACKS
    if "control_plane" in _list_fixtures(item):
        return CONTROL_PLANE
    return str(item.path.relative_to(ROOT / "tests"))


def _list_fixtures(item: pytest.Item) -> Sequence[str]:
    return getattr(item, "fixturenames", ())


def _compute_limit(module: list[pytest.Item]) -> tuple[bool, float]:
    """The most seconds that a module says a test of it may take, which those say that take long; the engine's first."""
    # What meets the control plane may take so long because of its building, which goes on beside the others.
    plain_items = [item for item in module if "control_plane" not in _list_fixtures(item)]
    limits = [mark.args[0] for item in plain_items if (mark := item.get_closest_marker("timeout"))]
    return any(item.get_closest_marker("engine") for item in module), max(limits, default=0)


@pytest.fixture(scope="session")
def engine_probe() -> Iterator[engines_own.EngineProbe]:
    """The engine's and the router's own code."""
    with engines_own.run() as ask:
        yield ask


@pytest.fixture(scope="session")
def make_bucket() -> Callable[[DeploymentPlan], str]:
    """Makes the model bucket of a plan as the storage stack would, without Terraform."""

    def make(plan: DeploymentPlan) -> str:
        environment = plan.deployment.environment
        client = emulator.create_client("s3", environment.s3_endpoint or "", environment.region)
        client.create_bucket(
            Bucket=environment.bucket, CreateBucketConfiguration={"LocationConstraint": environment.region}
        )
        return environment.bucket

    return make


@pytest.fixture(scope="session")
def start_blueprint(
    make_bucket: Callable[[DeploymentPlan], str],
) -> Callable[[Path, Path], AbstractContextManager[DeploymentPlan]]:
    """Brings a blueprint up on the real engine below a folder that is there, and ends it after the block."""

    @contextlib.contextmanager
    def start(blueprint: Path, root: Path) -> Iterator[DeploymentPlan]:
        engine_env.find_executables()
        plan = planning.plan(blueprint, ROOT / "fleet.yaml", root=root, target="local")
        deploy.check_machine(plan)
        deploy.prepare_start(plan)
        with supervisor.start_attached(plan.directory) as supervised:
            yield deploy.bring_up(plan, supervised, make_bucket)

    return start


@pytest.fixture(scope="session")
def running_plan(
    tmp_path_factory: pytest.TempPathFactory,
    start_blueprint: Callable[[Path, Path], AbstractContextManager[DeploymentPlan]],
) -> Iterator[DeploymentPlan]:
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
            plan = until_the_end.enter_context(start_blueprint(root / "mine", root))
        yield plan
