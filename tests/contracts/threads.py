"""What `ports.threads` promises, for the standard library's objects and the simulator's.

Each rule runs inside a thread of the driver; what it asserts there must hold in any schedule, so it
takes no time as a proof. `RULES` is run by `tests/simulator/tests/test_threads.py` on both.
"""

from __future__ import annotations

import queue
from collections.abc import Callable

import pytest

from tidegate.ports.threads import Threads


def items_come_in_order(threads: Threads) -> None:
    line = threads.queue()

    def produce() -> None:
        for number in range(50):
            line.put(number)

    threads.start(produce, name="producer")
    assert [line.get(timeout=10) for _ in range(50)] == list(range(50))
    assert line.qsize() == 0


def an_empty_queue_says_so(threads: Threads) -> None:
    line = threads.queue()
    with pytest.raises(queue.Empty):
        line.get(block=False)
    with pytest.raises(queue.Empty):
        line.get(timeout=0.001)
    line.put("late")
    assert line.get(block=False) == "late"


def an_event_wakes_all_who_wait(threads: Threads) -> None:
    event, woken = threads.event(), threads.queue()
    for _ in range(3):
        threads.start(lambda: woken.put(event.wait(10)), name="waiter")
    assert not event.wait(0.001)
    event.set()
    assert [woken.get(timeout=10) for _ in range(3)] == [True] * 3
    assert event.is_set()
    event.clear()
    assert not event.is_set()


def a_lock_has_one_owner(threads: Threads) -> None:
    lock, inside, done = threads.lock(), list[int](), threads.queue()
    pause = threads.event()

    def work() -> None:
        with lock:
            inside.append(1)
            pause.wait(0.001)
            done.put(len(inside))
            inside.pop()

    for _ in range(4):
        threads.start(work, name="worker")
    assert [done.get(timeout=10) for _ in range(4)] == [1] * 4


def a_condition_waits_for_what_changes_under_it(threads: Threads) -> None:
    condition, facts = threads.condition(), list[str]()

    def tell() -> None:
        with condition, condition:  # its owner may enter again
            facts.append("told")
            condition.notify_all()

    with condition:
        assert not condition.wait_for(lambda: facts, 0.001)
        threads.start(tell, name="teller")
        assert condition.wait_for(lambda: facts, 10)
    assert facts == ["told"]


def a_pool_runs_work_in_order_and_side_by_side(threads: Threads) -> None:
    single, several = threads.pool(1, name="one"), threads.pool(2, name="two")
    done, first, second = threads.queue(), threads.event(), threads.event()
    for number in range(20):
        single.submit(lambda number=number: done.put(number))  # type: ignore[misc]
    assert [done.get(timeout=10) for _ in range(20)] == list(range(20))

    def answers() -> None:
        first.wait(10)
        second.set()

    def asks() -> None:
        first.set()
        done.put(second.wait(10))

    several.submit(answers)
    several.submit(asks)
    assert done.get(timeout=10)
    several.shutdown(wait=False, cancel_futures=True)
    with pytest.raises(RuntimeError):
        several.submit(lambda: None)


RULES: list[Callable[[Threads], None]] = [
    items_come_in_order,
    an_empty_queue_says_so,
    an_event_wakes_all_who_wait,
    a_lock_has_one_owner,
    a_condition_waits_for_what_changes_under_it,
    a_pool_runs_work_in_order_and_side_by_side,
]
