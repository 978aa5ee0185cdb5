"""When a finding about a topic is final: a property over all answers and times."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tidegate.commit.confirmation import CONFIRMATION_S, Confirmation

ANSWERS = st.lists(
    st.tuples(st.sampled_from(["", "absent", "recreated"]), st.floats(0, CONFIRMATION_S)),
    max_size=30,
)
"""Findings, each with the seconds since the answer before."""


@given(ANSWERS)
def test_a_finding_is_final_when_every_answer_of_ten_seconds_was_the_same(
    answers: list[tuple[str, float]],
) -> None:
    confirmation, now_s = Confirmation(), 100.0
    history: list[tuple[float, str]] = []
    for finding, pause_s in answers:
        now_s += pause_s
        history.append((now_s, finding))
        # By the definition: the newest answers that are all this finding span ten seconds.
        first_s = now_s
        for at_s, earlier in reversed(history):
            if earlier != finding:
                break
            first_s = at_s
        due = bool(finding) and now_s - first_s >= CONFIRMATION_S
        assert confirmation.observe(finding, now_s) is due


def test_one_answer_is_never_final_however_late_it_comes() -> None:
    confirmation = Confirmation()
    assert not confirmation.observe("absent", 1_000.0)
    assert not confirmation.observe("absent", 1_009.9)
    assert not confirmation.observe("", 1_009.95)
    assert not confirmation.observe("absent", 1_020.0)
    assert confirmation.observe("absent", 1_030.0)
