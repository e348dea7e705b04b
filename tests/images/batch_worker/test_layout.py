"""Jobs, their states and their chunks."""

from __future__ import annotations

from itertools import pairwise

import pytest
from batch import layout
from hypothesis import given
from hypothesis import strategies as st

STATES = (
    layout.VALIDATING,
    layout.IN_PROGRESS,
    layout.FINALIZING,
    layout.COMPLETED,
    layout.FAILED,
    layout.EXPIRED,
    layout.CANCELLING,
    layout.CANCELLED,
)


def build_job(**changes: object) -> layout.Job:
    source = {"bucket": "b", "key": "k", "bytes": 1, "etag": "e"}
    submission = layout.Submission("k", team="ads", priority="low", deadline_s=10.0)
    job = layout.build_job("batch_1", submission, name="mine", source=source, now=5.0)
    return layout.Job(**{**job, **changes})  # type: ignore[typeddict-item]


@pytest.mark.parametrize("state", layout.FINAL_STATES)
@pytest.mark.parametrize("new_state", STATES)
def test_a_job_never_leaves_its_last_state(state: str, new_state: str) -> None:
    assert layout.advance(build_job(state=state), new_state, 9.0) is None


def test_a_job_goes_from_state_to_state_with_its_times() -> None:
    job = build_job()
    for time, state in enumerate((layout.IN_PROGRESS, layout.FINALIZING, layout.COMPLETED)):
        advanced = layout.advance(job, state, float(time))
        assert advanced is not None
        job = advanced
    assert (job["in_progress_at"], job["finalizing_at"], job["completed_at"]) == (0.0, 1.0, 2.0)
    assert job["deadline_at"] == 15.0


def test_a_cancelled_job_does_not_complete() -> None:
    cancelling = build_job(state=layout.CANCELLING)
    assert layout.advance(cancelling, layout.COMPLETED, 9.0) is None
    assert layout.advance(cancelling, layout.CANCELLED, 9.0)


def test_the_same_submission_is_the_same_job_and_another_model_another() -> None:
    first = layout.build_job_id("ads", "k", '"e"', {"model": "a"})
    assert first == layout.build_job_id("ads", "k", "e", {"model": "a"})
    others = [
        layout.build_job_id("search", "k", "e", {"model": "a"}),
        layout.build_job_id("ads", "k", "f", {"model": "a"}),
        layout.build_job_id("ads", "k", "e", {"model": "b"}),
    ]
    assert len({first, *others}) == 4


@given(st.integers(1, 10**14), st.integers(1, 1000))
def test_a_file_of_any_size_has_no_more_chunks_than_s3_joins(size: int, workers: int) -> None:
    chunk_bytes = layout.compute_chunk_bytes(size, workers)
    assert -(-size // chunk_bytes) <= layout.MAX_CHUNKS


@given(st.integers(1, 10_000), st.integers(1, 3_000))
def test_ranges_cover_a_file_without_gap_or_overlap(size: int, chunk_bytes: int) -> None:
    ranges = layout.split_ranges(size, chunk_bytes)
    assert ranges[0][0] == 0
    assert ranges[-1][1] == size
    assert all(before[1] == after[0] for before, after in pairwise(ranges))


def test_no_two_things_of_a_job_have_the_same_key() -> None:
    keys = layout.Layout("/batch/mine/")
    all_keys = [
        keys.build(layout.JOB, "j"),
        keys.build(layout.CHUNKS, "j"),
        keys.build(layout.OUTPUT, "j"),
        keys.build(layout.ERRORS, "j"),
        *(
            key
            for index in (0, 1)
            for key in (
                keys.build(layout.UNPACKED, "j", index),
                keys.build(layout.SCAN, "j", index),
                keys.build(layout.IDS, "j", index),
                keys.build(layout.ROWS, "j", index),
                keys.build(layout.HEAD, "j", index),
                keys.build(layout.PART, "j", index, 1, 0, "output"),
                keys.build(layout.PART, "j", index, 1, 0, "errors"),
                keys.build(layout.PART, "j", index, 2, 0, "output"),
            )
        ),
    ]
    assert len(set(all_keys)) == len(all_keys)
    assert all(key.startswith("batch/mine/jobs/j/") for key in all_keys)
