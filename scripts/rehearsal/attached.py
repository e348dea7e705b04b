"""One process of the AWS provider for all that Terraform does with it, in place of one for each of its steps.

The provider takes most of a second of CPU to start, and Terraform starts it for every step of every run. In its debug
mode (`-debug`, which Terraform's and OpenTofu's documentation describe for developers of providers) it stays, and says
by which environment variable they find it. Only for a mocked provider: that is asked for its schemas and checks alone,
where the settings of two stacks would otherwise meet in one process.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from infra.errors import Unavailable
from scripts import processes

_EXECUTABLE = ".terraform/providers/*/hashicorp/aws/*/*/terraform-provider-aws_v*"
_SAID = re.compile(r"TF_REATTACH_PROVIDERS='(\{.*\})'")
_ASKED_AS = "registry.terraform.io/hashicorp/aws"
_START_LIMIT_S = 60.0


@contextmanager
def provider(folder: Path) -> Iterator[None]:
    """Has every Terraform of the block that this process starts ask one provider, which ends with the block.

    Args:
        folder: an initialized working folder, whose provider it is; its log, provider.log, lies there too.

    Raises:
        Unavailable: it did not start; the message names the log.
    """
    executable = next(folder.glob(_EXECUTABLE))
    # Tofu looks for it under the registry that it got it from.
    name = "/".join(executable.relative_to(folder / ".terraform/providers").parts[:3])
    log = folder / "provider.log"
    with log.open("wb") as output:
        running = processes.spawn([str(executable), "-debug"], output=output)
    try:
        try:
            processes.wait_until(lambda: _found(log) is not None, "its address", _START_LIMIT_S)
        except Unavailable as error:
            raise Unavailable(f"the AWS provider did not start: {error}. What it says lies in {log}") from None
        address = str(_found(log)).replace(_ASKED_AS, name)
        with processes.lent({"TF_REATTACH_PROVIDERS": address}):
            yield
    finally:
        processes.stop(running)


def _found(log: Path) -> str | None:
    said = _SAID.search(log.read_text(errors="replace"))
    return said[1] if said else None
