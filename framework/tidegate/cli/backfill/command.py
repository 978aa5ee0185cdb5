"""Defines `tidegate backfill`, which runs a pipeline over the history of its topics on Spark.

The command prints its plan, then runs one wave after the other. It ends when the sources have
reached the end offsets that were chosen when the backfill began. After a crash, the same command
continues the backfill. This module only parses the arguments. `run` and the package
`backfill` do the work.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tidegate.terminal import options as o

EXAMPLE = (
    "Example: tidegate backfill pipelines.order_totals:OrderTotals --master 'local[4]' --to now"
)


Master = Annotated[
    str | None,
    typer.Option(
        help="The Spark master: local[N], spark://HOST:PORT, yarn or k8s://URL. For small "
        "histories, in-process runs the tasks without Spark."
    ),
]
To = Annotated[
    str,
    typer.Option(
        help="The end of the backfill: now, a time (2026-01-31T12:00, UTC), or an offset for each "
        "partition (orders/0=1000,orders/1=1200)."
    ),
]
WaveRecords = Annotated[int | None, typer.Option(help="The maximum number of offsets of a wave.")]
WaveSpan = Annotated[
    str | None, typer.Option(help='The maximum time that a wave covers, with a unit: "1 h".')
]
Ship = Annotated[
    bool,
    typer.Option(
        "--ship", help="Send tidegate and the pipeline's packages to the workers of a cluster."
    ),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print only the plan.")]
New = Annotated[
    bool, typer.Option("--new", help="Begin a new backfill, even if the job already has one.")
]
JobIsStopped = Annotated[
    bool,
    typer.Option(
        "--job-is-stopped",
        help="Confirm that no process of the job is left, if its result is not recorded.",
    ),
]
AsJson = Annotated[
    bool, typer.Option("--json", help="Print a JSON object for the plan, each wave and the end.")
]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Show Spark's log.")]


def backfill(
    pipeline: o.PipelineArgument,
    master: Master = None,
    to: To = "now",
    wave_records: WaveRecords = None,
    wave_span: WaveSpan = None,
    settings: o.Parameters = None,
    config: o.Settings = None,
    kafka: o.Brokers = None,
    parallelism: o.Parallelism = None,
    name: o.As = None,
    ship: Ship = False,
    dry_run: DryRun = False,
    new: New = False,
    restore: o.Restore = "latest",
    job_is_stopped: JobIsStopped = False,
    accept_data_loss: o.AcceptLoss = False,
    take_over: o.TakeOver = False,
    restore_to_other_cluster: o.RestoreToOtherCluster = False,
    as_json: AsJson = False,
    verbose: Verbose = False,
) -> None:
    """Run a pipeline over the history of its topics, in waves on Spark, exactly once.

    The backfill continues from the job's last checkpoint, if it has one. `tidegate run` and
    `tidegate submit` continue where the backfill ends. After a crash, the same command continues
    from the last published wave. Ctrl-C ends the backfill after the present wave, and a second
    Ctrl-C abandons the wave. Exit codes: 0 done, 1 failed, 2 refused, 3 ended by Ctrl-C after a
    wave, 130 a wave was abandoned.

    Example: tidegate backfill pipelines.order_totals:OrderTotals --master 'local[4]' --to now
    """
    command_line = {
        **o.parse_pairs(config, "--config", o.CONFIG_EXAMPLE),
        **o.given_settings(
            kafka__bootstrap_servers=kafka,
            job__parallelism=parallelism,
            job__name=name,
            backfill__master=master,
            backfill__wave_records=wave_records,
            backfill__wave_span=wave_span,
            backfill__ship=ship or None,
        ),
    }
    params = o.parameters(settings, EXAMPLE)
    from tidegate.cli.backfill.run import BackfillOptions, execute
    from tidegate.controlplane.client.preflight import RunOptions

    options = RunOptions(
        params=params,
        bounded=True,
        restore=restore,
        accept_data_loss=accept_data_loss,
        take_over=take_over,
        restore_to_other_cluster=restore_to_other_cluster,
    )
    asked = BackfillOptions(
        to=to, dry_run=dry_run, new=new, job_is_stopped=job_is_stopped, verbose=verbose
    )
    raise typer.Exit(execute(pipeline, Path.cwd(), command_line, options, asked, as_json=as_json))
