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

from tidegate.terminal import options as o

SUBMIT_EXAMPLE = "Example: tidegate submit pipelines.order_totals:OrderTotals --set minimum=5 -p 4"


def jobmanager(config: o.Settings = None, *, insecure: o.Insecure = False) -> None:
    """Run the JobManager of a session cluster, until SIGTERM or Ctrl-C.

    It listens on jobmanager.host and jobmanager.port. TaskManagers register with it, and `tidegate
    submit` sends it jobs. It keeps the jobs in checkpoint.dir, under cluster.name, for the next
    JobManager. Connections between the processes of a cluster are neither encrypted nor
    authenticated: keep the cluster in a private network, and add --insecure if it listens beyond
    this host. Exit code: 0 ended by a signal, 1 failed, 2 a mistake in the settings, 4 replaced by
    a newer JobManager of the same cluster.name.

    Example: tidegate jobmanager --insecure -c jobmanager.host=jm -c checkpoint.dir=s3://b/dir
    """
    from tidegate.bootstrap import run_session_jobmanager
    from tidegate.cli.cluster.session import configuration

    command_line = o.parse_pairs(
        config, "--config", "Example: tidegate jobmanager -c jobmanager.port=6123"
    )
    run_session_jobmanager(configuration(command_line), insecure=insecure)


def taskmanager(
    config: o.Settings = None,
    jobmanager: o.JobManagerAt = None,
    slots: Annotated[int | None, typer.Option(help="Slots, one process each.")] = None,
    *,
    insecure: o.Insecure = False,
) -> None:
    """Run a TaskManager of a session cluster, until SIGTERM or Ctrl-C.

    It waits for the JobManager and registers with it. If the JobManager is lost, it registers with
    the next one. The packages that jobs import must be installed on this host. The files of a
    pipeline arrive with its submit. Exit code: the same as for the JobManager.

    Example: tidegate taskmanager --jobmanager jobmanager:6123 --slots 4 --insecure
    """
    from tidegate.bootstrap import run_standalone_taskmanager
    from tidegate.cli.cluster.session import configuration, with_jobmanager

    command_line = {
        **o.parse_pairs(config, "--config", "Example: tidegate taskmanager -c taskmanager.slots=4"),
        **o.given_settings(taskmanager__slots=slots),
    }
    run_standalone_taskmanager(
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
    drain: o.Drain = None,
    restore: o.Restore = "latest",
    accept_data_loss: o.AcceptLoss = False,
    take_over: o.TakeOver = False,
    restore_to_other_cluster: o.RestoreToOtherCluster = False,
    as_json: o.AsJson = False,
) -> None:
    """Submit a pipeline to a session cluster, and return when the cluster has stored the job.

    This command builds and checks the class, and stores its files with the job. Every attempt runs
    these files. A job that has run before continues from its last checkpoint. Exit code:
    0 submitted, 1 the JobManager does not answer, 2 refused.

    Example: tidegate submit pipelines.order_totals:OrderTotals --set minimum=5 -p 4
    """
    from tidegate.cli.cluster.session import submit_job, with_jobmanager
    from tidegate.controlplane.client.preflight import RunOptions

    command_line = {
        **o.parse_pairs(config, "--config", o.CONFIG_EXAMPLE),
        **o.given_settings(
            kafka__bootstrap_servers=kafka,
            job__parallelism=parallelism,
            job__name=name,
            checkpoint__interval=checkpoint_interval,
        ),
    }
    options = RunOptions(
        params=o.parameters(settings, SUBMIT_EXAMPLE),
        bounded=bounded,
        drain=drain,
        restore=restore,
        accept_data_loss=accept_data_loss,
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
    """List the local runs of this folder, and the jobs and the TaskManagers of a session cluster.

    A local run is a `tidegate run` or `tidegate dev` that was started in this folder. With
    --jobmanager only the session cluster is asked. Exit code: 0 listed, 1 nothing runs here and the
    JobManager does not answer.

    Example: tidegate list --jobmanager jobmanager:6123
    """
    from tidegate.cli.cluster.session import list_jobs

    list_jobs(jobmanager, as_json=as_json)


def status(
    job: o.JobArgument, jobmanager: o.JobManagerAt = None, as_json: o.AsJson = False
) -> None:
    """Show the state of a job and its processes, or its whole report with --json.

    The job is a local run of this folder (`tidegate run`), or else one of a session cluster. Each
    process has its role, its process id and its host. Exit code: 0 also for a job that has failed,
    1 the JobManager does not answer, 2 there is no such job.

    Example: tidegate status order-totals
    """
    from tidegate.cli.cluster.session import show_job

    show_job(job, jobmanager, as_json=as_json)


def stop(
    job: o.JobArgument,
    jobmanager: o.JobManagerAt = None,
    drain: Annotated[
        bool, typer.Option("--drain", help="First fire all timers and windows.")
    ] = False,
    as_json: o.AsJson = False,
) -> None:
    """Stop a job with a final checkpoint, and wait for its end.

    The job is a local run of this folder (`tidegate run`), or else one of a session cluster. The
    next run or submit continues from this checkpoint, and nothing has fired before its time. With
    --drain all timers and windows fire, and a next run that would continue is refused. Exit code:
    0 stopped, 1 the job ended otherwise or its JobMaster cannot start, 2 refused.

    Example: tidegate stop order-totals
    """
    from tidegate.cli.cluster.session import end_job

    raise typer.Exit(end_job(job, jobmanager, final_checkpoint=True, drain=drain, as_json=as_json))


def cancel(
    job: o.JobArgument, jobmanager: o.JobManagerAt = None, as_json: o.AsJson = False
) -> None:
    """Stop a job without a final checkpoint, and wait for its end.

    The job is a local run of this folder (`tidegate run`), or else one of a session cluster. The
    output since the last checkpoint is aborted, and the next run or submit writes it again.
    Exit code: 0 cancelled, 1 the job ended otherwise or its JobMaster cannot start, 2 refused.

    Example: tidegate cancel order-totals
    """
    from tidegate.cli.cluster.session import end_job

    raise typer.Exit(end_job(job, jobmanager, final_checkpoint=False, as_json=as_json))
