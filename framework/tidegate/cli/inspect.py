"""`tidegate checkpoints` and `tidegate config`: what is stored, and what is configured.

Both only read. Secrets are masked.
"""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

AS_JSON = Annotated[bool, typer.Option("--json", help="For scripts: one JSON value.")]


def checkpoints(
    job: Annotated[str, typer.Argument(help="The pipeline's name, as in its class statement.")],
    as_json: AS_JSON = False,
) -> None:
    """List the last published checkpoints of a job, oldest first, and how its journal stands.

    `tidegate run ... --restore ID` starts from one of them.

    Example: tidegate checkpoints order-totals
    """
    from tidegate.checkpoint.manifest import manifest_folder
    from tidegate.checkpoint.procedures import read_journal
    from tidegate.config_load import load
    from tidegate.controlplane.jobmaster.effects import run_reading
    from tidegate.drivers.bundle import RealDrivers
    from tidegate.errors import RefusedError
    from tidegate.ids import JobName

    config = load(environment=dict(os.environ))
    storage = config.checkpoint.storage
    url = storage if "://" in storage else str(Path.cwd() / storage)
    store = RealDrivers().blob_store(url)
    state = run_reading(store, read_journal(JobName(job)))
    if not state.number:
        raise RefusedError(
            f"There is no job {job!r} in the checkpoint storage {storage!r}. Run the command in "
            "the folder of the project, or set checkpoint.storage."
        )
    kept = set(store.list(manifest_folder(JobName(job))))
    rows = [
        {"id": str(ref.checkpoint), "manifest": ref.manifest}
        for ref in state.recent
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


def config(as_json: AS_JSON = False) -> None:
    """Show the effective configuration of this folder; default.toml in the package explains each
    key.

    Example: tidegate config --json
    """
    from tidegate.config_load import flattened, load, masked

    settings = masked(load(environment=dict(os.environ)).to_dict())
    if as_json:
        print(json.dumps(settings))
        return
    for key, value in flattened(settings):
        print(f"{key} = {json.dumps(value)}")


def _text(body: dict[str, Any]) -> str:
    lines = [f"{row['id']:<10} {row['manifest']}" for row in body["checkpoints"]]
    if not lines:
        lines = ["no checkpoint was published yet"]
    if "last_published_ms" in body:
        at = datetime.fromtimestamp(body["last_published_ms"] / 1000, UTC)
        settled = "its transactions are committed" if body["settled"] else "not settled yet"
        lines.append(f"the last one at {at:%Y-%m-%d %H:%M:%S} UTC, {settled}")
    if "lost" in body:
        accepted = "accepted" if body["lost"]["accepted"] else "NOT accepted: --accept-loss"
        lines.append(f"output was lost ({accepted}): {body['lost']['statement']}")
    open_ = "open: running, or to be recovered by the next run"
    lines.append(f"journal: {body['closed'] or open_}")
    return "\n".join(lines)
