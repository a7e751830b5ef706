"""Settings of every test: examples are the same in each run of CI, and a slow machine is no failure."""

import os

from hypothesis import settings

settings.register_profile("leeboard", deadline=None, derandomize="CI" in os.environ)
settings.load_profile("leeboard")
