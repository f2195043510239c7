"""Properties are checked on the same examples every time, and not by the clock."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("shoal", deadline=None, derandomize=True, database=None)
settings.load_profile("shoal")
