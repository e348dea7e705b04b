"""What every stack has: the provider with the fleet's tags, and the place of its state."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from infra.bindings import aws, cdktf
from llm_serving.fleet.model import Fleet
from llm_serving.settings.document import Document


def create_stack(app: Any, name: str, document: Document[Fleet]) -> Any:
    """Adds an empty stack `name` to the app."""
    fleet = document.value
    stack = cdktf.TerraformStack(app, name)
    provider = aws.provider
    provider.AwsProvider(
        stack,
        "aws",
        region=fleet.region,
        default_tags=[provider.AwsProviderDefaultTags(tags={**fleet.tags, "fleet": fleet.name, "stack": name})],
    )
    if fleet.state == "local":
        _add_local_state(stack, name, Path(app.outdir), document)
    else:
        _add_s3_state(stack, name, fleet)
    return stack


def _add_local_state(stack: Any, name: str, output_dir: Path, document: Document[Fleet]) -> None:
    """State beside the fleet file: `cdktf.out` is thrown away and made again, the state must not be.

    The path is relative to the folder that Terraform runs in, so that the same fleet gives the same text anywhere.
    """
    file = document.path.resolve().parent / f"terraform.{document.value.name}.{name}.tfstate"
    cdktf.LocalBackend(stack, path=os.path.relpath(file, output_dir.resolve() / "stacks" / name))


def _add_s3_state(stack: Any, name: str, fleet: Fleet) -> None:
    bucket, _, prefix = fleet.state.removeprefix("s3://").partition("/")
    key = "/".join(filter(None, [prefix.strip("/"), fleet.name, f"{name}.tfstate"]))
    cdktf.S3Backend(stack, bucket=bucket, key=key, region=fleet.region, encrypt=True)
    # CDKTF ended before Terraform's own lock file came (1.10), so its bindings do not know the switch.
    stack.add_override("terraform.backend.s3.use_lockfile", True)


def add_output(stack: Any, name: str, value: Any, description: str) -> None:
    """Adds an output: what other stacks, the command line and people read."""
    cdktf.TerraformOutput(stack, name, value=value, description=description)
