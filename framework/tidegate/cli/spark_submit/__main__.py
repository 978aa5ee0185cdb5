"""Runs `tidegate backfill` under spark-submit, in the Spark session that spark-submit has started.

The command is `spark-submit [options] …/tidegate/cli/spark_submit/__main__.py MODULE:CLASS
[options]`. It also starts a backfill in the cluster mode of YARN and Kubernetes. spark-submit
chooses the master.
"""

from __future__ import annotations

import sys

from tidegate.cli.main import main

if __name__ == "__main__":
    main(["backfill", *sys.argv[1:]])
