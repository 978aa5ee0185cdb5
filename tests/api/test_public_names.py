"""The public surface, frozen: a name that is added or removed shows up here first.

Method: the list is written out; each name loads; a bare import loads none of the heavy libraries.
"""

import subprocess
import sys

import tidegate
import tidegate.testing

PUBLIC = [
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
TESTING = ["FunctionHarness", "PipelineTest", "PipelineSink", "PipelineSource", "Setup"]


def test_public_names_equal_the_frozen_list() -> None:
    assert tidegate.__all__ == PUBLIC
    for name in PUBLIC:
        assert getattr(tidegate, name).__name__ == name


def test_testing_package_exports_all_frozen_names() -> None:
    assert set(TESTING) <= set(tidegate.testing.__all__)


def test_stream_and_keyed_stream_have_exactly_the_frozen_methods() -> None:
    def methods(of: type) -> set[str]:
        return {name for name in vars(of) if not name.startswith("_")}

    later = {"map_batch", "map_arrow", "map_async", "broadcast"}
    steps = {"map", "filter", "flat_map", "union", "process", "key_by", "window_all", "to"}
    steps |= {"with_timestamps"}
    assert methods(tidegate.Stream) == steps | later
    later = {"reduce", "interval_join", "as_of_join", "connect", "connect_broadcast"}
    assert methods(tidegate.KeyedStream) == {"process", "window"} | later


def test_importing_the_package_loads_no_heavy_library() -> None:
    code = (
        "import tidegate, sys; print(sorted({'msgspec', 'pydantic', 'fastavro'} & {*sys.modules}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
