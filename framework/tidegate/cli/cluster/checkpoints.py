"""`tidegate checkpoints`: lists the checkpoints of a job that can be restored.

The command only reads the checkpoint storage. The journal says which checkpoints count. A
checkpoint is listed if its manifest can be read and all of its files exist, because only then
`--restore ID` works.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tidegate.message_text import counted, utc_text
from tidegate.terminal import options as o

if TYPE_CHECKING:
    from tidegate.checkpoint.manifest import Manifest
    from tidegate.commit.journal.state import JournalState, PublicationRef
    from tidegate.ids import JobName
    from tidegate.ports.blobs import BlobStore

PARTITIONS_SHOWN: Final = 12
"""The number of partitions of a topic whose offsets the text shows. JSON has all."""


def checkpoints(job: o.JobArgument, settings: o.Settings = None, as_json: o.AsJson = False) -> None:
    """List the checkpoints of a job that can be restored, oldest first, and the end of its journal.

    A row has the id, the time, the size of the state, the duration from the trigger to the last
    acknowledgement, the parallelism, and the next offset of each partition. `tidegate run ...
    --restore ID` starts from one of them.

    Example: tidegate checkpoints order-totals -c checkpoint.dir=s3://bucket/checkpoints
    """
    from tidegate.commit.journal.reading import read_journal
    from tidegate.config_load import load
    from tidegate.controlplane.journal.effect_runner import run_read_only
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
    body = _journal(job, state)
    body["checkpoints"] = _rows(store, name, state)
    print(json.dumps(body) if as_json else _text(body))


def _journal(job: str, state: JournalState) -> dict[str, Any]:
    closed = None if state.closed is None else state.closed.outcome
    body: dict[str, Any] = {"job": job, "entries": state.number, "closed": closed}
    if state.publication is not None:
        body["last_published_ms"] = state.publication.created_ms
        body["settled"] = state.settled
    if state.lost is not None:
        body["lost"] = {"statement": state.lost.statement, "accepted": state.accepted}
    return body


def _rows(store: BlobStore, job: JobName, state: JournalState) -> list[dict[str, Any]]:
    """Return the checkpoints that can be restored. Say on standard error which cannot."""
    from tidegate.checkpoint.manifest import decode_manifest, manifest_folder
    from tidegate.errors import CorruptCheckpointError

    manifests = set(store.list(manifest_folder(job)))
    files: set[str] | None = None
    rows = []
    for ref in state.recent_checkpoints:
        if ref.manifest not in manifests:
            continue  # it has expired
        try:
            manifest = decode_manifest(store.get(ref.manifest), ref.manifest, ref.sha256)
        except CorruptCheckpointError as error:
            print(f"{job}: checkpoint {ref.checkpoint} is not listed: {error}", file=sys.stderr)
            continue
        if manifest.files:
            files = set(store.list(f"{job}/files")) if files is None else files
            missing = sorted({f"{job}/{path}" for path in manifest.files} - files)
            if missing:
                print(
                    f"{job}: checkpoint {ref.checkpoint} is not listed: {missing[0]} is missing, "
                    f"one of {counted(len(missing), 'file')}. Bring the storage back from a "
                    "backup.",
                    file=sys.stderr,
                )
                continue
        rows.append(_row(ref, manifest))
    return rows


def _row(ref: PublicationRef, manifest: Manifest) -> dict[str, Any]:
    from tidegate.checkpoint.pending import state_size

    return {
        "id": str(ref.checkpoint),
        "created_ms": manifest.created_ms,
        "size": state_size(manifest.subtasks),
        "duration_ms": manifest.duration_ms or None,
        "parallelism": manifest.plan.parallelism,
        "final": manifest.final,
        "drained": manifest.drained,
        "kafka_cluster": manifest.kafka_cluster,
        "offsets": [
            {
                "source": split.source,
                "topic": split.topic,
                "partition": split.partition,
                "offset": split.offset,
            }
            for split in manifest.splits
        ],
        "manifest": ref.manifest,
    }


def _text(body: dict[str, Any]) -> str:
    lines = [line for row in body["checkpoints"] for line in _row_lines(row)]
    if lines:
        lines.insert(0, _columns("id", "completed (UTC)", "size", "duration", "parallelism", ""))
    elif "last_published_ms" in body:
        lines = ["no checkpoint can be restored"]
    else:
        lines = ["no checkpoint was published yet"]
    if "last_published_ms" in body and body["closed"] != "finished":
        settled = "its transactions are committed" if body["settled"] else "not settled yet"
        lines.append(f"the last one at {utc_text(body['last_published_ms'])}, {settled}")
    if "lost" in body:
        accepted = "accepted" if body["lost"]["accepted"] else "NOT accepted: --accept-data-loss"
        lines.append(f"output was lost ({accepted}): {body['lost']['statement']}")
    open_ = "open: running, or to be recovered by the next run"
    lines.append(f"journal: {body['closed'] or open_}")
    return "\n".join(lines)


def _row_lines(row: dict[str, Any]) -> list[str]:
    from tidegate.terminal.display import duration_text, size_text

    known = row["duration_ms"] is not None
    lines = [
        _columns(
            row["id"],
            utc_text(row["created_ms"], zone=""),
            size_text(row["size"]),
            duration_text(row["duration_ms"]) if known else "unknown",
            str(row["parallelism"]),
            "drained" if row["drained"] else "final" if row["final"] else "",
        )
    ]
    by_source: dict[tuple[str, str], list[str]] = {}
    for split in row["offsets"]:
        found = by_source.setdefault((split["source"], split["topic"]), [])
        found.append(f"{split['partition']}:{split['offset']}")
    for (source, topic), offsets in by_source.items():
        more = len(offsets) - PARTITIONS_SHOWN
        shown = " ".join(offsets[:PARTITIONS_SHOWN]) + (f" and {more} more" if more > 0 else "")
        named = source if source == topic else f"{source} ({topic})"
        lines.append(f"{'':<10}{named}  {shown}")
    return lines


def _columns(*cells: str) -> str:
    widths = (10, 21, 10, 10, 12, 0)
    return "".join(f"{cell:<{width}}" for cell, width in zip(cells, widths, strict=True)).rstrip()
