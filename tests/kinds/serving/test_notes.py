"""What a user is told of a deployment that may surprise."""

from __future__ import annotations

from pathlib import Path

from tests.kinds.serving import resolving
from tests.kinds.serving.texts import (
    AGGREGATED,
    FLEET,
    SMALL,
    SURGE,
    TRAFFIC_AND_SLO,
    format_disaggregated,
    format_distributed,
    resolve_blueprint,
)


def test_a_start_that_is_longer_than_ecs_gives_a_task_is_noted_there_alone(tmp_path: Path) -> None:
    large = format_distributed(model="deepseek-ai/DeepSeek-R1", pool="p5en", accelerators=16, data=16, expert="on")
    on_ecs = FLEET.replace("size: 4, efa: on}", "size: 4, efa: on, orchestrator: ecs}")
    notes = {
        "eks": resolve_blueprint(tmp_path, large).notes,
        "ecs": resolving.resolve_files(tmp_path / "mine", large, on_ecs, "ecs").notes,
    }
    start = "ECS ends a container that has not answered 55 minutes after its start. worker may take "
    assert [note.startswith(start) for note in notes["ecs"]].count(True) == 1
    assert not any("has not answered" in note for note in notes["eks"])
    small = format_disaggregated({"pool": "on-ecs"}, {"pool": "on-ecs"})
    assert not any("has not answered" in note for note in resolve_blueprint(tmp_path, small, "ecs").notes)


def test_an_upgrade_of_one_replica_without_a_second_is_noted_as_an_outage(tmp_path: Path) -> None:
    text = AGGREGATED.replace("MODEL", SMALL).replace("{WORKER}", "{pool: general}")
    reason = "An upgrade stops the one replica of worker before it starts the new one, and nothing answers meanwhile. "
    alone = resolve_blueprint(tmp_path, text + TRAFFIC_AND_SLO)
    assert [note.startswith(reason) for note in alone.notes].count(True) == 1
    assert not any(
        note.startswith(reason) for note in resolve_blueprint(tmp_path, text + SURGE + TRAFFIC_AND_SLO).notes
    )
