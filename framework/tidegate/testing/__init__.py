"""The public test kit: drivers for a whole pipeline and for one keyed function.

Users test their pipelines with this package. Its drivers open no socket and no process. The state
of a pipeline is in a temporary folder, which goes with the test.
"""

from tidegate.testing.connectors import PipelineSink, PipelineSource
from tidegate.testing.harness import FunctionHarness
from tidegate.testing.pipeline_test import PipelineTest, Setup

__all__ = ["FunctionHarness", "PipelineSink", "PipelineSource", "PipelineTest", "Setup"]
