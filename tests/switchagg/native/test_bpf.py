"""bpf: an object file that isn't ours is named, with the remedy."""

from pathlib import Path

import pytest

from switchagg.errors import SwitchaggError
from switchagg.native import bpf

REMEDY = "; run make native in a checkout, or install switchagg again$"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, requires_bpf: None) -> Path:
    """Where objects are looked for, empty."""
    monkeypatch.setattr(bpf, "FOLDER", tmp_path)
    return tmp_path


def test_a_missing_object_is_named(folder: Path) -> None:
    with pytest.raises(SwitchaggError, match=rf"^BPF: {bpf.LOSS} was not built; install clang .*{REMEDY[2:]}"):
        bpf.BpfObject(bpf.LOSS)


@pytest.mark.parametrize("content", [b"", b"junk", b"\x7fELF" + bytes(100)])
def test_a_file_that_is_no_object_is_named(content: bytes, folder: Path) -> None:
    (folder / bpf.LOSS).write_bytes(content)
    with pytest.raises(SwitchaggError, match=rf"^BPF: {bpf.LOSS} can't be read: it is no BPF object{REMEDY}"):
        bpf.BpfObject(bpf.LOSS)


def test_an_object_of_other_sources_is_named(requires_bpf: None) -> None:
    other = bpf.BpfObject(bpf.LOSS)
    try:
        for find in (other.program, other.map):
            with pytest.raises(SwitchaggError, match=rf"^BPF: {bpf.LOSS} was built from other .*sa_nothing.*{REMEDY}"):
                find("sa_nothing")
    finally:
        other.close()
