"""Whom `load_balancer` of a serving blueprint lets in on EKS, where its controller lets in everybody by itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from llm_serving.fleet.loading import load_fleet
from llm_serving.fleet.standing_cost import Units
from llm_serving.services import kinds
from llm_serving.settings.errors import InputError
from tests.infra import deployments
from tests.kinds.serving.texts import FLEET

ARN = "arn:aws:{}:us-west-2:123456789012:{}/12345678-1234-1234-1234-123456789012"
BLUEPRINT = """\
pattern: aggregated
model: Qwen/Qwen3-0.6B
roles: {{worker: {{pool: general, replicas: 2}}, router: {{replicas: 2}}}}
traffic: {{users: 2, input_tokens: 32, output_tokens: 8}}
slo: {{}}
load_balancer: {{certificate: CERTIFICATE{}}}
""".replace("CERTIFICATE", ARN.format("acm", "certificate"))
PUBLIC = f", public: on, gateway: edge:8080, web_acl: {ARN.format('wafv2', 'regional/webacl/api')}"


def render(folder: Path, text: str, fleet: str = FLEET) -> dict[str, Any]:
    """The values of the chart."""
    (folder / "fleet.yaml").write_text(fleet)
    blueprint_folder = deployments.write_blueprint(folder, "mine", text)
    values: dict[str, Any] = yaml.safe_load(
        deployments.render(folder, blueprint_folder, folder / "fleet.yaml", "eks").read_text()
    )
    return values


@pytest.mark.parametrize(
    ("row", "ranges"),
    [
        ("", ["10.0.0.0/16"]),
        (", clients: 10.8.0.0/16", ["10.8.0.0/16"]),
        (PUBLIC, None),
        (f"{PUBLIC}, clients: 203.0.113.0/24", ["203.0.113.0/24"]),
    ],
    ids=["default", "clients", "public", "public-clients"],
)
def test_the_fleets_network_reaches_it_or_the_clients_that_it_names(
    tmp_path: Path, row: str, ranges: list[str] | None
) -> None:
    assert render(tmp_path, BLUEPRINT.format(row))["loadBalancer"].get("clients") == ranges


@pytest.mark.parametrize("target", ["eks", "ecs"])
def test_it_is_among_the_costs_of_its_fleet_on_every_target(tmp_path: Path, target: str) -> None:
    """Once, and by the name of its deployment; another fleet whose files are beside it has none of it."""
    pool = {"eks": "general", "ecs": "on-ecs"}[target]
    text = f"name: mine\n{BLUEPRINT.format('').replace('pool: general', f'pool: {pool}')}"
    fleets = [tmp_path / f"{name}.yaml" for name in ("demo", "other")]
    for file in fleets:
        file.write_text(FLEET.replace("name: demo", f"name: {file.stem}"))
    blueprint_folder = deployments.write_blueprint(tmp_path, "mine", text)
    deployments.render(tmp_path, blueprint_folder, fleets[0], target)
    balancer = Units("application-load-balancer", 1, "mine")
    counts = [kinds.list_rented(load_fleet(file), tmp_path).count(balancer) for file in fleets]
    assert counts == [1, 0]
    if target == "eks":  # what a user has left half written is refused where it is deployed
        file = tmp_path / "rendered" / "mine" / "eks" / "eks.yaml"
        file.write_text(file.read_text().replace("global: {", "global: {other: 1,\n  "))
        assert kinds.list_rented(load_fleet(fleets[0]), tmp_path) == []


def test_load_balancers_of_gateways_reach_the_routers_where_the_fleet_has_them(tmp_path: Path) -> None:
    """They are in the VPC, and without them the routers' policy lets in the namespace's pods alone."""
    text = BLUEPRINT.format("").rpartition("load_balancer:")[0]
    for number, (add_on, policy) in enumerate(
        {"": None, "gateway: on, ": {"clients": [{"podSelector": {}}, {"ipBlock": {"cidr": "10.0.0.0/16"}}]}}.items()
    ):
        folder = tmp_path / str(number)
        folder.mkdir()
        values = render(folder, text, FLEET.replace("add_ons: {", f"add_ons: {{{add_on}"))
        assert (values.get("networkPolicy"), "loadBalancer" in values) == (policy, False)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (
            "clients: 0.0.0.0/0",
            'clients: "0.0.0.0/0": it is every address. Fix: name the ranges of your clients.',
        ),
        (
            "gateway: edge:65536",
            'gateway: "edge:65536": its port is above 65535. Fix: use a port that there is.',
        ),
    ],
)
def test_what_a_load_balancer_cannot_have_is_refused(tmp_path: Path, row: str, message: str) -> None:
    with pytest.raises(InputError) as refused:
        render(tmp_path, BLUEPRINT.format(f", {row}"))
    assert str(refused.value).endswith(f" load_balancer.{message}")
