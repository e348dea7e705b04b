"""One model on unlike accelerators behind one router: weights, what each role carries, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from llm_serving.kinds.serving import measurements, predicted_load, price, summary
from llm_serving.kinds.serving.blueprint import Blueprint
from llm_serving.kinds.serving.deployment import ServingDeployment
from llm_serving.kinds.serving.validation import validate
from llm_serving.settings.document import load
from llm_serving.settings.errors import InputError
from tests.kinds.serving import resolving

FLEET = """\
name: demo
region: us-east-2
zones: [us-east-2a, us-east-2b]
orchestrator: both
pools:
  l40s: {types: g6e.2xlarge, size: 0..8, buy: on-demand, orchestrator: ORCHESTRATOR}
  h100: {types: p5.48xlarge, zones: us-east-2a, size: 0..2, buy: on-demand, orchestrator: ORCHESTRATOR}
  trainium: {types: trn2.48xlarge, zones: us-east-2b, size: 0..1, buy: on-demand, orchestrator: ORCHESTRATOR}
"""

BLUEPRINT = """\
name: mine
pattern: aggregated
model: Qwen/Qwen3-8B
context: 8k
roles:
  worker: {pool: h100, accelerators: 8, WEIGHT}
  workers:
    small: {pool: l40s, replicas: 4}
    trn: {pool: trainium, accelerators: 64, data: 16}
traffic: {arrivals: 20/s, input_tokens: 1000, output_tokens: 200}
slo: {ttft_ms: {p95: 800}, itl_ms: {p95: 60}}
"""

WITHOUT_TRAINIUM = BLUEPRINT.replace("    trn: {pool: trainium, accelerators: 64, data: 16}\n", "")


def resolve(folder: Path, text: str = BLUEPRINT, target: str = "eks", weight: int = 1) -> ServingDeployment:
    written = text.replace("WEIGHT", f"weight: {weight}")
    return resolving.resolve_files(folder, written, FLEET.replace("ORCHESTRATOR", target), target)


def get_error(folder: Path, text: str) -> str:
    with pytest.raises(InputError) as error:
        resolve(folder, text)
    return str(error.value).replace(f"{folder}/", "")


@pytest.mark.parametrize(
    ("target", "address"), [("eks", "$(RELEASE)-{role}.$(NAMESPACE):8000"), ("ecs", "{name}-{role}.demo.internal:8000")]
)
def test_each_role_runs_on_its_accelerators_behind_one_router_that_knows_the_weights(
    tmp_path: Path, target: str, address: str
) -> None:
    deployment = resolve(tmp_path, target=target, weight=5)
    assert [(role.name, role.resources.device) for role in deployment.engine_roles] == [
        ("worker", "nvidia.com/gpu"),
        ("small", "nvidia.com/gpu"),
        ("trn", "aws.amazon.com/neuron"),
    ]
    assert ["neuron" in role.image for role in deployment.engine_roles] == [False, False, True]
    assert deployment.model_names == ("Qwen/Qwen3-8B",)
    [router] = deployment.list_services(deployment.router)
    names = {role: address.format(role=role, name=deployment.name) for role in ("worker", "small", "trn")}
    assert [word for word in router.command if word.startswith("--worker=")] == [
        f"--worker={names['worker']}=5",
        f"--worker={names['small']}",
        f"--worker={names['trn']}",
    ]
    assert "--enable-igw" in router.command


def test_a_load_knows_the_accelerators_and_the_weight_of_each_role(tmp_path: Path) -> None:
    roles = validate.build_target(resolve(tmp_path, weight=5), tmp_path).roles
    assert [(role.name, role.accelerators, role.weight) for role in roles] == [
        ("worker", "8 x H100", 5),
        ("small", "1 x L40S", 1),
        ("trn", "16 x Trainium2", 1),
    ]
    alike = WITHOUT_TRAINIUM.replace("  workers:\n    small: {pool: l40s, replicas: 4}\n", "").replace(", WEIGHT", "")
    assert [role.accelerators for role in validate.build_target(resolve(tmp_path, alike), tmp_path).roles] == [""]


def test_the_same_weights_leave_a_fast_replica_idle_and_those_that_are_advised_do_not(tmp_path: Path) -> None:
    equal = predicted_load.predict_workers(resolve(tmp_path))
    weights = predicted_load.choose_weights(equal)
    assert weights["small"] == 1 < 4 < min(weights["trn"], weights["worker"])
    full = sum(load.replica_per_s * load.role.replicas.max for load in equal)
    assert sum(load.carried_per_s for load in equal) < 0.5 * full

    text = WITHOUT_TRAINIUM
    advised = predicted_load.choose_weights(predicted_load.predict_workers(resolve(tmp_path, text)))
    weighed = resolve(tmp_path, text, weight=advised["worker"])
    carried = predicted_load.predict_requests_per_s(weighed)
    unweighed = predicted_load.predict_requests_per_s(resolve(tmp_path, text))
    assert carried and unweighed and carried > 2 * unweighed


def test_an_encoder_has_no_cache_that_could_bound_what_its_replicas_carry(tmp_path: Path) -> None:
    text = WITHOUT_TRAINIUM.replace("Qwen/Qwen3-8B", "BAAI/bge-m3\ntask: embed").partition("slo:")[0] + "slo: {}\n"
    loads = predicted_load.predict_workers(resolve(tmp_path, text.replace("accelerators: 8, ", "")))
    assert [load.role.name for load in loads] == ["worker", "small"]
    assert all(load.under_way > 0 for load in loads)


def test_check_says_each_role_s_share_and_the_weights_that_use_all_of_them(tmp_path: Path) -> None:
    deployment = resolve(tmp_path, WITHOUT_TRAINIUM)
    document = load(tmp_path / "blueprint.yaml", Blueprint)
    rows = [text for label, text in summary.describe(document, deployment) if label == "weights"]
    [first, second] = predicted_load.predict_workers(deployment)
    total, full = first.carried_per_s + second.carried_per_s, first.replica_per_s + 4 * second.replica_per_s
    advised = predicted_load.choose_weights([first, second])
    assert rows == [
        f"worker: weight 1, {first.carried_per_s / total:.0%} of the requests; each of 1 carries "
        f"{first.replica_per_s:.3g}/s within the SLO, with {first.under_way:.0f} under way",
        f"small: weight 1, {second.carried_per_s / total:.0%} of the requests; each of 4 carries "
        f"{second.replica_per_s:.3g}/s within the SLO, with {second.under_way:.0f} under way",
        f"together {total:.3g}/s, by the prediction, of {full:.3g}/s that they could carry. "
        f"Fix: set the weights worker {advised['worker']}, small 1",
    ]
    data = summary.build_payload(deployment)["workers"]
    assert [(row["name"], row["suggested_weight"]) for row in data] == list(advised.items())


def test_the_price_is_of_all_roles_and_a_sweep_holds_for_its_weights_alone(tmp_path: Path) -> None:
    deployment = resolve(tmp_path, WITHOUT_TRAINIUM)
    priced = price.price_deployment(deployment)
    assert priced and "worker: 1 x 1 of p5.48xlarge" in priced[1] and "small: 4 x 1 of g6e.2xlarge" in priced[1]
    other = resolve(tmp_path, WITHOUT_TRAINIUM, weight=5)
    assert measurements.compute_key(deployment) != measurements.compute_key(other)


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        (
            "  workers:",
            "  router: {policy: kv-aware}\n  workers:",
            'blueprint.yaml:7:20: roles.router.policy: "kv-aware": an engine of weight 2 or more is several entries of the '
            "router, and its cache's events are of one. Fix: set policy: cache-aware.",
        ),
        (
            "context: 8k",
            "context: 8k\nframework: llm-d",
            'blueprint.yaml:8:3: roles.workers: "small": the router of vllm under llm-d in the pattern aggregated has no weights '
            "for unlike replicas. Fix: use framework: plain, or remove workers.",
        ),
        (
            "    small:",
            "    router:",
            "blueprint.yaml:8:13: roles.workers.router: router is the name of another role. "
            "Fix: name it after its accelerators, such as l40s.",
        ),
        ("small: {pool: l40s", "small: {pool: h200", "roles.workers.small.pool"),
        (
            "  workers:\n    small: {pool: l40s, replicas: 4}\n",
            "",
            "blueprint.yaml:6:49: roles.worker.weight: 2: there are no workers on other accelerators to weigh it against. "
            "Fix: remove weight.",
        ),
    ],
)
def test_what_cannot_work_is_refused_with_its_reason(tmp_path: Path, before: str, after: str, message: str) -> None:
    text = WITHOUT_TRAINIUM.replace("WEIGHT", "weight: 2").replace(before, after)
    assert message in get_error(tmp_path, text)


def test_a_pattern_without_a_worker_has_no_further_ones(tmp_path: Path) -> None:
    text = (
        "name: mine\npattern: multi-model\nroles:\n  models:\n    one: {model: tiny, pool: l40s}\n"
        "  workers:\n    small: {pool: l40s}\ntraffic: {users: 2}\nslo: {}\n"
    )
    expected = "blueprint.yaml:6:3: roles.workers: the pattern multi-model has models. Fix: remove workers."
    assert get_error(tmp_path, text) == expected
