"""What a target cannot run, refused with its line, and beside it what does work."""

from __future__ import annotations

from pathlib import Path

import pytest

from llm_serving.settings.errors import InputError
from tests.kinds.serving import resolving
from tests.kinds.serving.texts import (
    FLEET,
    MULTI_MODEL,
    TRAFFIC_AND_SLO,
    format_aggregated,
    format_distributed,
    get_error,
    resolve_blueprint,
)

REFUSED_LOCALLY = [
    (
        format_distributed(model="tiny", pool="p5en", accelerators=2, pipeline=2),
        "blueprint.yaml:4:51: roles.worker.pipeline: 2: the engine's pipeline stages start on CPU, and never answer. "
        "Fix: set pipeline: 1 in a copy to try here.",
    ),
    (
        format_aggregated(model="Qwen/Qwen3-30B-A3B", pool="p5en", accelerators=2, expert="on"),
        "blueprint.yaml:4:49: roles.worker.expert: true: the engine has no exchange between ranks of experts on "
        "CPU, and ends at the first request. Fix: set expert: off in a copy to try here.",
    ),
    (
        format_distributed(model="Qwen/Qwen3-30B-A3B", pool="p5en", accelerators=2, data=2),
        "blueprint.yaml:4:47: roles.worker.data: 2: the engine has no exchange between ranks of experts on "
        "CPU, and ends at the first request. Fix: set data: 1 in a copy to try here.",
    ),
    (
        format_aggregated(model="tiny", pool="p5en", accelerators=2, replicas=3),
        "blueprint.yaml:4:51: roles.worker.replicas: 3: worker 6 engine processes would run on 2 cores, which carry "
        "4. Fix: set fewer in a copy to try here; a target with more nodes, --target TARGET, renders it.",
    ),
    (
        format_aggregated(model="tiny", pool="general", extra="tuning: {quantization: fp8}\n"),
        'blueprint.yaml:5:24: tuning.quantization: "fp8": the engine has no arithmetic of 8-bit floats on CPU. '
        "Fix: remove quantization in a copy to try here.",
    ),
    (
        format_aggregated(model="tiny", pool="general", extra="tuning: {kv_offload: 1Gi}\n"),
        'blueprint.yaml:5:22: tuning.kv_offload: "1Gi": the engine moves cached prompts to memory from GPUs alone. '
        "Fix: remove kv_offload in a copy to try here.",
    ),
]


def test_gpt_oss_needs_a_vocabulary_of_its_own_where_no_node_reaches_the_internet(tmp_path: Path) -> None:
    brings_it = "name: mine\n" + format_aggregated(model="openai/gpt-oss-20b", pool="h200", accelerators=1)
    text = f"{brings_it}engine: sglang\n"
    fleet = (
        "name: demo\nregion: us-west-2\nzones: [us-west-2a, us-west-2c]\n"
        "pools: {h200: {types: p5en.48xlarge, zones: us-west-2c, size: 0..1, os: bottlerocket}}\n"
    )
    closed = (
        "network: {nat: off}\n"
        "image_cache: {docker_hub: 'arn:aws:secretsmanager:us-west-2:123456789012:secret:ecr-pullthroughcache/hub'}\n"
    )
    with pytest.raises(InputError) as caught:
        resolving.resolve_files(tmp_path, text, fleet + closed, "eks")
    assert str(caught.value).partition(": ")[2] == (
        "model: \"openai/gpt-oss-20b\": the engine loads its chats' vocabulary from the internet, to which the fleet's "
        "network has no way. Fix: set network: {nat: on} in the fleet, or environment: {TIKTOKEN_ENCODINGS_BASE: FOLDER} "
        "and an image of your own with o200k_base.tiktoken in that folder."
    )
    resolving.resolve_files(tmp_path, brings_it, fleet + closed, "eks")
    resolving.resolve_files(tmp_path, text, fleet, "eks")
    own = text + "environment: {TIKTOKEN_ENCODINGS_BASE: /opt/vocabulary}\n"
    resolving.resolve_files(tmp_path, own, fleet + closed, "eks")
    other = text.replace("openai/gpt-oss-20b", "Qwen/Qwen3-32B")
    resolving.resolve_files(tmp_path, other, fleet + closed, "eks")


def test_what_gives_way_on_ecs_fills_instances_of_a_pool_whose_tasks_move(tmp_path: Path) -> None:
    text = format_aggregated(pool="on-ecs", accelerators=2, replicas="1..2", gives_way="on")
    assert get_error(tmp_path, text, "ecs").splitlines() == [
        "blueprint.yaml:4:40: roles.worker.accelerators: 2: a replica that gives way on ECS must fill its instance, or the "
        "instance is not free then. Fix: set accelerators: 4.",
        'blueprint.yaml:4:53: roles.worker.replicas: "1..2": autoscaling on ECS would start again what gave way. '
        "Fix: set replicas: 2.",
        "blueprint.yaml:4:70: roles.worker.gives_way: true: on ECS the function that moves tasks between choices of a pool "
        "does it, and this has one choice. Fix: set buy: [spot, on-demand] of the pool, for example.",
    ]
    assert resolve_blueprint(tmp_path, text.replace("on-ecs", "general")).workers[0].placement.gives_way, (
        "on EKS it may"
    )


@pytest.mark.parametrize(
    ("target", "pool", "accelerators", "reason"),
    [
        ("eks", "general", 1, "a replica has one node, which starts whole. Fix: remove gang."),
        (
            "ecs",
            "on-ecs",
            1,
            "on ECS each node of a replica is a service that starts by itself. Fix: remove gang, or use EKS.",
        ),
    ],
)
def test_a_gang_is_refused_where_nothing_admits_it(
    tmp_path: Path, target: str, pool: str, accelerators: int, reason: str
) -> None:
    text = format_aggregated(pool=pool, accelerators=accelerators, gang="on")
    assert f"roles.worker.gang: true: {reason}" in get_error(tmp_path, text, target)


def test_a_gang_waits_in_the_queue_of_its_pool(tmp_path: Path) -> None:
    text = format_distributed(pool="p5en", accelerators=16, pipeline=2, expert="on", gang="on")
    placement = resolve_blueprint(tmp_path, text).workers[0].placement
    assert placement.queue == "p5en"
    assert resolve_blueprint(tmp_path, text.replace(", gang: on", "")).workers[0].placement.queue == ""


@pytest.mark.parametrize(("text", "message"), REFUSED_LOCALLY)
def test_settings_that_need_an_accelerator_are_refused_on_local_alone(tmp_path: Path, text: str, message: str) -> None:
    assert get_error(tmp_path, text, "local") == message
    resolve_blueprint(tmp_path, text, "eks")


ADD_ONS = "add_ons: {observability: on, schedulers: on, operators: on}\n"


WITHOUT_ADD_ONS = {
    "scaled, nothing installed": (
        "",
        format_aggregated("tiny", pool="general", replicas="1..4"),
        'blueprint.yaml:4:37: roles.worker.replicas: "1..4": KEDA scales it by Prometheus\' metrics, which the fleet '
        "installs with operators and observability. Fix: set add_ons: {operators: on, observability: on} in the fleet "
        "and apply it, or replicas: 4.",
    ),
    "scaled, without Prometheus": (
        "add_ons: {operators: on}\n",
        format_aggregated("tiny", pool="general", replicas="0..4"),
        'blueprint.yaml:4:37: roles.worker.replicas: "0..4": KEDA scales it by Prometheus\' metrics, which the fleet '
        "installs with operators and observability. Fix: set add_ons: {observability: on} in the fleet and apply it, "
        "or replicas: 4.",
    ),
    "several nodes": (
        "add_ons: {observability: on, operators: on}\n",
        format_distributed(pool="p5en", accelerators=16, pipeline=2, expert="on"),
        "blueprint.yaml:4:38: roles.worker.accelerators: 16: LeaderWorkerSet joins 2 nodes, and the fleet "
        "installs it with schedulers. Fix: set add_ons: {schedulers: on} in the fleet and apply it, or accelerators: 8.",
    ),
}


@pytest.mark.parametrize("case", WITHOUT_ADD_ONS)
def test_what_a_cluster_does_not_know_without_an_add_on_is_refused_at_its_line(tmp_path: Path, case: str) -> None:
    add_ons, text, message = WITHOUT_ADD_ONS[case]
    fleet = FLEET.replace(ADD_ONS, add_ons)
    (tmp_path / "mine").mkdir()
    with pytest.raises(InputError) as error:
        resolving.resolve_files(tmp_path / "mine", text, fleet, "eks")
    assert str(error.value).replace(f"{tmp_path}/mine/", "") == message
    assert resolving.resolve_files(tmp_path / "mine", text, FLEET, "eks"), "with the add-ons"


def test_a_model_with_the_name_of_an_object_of_the_chart_is_refused_on_eks_alone(tmp_path: Path) -> None:
    text = MULTI_MODEL.replace("one:", "engines:") + TRAFFIC_AND_SLO
    assert get_error(tmp_path, text, "eks") == (
        'blueprint.yaml:3:21: roles.models.engines: "engines": on EKS the chart has an object of this name. '
        "Fix: choose another name."
    )
    resolve_blueprint(tmp_path, text, "local")
    operator = text.replace("engines:", "operator:")
    assert 'roles.models.operator: "operator": ' in get_error(tmp_path, f"{operator}framework: ray\n", "eks")
    resolve_blueprint(tmp_path, operator, "eks")


@pytest.mark.parametrize(("length", "is_refused"), [(20, False), (21, True)])
def test_a_model_whose_objects_would_have_a_name_too_long_is_refused_on_eks_alone(
    tmp_path: Path, length: int, is_refused: bool
) -> None:
    """With that of the deployment, of 31 characters, and a hyphen: 52 are the most."""
    text = f"name: {'n' * 31}\n" + MULTI_MODEL.replace("one:", f"{'m' * length}:") + TRAFFIC_AND_SLO
    for target in ("local", "eks"):
        if is_refused and target == "eks":
            name = f"{'n' * 31}-{'m' * length}"
            assert get_error(tmp_path, text, "eks") == (
                f'blueprint.yaml:4:35: roles.models.{"m" * length}: "{"m" * length}": on EKS the name {name} has 53 '
                "characters, and labels of pods allow 52. Fix: shorten it, or `name` of the blueprint."
            )
        else:
            resolve_blueprint(tmp_path, text, target)


def test_a_deployment_is_monitored_where_the_fleet_has_prometheus_whether_it_scales_or_not(tmp_path: Path) -> None:
    text = format_aggregated("tiny", pool="general", replicas=2)
    for add_ons, is_monitored in ((ADD_ONS, True), ("", False)):
        (tmp_path / "mine").mkdir(exist_ok=True)
        fleet = FLEET.replace(ADD_ONS, add_ons)
        assert resolving.resolve_files(tmp_path / "mine", text, fleet, "eks").is_monitored is is_monitored


BUCKETS = "storage: {model_buckets: [{bucket: other-models}, {bucket: demo-models-old}]}\n"


@pytest.mark.parametrize(("target", "pool"), [("eks", "general"), ("ecs", "on-ecs")])
def test_weights_and_adapters_of_a_bucket_that_engines_may_not_read_are_refused(
    tmp_path: Path, target: str, pool: str
) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    text = format_aggregated(
        pool=pool,
        accelerators=1,
        replicas=1,
        extra="weights: s3://other-models/qwen3/\n",
        adapters={"own": "s3://demo-models-123456789012-us-west-2/lora/", "sql": "s3://demo-models-old/sql/"},
    )
    refusal = get_error(tmp_path, text, target)
    assert refusal.count("the fleet lets its engines read no bucket") == 2
    assert 'weights: "s3://other-models/qwen3/": the fleet lets its engines read no bucket other-models.' in refusal
    assert (
        'roles.worker.adapters.sql: "s3://demo-models-old/sql/": the fleet lets its engines read no bucket demo-models-old. '
        "Fix: set storage: {model_buckets: {bucket: demo-models-old}} in the fleet, "
    ) in refusal
    assert resolving.resolve_files(folder, text, FLEET + BUCKETS, target, cores=2)


def test_a_claim_for_compiled_programs_is_refused_where_there_are_none(tmp_path: Path) -> None:
    text = format_aggregated(extra="tuning: {compile_cache: 'claim:compiled'}\n", pool="on-ecs")
    assert "ECS has no PersistentVolumeClaims. Fix: set compile_cache: node" in get_error(tmp_path, text, "ecs")
    mount = resolve_blueprint(tmp_path, text.replace("on-ecs", "general")).workers[0].mounts["compile-cache"]
    assert (mount.claim, mount.node_path) == ("compiled", "")


@pytest.mark.parametrize(
    "name",
    [
        *("PYTHONPATH", "LD_PRELOAD", "BASH_ENV", "NODE_OPTIONS", "PERL5OPT", "PERL5LIB", "RUBYOPT", "RUBYLIB"),
        *("GLIBC_TUNABLES", "GCONV_PATH", "PATH", "VLLM_PLUGINS"),
    ],
)
def test_variables_that_load_code_are_refused_on_this_machine_alone(tmp_path: Path, name: str) -> None:
    text = "name: mine\n" + format_aggregated(pool="general", extra=f"environment: {{{name}: env1/lib}}\n")
    with pytest.raises(InputError) as error:
        resolving.resolve_files(tmp_path, text, FLEET, "local")
    assert str(error.value).partition(": ")[2] == (
        f'environment.{name}: "env1/lib": on this machine it makes every program of the engine load code. '
        f"Fix: remove {name}."
    )
    assert resolving.resolve_files(tmp_path, text, FLEET, "eks"), "there it is the container's"
