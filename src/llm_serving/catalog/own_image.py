"""Images with code of ours, by the code that is in them.

A tag of ECR never moves, so the tag holds a digest of what the image is built from: what runs is this very code, or the
deploy is refused with the command that builds the image.
"""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from llm_serving import paths
from llm_serving.catalog import account_needs, images

BUILDERS = ("docker", "podman", "buildah")
"""Programs that images/build takes, the first that answers."""


@dataclass(frozen=True)
class OwnImage:
    """One image with code of ours."""

    name: str
    """Of its folder in images/, and of its repository."""

    sources: Path
    """Folder of the code that its Dockerfile copies."""

    copy_options: str = ""
    """Of the COPY lines of that code."""

    @property
    def folder(self) -> Path:
        return paths.IMAGES / self.name

    @functools.cached_property
    def tag(self) -> str:
        """VERSION-DIGEST of its Dockerfile, its requirements and the code."""
        [version] = re.findall(r'org\.opencontainers\.image\.version="([^"]+)"', self._read_dockerfile())
        digest = hashlib.sha256()
        for file in [self.folder / "Dockerfile", self.folder / "requirements.txt", *self.list_files()]:
            digest.update(f"{file.name}\n{hashlib.sha256(file.read_bytes()).hexdigest()}\n".encode())
        return f"{version}-{digest.hexdigest()[:12]}"

    def format_image(self, registry: str, digests: Mapping[str, str] = MappingProxyType({})) -> str:
        """Return the image in a fleet's registry, with its digest if there is one.

        Args:
            registry: ACCOUNT.dkr.ecr.REGION.amazonaws.com/FLEET.
            digests: by REPOSITORY:TAG, from images.lock.yaml beside the fleet file.
        """
        return images.pin(f"{registry}/{self.name}:{self.tag}", digests)

    def list_files(self) -> list[Path]:
        """Return the files of the code that the Dockerfile copies, in one order."""
        lines = re.findall(rf"(?m)^COPY {re.escape(self.copy_options)}((?!--).+) \S+$", self._read_dockerfile())
        sources = [self.sources / word for words in lines for word in words.split()]
        files = [file for source in sources for file in (source.rglob("*") if source.is_dir() else [source])]
        return sorted(file for file in files if file.is_file() and "__pycache__" not in file.parts)

    def _read_dockerfile(self) -> str:
        return (self.folder / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", "")


LOAD_DRIVER = OwnImage("load-driver", Path(__file__).parents[1], "--from=package ")
"""A load from inside a deployment's network is sent by this package."""

IMAGES = {LOAD_DRIVER.name: LOAD_DRIVER} | {
    name: OwnImage(name, paths.IMAGES / name) for name in account_needs.list_images()
}
"""All of them: the load driver, and those of each kind of work, whose code is in their folder of images/."""
