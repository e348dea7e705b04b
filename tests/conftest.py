"""Fixtures and groups of all tests."""

from __future__ import annotations

import ast
import contextlib
import datetime
import gc
import shutil
import signal
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import botocore.session
import pytest
from hypothesis import settings

from llm_serving import startup
from llm_serving.aws import session
from llm_serving.catalog import eks
from llm_serving.rehearsal import emulator
from llm_serving.settings.errors import Unavailable
from llm_serving.targets import planning
from llm_serving.targets.deployment_plan import DeploymentPlan
from llm_serving.targets.local import deploy, engine_setups, resource_check, supervisor
from tests import engines_own, go_programs
from tests.control_plane import programs

ROOT = Path(__file__).resolve().parents[1]

ROOM_LIMIT_S = 240.0
"""Longest wait for memory that engines of other tests hold."""

pytest_plugins = [
    "tests.asl_validator.fixtures",
    "tests.control_plane.fixtures",
    "tests.guardian",
    "tests.hub.fixtures",
    "tests.images.fixtures",
    "tests.matrix_cells",
    "tests.prisma_standin.fixtures",
    "tests.schema_filter.fixtures",
]

# A shell lets background processes ignore Ctrl-C. All that tests start would inherit that, and never end by an interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# What is imported and collected stays; see `pytest_collection_finish`.
startup.defer_garbage_collection()

# Tests open hundreds of sessions, of moto and of Lambda handlers too. Each would read the services' descriptions anew.
botocore.session.create_loader = session.create_data_loader

# A busy machine is no failure, and the examples are the same each time.
settings.load_profile("ci")

# A fleet costs more once EKS's standard support of its Kubernetes is over: tests of prices are not of the day they run on.
eks.read_today = lambda: datetime.date(2026, 11, 21)

_parse = ast.parse


def _parse_uncollected(*arguments: Any, **options: Any) -> Any:
    """Parse without a garbage collection amid it: where it finds what warns or fails as it goes, pytest formats a
    traceback, which parses too, and CPython 3.11 loses count of the outer tree's depth."""
    gc.disable()
    try:
        return _parse(*arguments, **options)
    finally:
        gc.enable()


ast.parse = _parse_uncollected


ENGINE, RUNNING_PLAN, FRAMEWORKS = DEPLOYMENTS = ("engine", "served", "frameworks")
STACKS, CONTROL_PLANE, IMAGES = "stacks", "control plane", "images"

_SHARED = pytest.StashKey[dict[str, contextlib.ExitStack]]()
_LAST_TESTS = pytest.StashKey[dict[str, pytest.Item]]()
_ENDED_GROUPS = pytest.StashKey[list[str]]()


def pytest_configure(config: pytest.Config) -> None:
    """Put what was asked for of one folder side by side: pytest 9.1 makes a folder that it meets again anew, without the
    fixtures of its conftest.py (`FixtureManager.pytest_make_collect_report`)."""
    config.args.sort(key=lambda argument: Path(argument.partition("::")[0]).resolve().parts)


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Group tests by what they share, so that one worker sets it up once; the longest groups start first.

    Deployments of the engine have three groups: two cores carry no more than the one that runs all session, one of a
    module's own, and one of a framework. The synthesized fleets are a group, the synthesized deployments of
    each folder, the control plane, and the built images; any other file is a group of its own.
    """
    modules = defaultdict(list)
    for item in items:
        modules[item.path].append(item)
    for item in items:
        if not item.get_closest_marker("xdist_group"):  # which it chose
            item.add_marker(pytest.mark.xdist_group(_choose_group(item, modules[item.path])))
    # A module stays in one piece: its fixtures end with its last test.
    has_programs = all(map(go_programs.is_ready, programs.ALL_PROGRAMS))
    ranks = {path: _rank(module, has_programs) for path, module in modules.items()}
    items.sort(key=lambda item: ranks[item.path], reverse=True)
    # Karpenter's custom resources come last: a busy API server can take minutes to delete them.
    items.sort(key=lambda item: "karpenter_cluster" in _list_fixtures(item))


def _choose_group(item: pytest.Item, module: list[pytest.Item]) -> str:
    if "engine_probe" in _list_fixtures(item):
        return ENGINE
    if item.get_closest_marker("engine") and any("running_plan" in _list_fixtures(sibling) for sibling in module):
        return RUNNING_PLAN
    if "start_blueprint" in _list_fixtures(item):
        return ENGINE
    if "shapes" in _list_fixtures(item):
        return str(item.path.parent.relative_to(ROOT / "tests"))
    if "synth_folder" in _list_fixtures(item):
        return STACKS
    if "control_plane" in _list_fixtures(item):
        return CONTROL_PLANE
    if "image_runner" in _list_fixtures(item):
        return IMAGES
    return str(item.path.relative_to(ROOT / "tests"))


def _get_group(item: pytest.Item) -> str:
    marker = item.get_closest_marker("xdist_group")
    assert marker
    return str(marker.args[0])


def _list_fixtures(item: pytest.Item) -> Sequence[str]:
    return getattr(item, "fixturenames", ())


def _rank(module: list[pytest.Item], has_programs: bool) -> tuple[bool, bool, bool, float]:
    """Rank a module: deployments of the engine first, then what else needs it, then the control plane's, then by the
    longest timeout of its tests, in seconds.

    The control plane's are one long group. Where its programs are built first, which takes minutes beside the others,
    it comes late, and its tests' timeouts allow for that.
    """
    plain_items = [item for item in module if "control_plane" not in _list_fixtures(item)]
    limits = [mark.args[0] for item in plain_items if (mark := item.get_closest_marker("timeout"))]
    is_control_plane = len(plain_items) < len(module)
    return (
        any(_get_group(item) in DEPLOYMENTS for item in module),
        any(item.get_closest_marker("engine") for item in module),
        has_programs and is_control_plane,
        max(limits, default=0),
    )


@pytest.hookimpl(trylast=True)  # after deselection
def pytest_collection_finish(session: pytest.Session) -> None:
    """Find the last test of each group; look for garbage no more among what was imported and collected."""
    gc.freeze()
    session.stash[_LAST_TESTS] = {_get_group(item): item for item in session.items}


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """End what a group shares after its last test: an idle engine or API server takes CPU from the others.

    The fixtures of that test's module end first.
    """
    ended = item.session.stash.setdefault(_ENDED_GROUPS, [])
    if item.session.stash[_LAST_TESTS].get(_get_group(item)) is item:
        ended.append(_get_group(item))
    if nextitem is None or nextitem.path != item.path:
        while ended:
            item.config.stash.get(_SHARED, {}).pop(ended.pop(), contextlib.ExitStack()).close()


@pytest.fixture(scope="session")
def share_in_group(pytestconfig: pytest.Config) -> Iterator[Callable[[str], contextlib.ExitStack]]:
    """Return what ends with the last test of a group, or of the session."""
    shared = pytestconfig.stash.setdefault(_SHARED, defaultdict(contextlib.ExitStack))
    yield shared.__getitem__
    for exit_stack in shared.values():
        exit_stack.close()


@pytest.fixture(scope="session")
def engine_probe(share_in_group: Callable[[str], contextlib.ExitStack]) -> engines_own.EngineProbe:
    """Call the engine's and the router's own code."""
    return share_in_group(ENGINE).enter_context(engines_own.run())


@pytest.fixture(scope="session")
def make_bucket() -> Callable[[DeploymentPlan], str]:
    """Create the model bucket of a plan like the storage stack, without Terraform."""

    def make(plan: DeploymentPlan) -> str:
        environment = plan.deployment.environment
        client = emulator.create_client("s3", environment.s3_endpoint or "", environment.region)
        client.create_bucket(
            Bucket=environment.bucket, CreateBucketConfiguration={"LocationConstraint": environment.region}
        )
        return environment.bucket

    return make


def _wait_for_room(plan: DeploymentPlan) -> None:
    """Wait until engines of other tests have left the memory that a deployment takes."""
    deadline = time.monotonic() + ROOM_LIMIT_S
    while True:
        try:
            return resource_check.check(plan, plan.deployment.all_services)
        except Unavailable:
            if time.monotonic() > deadline:
                raise
        time.sleep(1)


@pytest.fixture(scope="session")
def start_blueprint(
    make_bucket: Callable[[DeploymentPlan], str],
) -> Callable[[Path, Path], AbstractContextManager[DeploymentPlan]]:
    """Deploy a blueprint on the real engine below a directory, and stop it after the block."""

    @contextlib.contextmanager
    def start(blueprint: Path, root: Path) -> Iterator[DeploymentPlan]:
        plan = planning.plan(blueprint, ROOT / "fleet.yaml", root=root, target="local")
        setup = engine_setups.find(plan.deployment.engine, plan.deployment.framework)
        assert setup.is_ready(), f"{setup.executables} is not set up"
        _wait_for_room(plan)
        deploy.prepare_start(plan)
        with pytest.MonkeyPatch.context() as patch, supervisor.start_attached(plan.directory) as supervised:
            patch.setattr(deploy, "create_bucket", make_bucket)
            deploy.bring_up(plan, supervised)
            yield plan

    return start


@pytest.fixture(scope="session")
def running_plan(
    tmp_path_factory: pytest.TempPathFactory,
    start_blueprint: Callable[[Path, Path], AbstractContextManager[DeploymentPlan]],
    share_in_group: Callable[[str], contextlib.ExitStack],
) -> DeploymentPlan:
    """The aggregated pattern on the real engine, for all tests of its group: embedded AWS, two replicas, the router.

    A test that disturbs it restores it. The home directory of all its processes is `home` below the root, empty.
    """
    root = tmp_path_factory.mktemp("served")
    shutil.copytree(ROOT / "blueprints" / "aggregated", root / "mine")
    home = root / "home"
    home.mkdir()
    # Only for these processes: those of other tests write to their home directory.
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(home))
        return share_in_group(RUNNING_PLAN).enter_context(start_blueprint(root / "mine", root))
