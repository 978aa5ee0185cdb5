"""tidegate: Kafka-native, exactly-once pipelines in Python.

Users import this package. Everything below it is divided into parts with strict import rules
(ARCHITECTURE.md shows them). Code inside the framework imports those parts, never this module.

A name is loaded at its first use, so that the command line starts without msgspec and pydantic.
tests/api/test_public_names.py freezes the list of names.
"""

import importlib
from typing import TYPE_CHECKING, Any

__version__: str

if TYPE_CHECKING:
    from tidegate.api.connectors.kafka_records import ConsumerRecord, ProducerRecord
    from tidegate.api.connectors.kafka_sink import KafkaSink
    from tidegate.api.connectors.kafka_source import KafkaSource
    from tidegate.api.functions import (
        Context,
        CoProcess,
        KeyedProcess,
        Process,
        ProcessContext,
        SideOutput,
    )
    from tidegate.api.pipeline import Param, Pipeline, build
    from tidegate.api.records.formats import Avro, Json, Raw, Utf8
    from tidegate.api.run_result import RunResult
    from tidegate.api.state.state import ListState, MapState, ValueState
    from tidegate.api.steps.streams import KeyedStream, Stream, WindowOutput
    from tidegate.api.steps.windowed_streams import WindowedStream
    from tidegate.api.time.timers import (
        EventTimer,
        EventTimers,
        Fired,
        ProcessingTimer,
        ProcessingTimers,
    )
    from tidegate.api.time.watermarks import (
        BoundedOutOfOrderness,
        CustomWatermarks,
        HeaderTime,
        Monotonous,
        Punctuated,
        WatermarkStrategy,
    )
    from tidegate.api.windows.aggregates import (
        Aggregate,
        Collect,
        Count,
        First,
        Last,
        Max,
        Mean,
        Min,
        Sum,
        TopN,
    )
    from tidegate.api.windows.triggers import AfterWatermark, Every, EveryCount, Repeatedly
    from tidegate.api.windows.windows import (
        Calendar,
        Global,
        Session,
        Sliding,
        Tumbling,
        Window,
        WindowContext,
        WindowProcess,
    )
    from tidegate.errors import PipelineError, TidegateError

__all__ = [
    "AfterWatermark",
    "Aggregate",
    "Avro",
    "BoundedOutOfOrderness",
    "Calendar",
    "CoProcess",
    "Collect",
    "ConsumerRecord",
    "Context",
    "Count",
    "CustomWatermarks",
    "EventTimer",
    "EventTimers",
    "Every",
    "EveryCount",
    "Fired",
    "First",
    "Global",
    "HeaderTime",
    "Json",
    "KafkaSink",
    "KafkaSource",
    "KeyedProcess",
    "KeyedStream",
    "Last",
    "ListState",
    "MapState",
    "Max",
    "Mean",
    "Min",
    "Monotonous",
    "Param",
    "Pipeline",
    "PipelineError",
    "Process",
    "ProcessContext",
    "ProcessingTimer",
    "ProcessingTimers",
    "ProducerRecord",
    "Punctuated",
    "Raw",
    "Repeatedly",
    "RunResult",
    "Session",
    "SideOutput",
    "Sliding",
    "Stream",
    "Sum",
    "TidegateError",
    "TopN",
    "Tumbling",
    "Utf8",
    "ValueState",
    "WatermarkStrategy",
    "Window",
    "WindowContext",
    "WindowOutput",
    "WindowProcess",
    "WindowedStream",
    "build",
]

_HOMES = {
    "api.windows.aggregates": (
        "Aggregate",
        "Collect",
        "Count",
        "First",
        "Last",
        "Max",
        "Mean",
        "Min",
        "Sum",
        "TopN",
    ),
    "api.records.formats": ("Avro", "Json", "Raw", "Utf8"),
    "api.functions": (
        "CoProcess",
        "Context",
        "KeyedProcess",
        "Process",
        "ProcessContext",
        "SideOutput",
    ),
    "api.connectors.kafka_records": ("ConsumerRecord", "ProducerRecord"),
    "api.connectors.kafka_sink": ("KafkaSink",),
    "api.connectors.kafka_source": ("KafkaSource",),
    "api.pipeline": ("Param", "Pipeline", "build"),
    "api.run_result": ("RunResult",),
    "api.state.state": ("ListState", "MapState", "ValueState"),
    "api.steps.streams": ("KeyedStream", "Stream", "WindowOutput"),
    "api.time.timers": (
        "EventTimer",
        "EventTimers",
        "Fired",
        "ProcessingTimer",
        "ProcessingTimers",
    ),
    "api.windows.triggers": ("AfterWatermark", "Every", "EveryCount", "Repeatedly"),
    "api.time.watermarks": (
        "BoundedOutOfOrderness",
        "CustomWatermarks",
        "HeaderTime",
        "Monotonous",
        "Punctuated",
        "WatermarkStrategy",
    ),
    "api.steps.windowed_streams": ("WindowedStream",),
    "api.windows.windows": (
        "Calendar",
        "Global",
        "Session",
        "Sliding",
        "Tumbling",
        "Window",
        "WindowContext",
        "WindowProcess",
    ),
    "errors": ("PipelineError", "TidegateError"),
}
UNSUPPORTED = {
    "AggregatingState": "use ValueState",
    "ApproxDistinct": "use Collect, or count in a WindowProcess",
    "BroadcastProcess": "use KeyedProcess on a union of both streams",
    "BroadcastState": "use MapState",
    "Change": "send each result with its window and its number",
    "Distinct": "count in a WindowProcess",
    "KeepLast": "select the records in a WindowProcess",
    "KeepRecent": "select the records in a WindowProcess",
    "KeyedBatchProcess": "use KeyedProcess",
    "Protobuf": "use Raw and parse the message in a map",
    "Quantiles": "compute them in a WindowProcess",
    "ReducingState": "use ValueState",
    "Trigger": "use AfterWatermark or Repeatedly",
}

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        if name == "__version__":
            from tidegate.protocol.versions import TIDEGATE

            return TIDEGATE
        for home, names in _HOMES.items():
            if name in names:
                value = getattr(importlib.import_module(f"{__name__}.{home}"), name)
                if name == "Pipeline":
                    from tidegate.api.pipeline import run_pipelines_with

                    run_pipelines_with(_run_pipeline)
                globals()[name] = value
                return value
        if name in UNSUPPORTED:
            from tidegate.api.declarations.location import refuse_unsupported

            refuse_unsupported(name, UNSUPPORTED[name])
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def _run_pipeline(*args: Any, **kwargs: Any) -> Any:
        """Do the work of `Pipeline.run`. Only this package is above both the API and the runner."""
        from tidegate.cli.scripts.script_run import run_pipeline

        return run_pipeline(*args, **kwargs)
