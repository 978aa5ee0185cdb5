"""The settings of a submission that a session cluster replaces with its own.

A job brings its settings with it: brokers, intervals, restarts, its sources and sinks. Other
settings belong to the machines of the cluster: where checkpoints, local state and logs are, and how
the processes of the cluster communicate. A client on another machine cannot know these settings.
Two storages under one job name would also be two journals. So the JobManager of a session cluster
replaces these settings with its own. In a local cluster both come from one command and are equal.

Secrets work the opposite way: the JobManager must have every secret of its jobs. It writes no
secret to the checkpoint storage, so it could not restore a secret that only the client had. Pure.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from tidegate.config import Config, flattened
from tidegate.controlplane.jobmanager.job_store import without_secrets
from tidegate.masking import MASK, is_secret
from tidegate.protocol.submission import Submission

SECTIONS: Final = ("cluster", "jobmanager", "taskmanager", "logs")
"""Sections that the cluster replaces completely."""
KEYS: Final = (("checkpoint", "dir"), ("state", "local_dir"))
"""Single keys that the cluster replaces."""


def apply_cluster_settings(submission: Submission, cluster_config: Config) -> Submission:
    """Return the submission with the cluster's own settings in place of the client's."""
    ours = cluster_config.to_dict()
    settings: dict[str, Any] = dict(submission.settings)
    settings |= {section: ours[section] for section in SECTIONS}
    for section, key in KEYS:
        settings[section] = {**settings.get(section, {}), key: ours[section][key]}
    return msgspec.structs.replace(submission, settings=settings)


def missing_secret(submission: Submission, cluster_config: Config) -> str | None:
    """Return why a submission is refused: it holds a secret that the cluster does not have.

    Return None if the cluster has every secret of the submission, with the same value.
    """
    for key, value in flattened(without_secrets(submission.settings, cluster_config.to_dict())):
        if value and value != MASK and is_secret(key):
            return (
                f"The setting {key} is a secret that the JobManager does not have, or has "
                "otherwise. Secrets are not written to the checkpoint storage, so the JobManager "
                "must have it to recover the job: start it with the same value, in its "
                f"environment as TIDEGATE_{key.replace('.', '__').upper()}."
            )
    return None
