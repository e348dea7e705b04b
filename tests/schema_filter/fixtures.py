"""Terraform reads the provider's schemas of those types that our stacks use: a hundred of 1,500.

Of the 1.5 CPU-seconds of a small plan 1.4 are schemas, which the provider builds and Terraform reads, in each command.
Each `init` takes 1.1 to hold the provider against the lock file.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator

import pytest

from llm_serving import paths
from llm_serving.settings.errors import BlueprintError
from llm_serving.terraform import runner
from tests import go_programs

REAL_PROGRAM_VARIABLE = "SCHEMA_FILTER_PROGRAM"
TYPES_VARIABLE = "SCHEMA_FILTER_TYPES"

_BINDING = re.compile(r"import cdktf_cdktf_provider_aws\.(?:data_aws_)?(\w+) as")


@pytest.fixture(scope="session", autouse=True)
def filtered_schemas(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Put the filter on PATH as `terraform`, for all that tests start; nothing without Terraform or Go."""
    terraform = shutil.which("terraform")
    if not terraform or runner.BINARY_VARIABLE in os.environ:
        yield
        return
    try:
        schema_filter = go_programs.find_or_build(go_programs.SCHEMA_FILTER)
    except BlueprintError:
        yield
        return
    folder = tmp_path_factory.mktemp("schema-filter")
    (folder / "terraform").symlink_to(schema_filter)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", str(folder), prepend=os.pathsep)
        patch.setenv(REAL_PROGRAM_VARIABLE, terraform)
        patch.setenv(TYPES_VARIABLE, " ".join(_list_types()))
        yield


def _list_types() -> list[str]:
    """Types of resources and data sources that stacks can have."""
    text = (paths.ROOT / "infra/bindings/aws.py").read_text()
    return sorted({f"aws_{name}" for name in _BINDING.findall(text)})
