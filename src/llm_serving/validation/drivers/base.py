"""What a drop-in driver is: how its command is built from a job, and how its results become samples."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from llm_serving import paths
from llm_serving.services.traffic import Traffic
from llm_serving.validation.load import answer
from llm_serving.validation.load.answer import Answer, Sample
from llm_serving.validation.load.load_plan import LoadPlan
from llm_serving.validation.load.prompt import Prompt
from llm_serving.validation.on_demand import Tool

LOCKS = paths.ROOT / "requirements" / "drivers"


@dataclass(frozen=True)
class Job:
    """A load for a driver to send."""

    plan: LoadPlan
    prompts: Sequence[Prompt]
    """Of the counted requests, in order."""
    due: Sequence[float] | None
    """When each is due by our own draw, in seconds from the start; None in the closed loop."""
    engine_dialect: bool
    """Whether the server accepts the engines' own parameters."""
    folder: Path
    """The driver's own files."""
    ramp_s: float = 0.0
    """Time in which the users of the closed loop begin one after the other; 0 in the open loop."""

    @property
    def tokenizer(self) -> Path:
        """Folder of a tokenizer that counts words, for drivers that insist on one; tokens are the server's count."""
        return self.folder / "tokenizer"

    @property
    def result(self) -> Path:
        """File with the driver's results."""
        return self.folder / "result.json"

    def add_delay(self, sample: Sample, seconds: float) -> Sample:
        """Set the time between due and sent of a sample: with a cap on requests at once it waited for one to end."""
        setattr(sample, "waited_ms" if self.plan.traffic.max_concurrency else "late_ms", seconds * 1000)
        return sample

    def write_rows(self, name: str, rows: Sequence[Mapping[str, Any]]) -> Path:
        """Write a JSONL file of the driver's input and return its path."""
        file = self.folder / name
        file.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
        return file


Refusals = Mapping[str, tuple[str, str]]
"""Keys of `traffic` that a driver cannot send, each with the reason and what to do."""

IS_USED: Mapping[str, Callable[[Traffic], object]] = {
    "burstiness": lambda traffic: traffic.burstiness != 1,
    "images": lambda traffic: traffic.images,
    "max_concurrency": lambda traffic: traffic.max_concurrency,
    "process": lambda traffic: traffic.process == "constant",
    "think_time": lambda traffic: traffic.think_time,
    "trace": lambda traffic: traffic.replays_times,
    "turns": lambda traffic: traffic.turns.max > 1,
}
"""Whether a traffic has what not every driver sends."""


@dataclass(frozen=True, kw_only=True)
class Driver(Tool):
    """One drop-in driver: `name` is as in `--driver NAME`, and `download_mib` 0 if it comes with the engine."""

    package: str
    """Distribution whose version the report names."""
    executable: str
    clock: str
    """Where a request's times begin, in words."""
    build_command: Callable[[Job, Path], list[str]]
    """Writes the driver's input; takes the directory of its executables."""
    read: Callable[[Job], list[Sample]]
    """Reads the driver's results."""
    refuses: Refusals = field(default_factory=dict)
    unmeasured: Mapping[str, str] = field(default_factory=dict)
    """Objectives of an SLO that it does not measure, such as `itl_ms.p95` or `stall`, each with what it has instead."""
    api: Literal["chat", "completions"] | None = None
    """The only API that it sends lengths to; None for both."""
    sends_messages: bool = False
    """Whether it sends our messages as they are: several of them, and pictures."""
    ramps: bool = False
    """Whether it lets the users of the closed loop begin one after the other."""
    notes: tuple[str, ...] = ()
    """Remarks of every report."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables of its process."""

    @property
    def lock(self) -> Path:
        return LOCKS / f"{self.name}.txt"

    def list_notes(self, traffic: Traffic) -> Iterator[str]:
        """Yield the remarks of a report."""
        yield from self.notes
        if traffic.users and not self.ramps:
            yield (
                f"{self.title} begins all {traffic.users} users at once: the first times to first token are of a burst "
                "that the loop never has again."
            )


def build_sample(
    number: int,
    start_s: float,
    *,
    times: Sequence[float],
    end: float,
    input_tokens: int | None,
    output_tokens: int | None,
) -> Sample:
    """Return the sample of an answered request from its start and the times of its chunks since, in seconds."""
    stream = Answer(times=list(times), counts=[1] * len(times), output_tokens=output_tokens)
    stream.spread_usage()
    return Sample(
        number=number,
        start_s=start_s,
        ttft_ms=times[0] * 1000 if times else None,
        e2e_ms=end * 1000,
        gaps=stream.compute_gaps(),
        input_tokens=input_tokens,
        output_tokens=output_tokens,
    )


_KINDS = (
    (r"payload is not completed|disconnected|incomplete chunked|peer closed|reset by peer", answer.TRUNCATED),
    (r"(?i)time(d )?\s?out", answer.DEADLINE),
    (r"(?i)cannot connect|refused|all connection attempts failed", answer.CONNECT),
)


def build_failure(number: int, start_s: float, message: str, status: int | None = None) -> Sample:
    """Return the sample of a failed request, with the kind of failure by the driver's message."""
    kind = next((kind for pattern, kind in _KINDS if re.search(pattern, message)), answer.SERVER_ERROR)
    match = re.search(r"(?:error|status|code)\D{0,12}\b([45]\d\d)\b", message, re.IGNORECASE)
    status = status or (int(match[1]) if match and kind == answer.SERVER_ERROR else None)
    error = f"http_{status}" if status else kind
    return Sample(number=number, start_s=start_s, error=error, detail=message.strip()[-300:])
