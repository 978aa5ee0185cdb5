"""Whether Kafka knows more of a job than its journal, and which records a restore writes again.

A journal that was restored from a backup lacks its newest entries. Nothing inside the journal shows
that, and a job that continued from it would silently write records again. Kafka keeps two traces of
the missing entries. First, a transactional id contains the attempt that opened it, and no attempt
opens an id before its claim is in the journal. Second, the consumer groups of the sources hold, as
metadata, the checkpoint whose offsets were committed last, and no offset is committed before its
checkpoint is published. So an id of a newer attempt, or an offset of a newer checkpoint, proves
that entries are missing. The absence of traces proves nothing, because ids and offsets expire. If
the claim id proves that no newer attempt has opened ids, they are not listed (`claim_producer.py`).

The module is pure. The claim procedure calls it before it claims. An operator who restores a
checkpoint by its id has decided, and is not refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from tidegate.commit.journal.state import JournalState
from tidegate.commit.transactional_ids import list_attempts
from tidegate.ids import Attempt, CheckpointId, JobName, TransactionalId, Uid
from tidegate.message_text import counted
from tidegate.ports.kafka import GroupCommit
from tidegate.protocol.subtask_snapshot import SourceSplit

SHOWN_MAX: Final = 20
"""The most partitions that a report names."""

SplitKey = tuple[Uid, str, int]
"""A source, a topic and a partition."""

GroupCommits = Mapping[SplitKey, GroupCommit]
"""The commits that the consumer groups of a job's sources hold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LostTail:
    """The attempt and the checkpoint that Kafka knows and the journal lacks."""

    attempt: Attempt
    """The newest attempt that Kafka knows."""
    checkpoint: CheckpointId | None
    """The newest checkpoint whose offsets are in a consumer group; None if the journal
    lacks none.
    """


def commit_metadata(journal_id: str, checkpoint: CheckpointId) -> str:
    """Return the metadata that a source commits with its offsets."""
    return f"tidegate {journal_id} {checkpoint}"


def parse_commit_metadata(text: str) -> tuple[str, CheckpointId] | None:
    """Return the journal and the checkpoint in committed metadata. None for metadata that other
    clients or earlier versions have committed.
    """
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
    """Return what the journal lacks; None if nothing shows that it lacks anything.

    The caller must ask for `listed` and `commits` before it reads the journal. So everything that
    is published in between is in the journal.
    """
    attempts = [
        attempt
        for owner, journal_id, attempt in list_attempts(listed)
        if (owner, journal_id) == (job, state.journal_id)
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
    return max((each[1] for each in found if each and each[0] == state.journal_id), default=None)


def read_again(
    journal_id: str,
    restored: Iterable[SourceSplit],
    reached: Iterable[SourceSplit],
    commits: GroupCommits,
) -> str:
    """Return, as text, the offsets between a restored checkpoint and the positions that the job has
    reached; empty if the checkpoint is not behind them. The records at these offsets are read
    again, and their output is written again.

    Only group offsets that the journal's own attempts have committed count.
    """
    parsed = {
        split_key: parse_commit_metadata(each.metadata) for split_key, each in commits.items()
    }
    own = {split_key for split_key, found in parsed.items() if found and found[0] == journal_id}
    ends: dict[SplitKey, int] = {split_key: commits[split_key].offset for split_key in own}
    for split in reached:
        split_key = split.source, split.topic, split.partition
        ends[split_key] = max(split.offset, ends.get(split_key, 0))
    ranges = [
        f"{split.topic}-{split.partition} offsets {split.offset} to {end - 1}"
        for split in restored
        if (end := ends.get((split.source, split.topic, split.partition), 0)) > split.offset
    ]
    more = (
        f" and {counted(len(ranges) - SHOWN_MAX, 'more partition')}"
        if len(ranges) > SHOWN_MAX
        else ""
    )
    return ", ".join(ranges[:SHOWN_MAX]) + more
