"""Unpacks llama-server of Debian's packages into a folder, with all libraries that it needs, on any Linux.

    python3 fetch_packages.py FOLDER

The image and the local target run the same files. packages.json pins each package by its SHA-256, so that a mirror can
only serve it or fail. Mirrors are asked in this order: $DEBIAN_MIRROR, else those of the system's apt sources; Debian's
own; Debian's archive of all versions, for packages that a mirror has no longer.

Standard library only: the image's build has nothing else.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import platform
import re
import sys
import tarfile
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

FILE = Path(__file__).with_name("packages.json")
APT_SOURCES = Path("/etc/apt")
DEFAULT_MIRROR = "https://deb.debian.org/debian"
SNAPSHOT = "https://snapshot.debian.org/archive/debian"
TIMEOUT_S = 30.0
"""Longest that a mirror may be silent."""

RECORDS = Path("var/lib/dpkg/status.d")
"""A file for each package, where scanners of images look. Source: anchore/syft, syft/pkg/cataloger/debian."""

PROGRAM = "llama-server"
LAUNCHER = """\
#!/bin/sh
# The packages' own loader and libraries: those of this system may be older.
folder=$(dirname "$(readlink -f "$0")")
exec "$folder/lib/{loader}" --library-path "$folder/lib" "$folder/lib/{program}" "$@"
"""


class Package(NamedTuple):
    """One pinned package."""

    file: str
    """Path below a mirror."""

    bytes: int
    sha256: str


class FetchError(Exception):
    """The packages cannot be had here; the message says why and what to do."""


def main(folder: Path) -> None:
    """Fill `folder` with the launcher llama-server and its folder lib.

    Raises:
        FetchError: there are no packages for this machine, or no mirror serves one.
    """
    packages = list_packages(platform.machine())
    mirrors = list_mirrors()
    library = folder / "lib"
    library.mkdir(parents=True, exist_ok=True)
    for number, package in enumerate(packages, 1):
        print(f"package {number} of {len(packages)}: {Path(package.file).name}", flush=True)
        content = fetch(package, mirrors)
        unpack(content, library)
        record(content, folder / RECORDS)
    write_launcher(folder)


def list_packages(machine: str) -> list[Package]:
    """Return the packages for a processor, as `uname -m` calls it.

    Raises:
        FetchError: there are none.
    """
    rows = json.loads(FILE.read_text(encoding="utf-8"))["packages"]
    if machine not in rows:
        raise FetchError(f"{FILE.name} has packages for {' and '.join(rows)}, and this machine is {machine}")
    return [Package(**row) for row in rows[machine]]


def list_mirrors(sources: Path = APT_SOURCES) -> list[str]:
    """Mirrors of Debian in the order in which they are asked, each once."""
    own = os.environ.get("DEBIAN_MIRROR")
    snapshot = json.loads(FILE.read_text(encoding="utf-8"))["snapshot"]
    mirrors = [own] if own else [*_read_apt_mirrors(sources)]
    return list(dict.fromkeys(mirror.rstrip("/") for mirror in (*mirrors, DEFAULT_MIRROR, f"{SNAPSHOT}/{snapshot}")))


def _read_apt_mirrors(sources: Path) -> Iterator[str]:
    """Return the mirrors of Debian itself in apt's sources, of both notations; not of security updates or of others."""
    for file in (sources / "sources.list", *sorted((sources / "sources.list.d").glob("*"))):
        if file.suffix in (".list", ".sources") and file.is_file():
            for line in file.read_text(encoding="utf-8", errors="replace").splitlines():
                if line.startswith(("deb ", "URIs:")):
                    yield from re.findall(r"https?://[^\s\]]+/debian/?(?=\s|$)", line)


def fetch(package: Package, mirrors: list[str]) -> bytes:
    """Fetch the package from the first mirror that serves it unchanged.

    Raises:
        FetchError: none does; names each mirror with its reason.
    """
    failures = []
    for mirror in mirrors:
        try:
            content = _download(f"{mirror}/{urllib.parse.quote(package.file)}", package.bytes)
        except (OSError, ValueError) as error:
            failures.append(f"{mirror}: {getattr(error, 'reason', None) or error}")
            continue
        if hashlib.sha256(content).hexdigest() == package.sha256:
            return content
        failures.append(f"{mirror}: another content, {len(content)} bytes")
    raise FetchError(
        f"no mirror of Debian serves {package.file} ({'; '.join(failures)}). "
        "Fix: set DEBIAN_MIRROR to the URL of one that does"
    )


def _download(url: str, size: int) -> bytes:
    with urllib.request.urlopen(url, timeout=TIMEOUT_S) as response:
        return bytes(response.read(size + 1))


def unpack(package: bytes, library: Path) -> None:
    """Write the libraries and the program of a package into one flat folder, where all of them are found."""
    with tarfile.open(fileobj=io.BytesIO(_extract(package, "data.tar"))) as archive:
        for member in archive:
            name = Path(member.name).name
            if not _is_needed(member.name):
                continue
            if member.issym():
                _link(library / name, Path(member.linkname).name)
            elif member.isfile():
                content = archive.extractfile(member)
                assert content is not None, "a regular file has content"
                (library / name).write_bytes(content.read())
                (library / name).chmod(0o755)


def _is_needed(path: str) -> bool:
    folder, _, name = path.removeprefix("./").rpartition("/")
    if folder == "usr/bin":
        return name == PROGRAM
    # The loader is a library too; OpenSSL's engines and glibc's character sets have nothing to do here.
    is_plugin = folder.endswith(("engines-3", "ossl-modules", "gconv", "audit"))
    return folder.startswith("usr/lib") and not is_plugin and re.search(r"\.so(\.\d+)*$", name) is not None


def _link(path: Path, target: str) -> None:
    """Create a link beside the file that it names, as all lie in one folder."""
    if path.name != target:
        path.unlink(missing_ok=True)
        path.symlink_to(target)


def record(package: bytes, records: Path) -> None:
    """Keep what the package says of itself: name, version, source, architecture."""
    with tarfile.open(fileobj=io.BytesIO(_extract(package, "control.tar"))) as archive:
        content = archive.extractfile("./control")
        assert content is not None, "every package has it"
        control = content.read()
    records.mkdir(parents=True, exist_ok=True)
    (records / re.findall(rb"(?m)^Package: (\S+)$", control)[0].decode()).write_bytes(control)


def _extract(package: bytes, member: str) -> bytes:
    """Return one member of a Debian package, an `ar` archive whose headers have 60 bytes."""
    position = len(b"!<arch>\n")
    while position < len(package):
        header = package[position : position + 60]
        name, size = header[:16].decode().strip(), int(header[48:58])
        if name.startswith(member):
            return package[position + 60 : position + 60 + size]
        position += 60 + size + size % 2
    raise FetchError(f"a package has no {member}: is packages.json right?")


def write_launcher(folder: Path) -> None:
    """Write the program that runs llama-server with its own libraries."""
    loader = next((folder / "lib").glob("ld-linux-*.so.*")).name
    launcher = folder / PROGRAM
    launcher.write_text(LAUNCHER.format(loader=loader, program=PROGRAM), encoding="utf-8")
    launcher.chmod(0o755)


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]))
    except FetchError as error:
        sys.exit(f"llama.cpp: {error}.")
