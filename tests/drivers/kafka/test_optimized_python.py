"""Answers of Kafka are read in a Python that removes assertions (`-O`, `PYTHONOPTIMIZE`)."""

from __future__ import annotations

import subprocess
import sys

import pytest

DECODE = """
from kafka.protocol.metadata import ApiVersionsResponse
from tidegate.drivers.kafka import coordinator_connection

names = ["metadata.version", "transaction.version"]
make = ApiVersionsResponse.SupportedFeatureKey
sent = ApiVersionsResponse(
    version=3, error_code=0, api_keys=[], throttle_time_ms=0, finalized_features_epoch=41,
    supported_features=[make(name=name, min_version=1, max_version=7) for name in names],
)
read = ApiVersionsResponse.decode(sent.encode(version=3), version=3)
print(__debug__, *(each.name for each in read.supported_features), read.finalized_features_epoch)
"""
"""The first answer of each broker. It has structures in a tagged field, and each of these
structures ends with the number of its own tagged fields, which is 0.
"""


@pytest.mark.parametrize("options", [(), ("-O",), ("-OO",)])
def test_structures_in_a_tagged_field_are_read_without_assertions(options: tuple[str, ...]) -> None:
    done = subprocess.run(
        [sys.executable, *options, "-c", DECODE],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    read = ["metadata.version", "transaction.version", "41"]
    assert done.stdout.split() == [str(not options), *read]
