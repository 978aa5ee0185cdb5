"""The public test kit: drivers for a whole pipeline and for one keyed function.

Users test their pipelines with this package. Its drivers never open a socket, a file or a process.
"""

from tidegate.testing.harness import FunctionHarness
from tidegate.testing.pipeline_test import PipelineSink, PipelineSource, PipelineTest

__all__ = ["FunctionHarness", "PipelineSink", "PipelineSource", "PipelineTest"]
