"""Settings of every test: examples are the same in each run of CI, and a slow machine causes no failure."""

import gc
import os

import structlog
from hypothesis import settings

# Tests start programs while a fake kubelet serves. gRPC would otherwise start a thread in the child between fork and
# exec, which ends the child when subprocess closes its descriptors (grpc/grpc#43055). gRPC reads this as it is loaded.
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "false"

settings.register_profile("leeboard", deadline=None, derandomize="CI" in os.environ)
settings.load_profile("leeboard")

# A traceback as rich draws it takes half a second.
structlog.dev.ConsoleRenderer.get_active().exception_formatter = structlog.dev.plain_traceback


def pytest_collection_finish() -> None:
    """Leave thousands of collected tests out of each collection of garbage."""
    gc.freeze()
