"""The check before a publication: the topics of its positions are those that the sources have read.

A topic may be created again while the job runs, and grow beyond the old positions before a reader
learns of it. The reader then continues in the middle of another log, and nothing fails. Topic ids
are never used twice. So the check runs when all subtasks have acknowledged. If Kafka still has the
id with which the job began, everything up to the barrier was read from that topic.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from tidegate.checkpoint.source_changes import find_topic_change
from tidegate.commit.confirmation import RENEW_CLIENT_S, Confirmation
from tidegate.commit.effects import Procedure, now, pause, topic_ids
from tidegate.commit.retry import RetryPolicy, never_canceled, retry_request
from tidegate.protocol.subtask_snapshot import SourceSplit


def ask_topic_ids(
    splits: Sequence[SourceSplit],
    retry_policy: RetryPolicy,
    is_canceled: Callable[[], bool] = never_canceled,
) -> Procedure[dict[str, str]]:
    """Return the present ids of those topics whose ids were stored."""
    topics = frozenset(split.topic for split in splits if split.topic_id)
    return (yield from retry_request(partial(topic_ids, topics), retry_policy, is_canceled))


def check_topics(
    splits: Sequence[SourceSplit], now_have: Mapping[str, str], retry_policy: RetryPolicy
) -> Procedure[None]:
    """Compare stored ids with present ones. SourceChangedError for a difference that the brokers
    repeat for ten seconds.
    """
    confirmation = Confirmation()
    while (change := find_topic_change(splits, now_have)) is not None:
        now_s = yield from now()
        if confirmation.observe(change.finding, now_s):
            raise change
        yield from pause(RENEW_CLIENT_S)
        now_have = yield from ask_topic_ids(splits, retry_policy)
