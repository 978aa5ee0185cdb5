"""The protocol holds at small bounds, and each rule that is broken shows what it was good for."""

from __future__ import annotations

import pytest

from tests.commit.model.cases import BROKEN, LARGER, LARGER_BROKEN, SMALL, Case


def named(case: Case) -> str:
    return case.name


def assert_as_expected(case: Case) -> None:
    result = case.run()
    assert result.violation.startswith(case.expected_violation), result
    assert bool(result.violation) == bool(case.expected_violation), result


@pytest.mark.parametrize("case", SMALL, ids=named)
def test_the_protocol_holds(case: Case) -> None:
    assert case.expected_violation == ""
    assert_as_expected(case)


@pytest.mark.parametrize("case", BROKEN, ids=named)
def test_a_broken_rule_shows(case: Case) -> None:
    assert_as_expected(case)


@pytest.mark.seeds
@pytest.mark.timeout(600)
@pytest.mark.parametrize("case", LARGER + LARGER_BROKEN, ids=named)
def test_the_protocol_holds_at_larger_bounds(case: Case) -> None:
    assert_as_expected(case)
