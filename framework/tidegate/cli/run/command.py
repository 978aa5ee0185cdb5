"""`tidegate run`: runs a pipeline on this machine, from its class to its end.

The command checks everything that can be checked. It starts a cluster of local processes that lives
as long as the command, submits the job and shows its progress. Ctrl-C stops the job with a final
checkpoint. A second Ctrl-C exits at once, and the next run recovers. This module only parses:
`local_run` does the work, with `controlplane/client` and `bootstrap`.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Annotated

import typer

from tidegate.cli.run.create_topics import CreateTopics, partitions_of
from tidegate.drivers.process.prestart import prestarted
from tidegate.terminal import options as o
from tidegate.terminal.interrupt import ExitOnInterrupt

EXAMPLE = "Example: tidegate run pipelines.order_totals:OrderTotals --set minimum=5 -p 4"


def run(
    pipeline: o.PipelineArgument,
    settings: o.Parameters = None,
    config: o.Settings = None,
    kafka: o.Brokers = None,
    parallelism: o.Parallelism = None,
    name: o.As = None,
    slots: Annotated[int | None, typer.Option(help="Slots of each TaskManager.")] = None,
    task_managers: Annotated[int | None, typer.Option(help="Local TaskManagers.")] = None,
    checkpoint_interval: o.CheckpointInterval = None,
    bounded: o.Bounded = False,
    drain: o.Drain = None,
    restore: o.Restore = "latest",
    accept_data_loss: o.AcceptLoss = False,
    take_over: o.TakeOver = False,
    restore_to_other_cluster: o.RestoreToOtherCluster = False,
    create_topics: CreateTopics = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object per report, and one at the end.")
    ] = False,
) -> None:
    """Run a pipeline on this machine, with a cluster of its own, until it ends or Ctrl-C.

    It continues from the job's last checkpoint, if there is one. --restore none starts without
    state. Exit code: 0 done, 1 the job failed, 2 refused, 3 stopped before the end of a bounded
    input, 4 stopped without a final checkpoint, 130 interrupted.

    Example: tidegate run pipelines.order_totals:OrderTotals --set minimum=5 -p 4
    """
    command_line = {
        **o.parse_pairs(config, "--config", o.CONFIG_EXAMPLE),
        **o.given_settings(
            kafka__bootstrap_servers=kafka,
            job__parallelism=parallelism,
            job__name=name,
            taskmanager__slots=slots,
            cluster__task_managers=task_managers,
            checkpoint__interval=checkpoint_interval,
        ),
    }
    params = o.parameters(settings, EXAMPLE)
    partitions_of(create_topics, 1)  # refuses a text that is not a number
    # The JobManager imports its modules in parallel with this process. It gets its first work
    # after all checks.
    with (
        ExitOnInterrupt(),
        prestarted("jobmanager", announces=True) or contextlib.nullcontext() as jobmanager,
    ):
        from tidegate.cli.run.local_run import execute
        from tidegate.controlplane.client.preflight import RunOptions

        options = RunOptions(
            params=params,
            bounded=bounded,
            drain=drain,
            restore=restore,
            accept_data_loss=accept_data_loss,
            take_over=take_over,
            restore_to_other_cluster=restore_to_other_cluster,
        )
        code = execute(
            pipeline,
            Path.cwd(),
            command_line,
            options,
            as_json=as_json,
            jobmanager=jobmanager,
            create_topics=create_topics,
        )
    raise typer.Exit(code)
