"""Settings of all unit tests: hypothesis without deadlines, because the machine may be busy."""

from hypothesis import settings

settings.register_profile("tidegate", deadline=None)
settings.load_profile("tidegate")
