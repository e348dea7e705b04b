"""The services of a serving deployment: one for a role, for a node or for a process, as the target runs them."""

from __future__ import annotations

from pathlib import Path

from llm_serving.services.service import START_WAIT_VARIABLE, STOP_DELAY_VARIABLE, Service
from tests.kinds.serving import resolving, texts

FLEET = (
    texts.FLEET
    + """\
  p5en-ecs: {types: p5en.48xlarge, zones: us-west-2c, size: 4, efa: on, orchestrator: ecs}
"""
)

SCALED = """\
pattern: aggregated
model: Qwen/Qwen3-0.6B
roles:
  worker: {{pool: {pool}, replicas: 0..3, scale: {{queue: 6, cool_down: 90s}}}}
disruption: {{unavailable: 2, drain: 100s}}
traffic: {{users: 2, input_tokens: 32, output_tokens: 8}}
slo: {{}}
"""

DISTRIBUTED = """\
pattern: distributed
model: Qwen/Qwen3-235B-A22B-FP8
roles:
  worker: {{pool: {pool}, replicas: 2, accelerators: 16, pipeline: 2, expert: on}}
traffic: {{users: 2, input_tokens: 32, output_tokens: 8}}
slo: {{}}
"""


def resolve_services(folder: Path, text: str, target: str) -> tuple[Service, ...]:
    folder = folder / "mine"
    folder.mkdir()
    return resolving.resolve_files(folder, text, FLEET, target).services


def test_on_eks_a_role_is_one_service(tmp_path: Path) -> None:
    worker, router = resolve_services(tmp_path, SCALED.format(pool="general"), "eks")
    assert (worker.name, worker.role, worker.is_entry) == ("worker", "worker", False)
    assert (worker.replicas.min, worker.replicas.max, worker.replicas.unavailable) == (0, 3, 2)
    scale = worker.replicas.scale
    assert scale is not None
    assert (scale.signal, scale.target, scale.cool_down_s) == ("queue", 6, 90)
    assert (worker.stop.stop_s, worker.stop.pre_stop_s) == (130, 10)
    assert worker.probe is not None
    assert worker.probe.attempts * worker.probe.period_s >= worker.probe.deadline_s
    assert worker.metrics["queue"] == "vllm:num_requests_waiting"
    assert worker.metrics["steps"] == "vllm:iteration_tokens_total_count", "the alert on engines that hang needs it"
    assert worker.metrics_path == "/metrics"
    assert (router.name, router.is_entry) == ("router", True)
    assert STOP_DELAY_VARIABLE not in router.env, "Kubernetes waits before the signal"
    assert int(router.env[START_WAIT_VARIABLE]) == 30
    assert router.probe is not None
    assert (router.probe.path, router.probe.body) == ("/liveness", {}), "with no engine there is no answer"


def test_on_ecs_the_router_stops_within_fargates_limit(tmp_path: Path) -> None:
    worker, router = resolve_services(tmp_path, SCALED.format(pool="on-ecs"), "ecs")
    assert (worker.stop.stop_s, worker.stop.pre_stop_s) == (130, 0)
    assert router.stop.stop_s == 120
    assert int(router.env[STOP_DELAY_VARIABLE]) == 45, "a name's time to live, and what the DNS and Java take"
    assert int(router.env[START_WAIT_VARIABLE]) == 30
    assert not {START_WAIT_VARIABLE, STOP_DELAY_VARIABLE} & worker.env.keys(), "the router asks each engine by itself"
    assert router.probe is not None
    assert router.probe.body, "an answer, through an engine"


def test_here_each_process_is_a_service(tmp_path: Path) -> None:
    text = SCALED.format(pool="general").replace("0..3, scale: {queue: 6, cool_down: 90s}", "2")
    *workers, router = resolve_services(tmp_path, text, "local")
    assert START_WAIT_VARIABLE not in router.env, "clients wait for its probe"
    assert [worker.name for worker in workers] == ["worker-0", "worker-1"]
    assert [worker.role for worker in workers] == ["worker", "worker"]
    for service in (*workers, router):
        assert (service.replicas.min, service.replicas.max, service.replicas.scale) == (1, 1, None)
        assert (service.stop.stop_s, service.start_retries) == (20, 3)
        assert service.resources.memory_bytes > 0
        assert not service.image


def test_on_eks_a_replica_of_two_nodes_has_a_command_for_each(tmp_path: Path) -> None:
    worker, router = resolve_services(tmp_path, DISTRIBUTED.format(pool="p5en"), "eks")
    assert worker.nodes == 2
    assert "--headless" in worker.worker_command
    assert "--headless" not in worker.command
    assert worker.is_root, "pins memory for EFA"
    assert worker.placement.is_dense
    assert worker.resources.huge_page_bytes > 0
    assert router.probe is not None
    assert router.probe.path == "/readiness"


def test_on_ecs_each_node_of_a_replica_is_a_service(tmp_path: Path) -> None:
    *nodes, router = resolve_services(tmp_path, DISTRIBUTED.format(pool="p5en-ecs"), "ecs")
    places = [(node.name, node.node.replica, node.node.rank) for node in nodes if node.node]
    assert places == [("worker-0-0", 0, 0), ("worker-0-1", 0, 1), ("worker-1-0", 1, 0), ("worker-1-1", 1, 1)]
    assert all(node.replicas.max == 1 and node.nodes == 1 and node.resources.device_files for node in nodes)
    assert [node.name for node in nodes if node.probe] == ["worker-0-0", "worker-1-0"]
    assert router.node is None


def test_a_limit_of_requests_is_the_fronts_and_the_system_prompt_is_in_the_probe_of_engines_alone(
    tmp_path: Path,
) -> None:
    pools = {"eks": "general", "ecs": "on-ecs", "local": "general"}
    for target, pool in pools.items():
        text = f"{SCALED.format(pool=pool)}warm_prompt: system.txt\n"
        text = text.replace("roles:\n", "roles:\n  router: {max_requests: 24}\n")
        root = tmp_path / target
        (root / "mine").mkdir(parents=True)
        (root / "mine" / "system.txt").write_text("You rank.")
        worker, *_, router = resolving.resolve_files(root / "mine", text, FLEET, target).services
        assert worker.probe is not None
        assert worker.probe.body["messages"] == [
            {"role": "system", "content": "You rank."},
            {"role": "user", "content": "ready?"},
        ]
        assert "--max-requests=24" in router.command[: router.command.index("--")]
        assert router.probe is not None
        assert "You rank." not in str(router.probe.body)
