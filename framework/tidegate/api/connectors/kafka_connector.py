"""The common part of Kafka sources and sinks: a topic, and settings of librdkafka.

A declaration opens no connection. The data plane's sources and sinks read it.
"""

from __future__ import annotations

from collections.abc import Mapping

from tidegate.api.declarations.connector import Connector
from tidegate.api.declarations.declaration_checks import RESERVED_PROPERTIES, check_topic
from tidegate.config import foreign_code
from tidegate.errors import PipelineError

KafkaProperties = Mapping[str, str | int | float | bool]
"""librdkafka settings by name."""


class KafkaConnector(Connector):
    """A connector that has a topic and its own librdkafka settings."""

    def __init__(self, topic: str, properties: KafkaProperties | None) -> None:
        super().__init__()
        self.topic = topic
        check_topic(self.location, topic)
        self.properties = dict(properties or {})
        for key in self.properties.keys() & RESERVED_PROPERTIES.keys():
            raise PipelineError(
                f"{self.location}: properties={{{key!r}: ...}} of topic {topic!r} is set by "
                f"tidegate: {RESERVED_PROPERTIES[key]}."
            )
        for key, value in self.properties.items():
            how = foreign_code(key, value)
            if how is not None:
                raise PipelineError(
                    f"{self.location}: properties={{{key!r}: ...}} of topic {topic!r} is not "
                    f"allowed: {how}. Remove it."
                )

    @property
    def target(self) -> str:
        """The topic in words, for error messages."""
        return f"topic {self.topic!r}"
