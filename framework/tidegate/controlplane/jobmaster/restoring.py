"""What an attempt restores: the manifest, compared with what Kafka and the code are now.

Called by the journal thread at the end of a recovery, when nothing is deployed yet. It asks Kafka
and `checkpoint/restore` decides. A topic that seems to be gone, another one or too short may only
seem so to a stale broker: Kafka is asked again, and the job is refused when the leaders repeat it
for ten seconds (`checkpoint/confirmation`).

Kafka may also refuse the question: credentials or rights that were taken away by mistake, a topic
that is absent. The submit has passed its checks, so a refusal now may pass too. It is an outage:
Kafka is asked again for `checkpoint.tolerated_outage`. Then the attempt ends by the last refusal:
a topic that is still absent was deleted, and the job fails; rights and credentials may be given
back at any time, so the restart strategy decides.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace

from tidegate.api.evolution import same_key_type, state_conflict
from tidegate.checkpoint.confirmation import ASK_AGAIN_S, Confirmation
from tidegate.checkpoint.effects import epoch_ends, topic_ids
from tidegate.checkpoint.manifest import Manifest
from tidegate.checkpoint.partition_offsets import PartitionOffsets
from tidegate.checkpoint.procedures import read_beginnings, record_initial_offsets
from tidegate.checkpoint.restore import RestorePlan, restore
from tidegate.checkpoint.source_changes import gone_topic
from tidegate.checkpoint.state_changes import SchemaRules
from tidegate.config import Config
from tidegate.controlplane.jobmaster.effect_runner import EffectRunner
from tidegate.controlplane.jobmaster.job_plan import JobPlan, kafka_of
from tidegate.controlplane.jobmaster.split_enumeration import (
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
from tidegate.protocol.messages import Submission
from tidegate.protocol.snapshots import SourceSplit

_log = logging.getLogger(__name__)


class Restoring:
    """One attempt's questions; `trouble` hears of what is asked again."""

    def __init__(
        self,
        submission: Submission,
        plan: JobPlan,
        config: Config,
        drivers: Drivers,
        runner: EffectRunner,
        trouble: Callable[[TidegateError], None],
    ) -> None:
        self._submission, self._plan, self._config = submission, plan, config
        self._drivers, self._runner, self._trouble = drivers, runner, trouble

    def resolve(self, manifest: Manifest | None, *, on_other_cluster: bool = False) -> RestorePlan:
        """What each slot restores; RefusedError where code, topics and checkpoint do not fit.

        `on_other_cluster`: the user said that the checkpoint is of another Kafka cluster, of which
        this one is a mirror.
        """
        admin = self._drivers.kafka_admin(kafka_of(self._config))
        clock, confirmation = self._drivers.clock, Confirmation()
        tolerated_s = self._config.checkpoint.tolerated_outage / 1000
        refusals, told = Confirmation(tolerated_s), ""
        try:
            while True:
                try:
                    return self._resolve_once(manifest, admin, on_other_cluster=on_other_cluster)
                except SourceChangedError as error:
                    if confirmation.heard(error.finding, clock.monotonic()):
                        raise RefusedError(str(error)) from error
                    asked_again: TidegateError = error
                except (KafkaNotAuthorisedError, NotAllowedError, TopicAbsentError) as error:
                    if refusals.heard("refused", clock.monotonic()):
                        raise _repeated(error, tolerated_s) from error
                    asked_again = error
                if str(asked_again) != told:
                    told = str(asked_again)
                    _log.warning("asks Kafka again", extra={"error": told})
                self._trouble(asked_again)
                clock.sleep(ASK_AGAIN_S)
        finally:
            admin.close()

    def _resolve_once(
        self, manifest: Manifest | None, admin: KafkaAdmin, *, on_other_cluster: bool
    ) -> RestorePlan:
        submission, run = self._submission, self._runner.run
        partitions = self._partitions(manifest, admin)
        if manifest is not None and not on_other_cluster:
            partitions = self._with_epoch_ends(manifest.splits, partitions)
        if manifest is None or manifest.submission != submission.id:
            stored = () if manifest is None else manifest.splits
            fixed = record_initial_offsets(
                submission.job,
                submission.id,
                partitions,
                checkpointed={(split.source, split.topic, split.partition) for split in stored},
            )
            partitions = run(fixed)
        restoration = restore(
            manifest,
            self._plan.facts,
            partitions,
            submission=submission.id,
            schemas=SchemaRules(conflict=state_conflict, same_keys=same_key_type),
            on_other_cluster=on_other_cluster,
        )
        for added in restoration.new_partitions:
            _log.info("new partition", extra={"topic": added.topic, "partition": added.partition})
        return restoration

    def _partitions(
        self, manifest: Manifest | None, admin: KafkaAdmin
    ) -> tuple[PartitionOffsets, ...]:
        """All partitions of all sources."""
        graph, config = self._plan.graph, self._config
        topics = source_topics(graph, config)
        ids = self._runner.run(topic_ids(topics))
        if topics - ids.keys():
            for split in self._stored(manifest):
                if split.topic in topics - ids.keys():
                    raise TopicAbsentError(str(gone_topic(split)))
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
        """The positions of the checkpoint, or where the submission began."""
        if manifest is not None:
            return manifest.splits
        return self._runner.run(read_beginnings(self._submission.job, self._submission.id))

    def _with_epoch_ends(
        self, stored: Sequence[SourceSplit], partitions: Sequence[PartitionOffsets]
    ) -> tuple[PartitionOffsets, ...]:
        """With the ends of the leader epochs of the stored positions, source by source: two may
        have read the same partition.
        """
        epochs = {(split.source, split.origin): split.leader_epoch for split in stored}
        known = {key: epoch for key, epoch in epochs.items() if epoch >= 0}
        ends = {}
        for source in sorted({source for source, _ in known}):
            asked = {origin: epoch for (of, origin), epoch in known.items() if of == source}
            for origin, end in self._runner.run(epoch_ends(asked)).items():
                ends[source, origin] = end
        return tuple(
            replace(facts, epoch_end=ends.get((facts.source, facts.origin))) for facts in partitions
        )


def _repeated(error: TidegateError, tolerated_s: float) -> TidegateError:
    """How the attempt ends by a refusal that Kafka has repeated for so long."""
    kind = RefusedError if isinstance(error, TopicAbsentError) else KafkaNotAuthorisedError
    return kind(
        f"{error} Kafka has repeated this for {tolerated_s:g} s (checkpoint.tolerated_outage)."
    )
