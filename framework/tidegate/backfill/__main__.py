"""`tidegate backfill` as a file that spark-submit can run: it adopts the session that it finds.

`spark-submit [options] …/tidegate/backfill/__main__.py MODULE:CLASS [options]` is also how a
backfill runs in the cluster mode of YARN and Kubernetes. The master is that of spark-submit. It is
an entry and no part of this room, so it may import the command line.
"""

from __future__ import annotations

import sys

from tidegate.cli.main import main

if __name__ == "__main__":
    main(["backfill", *sys.argv[1:]])
