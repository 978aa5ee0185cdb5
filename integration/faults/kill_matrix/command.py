"""Runs `tidegate run` as users run it, on a cluster with connections that a test can fail.

This command extends `integration.faults.kill_points.command`. It also routes the client's own
connections to its JobManager through the switchboard.
"""

from __future__ import annotations

import json
import os
from typing import Any

from integration.faults.kill_matrix.switchboard import ADDRESS, ProxiedRpc
from integration.faults.kill_points.command import MAINS
from tidegate.bootstrap import local_cluster
from tidegate.cli.main import main
from tidegate.cli.run import local_run
from tidegate.controlplane.client.local import LocalCluster


def proxied_cluster(*arguments: Any, **keywords: Any) -> LocalCluster:
    """Return a local cluster with the mains that the environment names."""
    cluster = local_cluster(*arguments, mains=json.loads(os.environ[MAINS]), **keywords)
    if ADDRESS in os.environ:
        cluster._rpc = ProxiedRpc(cluster._rpc, "client")
    return cluster


if __name__ == "__main__":
    local_run.local_cluster = proxied_cluster  # type: ignore[attr-defined]
    main()
