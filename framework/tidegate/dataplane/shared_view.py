"""The checks that a slot has the checkpoint storage, the Kafka cluster and the tz database of its
attempt.

A path or a broker's name may lead to another target on another host, for example because a volume
is not mounted or a hosts file differs. Such a slot would complete checkpoints that no other host
can restore, or write output to another cluster. Before it restores anything, the slot therefore
reads the attempt's claim from its own view of the storage and compares the nonce. It also asks its
brokers for the id of their cluster.

Two hosts may also have different versions of the `tzdata` package. Then two slots could end one
calendar window at different times. A restore with another version is allowed, because open windows
end as they began: the check compares only the hosts of one attempt.

The errors restart the job as the restart strategy says. The operator of the host can correct a
mount, an address or a package while the job waits, and the error stays in the status until then. A
final error would end every job on a host that starts before its volumes are mounted.
"""

from __future__ import annotations

from dataclasses import dataclass

from tidegate.commit.journal.entries import Claim, decode_entry, entry_path
from tidegate.errors import ClusterMismatchError, ExternalError, StorageMismatchError
from tidegate.ids import JournalNumber
from tidegate.ports.blobs import BlobStore
from tidegate.ports.kafka import TransactionAdmin
from tidegate.protocol.messages import Deploy


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotView:
    """The storage and the brokers that a slot sees, and their names in error messages."""

    host: str
    storage: str
    """Path or URL of the checkpoint storage, as this host resolves it."""
    brokers: str
    blobs: BlobStore
    transactions: TransactionAdmin


def check_view(deploy: Deploy, view: SlotView) -> None:
    """Check that the slot sees the same storage and Kafka cluster as the JobMaster of the attempt.

    Raise StorageMismatchError or ClusterMismatchError if it does not. The check makes two requests,
    once per attempt and slot.
    """
    _check_storage(deploy, view)
    cluster = view.transactions.cluster_id()
    if cluster != deploy.kafka_cluster:
        raise ClusterMismatchError(
            f"Host {view.host} reaches Kafka cluster {cluster} at {view.brokers}, but attempt "
            f"{deploy.attempt} of job {deploy.job!r} runs on Kafka cluster {deploy.kafka_cluster}. "
            f"Make these names those of brokers of {deploy.kafka_cluster} on this host too. The "
            "job restarts until then."
        )


def check_tz_database(deploy: Deploy, host: str, version: str) -> None:
    """Check that `host` has the same version of the tz database as the host of the attempt, if the
    job has calendar windows. Raise ExternalError if it does not.
    """
    if deploy.tz_database in {"", version}:
        return
    raise ExternalError(
        f"Host {host} has version {version} of the tz database, but attempt {deploy.attempt} of "
        f"job {deploy.job!r} has begun on host {deploy.host} with version {deploy.tz_database}. "
        "The slots of the job could end a calendar window at different times. Install the same "
        "version of the tzdata package on all hosts. The job restarts until then."
    )


def _check_storage(deploy: Deploy, view: SlotView) -> None:
    path = entry_path(deploy.job, JournalNumber(deploy.attempt))
    data = view.blobs.get(path)
    entry = None if data is None else decode_entry(data, path)
    if isinstance(entry, Claim) and entry.nonce == deploy.claim_nonce:
        return
    found = "is not there" if entry is None else "is of another journal"
    raise StorageMismatchError(
        f"Host {view.host} does not see the checkpoint storage of job {deploy.job!r}: in "
        f"{view.storage}, {path} {found}, which attempt {deploy.attempt} has written. Mount the "
        "same storage at this path on every host, or set checkpoint.dir to a URL that all "
        "hosts reach. The job restarts until then."
    )
