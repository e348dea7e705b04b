"""From where the load of a validation comes on AWS: load drivers in the fleet's network, or a tunnel to one router."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

from llm_serving import console
from llm_serving.fleet.aws_limits import INSTANCE_START_S
from llm_serving.settings.errors import CheckFailed, InputError, Unavailable
from llm_serving.targets.base import LoadOrigin
from llm_serving.targets.deployment_plan import DeploymentPlan
from llm_serving.targets.on_aws import images
from llm_serving.validation.base import LoadSource, MetricsPage
from llm_serving.validation.load import api_key
from llm_serving.validation.remote.play import Containers, RemoteDrivers

MAX_DRIVERS = 64
"""Containers of one load; each sends hundreds of streams."""

TUNNEL = LoadSource(
    "The load came through one tunnel to one router: the tunnel adds its own delay, and may limit the load.",
    is_limit=True,
)

LaunchDrivers = Callable[[Sequence[str], int], AbstractContextManager[Containers]]


def choose_origin(plan: DeploymentPlan, wish: LoadOrigin | None, url: str | None) -> LoadOrigin:
    """Choose where the load is generated: inside if the registry has the load driver's image, unless requested.

    Raises:
        CheckFailed: it is to come from inside, and the image is not there; with the command that pushes it.
        InputError: it is to come from inside, with an API key.
    """
    has_key = bool(url or plan.deployment.door)
    if wish is LoadOrigin.HERE or (wish is None and has_key):
        return LoadOrigin.HERE
    image = images.format_load_driver(plan)
    try:
        images.require_images(plan, [image])
    except (CheckFailed, Unavailable) as error:
        if wish is LoadOrigin.CLUSTER:
            raise
        console.err.print(f"The load goes through a tunnel, which suits trials: {error}", markup=False)
        return LoadOrigin.HERE
    if has_key and api_key.build_headers(url or plan.deployment.url):
        raise InputError(
            f'--load-from: "cluster": {api_key.VARIABLE} is set, and the key stays on this machine. '
            f"Fix: use --load-from here, or unset {api_key.VARIABLE}."
        )
    return LoadOrigin.CLUSTER


def build_program_source(plan: DeploymentPlan, launch: LaunchDrivers) -> LoadSource:
    """Return a program in the fleet's network as the source of a load."""
    return LoadSource(
        "The load came from a container in the fleet's network, on a core of its own.",
        play=lambda load, folder: _build_drivers(plan, launch, load.timeout_s).send(load, folder),
    )


def build_source(plan: DeploymentPlan, launch: LaunchDrivers, pages: Sequence[MetricsPage]) -> LoadSource:
    """Return the drivers in the fleet's network as the source of a load."""
    return LoadSource(
        "The load came from drivers in the fleet's network, each on a core of its own, apart from the engines where "
        "nodes allow it; they start at one moment of clocks that the Amazon Time Sync Service keeps.",
        play=lambda load_plan, user_file: _build_drivers(plan, launch, load_plan.timeout_s).play(load_plan, user_file),
        pages=tuple(pages),
        max_processes=MAX_DRIVERS,
    )


def _build_drivers(plan: DeploymentPlan, launch: LaunchDrivers, timeout_s: float) -> RemoteDrivers:
    # Time for machines to start, for the load, and to send its results.
    limit_s = int(2 * INSTANCE_START_S + timeout_s)
    bucket = plan.deployment.environment.results_bucket
    return RemoteDrivers(plan.aws, bucket, lambda urls: launch(urls, limit_s), INSTANCE_START_S)
