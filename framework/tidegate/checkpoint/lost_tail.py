"""Whether Kafka knows more of a job than its journal does, and what a restore writes again.

A journal that was restored from a backup lacks its newest entries. Nothing inside it shows that,
and a job that continues from it writes records again without a word. Kafka keeps two traces of
what is missing. Transactional ids hold the attempt that has opened them, and no attempt opens one
before its claim is in the journal. The consumer groups of the sources hold the checkpoint whose
offsets were committed last, as metadata, and no offset is committed before its checkpoint is
published. So an id of a newer attempt, or an offset of a newer checkpoint, proves that entries are
missing. Traces are no more than that: ids and offsets expire, so their absence proves nothing.

Pure. The claim procedure asks before it claims; whoever restores a checkpoint by its id has decided
and is not refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from tidegate.checkpoint.journal_state import JournalState
from tidegate.checkpoint.transactional_ids import parse_transactional_id
from tidegate.ids import Attempt, CheckpointId, JobName, TransactionalId, Uid
from tidegate.ports.kafka import GroupCommit
from tidegate.protocol.snapshots import SourceSplit

SHOWN_MAX: Final = 20
"""Partitions that a report names."""

Place = tuple[Uid, str, int]
"""A source, a topic and a partition."""

GroupCommits = Mapping[Place, GroupCommit]
"""What the consumer groups of a job's sources hold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LostTail:
    """What Kafka knows and the journal does not."""

    attempt: Attempt
    """The newest attempt that Kafka knows."""
    checkpoint: CheckpointId | None
    """The newest checkpoint whose offsets are in a consumer group; None where none is newer than
    the journal."""


def commit_metadata(journal: str, checkpoint: CheckpointId) -> str:
    """What a source commits beside its offsets."""
    return f"tidegate {journal} {checkpoint}"


def parse_commit_metadata(text: str) -> tuple[str, CheckpointId] | None:
    """The inverse; None for what other clients, or earlier versions, have committed."""
    words = text.split(" ")
    if len(words) != 3 or words[0] != "tidegate":  # noqa: PLR2004 - as `commit_metadata` writes it
        return None
    try:
        return words[1], CheckpointId.parse(words[2])
    except ValueError:
        return None


def find_lost_tail(
    job: JobName, state: JournalState, listed: Iterable[TransactionalId], commits: GroupCommits
) -> LostTail | None:
    """What the journal lacks, None where nothing shows that it lacks anything.

    `listed` and `commits` were asked for before the journal was read: what is published in between
    is then in the journal.
    """
    parsed = [parse_transactional_id(name) for name in listed]
    attempts = [
        parts.attempt
        for parts in parsed
        if parts is not None and parts.job == job and parts.journal == state.name
    ]
    attempt = max(attempts, default=Attempt(0))
    newest = _newest_committed(state, commits)
    last = state.publication
    is_newer = newest is not None and (last is None or last.checkpoint < newest)
    if newest is None or not is_newer or newest.attempt <= state.lost_attempt:
        newest = None
    if attempt <= max(state.attempt, state.lost_attempt) and newest is None:
        return None
    return LostTail(
        attempt=max(attempt, Attempt(0) if newest is None else newest.attempt), checkpoint=newest
    )


def _newest_committed(state: JournalState, commits: GroupCommits) -> CheckpointId | None:
    found = [parse_commit_metadata(commit.metadata) for commit in commits.values()]
    return max((each[1] for each in found if each and each[0] == state.name), default=None)


def read_again(
    journal: str,
    restored: Iterable[SourceSplit],
    reached: Iterable[SourceSplit],
    commits: GroupCommits,
) -> str:
    """Which offsets lie between a restored checkpoint and what the job has reached, as text; empty
    where there are none. Their records are read again, and their output is written again.

    Of the groups' offsets those count that the journal's own attempts have committed.
    """
    parsed = {place: parse_commit_metadata(each.metadata) for place, each in commits.items()}
    own = {place for place, found in parsed.items() if found and found[0] == journal}
    ends: dict[Place, int] = {place: commits[place].offset for place in own}
    for split in reached:
        place = split.source, split.topic, split.partition
        ends[place] = max(split.offset, ends.get(place, 0))
    ranges = [
        f"{split.topic}-{split.partition} offsets {split.offset} to {end - 1}"
        for split in restored
        if (end := ends.get((split.source, split.topic, split.partition), 0)) > split.offset
    ]
    more = f" and {len(ranges) - SHOWN_MAX} more partitions" if len(ranges) > SHOWN_MAX else ""
    return ", ".join(ranges[:SHOWN_MAX]) + more
