"""The images of a deployment that the fleet's own registry must have before anything pulls them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from llm_serving.aws import session as clients
from llm_serving.catalog import own_image
from llm_serving.operations import image_pins
from llm_serving.settings.errors import CheckFailed
from llm_serving.targets.deployment_plan import DeploymentPlan


def require_images(plan: DeploymentPlan, images: Iterable[str]) -> None:
    """Check that the fleet's registry has those of the images that are its own.

    Raises:
        CheckFailed: an image is missing; what pulls it would wait until the deploy gives up.
        Unavailable: AWS cannot be asked.
    """
    for image in list_missing(plan, images):
        name, fleet = get_name(image), plan.fleet.path
        if "@" in image:
            lock = image_pins.locate(fleet)
            fix = f"run images/build {name} --fleet {fleet}, or remove its line from {lock} to pull it by its tag"
        else:
            fix = (
                f"add {name} to storage.repositories of {fleet}, apply the stack storage, and run "
                f"images/build {name} --fleet {fleet}"
            )
        raise CheckFailed(f"{image} is not in the fleet's registry. Nothing was changed. Fix: {fix}")


def list_missing(plan: DeploymentPlan, images: Iterable[str]) -> Iterator[str]:
    """Yield those of the images that are the fleet's own and that its registry does not have.

    Raises:
        Unavailable: AWS cannot be asked.
    """
    from botocore.exceptions import ClientError

    ecr = plan.aws.client("ecr")
    for image in dict.fromkeys(images):
        if not image.startswith(f"{plan.deployment.environment.registry}/"):
            continue
        tagged, _, digest = image.partition("@")
        identifier = {"imageDigest": digest} if digest else {"imageTag": tagged.rpartition(":")[2]}
        with clients.translate_errors():
            try:
                repository = f"{plan.fleet.value.name}/{get_name(image)}"
                ecr.describe_images(repositoryName=repository, imageIds=[identifier])
            except ClientError as error:
                if clients.get_error_code(error) not in ("ImageNotFoundException", "RepositoryNotFoundException"):
                    raise
                yield image


def get_name(image: str) -> str:
    """Return the folder of images/ that an image of the fleet's own is built from."""
    return image.partition("@")[0].rpartition(":")[0].rpartition("/")[2]


def format_load_driver(plan: DeploymentPlan) -> str:
    """Return the load driver's image in the fleet's registry, with its digest if it was built for the fleet."""
    environment = plan.deployment.environment
    return own_image.LOAD_DRIVER.format_image(environment.registry, environment.image_digests)
