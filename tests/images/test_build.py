"""The names of images: in their folders, in the catalog, and in the command that builds them."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import get_args

import pytest
import yaml

from llm_serving import processes
from llm_serving.catalog import eks, engines, images, own_image, routers
from llm_serving.catalog.own_image import OwnImage
from llm_serving.fleet.model import Storage
from llm_serving.operations import image_pins
from tests.images import built
from tests.validation.remote.containers import copy_package

ROOT = Path(__file__).parents[2]
IMAGES = ROOT / "images"
IMAGE_NAMES = sorted(path.parent.name for path in IMAGES.glob("*/Dockerfile"))
ROUTER_CONTEXT = "--build-context batch=images/batch-worker/batch"


def _build(*words: str, folder: Path = ROOT, **environment: str) -> subprocess.CompletedProcess[str]:
    command, variables = [os.path.relpath(IMAGES / "build", folder), *words], {**os.environ, **environment}
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=variables, cwd=folder)


def _list_image_versions() -> dict[str, str]:
    """Version by name of each image of the fleet's own registry, as the catalog has it."""
    rows = [image for row in engines.load_engines().values() for image in (row.fleet_image, row.image)]
    rows += [platform.image for row in engines.load_engines().values() for platform in row.platforms.values()]
    rows += [row.image for row in routers.load_routers().values()]
    rows += [image.format_image("{registry}") for image in own_image.IMAGES.values()]
    return dict(row.removeprefix("{registry}/").split(":", 1) for row in rows if row.startswith("{registry}/"))


def _read_label(name: str) -> str:
    text = (IMAGES / name / "Dockerfile").read_text()
    version: str = re.findall(r'org\.opencontainers\.image\.version="([^"]+)"', text)[0]
    return version


def test_every_image_of_the_catalogs_has_a_build_of_the_same_version() -> None:
    versions = _list_image_versions()
    assert set(versions) <= set(IMAGE_NAMES)
    # The tag of an image with code of ours has a digest of that code too.
    assert {name: version.split("-")[0] for name, version in versions.items()} == {
        name: _read_label(name).split("-")[0] for name in versions
    }


def test_a_default_fleet_has_a_repository_for_every_image() -> None:
    assert set(Storage().repositories) == set(_list_image_versions()) == set(IMAGE_NAMES)


def test_the_fleet_image_extends_the_plain_image() -> None:
    base = re.findall(r"(?m)^FROM (\S+)$", (IMAGES / "vllm" / "Dockerfile").read_text())
    assert base == [f"docker.io/{engines.load_engines()['vllm'].image}"], "podman and buildah ask for the host"


@pytest.mark.parametrize("name", IMAGE_NAMES)
def test_no_image_runs_as_root(name: str) -> None:
    users = re.findall(r"(?m)^USER (\S+)$", (IMAGES / name / "Dockerfile").read_text())
    assert users[-1].split(":")[0] not in ("0", "root")


def test_the_build_pushes_to_the_fleets_own_registry_by_the_name_that_deployments_pull() -> None:
    printed = _build("vllm", "--fleet", "infra/fleets/one-gpu.yaml", "--print")
    assert printed.returncode == 0, printed.stderr
    registry = "ACCOUNT.dkr.ecr.us-east-1.amazonaws.com"
    assert printed.stderr.splitlines()[-2:] == [
        f"  $ aws ecr get-login-password --region us-east-1 | docker login --username AWS --password-stdin {registry}",
        f"  $ docker buildx build --platform linux/amd64 --tag {registry}/one-gpu/vllm:{_list_image_versions()['vllm']} --push images/vllm",
    ]


def test_a_fleet_file_is_that_of_the_callers_folder() -> None:
    """The repository has a fleet.yaml of its own, for which the image would be built."""
    folder = ROOT / "infra" / "fleets"
    assert "/one-gpu/vllm:" in _build("vllm", "--fleet", "one-gpu.yaml", "--print", folder=folder).stderr
    printed = _build("--all", "--load", "--print", folder=folder)
    assert " images/vllm-cpu\n" in printed.stderr, printed.stderr


def test_a_base_without_a_digest_is_pulled_by_the_one_that_images_pin_kept(tmp_path: Path) -> None:
    fleet = Path(shutil.copy(ROOT / "infra/fleets/one-gpu.yaml", tmp_path))
    base = "vllm/vllm-openai"
    tag = f"docker.io/{engines.load_engines()['vllm'].image}"
    told = f"  {tag} is pulled by its tag; `blueprint images pin` keeps its digest beside {fleet}\n"
    assert told in _build("vllm", "--fleet", str(fleet), "--print").stderr
    image_pins.write(fleet, {str(engines.load_engines()["vllm"].image): _DIGEST})
    messages = _build("vllm", "--fleet", str(fleet), "--print").stderr
    assert told not in messages
    assert f" --build-context {tag}=docker-image://docker.io/{base}@{_DIGEST} --tag " in messages


def test_the_router_is_built_for_the_x86_and_the_arm_nodes_that_run_it() -> None:
    printed = _build("router", "--fleet", "infra/fleets/p5-efa.yaml", "--print")
    assert printed.returncode == 0, printed.stderr
    [platforms] = re.findall(r"--platform (\S+) ", printed.stderr)
    architectures = {{"x86_64": "amd64", "arm64": "arm64"}[arch] for arch in get_args(eks.Arch)}
    assert set(platforms.split(",")) == {f"linux/{architecture}" for architecture in architectures}


def test_an_image_is_built_for_no_platform_that_the_fleet_does_not_run() -> None:
    printed = _build("router", "--fleet", "infra/fleets/one-gpu.yaml", "--print")
    assert f" --platform linux/amd64 {ROUTER_CONTEXT} --tag " in printed.stderr.splitlines()[-1], "ECS without Graviton"


def test_an_image_of_another_architecture_than_the_fleets_is_refused(tmp_path: Path) -> None:
    fleet = tmp_path / "fleet.yaml"
    text = "name: arm\nregion: us-west-2\norchestrator: eks\nzones: [us-west-2a, us-west-2b]\n"
    fleet.write_text(f"{text}pools:\n  cores: {{types: m8g.2xlarge, size: 0..2}}\n")
    result = _build("vllm", "--fleet", str(fleet), "--print")
    assert (result.returncode, result.stderr) == (
        2,
        f"NAME: vllm: the image is for linux/amd64, and the fleet of {fleet} runs linux/arm64. "
        "Fix: use an image or instance types of the other architecture\n",
    )


_DOCKER = """\
#!/bin/sh
case "$*" in
  "buildx inspect") printf 'Name:   default\\nDriver: %s\\n\\nNodes:\\n' "$DRIVER" ;;
  info*) echo "$STORE" ;;
  login*) cat >/dev/null && echo "docker $*" ;; # as docker does: the password's program ends only if it was read
  *) echo "docker $*" ;;
esac
"""

_DIGEST = f"sha256:{'a' * 64}"
_AWS = f"""\
#!/bin/sh
case "$*" in
  "ecr describe-images"*) printf '{_DIGEST}\t98000000\n' ;;
  *) echo 123456789012 ;;
esac
"""


@pytest.mark.parametrize(
    ("driver", "store", "fleet", "accepted"),
    [
        ("docker", "[[Backing Filesystem extfs]]", "p5-efa", False),
        ("docker", "[[driver-type io.containerd.snapshotter.v1]]", "p5-efa", True),
        ("docker-container", "[[Backing Filesystem extfs]]", "p5-efa", True),
        ("docker", "[[Backing Filesystem extfs]]", "one-gpu", True),
    ],
)
def test_dockers_default_builder_is_refused_for_two_platforms_before_it_builds(
    driver: str, store: str, fleet: str, accepted: bool, tmp_path: Path
) -> None:
    for name, text in (("docker", _DOCKER), ("aws", _AWS), ("syft", '#!/bin/sh\n[ "$1" = scan ]\n')):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    file = Path(shutil.copy(ROOT / f"infra/fleets/{fleet}.yaml", tmp_path))
    result = _build(
        *("router", "--fleet", str(file)),
        PATH=f"{tmp_path}:{os.environ['PATH']}",
        DRIVER=driver,
        STORE=store,
    )
    assert result.returncode == (0 if accepted else 3), result.stderr
    assert ("  $ docker buildx build" in result.stderr) is accepted
    if accepted:
        version = _list_image_versions()["router"]
        assert result.stdout.splitlines()[-1] == f"router {_DIGEST} 98MB"
        [(image, digest)] = image_pins.read(file).items()
        assert (image.rpartition("/")[2], digest) == (f"router:{version}", _DIGEST), "deployments pull it by its digest"
        scans = re.findall(r"(?m)^  \$ syft scan (\S+) --platform linux/(\w+) --output (\S+)$", result.stderr)
        assert scans == [
            (
                f"registry:{image}@{_DIGEST}",
                architecture,
                f"syft-json={tmp_path}/sbom/router-{version}-{architecture}.json",
            )
            for architecture in re.findall(r"linux/(\w+)", re.findall(r"--platform (\S+)", result.stderr)[0])
        ]
    else:
        assert result.stderr == (
            f"images/build router: docker's default builder takes one platform, and the fleet of {file} "
            "needs linux/amd64,linux/arm64. Fix: run docker buildx create --use --driver docker-container\n"
        )


_BUILDER = """\
#!/bin/sh
tool=$(basename "$0")
case "$*" in
  info*) [ -z "$NO_DAEMON" ] || { echo "Cannot connect to the daemon." >&2; exit 1; } ;;
  "image inspect"*) echo "sha256:abc 267000000" ;;
  images*) echo "sha256:abc 267 MB" ;;
  *) echo "$tool $*" >&2
    [ -z "$INTERRUPTED" ] || kill -INT 0 # as Ctrl-C, to all programs of the build
    [ -z "$FAILURE" ] || { echo "$FAILURE" >&2; exit 125; } ;;
esac
"""


def _load_with(
    tools: Iterable[str], folder: Path, *words: str, machine: str = "x86_64", **environment: str
) -> tuple[int, str, str]:
    """Run the build with these builders alone on PATH; return its status, its output and its messages."""
    _write_programs(tools, folder, machine)
    result = _build(*words, "--load", PATH=str(folder), **environment)
    return result.returncode, result.stdout, result.stderr


def _write_programs(tools: Iterable[str], folder: Path, machine: str = "x86_64") -> None:
    programs = {"uname": f"#!/bin/sh\necho {machine}\n"} | dict.fromkeys(tools, _BUILDER)
    for name in [
        "bash",
        "dirname",
        "basename",
        "sed",
        "grep",
        "awk",
        "tee",
        "tail",
        "mktemp",
        "rm",
        "mkdir",
        "tar",
        "flock",
        "tr",
    ]:
        (folder / name).symlink_to(str(shutil.which(name)))
    (folder / "sh").symlink_to("/bin/sh")
    for name, text in programs.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)


@pytest.mark.parametrize(
    ("tools", "words", "command"),
    [
        (["docker", "podman", "buildah"], [], "docker buildx build --load"),
        (["podman", "buildah"], [], "podman build --timestamp 0"),
        (["buildah"], [], "buildah build --timestamp 0"),
        (["docker", "podman", "buildah"], ["--builder", "buildah"], "buildah build --timestamp 0"),
    ],
)
def test_an_image_is_loaded_with_the_builder_that_the_computer_has(
    tools: list[str], words: list[str], command: str, tmp_path: Path
) -> None:
    status, printed, messages = _load_with(tools, tmp_path, "router", *words)
    assert (status, printed) == (0, "router sha256:abc 267MB\n")
    version = _list_image_versions()["router"]
    image = f"{'' if 'docker' in command else 'localhost/'}router:{version}"
    copied = re.sub(r"=/\S+/batch ", "=COPY ", messages)
    assert f"\n{command} --platform linux/amd64 --build-context batch=COPY --tag {image} images/router\n" in copied


@pytest.mark.parametrize(
    ("tools", "environment", "message"),
    [
        ([], {}, "no docker, podman or buildah is on PATH. Fix: install one"),
        (
            ["docker"],
            {"NO_DAEMON": "yes"},
            "docker: Cannot connect to the daemon. Fix: start its daemon, or install podman or buildah",
        ),
        (
            ["buildah"],
            {"FAILURE": "write /tmp/x: no space left on device"},
            "the disk is full. Fix: free space where buildah keeps its images, then build again",
        ),
        (
            ["buildah"],
            {"FAILURE": "exec /bin/sh: Exec format error"},
            "this computer cannot run programs for linux/amd64. Fix: build on such a computer, or install its emulator "
            "(qemu-user-static)",
        ),
        (
            ["podman"],
            {"FAILURE": "Error: initializing source docker://x: manifest unknown"},
            "the image of FROM, {base}, could not be pulled: Error: initializing source docker://x: manifest unknown. "
            "Fix: check the network and the sign-in to its registry; if it is gone, change FROM",
        ),
        (
            ["buildah"],
            {"FAILURE": "Error: creating build container: x: image not known"},
            "the image of FROM, {base}, could not be pulled: Error: creating build container: x: image not known. "
            "Fix: check the network and the sign-in to its registry; if it is gone, change FROM",
        ),
        (
            ["docker"],
            {"FAILURE": "denied: User: me is not authorized to perform: ecr:InitiateLayerUpload"},
            "the registry refused: denied: User: me is not authorized to perform: ecr:InitiateLayerUpload. "
            "Fix: use credentials that may push to ECR and pull the image of FROM",
        ),
        (
            ["buildah"],
            {"FAILURE": "PermissionError: [Errno 13] Permission denied: '/opt'"},
            "buildah failed: PermissionError: [Errno 13] Permission denied: '/opt'. Fix: read its output above",
        ),
        (
            ["podman"],
            {"FAILURE": "Error: no such file"},
            "podman failed: Error: no such file. Fix: read its output above",
        ),
    ],
)
def test_a_build_that_fails_ends_with_its_reason_and_no_image(
    tools: list[str], environment: dict[str, str], message: str, tmp_path: Path
) -> None:
    [base] = re.findall(r"(?m)^FROM (\S+)$", (IMAGES / "router" / "Dockerfile").read_text())
    status, printed, messages = _load_with(tools, tmp_path, "router", **environment)
    assert (status, printed) == (3, "")
    assert messages.splitlines()[-1] == f"images/build router: {message.format(base=base)}"


def _start_load(folder: Path, **environment: str) -> subprocess.Popen[str]:
    """Start the build of the router in a group of its own, with a stand-in of buildah."""
    _write_programs(["buildah"], folder)
    variables = {"PATH": str(folder), "TMPDIR": str(folder), **environment}
    command, pipe = [str(IMAGES / "build"), "router", "--load"], subprocess.PIPE
    return subprocess.Popen(command, env=variables, stdout=pipe, stderr=pipe, text=True, start_new_session=True)


def test_an_interrupted_build_says_so_and_that_it_can_be_run_again(tmp_path: Path) -> None:
    with _start_load(tmp_path, INTERRUPTED="yes") as build:
        printed, messages = build.communicate(timeout=60)
    assert (build.returncode, printed) == (130, "")
    assert messages.splitlines()[-1] == (
        "images/build router: interrupted. Fix: run it again; layers that were finished are kept"
    )


def test_a_second_build_of_an_image_waits_for_the_first(tmp_path: Path) -> None:
    turn = tmp_path / f"images-build-router{str(tmp_path / 'buildah').replace('/', '-')}.lock"
    with contextlib.ExitStack() as first:
        first.enter_context(processes.lock_file(turn))
        with _start_load(tmp_path) as second:
            assert second.stderr
            assert second.stderr.readline() == "  another build of router is running; waiting until it ends\n"
            assert second.poll() is None, "nothing is built meanwhile"
            first.close()
            printed, _ = second.communicate(timeout=60)
    assert (second.returncode, printed) == (0, "router sha256:abc 267MB\n")


def test_digests_of_builds_that_end_at_once_are_all_written(tmp_path: Path) -> None:
    digests = {f"image-{number}:1": f"sha256:{number:064x}" for number in range(16)}
    with ThreadPoolExecutor(16) as executor:
        list(executor.map(lambda row: image_pins.write(tmp_path / "fleet.yaml", dict([row])), digests.items()))
    assert image_pins.read(tmp_path / "fleet.yaml") == digests


@pytest.mark.parametrize("tool", ["podman", "buildah"])
def test_podman_and_buildah_push_all_platforms_as_one_list(tool: str) -> None:
    printed = _build("router", "--fleet", "infra/fleets/p5-efa.yaml", "--builder", tool, "--print")
    image = f"ACCOUNT.dkr.ecr.us-east-1.amazonaws.com/p5-efa/router:{_list_image_versions()['router']}"
    login, build, push = printed.stderr.splitlines()[-3:]
    assert login.endswith(f"| {tool} login --username AWS --password-stdin ACCOUNT.dkr.ecr.us-east-1.amazonaws.com")
    platforms = "--platform linux/amd64,linux/arm64"
    command = f"{tool} build --timestamp 0 {platforms} {ROUTER_CONTEXT} --manifest {image} images/router"
    assert build == f"  $ {command}"
    assert push == f"  $ {tool} manifest push --all {image} docker://{image}"


def test_all_images_of_this_architecture_are_loaded_and_the_others_are_named(tmp_path: Path) -> None:
    status, printed, messages = _load_with(["buildah"], tmp_path, "--all", machine="aarch64")
    built = [name for name in IMAGE_NAMES if name not in ("diffusion", "gateway", "vllm")]
    assert (status, printed) == (0, "".join(f"{name} sha256:abc 267MB\n" for name in built))
    assert [line for line in messages.splitlines() if " not built: " in line] == [
        f"{name} not built: NAME: {name}: the image is for linux/amd64, and this computer is linux/arm64. "
        "Fix: build on the other architecture"
        for name in ("diffusion", "gateway", "vllm")
    ]


def test_all_images_with_one_that_fails_end_with_a_failure(tmp_path: Path) -> None:
    status, printed, messages = _load_with(["buildah"], tmp_path, "--all", FAILURE="no space left on device")
    assert (status, printed) == (1, "")
    assert [line.split()[0] for line in messages.splitlines()[-len(IMAGE_NAMES) :]] == IMAGE_NAMES


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["--builder", "kaniko", "--load"],
            '--builder: "kaniko" is not a builder. Fix: choose one of: docker podman buildah\n',
        ),
    ],
)
def test_a_builder_that_cannot_serve_is_refused(words: list[str], message: str) -> None:
    result = _build("router", *words)
    assert (result.returncode, result.stderr) == (2, message)


def test_the_workflow_builds_scans_and_pushes_every_image_but_the_engines() -> None:
    workflow = yaml.safe_load((ROOT / "docs/workflows/images.yaml").read_text())
    steps = "\n".join(step.get("run", "") for step in workflow["jobs"]["images"]["steps"])
    assert workflow["env"]["IMAGES"].split() == [name for name in IMAGE_NAMES if name != "vllm"]
    order = [
        steps.index(text)
        for text in ("build $name --load", 'grype "docker:', "build $name --fleet", 'grype "sbom:', "gh release")
    ]
    assert order == sorted(order), "no image is pushed that was not scanned here, nor released that was on no platform"


def test_the_builders_are_those_that_the_command_line_looks_for() -> None:
    assert f"\nbuilders=({' '.join(own_image.BUILDERS)})\n" in (IMAGES / "build").read_text()


def test_a_missing_image_is_refused_with_the_existing_ones() -> None:
    result = _build("vllmm", "--print")
    assert result.returncode == 2
    reason, names = result.stderr.split(". Fix: choose one of: ")
    assert reason == "NAME: vllmm: there is no images/vllmm/Dockerfile"
    assert {*names.split()} == {*IMAGE_NAMES}


def _list_copied(name: str) -> list[Path]:
    """Return the files that an image's Dockerfile copies, but for those of its own stages."""
    dockerfile = (IMAGES / name / "Dockerfile").read_text().replace("\\\n", "")
    copied = re.findall(r"(?m)^COPY (?:--(?:chmod=\S+|from=(\w+)) )?(.+) \S+$", dockerfile)
    assert copied
    stages = re.findall(r"(?m)^FROM \S+ AS (\w+)$", dockerfile)
    contexts = OwnImage(name).contexts
    return [contexts[context] / file for context, files in copied if context not in stages for file in files.split()]


@pytest.mark.parametrize("name", IMAGE_NAMES)
def test_every_file_that_a_dockerfile_copies_exists(name: str) -> None:
    assert [str(source) for source in _list_copied(name) if not source.exists()] == []


def _list_neighbours(program: Path) -> set[str]:
    """Return the files beside a program that it imports."""
    imported = {*re.findall(r"(?m)^(?:from|import) (\w+)", program.read_text())}
    return {f"{module}.py" for module in imported if program.with_name(f"{module}.py").exists()}


@pytest.mark.parametrize("name", IMAGE_NAMES)
def test_what_a_copied_program_imports_from_beside_it_is_copied_too(name: str) -> None:
    copied = _list_copied(name)
    neighbours = [_list_neighbours(file) for file in copied if file.suffix == ".py"]
    assert set().union(*neighbours) <= {file.name for file in copied}


def test_the_modules_beside_a_program_are_found() -> None:
    assert _list_neighbours(IMAGES / "vllm" / "model_switch.py") == {"turns.py"}


def test_the_load_driver_is_built_from_this_package_with_a_tag_of_its_own() -> None:
    printed = _build("load-driver", "--fleet", "infra/fleets/one-gpu.yaml", "--print")
    assert printed.returncode == 0, printed.stderr
    image = own_image.LOAD_DRIVER.format_image("ACCOUNT.dkr.ecr.us-east-1.amazonaws.com/one-gpu")
    assert printed.stderr.splitlines()[-1] == (
        "  $ docker buildx build --platform linux/amd64 --build-context package=src/llm_serving "
        f"--tag {image} --push images/load-driver"
    )


_GATE = """
import importlib, re, sys
from importlib.metadata import packages_distributions

KNOWN, LOCKED = packages_distributions(), sys.argv[1].split()

class Gate:
    def find_spec(self, name, path=None, target=None):
        owners = {re.sub("[-_.]+", "-", owner).lower() for owner in KNOWN.get(name.partition(".")[0], ())}
        if owners and not owners & {*LOCKED, "llm-serving-blueprints"}:
            raise ModuleNotFoundError(f"{name} is of {owners}, which the image has not")

sys.meta_path.insert(0, Gate())
for module in sys.argv[2].split():
    importlib.import_module(module)
"""

_DRIVER_MODULES = [f"llm_serving.validation.{name}" for name in ("remote.relay", "load.locust_process", "user")]
_BATCH_MODULES = [
    ".".join(file.relative_to(IMAGES / "batch-worker").with_suffix("").parts)
    for file in (IMAGES / "batch-worker").rglob("*.py")
    if file.name != "__init__.py"
]


def _copy_image(image: str, folder: Path) -> Path:
    """What the image holds of ours, on the path of its programs."""
    if image == own_image.LOAD_DRIVER.name:
        return copy_package(folder)
    for file in own_image.IMAGES["batch-worker"].list_files():
        target = folder / file.relative_to(own_image.IMAGES["batch-worker"].folder)
        target.parent.mkdir(exist_ok=True)
        shutil.copyfile(file, target)
    return folder


@pytest.mark.parametrize(
    ("image", "modules", "missing"),
    [
        ("load-driver", _DRIVER_MODULES, ""),
        ("load-driver", _DRIVER_MODULES, "jsonschema"),
        ("batch-worker", _BATCH_MODULES, ""),
        ("batch-worker", _BATCH_MODULES, "pyarrow"),
    ],
)
def test_an_image_has_all_modules_and_packages_that_its_programs_import(
    tmp_path: Path, image: str, modules: list[str], missing: str
) -> None:
    locked = re.findall(r"(?m)^([\w.-]+)==", (IMAGES / image / "requirements.txt").read_text())
    names = [re.sub("[-_.]+", "-", name).lower() for name in locked if name != missing]
    names += ["pydantic-core", "async-timeout"]  # yarl takes the one where it is there, redis the other before 3.11.3
    result = subprocess.run(
        [sys.executable, "-c", _GATE, " ".join(names), " ".join(modules)],
        env={"PYTHONPATH": str(_copy_image(image, tmp_path))},
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert (result.returncode == 0) == (not missing), result.stderr


@pytest.mark.parametrize("image", own_image.IMAGES.values(), ids=list(own_image.IMAGES))
def test_a_tag_follows_the_code_of_its_image(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, image: OwnImage) -> None:
    before = image.tag
    files = [*image.list_files()[1:], tmp_path / "changed.py"]
    files[-1].write_text("changed = True\n")
    monkeypatch.setattr(OwnImage, "list_files", lambda _: files)
    assert dataclasses.replace(image).tag != before
    assert re.fullmatch(r"\d+\.\d+\.\d+-[0-9a-f]{12}", before)


def test_the_batch_worker_is_built_with_the_tag_that_deployments_pull() -> None:
    printed = _build("batch-worker", "--fleet", "infra/fleets/one-gpu.yaml", "--print")
    assert printed.returncode == 0, printed.stderr
    image = own_image.IMAGES["batch-worker"].format_image("ACCOUNT.dkr.ecr.us-east-1.amazonaws.com/one-gpu")
    assert printed.stderr.splitlines()[-1] == (
        f"  $ docker buildx build --platform linux/amd64 --tag {image} --push images/batch-worker"
    )
    assert {"batch_api.py", "batch_worker.py", "worker.py"} <= {
        file.name for file in own_image.IMAGES["batch-worker"].list_files()
    }


def test_what_was_built_on_stand_ins_that_nobody_uses_is_removed(tmp_path: Path) -> None:
    for name in ("used", "unused"):
        (tmp_path / name / "storage").mkdir(parents=True)
    (tmp_path / "stand-in.lock").touch()
    os.utime(tmp_path / "unused", (1000, 1000))
    built.remove_unused(tmp_path, since=2000)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["stand-in.lock", "used"]


@pytest.mark.skipif(shutil.which("buildah") is None, reason="no buildah")
def test_layers_of_the_last_builds_stay_and_older_ones_go(tmp_path: Path) -> None:
    program, context = tmp_path / "buildah", tmp_path / "context"
    options = f"--root {tmp_path}/storage --runroot {tmp_path}/run --storage-driver vfs"
    program.write_text(f'#!/bin/sh\nexec {shutil.which("buildah")} {options} "$@"\n')
    program.chmod(0o755)
    runner = built.ImageRunner(program, tmp_path, tmp_path / "builds")
    context.mkdir()
    (context / "stable").touch()
    (context / "Dockerfile").write_text("FROM scratch\nCOPY stable /\nCOPY changed /\n")
    tags = [f"localhost/mine:{number}" for number in range(5)]
    for tag in tags:
        (context / "changed").write_text(tag)
        command = [str(program), "build", "--layers", "--timestamp=0", "--tag", tag, str(context)]
        built_now = subprocess.run(command, check=True, capture_output=True, text=True)
        runner.record_build("mine", built_now.stdout + built_now.stderr)
    runner.remove_old_layers(("mine", "another"))
    assert all(runner.buildah("images", "--quiet", tag) for tag in tags), "the other's layers are not known yet"
    runner.remove_old_layers(("mine",))
    names = [image["names"] for image in json.loads(runner.buildah("images", "--all", "--json"))]
    assert sorted(name for row in names for name in row or ()) == tags[-3:]
    assert names.count(None) == 1, "the layer that all have"


def test_the_engines_image_installs_a_release_of_efa_and_says_what_it_brings() -> None:
    dockerfile = (IMAGES / "vllm" / "Dockerfile").read_text()
    releases = yaml.safe_load(Path(__file__).with_name("efa_installers.yaml").read_text())
    [version] = re.findall(r"(?m)^ARG EFA_INSTALLER=(\S+)$", dockerfile)
    brought = releases[version]
    parts = ("rdma-core", "libfabric", "aws-ofi-nccl")
    [said] = re.findall("(?m)^# rdma-core .*?[.] ", dockerfile)
    assert dict(re.findall(r"([a-z-]+) (\d[\w.]*\w)", said)) == {part: brought[part] for part in parts}


@pytest.mark.parametrize("name", IMAGE_NAMES)
def test_every_base_is_in_the_catalog_with_its_source_and_by_the_digest_that_this_gives(name: str) -> None:
    [base] = re.findall(r"(?m)^FROM (\S+)$", (IMAGES / name / "Dockerfile").read_text())
    base = base.removeprefix("docker.io/")
    reference = base.partition("@")[0]
    assert reference in images.load()
    assert base == images.pin(reference)


def test_the_routers_image_is_named_after_the_version_in_its_lock() -> None:
    lock = (IMAGES / "router" / "requirements.txt").read_text()
    assert re.findall(r"(?m)^vllm-router==(\S+)", lock) == [_read_label("router").partition("-")[0]]


@pytest.mark.parametrize("lock", sorted(IMAGES.glob("*/requirements.txt")), ids=lambda lock: lock.parent.name)
def test_every_package_of_an_image_has_a_hash(lock: Path) -> None:
    packages = re.split(r"(?m)^(?=\S+==)", lock.read_text())[1:]
    assert packages and all("--hash=sha256:" in package for package in packages)


def test_the_engines_image_leaves_nccls_transport_to_the_deployment() -> None:
    """NCCL fails in an image that names EFA's plugin on a node without EFA."""
    assert "NCCL_NET_PLUGIN" not in (IMAGES / "vllm" / "Dockerfile").read_text()
