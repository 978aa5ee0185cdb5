"""What tests are written with: fakes of every port and drivers of a pipeline or one function.

It is public, because users test with it too. It never opens a socket, a file or a process.
"""

from tidegate.testing.harness import FunctionHarness
from tidegate.testing.pipeline_test import PipelineSink, PipelineSource, PipelineTest

__all__ = ["FunctionHarness", "PipelineSink", "PipelineSource", "PipelineTest"]
