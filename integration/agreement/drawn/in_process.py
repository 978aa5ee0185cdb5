"""A drawn pipeline in `PipelineTest`: no broker, and crashes at random places.

The events of the partitions come in a drawn interleaving, in batches of several sizes. Between
them the run takes checkpoints, crashes, and continues with another number of subtasks. It ends with
a drain.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from integration.agreement.drawn.draws import HEADER, Draw
from integration.agreement.drawn.judge import problems
from integration.agreement.drawn.parts import Event
from integration.agreement.drawn.records import Partitions, records_of
from integration.agreement.drawn.texts import HEADER_NAME, load, sinks_of, text_of
from tidegate.testing import PipelineTest, Setup

BATCH_MAX = 8


def judged(draw: Draw, run: int, folder: Path, *, count: int = 120) -> None:
    """Run a drawn pipeline once. AssertionError, with the pipeline, if its outputs are wrong.

    `run` draws the interleaving and the crashes.
    """
    partitions = records_of(draw, count)
    outputs = outputs_of(draw, partitions, run, folder)
    wrong = problems(draw, partitions, outputs)
    assert not wrong, "\n".join(
        [f"seed {draw.seed}, run {run}:", *wrong[:20], str(draw), text_of(draw)]
    )


def outputs_of(draw: Draw, partitions: Partitions, run: int, folder: Path) -> dict[str, Any]:
    """Run a drawn pipeline, and return the records of its sinks."""
    rng = random.Random(f"drawn run {draw.seed} {run}")
    pipeline: Any = load(draw, folder)
    barriers = random.Random(f"drawn barriers {draw.seed} {run}")
    setup = Setup(
        parallelism=rng.randint(1, 4),
        batch=rng.choice((1, 3, 1_000)),
        seed=rng.randrange(1_000),
        checkpoint_every=barriers.choice((0, 0, 3, 10)),
    )
    with PipelineTest(pipeline, setup) as test:
        sources = {
            (name, number): test.source(getattr(pipeline, name), partition=number)
            for name, each in partitions.items()
            for number in range(len(each))
        }
        left = {
            (name, number): list(events)
            for name, each in partitions.items()
            for number, events in enumerate(each)
        }
        idles = {source.name for source in draw.sources if source.strategy.idle} - (
            {source.name for source in draw.sources} if draw.stamped_ms is not None else set()
        )
        for place, events in _turns(rng, left):
            if events:
                _push(draw, sources[place], place[0], events)
            if not left[place] and place[0] in idles:
                sources[place].idle()
            _fault(rng, test)
        test.drain()
        return {name: test.sink(getattr(pipeline, name)).read() for name in sinks_of(draw)}


def _turns(
    rng: random.Random, left: dict[tuple[str, int], list[Event]]
) -> Iterator[tuple[tuple[str, int], list[Event]]]:
    """Yield the next events of a partition, until all have come. A partition without events comes
    once. Some partitions come seldom, so that the others are far ahead.
    """
    shares = {place: rng.choice((0.05, 0.3, 1.0)) for place in left}
    remaining = dict.fromkeys(left)
    while remaining:
        places = list(remaining)
        (place,) = rng.choices(places, [shares[each] for each in places])
        size = rng.randint(1, BATCH_MAX)
        events, left[place] = left[place][:size], left[place][size:]
        if not left[place]:
            del remaining[place]
        yield place, events


def _push(draw: Draw, source: Any, name: str, events: Sequence[Event]) -> None:
    """Push events with the timestamps and headers that a broker would give them."""
    (declared,) = (each for each in draw.sources if each.name == name)
    pushed = []
    for number, event in enumerate(events):
        has_header = declared.strategy.time == HEADER
        headers = ((HEADER_NAME, str(event.at_ms).encode()),) if has_header else ()
        value = msgspec.json.encode(event)
        pushed.append(
            source._plain(value, headers=headers, timestamp_ms=event.at_ms or 0, number=number)
        )
    source._run.push(source._uid, source._of, pushed)


def _fault(rng: random.Random, test: PipelineTest) -> None:
    match rng.random():
        case chance if chance < 0.10:
            test.checkpoint()
        case chance if chance < 0.13:
            test.crash()
        case chance if chance < 0.16:
            test.crash(parallelism=rng.randint(1, 4))
        case chance if chance < 0.18:
            test.stop().crash(parallelism=rng.randint(1, 4))
