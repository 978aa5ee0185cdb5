"""The state that an attempt restores: the manifest, compared with the present topics and code.

The journal thread calls this at the end of a recovery, when nothing is deployed yet. This module
asks Kafka, and `checkpoint/restore.py` decides. A topic may seem to be gone, replaced or too short
only because the broker's metadata is old. So Kafka is asked again, and the job is refused if Kafka
repeats the finding for ten seconds (`commit/confirmation.py`).

Kafka may also refuse the request: credentials or rights were removed by mistake, or a topic is
absent. The submission has passed its checks, so such a refusal may be temporary. It counts as an
outage, and Kafka is asked again for `checkpoint.tolerated_outage`. Then the attempt ends with the
last refusal. A topic that is still absent was deleted, and the job fails. Rights and credentials
can be restored at any time, so the restart strategy decides.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace

from tidegate.api.state.evolution import same_key_type, state_conflict
from tidegate.checkpoint.manifest import Manifest
from tidegate.checkpoint.partition_offsets import PartitionOffsets
from tidegate.checkpoint.restore import RestorePlan, restore
from tidegate.checkpoint.source_changes import deleted_topic_error
from tidegate.checkpoint.state_changes import SchemaRules
from tidegate.commit.confirmation import RENEW_CLIENT_S, Confirmation
from tidegate.commit.effects import epoch_end_offsets, topic_ids
from tidegate.commit.initial_offsets import read_initial_offsets, record_initial_offsets
from tidegate.config import Config
from tidegate.controlplane.journal.effect_runner import EffectRunner
from tidegate.controlplane.journal.job_plan import JobPlan
from tidegate.controlplane.journal.split_enumeration import (
    enumerate_partitions,
    source_topics,
    with_chosen_ends,
)
from tidegate.errors import (
    KafkaNotAuthorisedError,
    NotAllowedError,
    RefusedError,
    SourceChangedError,
    TidegateError,
    TopicAbsentError,
)
from tidegate.ports.drivers import Drivers, KafkaAdmin
from tidegate.protocol.submission import Submission
from tidegate.protocol.subtask_snapshot import SourceSplit

_log = logging.getLogger(__name__)


class RestoreResolver:
    """The restore of one attempt. `on_retry` is called with each error after which Kafka is asked
    again.
    """

    def __init__(
        self,
        submission: Submission,
        plan: JobPlan,
        config: Config,
        drivers: Drivers,
        runner: EffectRunner,
        on_retry: Callable[[TidegateError], None],
    ) -> None:
        self._submission, self._plan, self._config = submission, plan, config
        self._drivers, self._runner, self._on_retry = drivers, runner, on_retry

    def resolve(self, manifest: Manifest | None, *, on_other_cluster: bool = False) -> RestorePlan:
        """Return the state that each slot restores. RefusedError if code, topics and checkpoint do
        not fit, or if a topic is still absent after `checkpoint.tolerated_outage`.
        KafkaNotAuthorisedError if Kafka has refused the request for that time.

        `on_other_cluster` means that the checkpoint is of another Kafka cluster, and that the user
        has stated that this cluster is its mirror.
        """
        admin = self._drivers.kafka_admin(self._config.kafka.client_settings())
        clock, confirmation = self._drivers.clock, Confirmation()
        tolerated_s = self._config.checkpoint.tolerated_outage / 1000
        refusals, told = Confirmation(tolerated_s), ""
        try:
            while True:
                try:
                    return self._resolve_once(manifest, admin, on_other_cluster=on_other_cluster)
                except SourceChangedError as error:
                    refusals.observe("", clock.monotonic())  # an answer ends a series of refusals
                    if confirmation.observe(error.finding, clock.monotonic()):
                        raise RefusedError(str(error)) from error
                    asked_again: TidegateError = error
                except (KafkaNotAuthorisedError, NotAllowedError, TopicAbsentError) as error:
                    confirmation.observe(
                        "", clock.monotonic()
                    )  # a refusal ends a series of findings
                    if refusals.observe("refused", clock.monotonic()):
                        raise _repeated(error, tolerated_s) from error
                    asked_again = error
                if str(asked_again) != told:
                    told = str(asked_again)
                    _log.warning("asks Kafka again", extra={"error": told})
                self._on_retry(asked_again)
                clock.sleep(RENEW_CLIENT_S)
        finally:
            admin.close()

    def _resolve_once(
        self, manifest: Manifest | None, admin: KafkaAdmin, *, on_other_cluster: bool
    ) -> RestorePlan:
        submission, run = self._submission, self._runner.run
        partitions = self._partitions(manifest, admin)
        if manifest is not None and not on_other_cluster:
            partitions = self._with_epoch_ends(manifest.splits, partitions)
        if manifest is None or manifest.submission_id != submission.id:
            stored = () if manifest is None else manifest.splits
            fixed = record_initial_offsets(
                submission.job,
                submission.id,
                partitions,
                checkpointed={(split.source, split.topic, split.partition) for split in stored},
            )
            partitions = run(fixed)
        restore_plan = restore(
            manifest,
            self._plan.state_metadata,
            partitions,
            submission_id=submission.id,
            schemas=SchemaRules(conflict=state_conflict, same_keys=same_key_type),
            on_other_cluster=on_other_cluster,
        )
        for added in restore_plan.new_partitions:
            _log.info("new partition", extra={"topic": added.topic, "partition": added.partition})
        self._log_tz_database(manifest)
        return restore_plan

    def _log_tz_database(self, manifest: Manifest | None) -> None:
        """Log it if calendar windows are restored with another version of the tz database. Open
        windows end as they began. New ones begin and end as this version says.
        """
        now = self._plan.state_metadata.tz_database
        before = manifest.plan.tz_database if manifest is not None and now else ""
        if before not in {"", now}:
            _log.warning("another version of the tz database", extra={"before": before, "now": now})

    def _partitions(
        self, manifest: Manifest | None, admin: KafkaAdmin
    ) -> tuple[PartitionOffsets, ...]:
        """Return all partitions of all sources."""
        graph, config = self._plan.graph, self._config
        topics = source_topics(graph, config)
        ids = self._runner.run(topic_ids(topics))
        if topics - ids.keys():
            for split in self._stored(manifest):
                if split.topic in topics - ids.keys():
                    raise TopicAbsentError(str(deleted_topic_error(split)))
        try:
            found = enumerate_partitions(
                graph,
                config,
                self._submission.job,
                admin,
                ids,
                bounded=self._submission.bounded,
            )
        except (NotAllowedError, TopicAbsentError):
            raise
        except RefusedError as error:
            if not self._stored(manifest):
                raise
            raise SourceChangedError(str(error), finding=str(error)) from error
        return with_chosen_ends(found, self._submission.ends)

    def _stored(self, manifest: Manifest | None) -> Sequence[SourceSplit]:
        """Return the positions of the checkpoint, or the start positions of the submission."""
        if manifest is not None:
            return manifest.splits
        return self._runner.run(read_initial_offsets(self._submission.job, self._submission.id))

    def _with_epoch_ends(
        self, stored: Sequence[SourceSplit], partitions: Sequence[PartitionOffsets]
    ) -> tuple[PartitionOffsets, ...]:
        """Return the partitions with the ends of the leader epochs of the stored positions. Each
        source is asked for separately, because two sources may have read the same partition.
        """
        epochs = {(split.source, split.topic_partition): split.leader_epoch for split in stored}
        known = {key: epoch for key, epoch in epochs.items() if epoch >= 0}
        ends = {}
        for source in sorted({source for source, _ in known}):
            asked = {
                topic_partition: epoch
                for (of, topic_partition), epoch in known.items()
                if of == source
            }
            for topic_partition, end in self._runner.run(epoch_end_offsets(asked)).items():
                ends[source, topic_partition] = end
        return tuple(
            replace(offsets, epoch_end=ends.get((offsets.source, offsets.topic_partition)))
            for offsets in partitions
        )


def _repeated(error: TidegateError, tolerated_s: float) -> TidegateError:
    """Return the error that ends the attempt after Kafka has repeated a refusal for
    `tolerated_s`.
    """
    kind = RefusedError if isinstance(error, TopicAbsentError) else KafkaNotAuthorisedError
    return kind(
        f"{error} Kafka has repeated this for {tolerated_s:g} s (checkpoint.tolerated_outage)."
    )
