"""Clean sign-ups: a valid one becomes a row, and every other one a dead letter with its reason."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from pipelines.clean_signups import CleanSignups, RawSignup, clean
from tidegate.testing import PipelineTest

GOOD = RawSignup(" Ann@Example.org", "de", "2026-01-31T12:00:00+01:00")


def test_row_has_the_domain_the_country_and_the_time_and_not_the_address() -> None:
    row = clean(GOOD)
    assert (row.domain, row.country) == ("example.org", "DE")
    assert row.at == datetime(2026, 1, 31, 11, tzinfo=UTC)
    assert row.email_hash == clean(RawSignup("ann@example.org", "", GOOD.at)).email_hash
    assert "ann" not in repr(row)


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (RawSignup("ann", "de", GOOD.at), "the email address has no domain"),
        (RawSignup("@example.org", "de", GOOD.at), "the email address has no domain"),
        (RawSignup(GOOD.email, "de", "2026-01-31T12:00:00"), "the time has no zone"),
        (RawSignup(GOOD.email, "de", "soon"), "Invalid isoformat string"),
    ],
)
def test_signup_that_is_not_valid_becomes_a_dead_letter_and_the_others_pass(
    raw: RawSignup, reason: str
) -> None:
    with PipelineTest(CleanSignups) as test:
        test.source(CleanSignups.raw).push(GOOD, raw, GOOD)
        assert test.sink(CleanSignups.rows).read() == [clean(GOOD)] * 2
        (letter,) = test.dead_letters("signups-bad")
        assert reason in str(letter)
