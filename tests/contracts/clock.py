"""The contract of `ports/clock.py`: what every clock does.

A test class inherits it and gives the clock. No test of its own runs from here.
"""

from __future__ import annotations

import pytest

from tests.contracts.surroundings import ContractEnvironment

YEAR_2020_MS = 1_577_836_800_000
YEAR_2100_MS = 4_102_444_800_000


class ClockContract:
    """Inherit, and override the fixture `environment`, whose clock is the one under test."""

    @pytest.fixture
    def environment(self) -> ContractEnvironment:
        raise NotImplementedError

    def test_monotonic_never_goes_back(self, environment: ContractEnvironment) -> None:
        seen = [environment.clock.monotonic() for _ in range(1000)]
        assert seen == sorted(seen)

    @pytest.mark.parametrize("seconds", [0.0, 0.001, 0.05])
    def test_sleep_takes_at_least_the_given_time(
        self, environment: ContractEnvironment, seconds: float
    ) -> None:
        began = environment.clock.monotonic()
        environment.clock.sleep(seconds)
        assert environment.clock.monotonic() - began >= seconds

    def test_monotonic_time_and_wall_clock_advance_together(
        self, environment: ContractEnvironment
    ) -> None:
        clock = environment.clock
        # A busy machine may stop the test between two readings.
        before_s, began_ms, after_s = clock.monotonic(), clock.now_ms(), clock.monotonic()
        clock.sleep(0.05)
        before_end_s, ended_ms, after_end_s = clock.monotonic(), clock.now_ms(), clock.monotonic()
        # The machine's clock may be set meanwhile; it is compared with itself nowhere else.
        passed_ms = ended_ms - began_ms
        assert (before_end_s - after_s) * 1000 - 40 <= passed_ms
        assert passed_ms <= (after_end_s - before_s) * 1000 + 40

    def test_now_is_milliseconds_since_the_epoch(self, environment: ContractEnvironment) -> None:
        now_ms = environment.clock.now_ms()
        assert isinstance(now_ms, int)
        assert YEAR_2020_MS < now_ms < YEAR_2100_MS

    def test_sleep_blocks_only_its_own_thread(self, environment: ContractEnvironment) -> None:
        woken = environment.event()

        def sleeper() -> None:
            environment.clock.sleep(0.2)
            woken.set()

        join = environment.run_in_parallel(sleeper)
        assert not woken.wait(0.01)
        join()
        assert woken.is_set()
