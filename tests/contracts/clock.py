"""The contract of `ports/clock.py`: what every clock does.

A test class inherits it and gives the clock. No test of its own runs from here.
"""

from __future__ import annotations

import pytest

from tests.contracts.surroundings import Surroundings

YEAR_2020_MS = 1_577_836_800_000
YEAR_2100_MS = 4_102_444_800_000


class ClockContract:
    """Inherit, and override the fixture `around`, whose clock is the one under test."""

    @pytest.fixture
    def around(self) -> Surroundings:
        raise NotImplementedError

    def test_monotonic_never_goes_back(self, around: Surroundings) -> None:
        seen = [around.clock.monotonic() for _ in range(1000)]
        assert seen == sorted(seen)

    @pytest.mark.parametrize("seconds", [0.0, 0.001, 0.05])
    def test_a_sleep_takes_no_less_than_it_is_told(
        self, around: Surroundings, seconds: float
    ) -> None:
        began = around.clock.monotonic()
        around.clock.sleep(seconds)
        assert around.clock.monotonic() - began >= seconds

    def test_both_times_pass_together(self, around: Surroundings) -> None:
        monotonic, now_ms = around.clock.monotonic(), around.clock.now_ms()
        around.clock.sleep(0.05)
        passed_ms = (around.clock.monotonic() - monotonic) * 1000
        # The machine's clock may be set meanwhile; it is compared with itself nowhere else.
        assert around.clock.now_ms() - now_ms == pytest.approx(passed_ms, abs=40)

    def test_now_is_milliseconds_since_the_epoch(self, around: Surroundings) -> None:
        now_ms = around.clock.now_ms()
        assert isinstance(now_ms, int)
        assert YEAR_2020_MS < now_ms < YEAR_2100_MS

    def test_a_sleep_holds_up_its_own_thread_only(self, around: Surroundings) -> None:
        woken = around.event()

        def sleeper() -> None:
            around.clock.sleep(0.2)
            woken.set()

        join = around.beside(sleeper)
        assert not woken.wait(0.01)
        join()
        assert woken.is_set()
