"""The override beside a synthesized stack, by which Terraform applies it to the embedded AWS."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from llm_serving.fleet.model import ExistingNetwork, Fleet
from llm_serving.rehearsal import emulator, emulator_gaps, seed_resources
from llm_serving.terraform import stack_folder, state

FILE = "rehearsal_override.tf.json"
"""Terraform reads it on top of the stack."""

_DESTRUCTIBLE = {"aws_s3_bucket": {"force_destroy": True}, "aws_ecr_repository": {"force_delete": True}}
"""On AWS a bucket or registry that is not empty is kept; a rehearsal must be able to destroy its own."""

_PROFILE = "rehearsal.aws.ini"
"""The AWS configuration beside the override: the endpoint of the embedded AWS, and nothing of the user's. The
provider's own `endpoints` block would do the same; checking that block takes 2 s of CPU, two or three times in every
run of Terraform (measured with 5.100.0: it writes the block's 280 settings out again for each of them)."""

_PROVIDER = {
    "s3_use_path_style": True,
    "secret_key": emulator.DUMMY_KEY,
    "profile": "default",
    "shared_config_files": [_PROFILE],
    "shared_credentials_files": ["/dev/null"],
    "skip_metadata_api_check": True,
    # The provider's own 25 would wait for many minutes on an embedded AWS that has ended.
    "max_retries": 3,
}
"""Settings that lead the AWS provider to the embedded AWS, and away from the user's own AWS settings."""

_BACKEND = {
    "use_path_style": True,
    "secret_key": emulator.DUMMY_KEY,
    "skip_credentials_validation": True,
    "skip_requesting_account_id": True,
    "skip_metadata_api_check": True,
    "skip_region_validation": True,
}
"""Settings that lead Terraform's S3 backend to the embedded S3, beside its endpoint."""


def write_override(
    folder: Path, fleet: Fleet, endpoint: str, *, backend: Mapping[str, Any] | None = None, keep_data: bool = False
) -> None:
    """Write the override beside a stack.

    Args:
        backend: the backend of the state; a file in the stack's folder by default.
        keep_data: keep a bucket or registry that is not empty, as on AWS.
    """
    stack = stack_folder.read_stack(folder)
    resources: dict[str, Any] = emulator_gaps.build_override(stack)
    for kind, settings in () if keep_data else _DESTRUCTIBLE.items():
        if kind in stack.get("resource", {}):
            resources[kind] = dict.fromkeys(stack["resource"][kind], settings)
    override: dict[str, Any] = {
        "terraform": {"backend": backend or {"local": {"path": state.FILE}}},
        # A fleet that names its account names one of AWS's.
        "provider": {
            "aws": {
                **_PROVIDER,
                "access_key": emulator.get_access_key(endpoint),
                **({"allowed_account_ids": [emulator.ACCOUNT]} if fleet.account else {}),
            }
        },
    }
    if resources:
        override["resource"] = resources
    lookups = stack.get("data", {})
    if isinstance(fleet.network, ExistingNetwork) and "aws_vpc" in lookups:
        override["data"] = seed_resources.seed_network(fleet, fleet.network, endpoint)
    if fleet.eks.cluster and "aws_eks_cluster" in lookups:
        seed_resources.seed_cluster(fleet, fleet.eks.cluster, endpoint)
    if "aws_ssm_parameter" in lookups:
        override.setdefault("data", {}).update(seed_resources.build_image_override(lookups["aws_ssm_parameter"]))
    (folder / _PROFILE).write_text(f"[default]\nendpoint_url = {endpoint}\n")
    (folder / FILE).write_text(json.dumps(override, indent=2))


def build_backend(folder: Path, endpoint: str | None) -> dict[str, Any]:
    """Return the backend of a stack; for the embedded AWS, its S3, or a file in the stack's folder."""
    backend: dict[str, Any] = stack_folder.read_stack(folder)["terraform"]["backend"]
    if endpoint is None:
        return backend
    if "s3" not in backend:
        return {"local": {"path": state.FILE}}
    return {
        "s3": {
            **backend["s3"],
            "endpoints": {"s3": endpoint},
            "access_key": emulator.get_access_key(endpoint),
            **_BACKEND,
        }
    }
