"""When a job counts as behind, and when it no longer does."""

from __future__ import annotations

from tidegate.checkpoint.backlog import Backlog

WINDOW_S = 1.0

Look = tuple[float, int, int]
"""When, records read so far, records that wait."""


def fed(*looks: Look, window_s: float = WINDOW_S) -> list[bool]:
    backlog = Backlog(window_s)
    found = []
    for each in looks:
        found.append(backlog.sample(*each))
        assert backlog.is_processing_backlog is found[-1]
    return found


def test_backlog_is_reported_if_more_records_wait_than_the_job_reads_in_a_window() -> None:
    looks = (100, 0, 5_000), (101, 1_200, 3_800), (102, 2_400, 2_600)
    assert fed(*looks) == [False, False, True]


def test_no_backlog_is_reported_if_as_many_records_wait_as_the_job_reads_in_a_window() -> None:
    assert fed((100, 0, 9_000), (101, 1_200, 1_200), (102, 2_400, 1_200)) == [False] * 3


def test_speed_is_scaled_to_one_window_if_a_sample_is_late() -> None:
    """1,000 a second: as 1,500 wait, it takes one window and a half, not half of three seconds."""
    assert fed((100, 0, 9_000), (103, 3_000, 1_500), (106, 6_000, 1_500))[-1]


def test_records_read_before_the_first_sample_do_not_count_for_the_speed() -> None:
    first = 1_000_000
    looks = (100, first, 9_000), (101, first + 1_000, 8_000), (102, first + 2_000, 7_000)
    assert fed(*looks) == [False, False, True]


def test_no_backlog_is_reported_in_the_first_tenth_of_a_window() -> None:
    """A tenth of a window is watched, and in the next the backlog is seen."""
    looks: tuple[Look, ...] = (0, 0, 90_000), (0.05, 1, 90_000), (0.1, 500, 90_000)
    assert fed(*looks, (0.16, 750, 90_000), (0.2, 1_000, 90_000)) == [False] * 4 + [True]


def test_several_samples_within_milliseconds_do_not_confirm_a_backlog() -> None:
    """Each subtask of a slot acknowledges a checkpoint within milliseconds."""
    looks = (100, 0, 9_000), (101, 1_000, 8_000), (101.001, 1_001, 8_000), (101.002, 1_002, 8_000)
    assert fed(*looks) == [False] * 4
    assert fed((100, 0, 9_000), (100, 0, 9_000), (101, 1_000, 8_000)) == [False] * 3


def test_a_burst_that_is_read_within_a_window_is_no_backlog() -> None:
    """Five times what usually comes in a second, at once."""
    looks = [(100 + tick / 10, 100 * tick, 5) for tick in range(18)]
    looks += [(101.8, 1_900, 5_000), (101.803, 1_900, 5_000), (101.85, 4_400, 2_500)]
    assert fed(*looks, (102, 6_900, 10)) == [False] * 22


def test_time_without_waiting_records_before_a_burst_does_not_lower_the_speed() -> None:
    looks = [(100 + tick / 10, 500, 0) for tick in range(9)]
    looks += [(100.9, 600, 9_000), (101.0, 3_000, 6_500), (101.1, 6_000, 3_500)]
    assert fed(*looks) == [False] * 12


def test_a_slow_moment_of_a_fast_job_is_no_backlog() -> None:
    """It read 10,000 in the last whole window; that 5,000 wait is half a window's work."""
    looks = (100, 0, 10), (101, 10_000, 10), (101.5, 10_100, 5_000), (101.8, 10_200, 5_000)
    assert fed(*looks) == [False] * 4


BEHIND: tuple[Look, ...] = (100, 0, 9_000), (101, 1_000, 8_000), (102, 2_000, 7_000)


def test_backlog_ends_when_only_a_quarter_of_the_records_of_a_window_waits() -> None:
    assert fed(*BEHIND, (102.2, 2_200, 251), (102.3, 2_300, 250))[2:] == [True, True, False]


def test_backlog_found_within_a_window_ends_by_the_speed_of_that_window() -> None:
    looks: tuple[Look, ...] = (0, 0, 90_000), (0.1, 500, 90_000), (0.2, 1_000, 90_000)
    assert fed(*looks, (0.3, 1_500, 1_251), (0.4, 2_000, 1_250))[2:] == [True, True, False]


def test_backlog_ends_at_fewer_waiting_records_if_the_job_reads_slower() -> None:
    slower = (103, 2_400, 6_000), (103.1, 2_440, 101), (103.2, 2_480, 100)
    assert fed(*BEHIND, *slower)[2:] == [True, True, True, False]


def test_backlog_ends_when_no_record_waits() -> None:
    assert not fed(*BEHIND, (102.1, 2_100, 0))[-1]


def test_new_backlog_is_reported_only_after_it_is_confirmed_again() -> None:
    again = (102.1, 2_100, 0), (103.1, 3_100, 2_000), (104.1, 4_100, 2_000)
    assert fed(*BEHIND, *again)[3:] == [False, False, True]


def test_suspected_backlog_is_confirmed_anew_after_a_sample_without_backlog() -> None:
    looks = (100, 0, 9_000), (101, 1_000, 8_000), (102, 2_000, 500), (103, 3_000, 8_000)
    assert fed(*looks) == [False] * 4


def test_no_backlog_is_reported_for_a_job_that_reads_nothing() -> None:
    assert fed((100, 0, 9_000), (101, 0, 9_000), (102, 0, 9_500)) == [False] * 3
    assert fed(*BEHIND, (102.5, 2_000, 8_000), (103, 2_000, 8_000))[2:] == [True, True, False]


def test_no_backlog_is_reported_with_a_window_of_zero() -> None:
    assert fed(*BEHIND, window_s=0) == [False] * 3
