from __future__ import annotations

from scripts.benchmarks import comparisons


def test_equal_services_do_not_differ_and_one_that_takes_twice_as_long_does() -> None:
    assert comparisons.count_differences(3, 15, 1.0, 0.0) == 0
    assert comparisons.count_differences(2, 15, 2.0, 0.0) == 1


def test_a_machine_that_differs_from_run_to_run_differs_in_single_runs_and_not_in_groups() -> None:
    assert comparisons.count_differences(3, 5, 1.0, 0.5) > 0
    assert comparisons.count_differences(2, 5, 1.0, 0.5, groups=True) == 0
