"""`tidegate checkpoints` and `tidegate config`: print what is stored and what is configured.

Both commands only read. `config` masks secrets.
"""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tidegate.cli import options as o


def checkpoints(job: o.JobArgument, settings: o.Settings = None, as_json: o.AsJson = False) -> None:
    """List the last published checkpoints of a job, oldest first, and how its journal stands.

    `tidegate run ... --restore ID` starts from one of them.

    Example: tidegate checkpoints order-totals -c checkpoint.dir=s3://bucket/checkpoints
    """
    from tidegate.checkpoint.manifest import manifest_folder
    from tidegate.commit.journal.reading import read_journal
    from tidegate.config_load import load
    from tidegate.controlplane.jobmaster.effect_runner import run_read_only
    from tidegate.drivers.system import SystemDrivers
    from tidegate.errors import RefusedError
    from tidegate.storage_location import locate

    name = o.job_name(job)
    given = o.parse_pairs(settings, "--config", "Example: tidegate checkpoints order-totals")
    config = load(environment=dict(os.environ), command_line=given)
    storage = config.checkpoint.dir
    store = SystemDrivers().blob_store(locate(storage, Path.cwd()))
    state = run_read_only(store, read_journal(name))
    if not state.number:
        raise RefusedError(
            f"There is no job {job!r} in the checkpoint storage {storage!r}. Run the command in "
            "the folder of the project, or give its storage: -c checkpoint.dir=..."
        )
    kept = set(store.list(manifest_folder(name)))
    rows = [
        {"id": str(ref.checkpoint), "manifest": ref.manifest}
        for ref in state.recent_checkpoints
        if ref.manifest in kept
    ]
    closed = None if state.closed is None else state.closed.outcome
    body = {"job": job, "entries": state.number, "closed": closed, "checkpoints": rows}
    if state.publication is not None:
        body["last_published_ms"] = state.publication.created_ms
        body["settled"] = state.settled
    if state.lost is not None:
        body["lost"] = {"statement": state.lost.statement, "accepted": state.accepted}
    print(json.dumps(body) if as_json else _text(body))


def config(given: o.Settings = None, as_json: o.AsJson = False) -> None:
    """Show the effective configuration of this folder; default.toml in the package explains each
    key.

    Example: tidegate config -c checkpoint.interval=1s --json
    """
    from tidegate.config_load import flattened, load, no_value
    from tidegate.masking import masked

    command_line = o.parse_pairs(
        given, "--config", "Example: tidegate config -c checkpoint.interval=1s"
    )
    effective = load(environment=dict(os.environ), command_line=command_line)
    settings = masked(effective.to_dict())
    if as_json:
        print(json.dumps(settings))
        return
    for key, value in flattened(settings):
        print(f"{key} = {json.dumps(no_value(key) if value is None else value)}")


def _text(body: dict[str, Any]) -> str:
    lines = [f"{row['id']:<10} {row['manifest']}" for row in body["checkpoints"]]
    if not lines:
        lines = ["no checkpoint was published yet"]
    if "last_published_ms" in body:
        at = datetime.fromtimestamp(body["last_published_ms"] / 1000, UTC)
        settled = "its transactions are committed" if body["settled"] else "not settled yet"
        lines.append(f"the last one at {at:%Y-%m-%d %H:%M:%S} UTC, {settled}")
    if "lost" in body:
        accepted = "accepted" if body["lost"]["accepted"] else "NOT accepted: --accept-data-loss"
        lines.append(f"output was lost ({accepted}): {body['lost']['statement']}")
    open_ = "open: running, or to be recovered by the next run"
    lines.append(f"journal: {body['closed'] or open_}")
    return "\n".join(lines)
