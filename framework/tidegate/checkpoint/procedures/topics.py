"""Before a publication: the topics of its positions are still those that the sources have read.

A topic that is created again while the job runs may outgrow the old positions before a reader hears
of it; the reader then goes on in the middle of another log, and nothing fails. Ids are never used
twice. So when all subtasks have acknowledged and Kafka still has the id that the job began with,
everything up to the barrier was read from that topic.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from tidegate.checkpoint.confirmation import ASK_AGAIN_S, Confirmation
from tidegate.checkpoint.effects import Procedure, now, pause, topic_ids
from tidegate.checkpoint.procedures.retry import RetryPolicy, never, retry_kafka
from tidegate.checkpoint.source_changes import changed_topic
from tidegate.protocol.snapshots import SourceSplit


def ask_topic_ids(
    splits: Sequence[SourceSplit], patience: RetryPolicy, given_up: Callable[[], bool] = never
) -> Procedure[dict[str, str]]:
    """The present ids of those topics whose ids were stored."""
    topics = frozenset(split.topic for split in splits if split.topic_id)
    return (yield from retry_kafka(partial(topic_ids, topics), patience, given_up))


def check_topics(
    splits: Sequence[SourceSplit], now_have: Mapping[str, str], patience: RetryPolicy
) -> Procedure[None]:
    """Compare stored ids with present ones; SourceChangedError for a difference that the brokers
    repeat for ten seconds.
    """
    confirmation = Confirmation()
    while (change := changed_topic(splits, now_have)) is not None:
        now_s = yield from now()
        if confirmation.heard(change.finding, now_s):
            raise change
        yield from pause(ASK_AGAIN_S)
        now_have = yield from ask_topic_ids(splits, patience)
