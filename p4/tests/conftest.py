"""What the engine's tests share: they draw the same examples on every machine."""

import contextlib

with contextlib.suppress(ModuleNotFoundError):  # tests that draw examples skip then
    import hypothesis

    hypothesis.settings.register_profile("repeatable", deadline=None, derandomize=True, database=None)
    hypothesis.settings.load_profile("repeatable")
