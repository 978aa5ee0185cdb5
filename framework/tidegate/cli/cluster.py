"""The commands of a session cluster: its two servers, and the client commands for its jobs.

`tidegate jobmanager` and `tidegate taskmanager` are the servers. Each runs in the foreground of a
terminal or a container until SIGTERM or Ctrl-C. `submit`, `list`, `status`, `stop` and `cancel`
send requests to the JobManager. This module only parses: `bootstrap` runs the servers, and
`session` sends the requests and prints the answers.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tidegate.cli import options as o

SUBMIT_EXAMPLE = "Example: tidegate submit pipelines.order_totals:OrderTotals --set minimum=5 -p 4"


def jobmanager(config: o.Settings = None, *, insecure: o.Insecure = False) -> None:
    """Be the JobManager of a standing cluster, until SIGTERM or Ctrl-C.

    TaskManagers register themselves, jobs come by `tidegate submit`. It listens on jobmanager.host
    and jobmanager.port; its jobs outlive it in checkpoint.storage, under cluster.name. Nothing
    between the processes of a cluster is encrypted or authenticated: keep it in a private network,
    and say --insecure where it listens beyond this host. Exit code: 0 ended by a signal, 1 failed,
    2 a mistake in the settings, 4 a newer JobManager of the same cluster.name has replaced it.

    Example: tidegate jobmanager --insecure -c jobmanager.host=jm -c checkpoint.storage=s3://b/dir
    """
    from tidegate.bootstrap import standing_jobmanager
    from tidegate.cli.session import configuration

    command_line = o.parse_pairs(
        config, "--config", "Example: tidegate jobmanager -c jobmanager.port=6123"
    )
    standing_jobmanager(configuration(command_line), insecure=insecure)


def taskmanager(
    config: o.Settings = None,
    jobmanager: o.JobManagerAt = None,
    slots: Annotated[int | None, typer.Option(help="Slots, one process each.")] = None,
    *,
    insecure: o.Insecure = False,
) -> None:
    """Be a TaskManager of a standing cluster, until SIGTERM or Ctrl-C.

    It registers with the JobManager, waiting for it where it is not up, and joins the next one
    when that is lost. The packages that jobs import must be installed here; the files of a pipeline
    come with its submit. Exit code: as of the JobManager.

    Example: tidegate taskmanager --jobmanager jobmanager:6123 --slots 4 --insecure
    """
    from tidegate.bootstrap import standing_taskmanager
    from tidegate.cli.session import configuration, with_jobmanager

    command_line = {
        **o.parse_pairs(config, "--config", "Example: tidegate taskmanager -c taskmanager.slots=4"),
        **o.given_settings(taskmanager__slots=slots),
    }
    standing_taskmanager(
        configuration(with_jobmanager(command_line, jobmanager)), insecure=insecure
    )


def submit(
    pipeline: o.PipelineArgument,
    settings: o.Parameters = None,
    config: o.Settings = None,
    kafka: o.Brokers = None,
    jobmanager: o.JobManagerAt = None,
    folder: Annotated[
        Path | None,
        typer.Option(
            help="Folder on the cluster's hosts where relative paths start (default: as here)."
        ),
    ] = None,
    parallelism: o.Parallelism = None,
    name: o.As = None,
    checkpoint_interval: o.CheckpointInterval = None,
    bounded: o.Bounded = False,
    restore: o.Restore = "latest",
    accept_loss: o.AcceptLoss = False,
    take_over: o.TakeOver = False,
    restore_to_other_cluster: o.RestoreToOtherCluster = False,
    as_json: o.AsJson = False,
) -> None:
    """Give a pipeline to a standing cluster, and return once it will run whatever happens here.

    The class is built and checked here, and its files are stored with the job: every attempt runs
    these. A job that has run before continues from its last checkpoint. Exit code: 0 submitted,
    1 nobody answers, 2 refused.

    Example: tidegate submit pipelines.order_totals:OrderTotals --set minimum=5 -p 4
    """
    from tidegate.cli.session import submit_job, with_jobmanager
    from tidegate.controlplane.client.preflight import RunOptions

    command_line = {
        **o.parse_pairs(config, "--config", SUBMIT_EXAMPLE),
        **o.given_settings(
            kafka__bootstrap=kafka,
            job__parallelism=parallelism,
            job__name=name,
            checkpoint__interval=checkpoint_interval,
        ),
    }
    options = RunOptions(
        params=o.parameters(settings, SUBMIT_EXAMPLE),
        bounded=bounded,
        restore=restore,
        accept_loss=accept_loss,
        take_over=take_over,
        restore_to_other_cluster=restore_to_other_cluster,
    )
    submit_job(
        pipeline,
        Path.cwd(),
        with_jobmanager(command_line, jobmanager),
        options,
        installed=folder,
        as_json=as_json,
    )


def list_(jobmanager: o.JobManagerAt = None, as_json: o.AsJson = False) -> None:
    """List the jobs and the TaskManagers of a standing cluster. Exit code: 0, or 1 nobody answers.

    Example: tidegate list --jobmanager jobmanager:6123
    """
    from tidegate.cli.session import list_jobs

    list_jobs(jobmanager, as_json=as_json)


def status(
    job: o.JobArgument, jobmanager: o.JobManagerAt = None, as_json: o.AsJson = False
) -> None:
    """Show how a job of a standing cluster goes; with --json its whole report.

    Exit code: 0, also for a job that has failed; 1 nobody answers, 2 there is no such job.

    Example: tidegate status order-totals
    """
    from tidegate.cli.session import show_job

    show_job(job, jobmanager, as_json=as_json)


def stop(job: o.JobArgument, jobmanager: o.JobManagerAt = None, as_json: o.AsJson = False) -> None:
    """Stop a job of a standing cluster with a final checkpoint, and wait for its end.

    A later submit continues from there. Exit code: 0 stopped, 1 it ended otherwise or its JobMaster
    cannot start, 2 refused.

    Example: tidegate stop order-totals
    """
    from tidegate.cli.session import end_job

    raise typer.Exit(end_job(job, jobmanager, final_checkpoint=True, as_json=as_json))


def cancel(
    job: o.JobArgument, jobmanager: o.JobManagerAt = None, as_json: o.AsJson = False
) -> None:
    """Stop a job of a standing cluster without a final checkpoint, and wait for its end.

    What was written since the last checkpoint is taken back; a later submit writes it again. Exit
    code: 0 cancelled, 1 it ended otherwise or its JobMaster cannot start, 2 refused.

    Example: tidegate cancel order-totals
    """
    from tidegate.cli.session import end_job

    raise typer.Exit(end_job(job, jobmanager, final_checkpoint=False, as_json=as_json))
