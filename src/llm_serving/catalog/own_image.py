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

    @property
    def folder(self) -> Path:
        return paths.IMAGES / self.name

    @functools.cached_property
    def contexts(self) -> Mapping[str, Path]:
        """Folders that the Dockerfile copies from: its own, and those that it names by `# context NAME: FOLDER`."""
        folders = re.findall(r"(?m)^# context (\w+): (\S+)$", self._read_dockerfile())
        return {"": self.folder, **{name: paths.ROOT / path for name, path in folders}}

    @functools.cached_property
    def tag(self) -> str:
        """VERSION-DIGEST of its Dockerfile and of all that this copies."""
        [version] = re.findall(r'org\.opencontainers\.image\.version="([^"]+)"', self._read_dockerfile())
        digest = hashlib.sha256()
        for file in [self.folder / "Dockerfile", *self.list_files()]:
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
        """Return the files that the Dockerfile copies from its contexts, in one order."""
        copies = re.findall(r"(?m)^COPY (?:--from=(\w+) )?((?!--).+) \S+$", self._read_dockerfile())
        folders_and_words = [
            (self.contexts[context], words.split()) for context, words in copies if context in self.contexts
        ]
        sources = [folder / word for folder, words in folders_and_words for word in words]
        files = [file for source in sources for file in (source.rglob("*") if source.is_dir() else [source])]
        return sorted(file for file in files if file.is_file() and "__pycache__" not in file.parts)

    def _read_dockerfile(self) -> str:
        return (self.folder / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", "")


LOAD_DRIVER = OwnImage("load-driver")
"""A load from inside a deployment's network is sent by this package."""

IMAGES = {name: OwnImage(name) for name in (LOAD_DRIVER.name, *account_needs.list_images())}
"""All of them: the load driver, and those of each kind of work."""
