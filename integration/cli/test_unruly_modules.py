"""A module that changes its whole process, and steps that raise no `Exception`.

Each of these settings of user code once broke a run: the run waited for ever, other terminals did
not find it, the log was empty, or the job failed with an error of tidegate. Now the totals are
there once, the log has its lines, and a refused record is counted.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from integration.support.user_project import ONE_CHECKPOINT, TOTALS, Folder
from tidegate.drivers.kafka.embedded import EmbeddedKafka

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(180)]

SETTINGS = """
import decimal
import faulthandler
import gc
import locale
import logging
import logging.config
import os
import random
import socket
import sys
import tempfile
import threading
import time
import warnings

os.chdir(tempfile.gettempdir())
os.umask(0o077)
os.environ["TZ"] = "Asia/Tokyo"
time.tzset()
os.environ.pop("HOME", None)
socket.setdefaulttimeout(0.5)
logging.config.dictConfig({"version": 1, "root": {"level": "CRITICAL"}})
logging.basicConfig(force=True)
logging.disable(logging.CRITICAL)
warnings.simplefilter("error")
locale.setlocale(locale.LC_ALL, "C")
decimal.getcontext().prec = 3
decimal.setcontext(decimal.Context(prec=1, traps=list(decimal.Context().flags)))
random.seed(1)
sys.setrecursionlimit(300)
gc.disable()
gc.freeze()
faulthandler.disable()
threading.excepthook = sys.excepthook = sys.unraisablehook = lambda *_: None
threading.stack_size(1 << 18)
sys.path[:] = [each for each in sys.path if "site-packages" in each or "lib" in each]
if "tidegate.cli.main" not in sys.modules:
    sys.stdout = sys.stderr = None


class Panic(BaseException):
    def __str__(self):
        raise KeyboardInterrupt


def strict(order):
    if order.amount > 1:
        raise Panic("x" * 2_000_000)
    return order


class Running("""


def test_process_wide_settings_of_a_module_change_no_total_and_do_not_silence_the_log(
    kafka: EmbeddedKafka, tmp_path: Path
) -> None:
    folder = Folder.make(tmp_path, kafka.bootstrap, TOTALS, partitions=2)
    folder.edit("job.py", "class Running(", SETTINGS)
    folder.edit(
        "job.py",
        "by_customer = self.orders.",
        'by_customer = self.orders.map(strict, returns=Order, on_error="skip").',
    )
    folder.orders(24)
    folder.send("orders", [(b"eve", b'{"customer": "eve", "amount": 2}')])
    outcome = folder.run("-p", "2", config=ONE_CHECKPOINT, environment={"PYTHONWARNINGS": "error"})
    assert outcome.code == 0, outcome.err
    assert " 0 restarts, 1 bad record skipped" in outcome.err
    folder.assert_exact(24)
    assert "Panic: (its __str__ raised KeyboardInterrupt" in folder.logs()
