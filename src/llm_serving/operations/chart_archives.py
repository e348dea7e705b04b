"""Archives of the platform's charts, and pages with manifests: all are checked against their digests before any is
installed.

The digest of a chart in a Helm repository is its archive's, as the repository's index has it; that of a chart in an OCI
registry is its manifest's, which Helm prints and holds the archive against; that of a page is its own.
"""

from __future__ import annotations

import hashlib
import re
import tarfile
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from llm_serving import console
from llm_serving.fleet import add_ons
from llm_serving.fleet.add_ons import AddOn
from llm_serving.operations import image_pins
from llm_serving.operations.kube_api import Manifest
from llm_serving.settings import own_yaml
from llm_serving.settings.errors import CheckFailed, Unavailable

_TIMEOUT_S = 300
_DOWNLOAD_S = 60
"""Longest silence of a page."""

_PRINTED_DIGEST = re.compile(r"^Digest: (sha256:[0-9a-f]{64})$", re.MULTILINE)
"""Source: Helm v3.22.0 and v4, pkg/registry/client.go, Pull."""

_CRD_FILE = re.compile(r"[^/]+/(charts/[^/]+/)*crds/.+\.(ya?ml|json)")
"""In an archive: the CRDs of a chart, and of those that it brings along."""


@dataclass(frozen=True)
class ChartArchive:
    """One chart's archive, or one page."""

    reference: str
    """NAME:VERSION, as in images.lock.yaml; a page's URL."""

    file: Path
    pull: Sequence[str]
    """The command that brings it; what is done for a page is its like."""

    is_oci: bool
    digest: str | None
    """What it must have; None where neither the table nor the lock file knows it."""

    digest_file: Path
    """The file that has the digest, or gets it."""

    is_page: bool = False

    def describe_pin(self) -> str:
        if self.digest:
            return f"pinned by {self.digest}"
        return f"pinned by version alone: its first digest goes to {console.shorten_path(self.digest_file)}"


def plan(add_on: AddOn, folder: Path, fleet_file: Path) -> ChartArchive:
    """Return the archive or page of a row, to be pulled to `folder`; the table's digest goes before the lock file's.

    Raises:
        InputError: the lock file is damaged.
    """
    if add_on.is_page:
        reference = str(add_on.manifest)
        # Another version is another file.
        file = folder / "-".join([add_on.name, *reference.split("/")[-2:]])
        pull = ["curl", "--fail", "--location", "--output", console.shorten_path(file), reference]
    else:
        reference, chart = f"{add_on.name}:{add_on.version}", str(add_on.chart)
        file = folder / f"{chart.rsplit('/', 1)[-1]}-{add_on.version}.tgz"
        repository_options = ["--repo", add_on.repository] if add_on.repository else []
        pull = [
            *("helm", "pull", chart, *repository_options, "--version", str(add_on.version)),
            *("--destination", console.shorten_path(folder)),
        ]
    return ChartArchive(
        reference=reference,
        file=file,
        pull=pull,
        is_oci=not add_on.repository and not add_on.is_page,
        digest=add_on.digest or image_pins.read_charts(fleet_file).get(reference),
        digest_file=add_ons.FILE if add_on.digest else image_pins.locate(fleet_file),
        is_page=add_on.is_page,
    )


def fetch(archive: ChartArchive, log: Path) -> str:
    """Pull an archive or a page, and return its digest.

    Raises:
        CheckFailed: it has another digest than it must have; the file is removed.
        CommandFailed: the pull failed.
        Unavailable: Helm wrote no archive of the expected name, or printed no digest; or the page cannot be read.
    """
    archive.file.parent.mkdir(parents=True, exist_ok=True)
    archive.file.unlink(missing_ok=True)  # what an earlier run left proves nothing
    with console.step(f"Pull {archive.reference}") as step:
        output = "" if archive.is_page else console.run(archive.pull, log=log, timeout_s=_TIMEOUT_S)
        if archive.is_page:
            _download_chart(archive)
        digest = _find_digest(archive, output)
        if archive.digest and digest != archive.digest:
            archive.file.unlink()
            raise CheckFailed(
                f"{archive.reference}: its {'content' if archive.is_page else 'archive'} has the digest {digest}, not "
                f"{archive.digest} as {console.shorten_path(archive.digest_file)} says. No chart was installed. "
                "Fix: ask its maker what changed; to accept it, write the new digest to that file."
            )
        step.note = archive.describe_pin()
    return digest


def read_crds(file: Path) -> list[Manifest]:
    """Return the CRDs in the folders `crds` of an archive; those among its templates are Helm's own to update."""
    with tarfile.open(file) as archive:
        texts = [
            archive.extractfile(member) for member in archive if member.isfile() and _CRD_FILE.fullmatch(member.name)
        ]
        return [crd for text in texts if text for crd in own_yaml.parse_all(text.read().decode())]


def _download_chart(page: ChartArchive) -> None:
    try:
        with urllib.request.urlopen(page.reference, timeout=_DOWNLOAD_S) as answer:
            page.file.write_bytes(answer.read())
    except OSError as error:
        raise Unavailable(f"{page.reference} cannot be downloaded: {error}. Fix: run this where it can.") from None


def _find_digest(archive: ChartArchive, output: str) -> str:
    try:
        content = archive.file.read_bytes()
    except FileNotFoundError:
        raise Unavailable(f"{archive.reference}: Helm wrote no {console.shorten_path(archive.file)}.") from None
    if not archive.is_oci:
        return f"sha256:{hashlib.sha256(content).hexdigest()}"
    match = _PRINTED_DIGEST.search(output)
    if not match:
        raise Unavailable(f"{archive.reference}: this Helm prints no digest. Fix: install Helm 3.18 or later.")
    return match[1]
