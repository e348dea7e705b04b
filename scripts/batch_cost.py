"""What a large batch costs at least, by arithmetic, on pools of the example fleets; a table in Markdown.

    python -m scripts.batch_cost --rows 100000000 --input-tokens 2000 --output-tokens 200

For each pool, the cheapest number of accelerators for one replica that holds the model:

    instance-hours = rows / (requests a second of a replica) / 3600 x (the replica's share of its instance)
    USD            = instance-hours x (price of an hour, on demand)

Requests a second are the most that operations and memory bandwidth allow (workloads/serving/capacity_estimate.py). No
engine reaches them: what runs at a half of them costs twice as much. `blueprint sweep` measures what one reaches.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from llm_serving import paths, program
from llm_serving.catalog import instances
from llm_serving.kinds.serving import capacity_estimate
from llm_serving.settings.errors import InputError
from llm_serving.targets import planning

MODEL = "Qwen/Qwen3-32B"
POOLS = (
    ("infra/fleets/eks-multi-az.yaml", "large"),
    ("infra/fleets/p5-efa.yaml", "h100"),
    ("infra/fleets/trn2.yaml", "trainium"),
)
"""Fleets and pools: g6e, p5 and trn2."""

ACCELERATORS = (1, 2, 4, 8, 16, 32, 64)
REACHED = (1.0, 0.5, 0.25)
"""Shares of the bound that the table shows."""

BLUEPRINT = """\
name: cost
pattern: aggregated
model: {model}
context: {context}
roles: {{worker: {{pool: {pool}, replicas: 1, accelerators: {accelerators}}}}}
traffic: {{users: 64, input_tokens: {input_tokens}, output_tokens: {output_tokens}}}
slo: {{}}
"""


@dataclass(frozen=True)
class Cost:
    """Of one pool."""

    instance: str
    region: str
    accelerators: int
    """Of a replica."""

    requests_per_s: float
    """Of an instance full of replicas, at most."""

    hours: float
    """Of instances, all together."""

    usd_h: float | None
    """Of an instance; None where the catalog has no price, as of what AWS sells by Capacity Blocks alone."""

    date: str
    """Of the price."""


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=MODEL)
    parser.add_argument("--rows", type=int, default=100_000_000)
    parser.add_argument("--input-tokens", type=int, default=2000)
    parser.add_argument("--output-tokens", type=int, default=200)
    arguments = parser.parse_args()
    print("\n".join(build_table(arguments.model, arguments.rows, arguments.input_tokens, arguments.output_tokens)))


def build_table(model: str, rows: int, input_tokens: int, output_tokens: int) -> Iterator[str]:
    """The lines of the table."""
    yield (
        "| Instance | Accelerators of a replica | Rows/s of an instance, at most | Instance-hours, at least "
        f"| {' | '.join(f'USD at {share:.0%} of that' for share in REACHED)} | Price |"
    )
    yield "|" + "---|" * (5 + len(REACHED))
    for fleet_file, pool in POOLS:
        cost = estimate(fleet_file, pool, model, rows, input_tokens, output_tokens)
        usd = ["unknown" if cost.usd_h is None else f"{cost.hours * cost.usd_h / share:,.0f}" for share in REACHED]
        price = "not in the catalog" if cost.usd_h is None else f"{cost.usd_h:.2f} USD/h, {cost.date}"
        yield (
            f"| {cost.instance}, {cost.region} | {cost.accelerators} | {cost.requests_per_s:,.1f} | {cost.hours:,.0f} "
            f"| {' | '.join(usd)} | {price} |"
        )


def estimate(fleet_file: str, pool: str, model: str, rows: int, input_tokens: int, output_tokens: int) -> Cost:
    """The cheapest replica of a pool.

    Raises:
        InputError: the model fits none.
    """
    costs, refusals = [], []
    for accelerators in ACCELERATORS:
        try:
            costs.append(_estimate_replica(fleet_file, pool, model, rows, input_tokens, output_tokens, accelerators))
        except InputError as error:
            refusals.append(error)
    if not costs:
        raise refusals[-1]
    return min(costs, key=lambda cost: cost.hours * (cost.usd_h or 1.0))


def _estimate_replica(
    fleet_file: str, pool: str, model: str, rows: int, input_tokens: int, output_tokens: int, accelerators: int
) -> Cost:
    with tempfile.TemporaryDirectory() as work:
        folder = Path(work)
        for template in (paths.PATTERNS / "aggregated").glob("*.j2"):
            (folder / template.name).write_text(template.read_text(encoding="utf-8"), encoding="utf-8")
        text = BLUEPRINT.format(
            model=model,
            pool=pool,
            context=2 * (input_tokens + output_tokens),
            accelerators=accelerators,
            input_tokens=input_tokens,
            output_tokens=output_tokens,
        )
        (folder / "blueprint.yaml").write_text(text, encoding="utf-8")
        _, fleet, deployment = planning.resolve_offline(folder, paths.ROOT / fleet_file, "eks")
    role = deployment.engine_roles[0]  # type: ignore[attr-defined]
    requests_per_s = capacity_estimate.estimate_for_lengths(deployment, input_tokens, output_tokens)  # type: ignore[arg-type]
    instance, region = instances.find(role.instance_types[0]), fleet.value.region
    if requests_per_s is None or instance.accelerators is None:
        raise InputError(f"{fleet_file}: {pool}: the catalog lacks operations or bandwidth of {instance.name}")
    replicas = instance.accelerators.count / role.resources.accelerators
    price = instance.prices.get(region)
    return Cost(
        instance=instance.name,
        region=region,
        accelerators=accelerators,
        requests_per_s=requests_per_s * replicas,
        hours=rows / (requests_per_s * replicas) / 3600,
        usd_h=price.usd_h if price else None,
        date=price.source.date if price else "",
    )


if __name__ == "__main__":
    raise SystemExit(program.run(main))
