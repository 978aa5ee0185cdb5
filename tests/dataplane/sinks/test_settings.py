"""Which of the places where a setting of a sink's producers may stand holds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from tests.dataplane.sinks.doubles import Broker
from tests.drivers.kafka.surroundings import SubtaskHarness
from tidegate.api.connectors.kafka_sink import KafkaSink
from tidegate.api.records.formats import Raw
from tidegate.config import Config
from tidegate.config_load import checked
from tidegate.dataplane.sinks.kafka import KafkaSinkWriter
from tidegate.dataplane.sizes import CLIENT_MAX_BYTES
from tidegate.ids import Uid

COMPRESSION, LINGER = "compression.type", "linger.ms"


def given(
    sink: KafkaSink[Any],
    *,
    everywhere: Mapping[str, str] | None = None,
    here: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """The settings of a producer of `sink`, with configured properties for all clients and for this
    sink.
    """
    config = {
        "kafka": {"bootstrap_servers": "broker:9092", "properties": everywhere or {}},
        "sinks": {"out": {"properties": here or {}}},
    }
    broker = Broker()
    harness = SubtaskHarness(broker, broker, config=checked(Config, config))
    KafkaSinkWriter(sink, Uid("out"), harness.context).open()
    harness.run_until_idle()
    settings = dict(broker.settings[0])
    assert settings.pop("bootstrap.servers") == "broker:9092"
    assert settings.pop("message.max.bytes") == str(CLIENT_MAX_BYTES)  # the topic's is not known
    return settings


def test_producer_message_limit_is_the_limit_of_the_topic() -> None:
    broker = Broker()
    harness = SubtaskHarness(broker, broker)
    harness.context.max_message_bytes = {"out": 5_000}
    KafkaSinkWriter(KafkaSink("out", value=Raw()), Uid("out"), harness.context).open()
    harness.run_until_idle()
    assert broker.settings[0]["message.max.bytes"] == "5000"
    assert broker.settings[0]["batch.size"] == "5000"


@pytest.mark.parametrize("guarantee", ["exactly_once", "at_least_once", "none"])
def test_sink_without_settings_gives_the_producer_no_settings(guarantee: Any) -> None:
    assert given(KafkaSink("out", value=Raw(), guarantee=guarantee)) == {}


def test_sink_keywords_become_librdkafka_settings() -> None:
    sink = KafkaSink("out", value=Raw(), compression="zstd", linger="1 s", properties={"a.b": True})
    assert given(sink) == {COMPRESSION: "zstd", LINGER: "1000", "a.b": "true"}


def test_properties_for_all_clients_apply_where_the_sink_declares_none() -> None:
    everywhere = {COMPRESSION: "lz4", LINGER: "20"}
    assert given(KafkaSink("out", value=Raw()), everywhere=everywhere) == everywhere
    sink = KafkaSink("out", value=Raw(), compression="none")
    assert given(sink, everywhere=everywhere) == {COMPRESSION: "none", LINGER: "20"}


def test_properties_configured_for_the_sink_override_its_declaration() -> None:
    sink = KafkaSink("out", value=Raw(), compression="lz4", linger="1 s")
    assert given(sink, here={LINGER: "7"}) == {COMPRESSION: "lz4", LINGER: "7"}
