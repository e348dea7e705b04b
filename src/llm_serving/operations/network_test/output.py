"""The output of all_reduce_perf, and whether the network between the instances is healthy.

NCCL falls back to TCP without an error, so the bandwidth alone is no proof: its own log must name libfabric and EFA.
Formats: NVIDIA/nccl-tests v2.20.0, src/common.cu; aws/aws-ofi-nccl v1.21.1, src/nccl_ofi_net.cpp.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from llm_serving.catalog.instances import Instance

_ROW = re.compile(
    r"^\s*(?P<size>\d+)\s+\d+\s+[a-z]\w*\s+\w+\s+-?\d+"
    r"\s+(?P<time>[\d.]+)\s+[\d.]+\s+(?P<bus>[\d.]+)\s+(?P<wrong>\d+|N/A)"
    r"(?:\s+[\d.]+\s+[\d.]+\s+[\d.]+\s+(?P<wrong_in_place>\d+|N/A))?"
)
_PREFIX = re.compile(r"^(?:\[\d+,\d+\]<\w+>:|\d+:\s)")
"""What mpirun --tag-output and srun --label put before a line."""

_NETWORK = re.compile(r"NCCL INFO Using network (?P<name>.+?)\s*$")
_PROVIDER = re.compile(
    r"NET/OFI Selected [Pp]rovider is (?P<provider>[\w;-]+)(?:,.*?)?(?:\s*\(found (?P<nics>\d+) nics\))?\s*$"
)
_BYTES_PER_GBIT = 0.125

MIN_SHARE = 0.8
"""Least healthy bus bandwidth of the largest message, as a share of the instance's network bandwidth.

With two nodes NVLink carries a part of an all-reduce, so healthy pairs exceed their network: published results are at
0.89 to 1.57 (aws-samples/awsome-distributed-training, micro-benchmarks/nccl-tests/README.md, commit 0162aac;
littlemex/distributed-inference, 2026-06-20-gpudirect-rdma-efa-b300/README.md). TCP reaches 0.03 on p5.
"""


@dataclass(frozen=True)
class Row:
    """One message size."""

    message_bytes: int
    bus_gb_s: float
    """Bus bandwidth out of place, in 10^9 bytes a second."""

    wrong: int
    """Elements with a wrong result."""


@dataclass(frozen=True)
class Output:
    """What the program printed."""

    rows: tuple[Row, ...]
    networks: frozenset[str]
    """Networks that the ranks use, in NCCL's words."""

    providers: frozenset[str]
    """libfabric's providers that the ranks use."""

    interfaces: frozenset[int]
    """EFA interfaces that the ranks found on their nodes."""


@dataclass(frozen=True)
class Verdict:
    """Whether the network is healthy."""

    message_bytes: int
    """The largest message; 0 if there was none."""

    bus_gb_s: float
    min_gb_s: float | None
    """Least bandwidth; None where nothing published says what the type reaches."""

    network: str
    failures: tuple[str, ...]
    """Why it is not healthy; empty if it is."""

    @property
    def healthy(self) -> bool:
        """Whether nothing speaks against it."""
        return not self.failures


def parse(text: str) -> Output:
    """Parse the output of all_reduce_perf with NCCL_DEBUG=INFO, with or without the prefixes of a launcher."""
    lines = [_PREFIX.sub("", line) for line in text.splitlines()]
    row_matches = [match for match in map(_ROW.match, lines) if match]
    provider_matches = [match for match in map(_PROVIDER.search, lines) if match]
    return Output(
        rows=tuple(_parse_row(match) for match in row_matches),
        networks=frozenset(match["name"] for match in map(_NETWORK.search, lines) if match),
        providers=frozenset(match["provider"] for match in provider_matches),
        interfaces=frozenset(int(match["nics"]) for match in provider_matches if match["nics"]),
    )


def _parse_row(match: re.Match[str]) -> Row:
    wrong = sum(int(match[name]) for name in ("wrong", "wrong_in_place") if match[name] and match[name].isdigit())
    return Row(int(match["size"]), float(match["bus"]), wrong)


def judge(output: Output, instance: Instance, *, efa: int) -> Verdict:
    """Judge an output.

    Args:
        instance: the type of all nodes.
        efa: EFA interfaces that each node has.
    """
    largest = max(output.rows, key=lambda row: row.message_bytes, default=Row(0, 0.0, 0))
    min_gb_s = compute_min_bandwidth(instance)
    failures = [*_check_results(output), *_check_network(output, efa)]
    if output.rows and min_gb_s is not None and largest.bus_gb_s < min_gb_s:
        failures.append(
            f"{largest.bus_gb_s:.1f} GB/s of bus bandwidth, and {instance.name} needs {min_gb_s:.0f} to be healthy"
        )
    network = ", ".join(sorted(output.networks | {f"provider {name}" for name in output.providers})) or "unknown"
    return Verdict(largest.message_bytes, largest.bus_gb_s, min_gb_s, network, tuple(failures))


def compute_min_bandwidth(instance: Instance) -> float | None:
    """Return the least healthy bus bandwidth of the largest message, in 10^9 bytes a second.

    None where EFA does not reach the GPUs' memory: no result of such a type was published.
    """
    if not instance.gpudirect_rdma:
        return None
    return MIN_SHARE * instance.network_gbps * _BYTES_PER_GBIT


def _check_results(output: Output) -> list[str]:
    if not output.rows:
        return ["the program printed no result"]
    wrong = sum(row.wrong for row in output.rows)
    return [f"{wrong} elements came back wrong"] if wrong else []


def _check_network(output: Output, efa: int) -> list[str]:
    if not output.networks:
        return ["NCCL's log does not name the network that it used"]
    others = sorted(name for name in output.networks if "Libfabric" not in name)
    if others:
        return [f"NCCL fell back to {', '.join(others)}: it did not use EFA"]
    if output.providers != {"efa"}:
        return [f"libfabric used {', '.join(sorted(output.providers)) or 'an unnamed provider'} instead of efa"]
    if output.interfaces and output.interfaces != {efa}:
        counts = ", ".join(map(str, sorted(output.interfaces)))
        return [f"the containers have {counts} EFA interfaces, and the instances have {efa}"]
    return []
