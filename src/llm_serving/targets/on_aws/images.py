"""The images of a deployment that the fleet's own registry must have before anything pulls them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from llm_serving.aws import session as clients
from llm_serving.settings.errors import CheckFailed
from llm_serving.targets.deployment_plan import DeploymentPlan


def require_images(plan: DeploymentPlan, images: Iterable[str]) -> None:
    """Check that the fleet's registry has those of the images that are its own.

    Raises:
        CheckFailed: an image is missing; what pulls it would wait until the deploy gives up.
        Unavailable: AWS cannot be asked.
    """
    for image in list_missing(plan, images):
        name = get_name(image)
        raise CheckFailed(
            f"{image} is not in the fleet's registry. Nothing was changed. Fix: add {name} to "
            f"storage.repositories of {plan.fleet.path}, apply the stack storage, and run "
            f"images/build {name} --fleet {plan.fleet.path}"
        )


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
        tag = image.rpartition(":")[2]
        with clients.translate_errors():
            try:
                repository = f"{plan.fleet.value.name}/{get_name(image)}"
                ecr.describe_images(repositoryName=repository, imageIds=[{"imageTag": tag}])
            except ClientError as error:
                if clients.get_error_code(error) not in ("ImageNotFoundException", "RepositoryNotFoundException"):
                    raise
                yield image


def get_name(image: str) -> str:
    """Return the folder of images/ that an image of the fleet's own is built from."""
    return image.rpartition(":")[0].rpartition("/")[2]
