"""Java programs of this machine: the job, Flink and the servers beside it, from Maven, with a digest of each jar."""

from __future__ import annotations

import functools
import hashlib
import os
import platform
import re
import shutil
import subprocess
import zipfile
from collections.abc import Callable
from pathlib import Path

from llm_serving import console, paths, processes
from llm_serving.settings.errors import Unavailable

JOB = paths.IMAGES / "stream-job"
DIGESTS = JOB / "jars.sha256"
"""Digest of each jar, in the format of sha256sum."""

_CLIENT = paths.ROOT / "clients" / "java"
_SOURCES = (JOB / "src", *(_CLIENT / part / "src" / "main" for part in ("client", "flink")))
"""What `pom.xml` of the job makes the job of."""

_FOLDER = paths.ROOT / ".stream-job"
_JARS, _SERVERS, _PLUGINS, _CLASSES = "jars", "servers", "plugins", "classes"
_STAMP = ".set-up"
_LOG = _FOLDER / "maven.log"
_LEAST_JAVA = 17
_JVM_OPTIONS = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
"""For few cores and small heaps; the second compiler takes more time than it saves."""

_COPY = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies"
_INSTALL = "run `sudo apt-get install openjdk-17-jdk-headless maven`"
_CACHE_PROGRAMS = {"x86_64": "redis-server-6.2.6-v5-linux-amd64", "aarch64": "redis-server-6.2.7-linux-arm64"}
"""Programs in the jar `embedded-redis`, by this machine's architecture."""


@functools.cache
def locate() -> Path:
    """Return the folder of all programs, named by what decides them: those that run keep theirs when that changes."""
    digest = hashlib.sha256()
    sources = [file for folder in _SOURCES for file in sorted(folder.rglob("*.*")) if file.is_file()]
    for file in (DIGESTS, *(folder / "pom.xml" for folder in (JOB, JOB / _SERVERS, JOB / _PLUGINS)), *sources):
        digest.update(file.read_bytes())
    return _FOLDER / digest.hexdigest()[:12]


def locate_cache() -> Path:
    return locate() / _SERVERS / "redis-server"


def locate_plugins() -> Path:
    """Return the folder of Flink's plugins, which has a folder for each."""
    return locate() / _PLUGINS


def locate_archive() -> Path:
    """Return the jar of the job with all that Managed Service for Apache Flink does not provide."""
    return locate().with_suffix(".jar")


def build_archive() -> None:
    """Build that jar unless it is there.

    Raises:
        Unavailable: Java or Maven is missing, or Maven fails.
    """
    _require_java()
    archive = locate_archive()
    _FOLDER.mkdir(exist_ok=True)
    with processes.lock_file(_FOLDER / ".lock"):
        if not archive.is_file():
            with console.step("Build the job"):
                _run_maven("package", "-Paws", f"-Darchive={archive}")


def is_ready() -> bool:
    """Return whether all programs are there, of the sources and jars that are pinned now."""
    return (locate() / _STAMP).is_file()


def install(on_progress: Callable[[str], None]) -> None:
    """Build the job and download the jars unless that is done.

    Raises:
        Unavailable: Java or Maven is missing, Maven fails, or a jar is not the one that is pinned.
    """
    _require_java()
    folder = locate()
    _FOLDER.mkdir(exist_ok=True)
    with processes.lock_file(_FOLDER / ".lock"):
        if is_ready():
            return
        shutil.rmtree(folder, ignore_errors=True)
        shutil.rmtree(_FOLDER / _CLASSES, ignore_errors=True)
        on_progress("building the job")
        _run_maven("compile", _COPY, "-DincludeScope=compile", f"-DoutputDirectory={folder / _JARS}")
        on_progress("downloading Kafka and Redis")
        _run_maven(_COPY, "-f", str(JOB / _SERVERS / "pom.xml"), f"-DoutputDirectory={folder / _SERVERS}")
        on_progress("downloading Flink's file system of S3")
        _run_maven(_COPY, "-f", str(JOB / _PLUGINS / "pom.xml"), f"-DoutputDirectory={folder / _PLUGINS / 's3'}")
        check_digests(folder)
        _unpack_cache(folder / _SERVERS)
        (_FOLDER / _CLASSES).rename(folder / _CLASSES)
        (folder / _STAMP).touch()


def build_command(main: str, *arguments: str, heap_mb: int) -> tuple[str, ...]:
    return (*build_java(heap_mb=heap_mb), main, *arguments)


def build_java(*, heap_mb: int, server: bool = False) -> tuple[str, ...]:
    """Build what a class's name follows.

    Args:
        server: for one of the servers beside the job, which have jars of their own.
    """
    folder = locate()
    class_path = f"{folder / _SERVERS}/*" if server else f"{folder / _CLASSES}:{folder / _JARS}/*"
    packages = ("java.lang", "java.util", "java.util.concurrent", "java.time", "java.net", "java.nio")
    opened = [f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in packages]
    options = (
        f"-Xmx{heap_mb}m",
        *_JVM_OPTIONS,
        "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
        "-Dsun.net.httpserver.nodelay=true",
        # A busy machine starts Flink in more than 10 s. Flink 1.20.1's own option has no effect.
        "-Dpekko.remote.classic.startup-timeout=120s",
    )
    return ("java", *opened, *options, "-cp", class_path)


def _require_java() -> None:
    for program in ("java", "javac", "mvn"):
        if shutil.which(program) is None:
            raise Unavailable(f"{program}: not on PATH; Kafka and Flink need it. Fix: {_INSTALL}.")
    version_text = subprocess.run(["java", "-version"], capture_output=True, text=True, timeout=60, check=False).stderr
    match = re.search(r'version "(\d+)', version_text)
    if match is None or int(match[1]) < _LEAST_JAVA:
        version = match[1] if match else "unknown"
        raise Unavailable(f"java: version {version}; the job needs {_LEAST_JAVA} or later. Fix: {_INSTALL}.")


def _run_maven(*arguments: str) -> None:
    environment = {} if "MAVEN_OPTS" in os.environ else {"MAVEN_OPTS": " ".join(_JVM_OPTIONS)}
    try:
        options = ("--quiet", "--batch-mode", "--strict-checksums", f"-Dfolder={_FOLDER}")
        console.run(["mvn", *options, *arguments], log=_LOG, cwd=JOB, environment=environment)
    except console.CommandFailed as error:
        raise Unavailable(f"the stream job could not be built: {error}. Fix: see {_LOG}.") from None


def check_digests(folder: Path) -> None:
    """Check that each jar below `folder` is the one that is pinned.

    Raises:
        Unavailable: names the first that is not.
    """
    pinned = {line.split()[1]: line.split()[0] for line in DIGESTS.read_text().splitlines()}
    for file in sorted(folder.rglob("*.jar")):
        name = file.relative_to(folder).as_posix()
        if pinned.get(name) != hashlib.sha256(file.read_bytes()).hexdigest():
            fix = "delete it from ~/.m2/repository, and deploy again"
            raise Unavailable(f"{name}: it is not the jar that {console.shorten_path(DIGESTS)} pins. Fix: {fix}.")


def _unpack_cache(servers: Path) -> None:
    name = _CACHE_PROGRAMS.get(platform.machine())
    if name is None:
        raise Unavailable(f"Redis: no program for {platform.machine()}. Fix: use a machine with x86_64 or aarch64.")
    (jar,) = servers.glob("embedded-redis-*.jar")
    with zipfile.ZipFile(jar) as archive:
        locate_cache().write_bytes(archive.read(name))
    locate_cache().chmod(0o755)
