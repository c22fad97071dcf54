"""examples/packet_test passes on a switch that keeps the rules, and finds a fault planted in the P4 program."""

import shutil
from contextlib import suppress
from pathlib import Path

import pytest

from p4vm.planes import p4

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "packet_test"

pytest_plugins = ["pytester"]


with suppress(ImportError):  # once in this process: scapy asks the class of layers that it was told first
    import switchagg_scapy  # noqa: F401


@pytest.fixture
def example(pytester: pytest.Pytester) -> pytest.Pytester:
    """In a folder of its own."""
    shutil.copytree(EXAMPLE, pytester.path, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    return pytester


def test_it_passes(example: pytest.Pytester) -> None:
    outcomes = example.runpytest("-p", "no:cacheprovider").parseoutcomes()
    assert outcomes.get("passed", 0) + outcomes.get("skipped", 0) == 7  # without scapy one skips
    assert outcomes["passed"] >= 6
    assert set(outcomes) <= {"passed", "skipped"}


@pytest.mark.skipif(bool(p4.missing()), reason=f"data plane p4: {p4.missing()}")
def test_it_finds_ranks_that_are_not_reset(example: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """As docs/packet-tests.md plants it; every test but one passes all the same."""
    sources, right = ROOT / "p4" / "v1model", "meta.fresh == 1 ? 64w0 : "
    text = (sources / "seen.p4").read_text(encoding="utf-8")
    assert text.count(right) == 1
    example.path.joinpath("seen.p4").write_text(text.replace(right, ""), encoding="utf-8")
    shutil.copy(sources / "switchagg.p4", example.path)
    monkeypatch.setenv("SWITCHAGG_P4_PROGRAM", str(example.path / "switchagg.p4"))
    done = example.runpytest("-p", "no:cacheprovider", "--dataplane", "p4")
    assert done.parseoutcomes()["failed"] == 1
    done.stdout.fnmatch_lines(
        [
            "*test_a_slot_is_used_again_two_windows_later*",
            "*rank 0 sent: contribution job 1 generation 7 stream 0 chunk 2 *; the switch counted it as reply",
            "*expected DROP: nothing for anybody",
            "*rank 0: unexpected result job 1 generation 7 stream 0 chunk 2 *",
        ]
    )
