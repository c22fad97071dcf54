"""Golden packets (tests/vectors/README.md) as tests of pytest: each file runs live, over UDP, on each data plane."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from switchagg.dataplane.plane_kinds import DATAPLANES
from switchagg.errors import JobError, SwitchaggError
from transport.switch.daemon_options import AUTO
from transport.testing.fixtures import control_of, dataplanes_of, may_skip
from transport.testing.jobs import Unexpected
from transport.testing.switches import SwitchUnderTest
from transport.testing.vectors import live_target, run_vector, suits

FIRST_LINE = "switch"


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> "VectorFile | None":
    """Files *.stf that begin with a line `switch SLOTS ELEMENTS`; others are of other formats."""
    if file_path.suffix != ".stf":
        return None
    lines = (line.split("#")[0].split() for line in file_path.read_text(encoding="utf-8").splitlines())
    if next(filter(None, lines), [""])[0] != FIRST_LINE:
        return None
    return VectorFile.from_parent(parent, path=file_path)


class VectorFile(pytest.File):
    """A file, and a test for each data plane that has its rule."""

    def collect(self) -> "Iterator[VectorItem]":
        text = self.path.read_text(encoding="utf-8")
        control = control_of(self.config)
        for name in [control] if control else dataplanes_of(self.config) or [AUTO]:
            item: VectorItem = VectorItem.from_parent(self, name=name)
            item.text, item.control = text, control
            if control and (" parent=" in text or "\nrefuse" in text):
                item.add_marker(pytest.mark.skip(reason="trees and refusals are the controller's there"))
            elif name in DATAPLANES and not suits(text, name):
                item.add_marker(pytest.mark.skip(reason=f"data plane {name} has no trees, or no partial sums"))
            yield item


class VectorItem(pytest.Item):
    """A vector on one data plane."""

    text: str
    control: str | None
    switch: SwitchUnderTest | None = None
    """The one it ran on."""

    def runtest(self) -> None:
        target = live_target(self.name, self.control)
        try:
            run_vector(self.text, target, self.path.name)
        except JobError as error:
            if target.switch is not None or not may_skip(self.config):
                raise
            pytest.skip(str(error))
        finally:
            self.switch = target.switch
            target.close()

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: object = None) -> str:
        if isinstance(excinfo.value, Unexpected | SwitchaggError):
            return str(excinfo.value)
        return str(super().repr_failure(excinfo))

    def reportinfo(self) -> tuple[Path, int, str]:
        return self.path, 0, f"{self.path.stem} on {self.name}"
