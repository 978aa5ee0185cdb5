"""Which settings of a submission are the standing cluster's own.

A job brings its settings with it: brokers, intervals, restarts, its sources and sinks. Where
checkpoints, local state and logs are, and how the processes of the cluster hear of each other, is a
matter of the machines that it runs on: a client on another machine cannot know it, and two
storages under one job name would be two journals. So a standing JobManager puts its own in their
place. In a local cluster both come from one command and are the same.

Secrets are the other way round: the JobManager must have every secret of its jobs. It writes none
to the checkpoint storage, so it could not put back one that only the client had. Pure.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from tidegate.config import Config
from tidegate.config_load import flattened
from tidegate.controlplane.dispatcher.job_store import without_secrets
from tidegate.masking import MASK, is_secret
from tidegate.protocol.messages import Submission

SECTIONS: Final = ("cluster", "jobmanager", "taskmanager", "logs")
"""Imposed whole."""
KEYS: Final = (("checkpoint", "storage"), ("state", "directory"))
"""Imposed singly."""


def apply_cluster_settings(submission: Submission, own: Config) -> Submission:
    """The submission with the cluster's own settings in place of those that it came with."""
    ours = own.to_dict()
    settings: dict[str, Any] = dict(submission.settings)
    settings |= {section: ours[section] for section in SECTIONS}
    for section, key in KEYS:
        settings[section] = {**settings.get(section, {}), key: ours[section][key]}
    return msgspec.structs.replace(submission, settings=settings)


def missing_secret(submission: Submission, own: Config) -> str | None:
    """Why a submission is refused that holds a secret which the cluster does not have; or None."""
    for key, value in flattened(without_secrets(submission.settings, own.to_dict())):
        if value and value != MASK and is_secret(key):
            return (
                f"The setting {key} is a secret that the JobManager does not have, or has "
                "otherwise. Secrets are not written to the checkpoint storage, so the JobManager "
                "must have it to recover the job: start it with the same value, in its "
                f"environment as TIDEGATE_{key.replace('.', '__').upper()}."
            )
    return None
