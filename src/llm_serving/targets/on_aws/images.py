"""The images of a deployment that the fleet's own registry must have before anything pulls them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from llm_serving.aws import session as clients
from llm_serving.aws.preflight.check import CheckResult
from llm_serving.catalog import own_image
from llm_serving.operations import image_pins
from llm_serving.settings.errors import CheckFailed
from llm_serving.targets.deployment_plan import DeploymentPlan


@dataclass(frozen=True)
class MissingImage:
    """An image that the fleet's registry does not have."""

    image: str
    has_repository: bool
    newest: str = ""
    """Tag that was last pushed to its repository; empty where it is looked up by digest, or there is none."""

    @property
    def reason(self) -> str:
        """What follows the image in a message."""
        if not self.has_repository:
            return "is not in the fleet's registry, which has no repository for it"
        newest = f", whose newest, {self.newest}, was built from another version" if self.newest else ""
        return f"is not in the fleet's registry{newest}"


def require_images(plan: DeploymentPlan, images: Iterable[str] | None = None) -> None:
    """Check that the fleet's registry has those of the images, or of the deployment's if None, that are its own.

    Raises:
        CheckFailed: an image is missing; what pulls it would wait until the deploy gives up.
        Unavailable: AWS cannot be asked.
    """
    for missing_image in list_missing(plan, _list_images(plan) if images is None else images):
        fix = _format_fix(plan, missing_image)
        raise CheckFailed(f"{missing_image.image} {missing_image.reason}. Nothing was changed. Fix: {fix}")


def check_images(plan: DeploymentPlan) -> list[CheckResult]:
    """Return a result for each image of the deployment's that is the fleet's own, for a preflight."""
    images = _select_own(plan, _list_images(plan))
    missing_images = {row.image: row for row in list_missing(plan, images)}
    return [_build_result(plan, image, missing_images.get(image)) for image in images]


def _list_images(plan: DeploymentPlan) -> list[str]:
    return [service.image for service in plan.deployment.services]


def _build_result(plan: DeploymentPlan, image: str, missing_image: MissingImage | None) -> CheckResult:
    label = image.rpartition("/")[2].partition("@")[0]
    if missing_image is None:
        return CheckResult(label, "pass", "in the fleet's registry")
    return CheckResult(label, "fail", missing_image.reason, _format_fix(plan, missing_image))


def list_missing(plan: DeploymentPlan, images: Iterable[str]) -> Iterator[MissingImage]:
    """Yield those of the images that are the fleet's own and that its registry does not have."""
    ecr = plan.aws.client("ecr")
    for image in _select_own(plan, images):
        with clients.translate_errors():
            missing_image = _look_up(ecr, f"{plan.fleet.value.name}/{get_name(image)}", image)
        if missing_image:
            yield missing_image


def _select_own(plan: DeploymentPlan, images: Iterable[str]) -> list[str]:
    """Return those of the fleet's own registry, each once."""
    return [image for image in dict.fromkeys(images) if image.startswith(f"{plan.deployment.environment.registry}/")]


def _look_up(ecr: Any, repository: str, image: str) -> MissingImage | None:
    """Return None for an image that the repository has."""
    tagged, _, digest = image.partition("@")
    identifier = {"imageDigest": digest} if digest else {"imageTag": tagged.rpartition(":")[2]}
    with clients.ignore_errors("RepositoryNotFoundException"):
        with clients.ignore_errors("ImageNotFoundException"):
            ecr.describe_images(repositoryName=repository, imageIds=[identifier])
            return None
        return MissingImage(image, has_repository=True, newest="" if digest else _find_newest(ecr, repository))
    return MissingImage(image, has_repository=False)


def _find_newest(ecr: Any, repository: str) -> str:
    """Return the tag that was pushed last; empty where there is none."""
    request = {"repositoryName": repository, "filter": {"tagStatus": "TAGGED"}}
    rows = clients.list_all(ecr, "describe_images", "imageDetails", **request)
    newest = max(rows, key=lambda row: row["imagePushedAt"], default={"imageTags": [""]})
    return str(newest["imageTags"][0])


def _format_fix(plan: DeploymentPlan, missing_image: MissingImage) -> str:
    name, fleet = get_name(missing_image.image), plan.fleet.path
    build = f"run images/build {name} --fleet {fleet}"
    if not missing_image.has_repository:
        return f"add {name} to storage.repositories of {fleet}, apply the stack storage, and {build}"
    if "@" in missing_image.image:
        return f"{build}, or remove its line from {image_pins.locate(fleet)} to pull it by its tag"
    return build


def get_name(image: str) -> str:
    """Return the folder of images/ that an image of the fleet's own is built from."""
    return image.partition("@")[0].rpartition(":")[0].rpartition("/")[2]


def format_load_driver(plan: DeploymentPlan) -> str:
    """Return the load driver's image in the fleet's registry, with its digest if it was built for the fleet."""
    environment = plan.deployment.environment
    return own_image.LOAD_DRIVER.format_image(environment.registry, environment.image_digests)
