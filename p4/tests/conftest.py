"""What the engine's tests share: they draw the same examples on every machine."""

from importlib.util import find_spec

DRAWING = ("test_algorithms.py", "test_controlled_switch.py", "test_stf.py")
"""Files whose tests draw examples with Hypothesis."""

if find_spec("hypothesis"):
    import hypothesis

    hypothesis.settings.register_profile("repeatable", deadline=None, derandomize=True, database=None)
    hypothesis.settings.load_profile("repeatable")
    collect_ignore: list[str] = []
else:
    collect_ignore = list(DRAWING)


def pytest_report_header() -> str:
    return f"left out, for lack of hypothesis (p4vm[test]): {', '.join(collect_ignore)}" if collect_ignore else ""
