"""The packages of llama.cpp against an index that a stand-in of gpgv, or gpgv itself, vouches for or not."""

from __future__ import annotations

import hashlib
import json
import lzma
import os
import re
import shutil
from pathlib import Path

import pytest

from scripts import verify_debian_packages
from scripts.verify_debian_packages import NotDebians

DEBIAN = hashlib.sha256(b"Debian's").hexdigest()
STANZA = "Package: libz\nFilename: pool/libz.deb\nSize: 8\nSHA256: {hash}\n"


@pytest.fixture
def mirror(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A mirror with one package for each processor, whose signature a stand-in of gpgv accepts."""
    gpgv = tmp_path / "bin/gpgv"
    gpgv.parent.mkdir()
    gpgv.write_text("#!/bin/sh\nexec cat\n")
    gpgv.chmod(0o755)
    monkeypatch.setenv("PATH", f"{gpgv.parent}:{os.environ['PATH']}")
    lines = ["Suite: unstable", "Date: Fri, 30 Oct 2026 08:08:01 UTC", "MD5Sum:", " 0 1 other", "SHA256:"]
    for architecture in ("amd64", "arm64"):
        name = f"main/binary-{architecture}/Packages.xz"
        content = lzma.compress(f"{STANZA.format(hash=DEBIAN)}\nPackage: other\n".encode())
        file = tmp_path / "dists/sid" / name
        file.parent.mkdir(parents=True)
        file.write_bytes(content)
        lines.append(f" {hashlib.sha256(content).hexdigest()}  {len(content)} {name}")
    (tmp_path / "dists/sid/InRelease").write_text("\n".join([*lines, ""]))
    return tmp_path


def _verify(mirror: Path, *packages: tuple[str, int, str]) -> list[str]:
    rows = [{"file": file, "bytes": size, "sha256": digest} for file, size, digest in packages]
    file = mirror / "packages.json"
    file.write_text(json.dumps({"packages": {"x86_64": rows, "aarch64": rows}}))
    return verify_debian_packages.main(f"file://{mirror}", file)


def test_packages_of_the_signed_index_are_counted_and_those_that_it_lists_no_more_named(mirror: Path) -> None:
    assert _verify(mirror, ("pool/libz.deb", 8, DEBIAN), ("pool/older.deb", 8, DEBIAN)) == [
        line
        for machine in ("x86_64", "aarch64")
        for line in (
            f"{machine}: 1 of 2 packages are in the index of Fri, 30 Oct 2026 08:08:01 UTC",
            "  replaced since: pool/older.deb",
        )
    ]


@pytest.mark.parametrize(("size", "digest"), [(9, DEBIAN), (8, hashlib.sha256(b"another").hexdigest())])
def test_a_package_that_is_not_debians_is_refused(mirror: Path, size: int, digest: str) -> None:
    message = f"pool/libz.deb: Debian's has 8 bytes and SHA-256 {DEBIAN}. Fix: pin that"
    with pytest.raises(NotDebians, match=re.escape(message)):
        _verify(mirror, ("pool/libz.deb", size, digest))


def test_an_index_that_the_signed_text_does_not_name_is_refused(mirror: Path) -> None:
    index = mirror / "dists/sid/main/binary-arm64/Packages.xz"
    index.write_bytes(lzma.compress(STANZA.format(hash="0" * 64).encode()))
    with pytest.raises(NotDebians) as error:
        _verify(mirror, ("pool/libz.deb", 8, DEBIAN))
    assert str(error.value) == (
        "main/binary-arm64/Packages.xz: it is not the file that InRelease names. "
        "Fix: try again, the mirror may be changing"
    )


@pytest.mark.skipif(shutil.which("gpgv") is None, reason="no gpgv. Fix: apt-get install gpgv")
def test_a_text_that_nobody_signed_is_refused(tmp_path: Path) -> None:
    (tmp_path / "keyring.gpg").touch()
    with pytest.raises(NotDebians) as error:
        verify_debian_packages.verify_signature(b"Suite: unstable\n", tmp_path / "keyring.gpg")
    assert str(error.value) == (
        "InRelease: gpgv: the signature could not be verified. "
        "Fix: use another mirror, or install debian-archive-keyring"
    )


def test_the_pinned_packages_are_for_processors_whose_debian_name_is_known() -> None:
    pinned = json.loads(verify_debian_packages.PACKAGES.read_text())["packages"]
    assert set(pinned) == set(verify_debian_packages.ARCHITECTURES)
