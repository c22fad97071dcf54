"""Results on a full disk: one line that names the file and a remedy, an exit status, and nothing half written."""

from pathlib import Path

import pytest
import typer

from emulation.cli.outcomes import EXIT_FAILED, outcomes
from emulation.report import figure_kit
from emulation.results.results import write_json


def test_a_full_disk_leaves_what_was_there_and_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "results.json"
    write_json(path, {"earlier": 1})
    before = path.read_bytes()
    (tmp_path / "results.json.partial").symlink_to("/dev/full")
    with pytest.raises(typer.Exit) as ended, outcomes():
        write_json(path, {"later": list(range(10_000))})
    assert ended.value.exit_code == EXIT_FAILED
    line = f"switchagg: {path}: No space left on device; make room there, or take another folder; nothing it had"
    assert capsys.readouterr().err == f"{line} started is left\n"
    assert (path.read_bytes(), list(tmp_path.iterdir())) == (before, [path])


def test_a_figure_is_whole_or_not_there(tmp_path: Path) -> None:
    (tmp_path / "rates.png.partial").symlink_to("/dev/full")
    with pytest.raises(OSError, match=r"No space left on device: '.*rates\.png'"):
        figure_kit.write({"rates": figure_kit.grid(2.0, 1.0)[0]}, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_images_are_written_beside_a_page_as_they_are_alone_and_a_fault_is_told(tmp_path: Path) -> None:
    figures = {"rates": figure_kit.grid(2.0, 1.0)[0]}
    figure_kit.write(figures, tmp_path / "alone")
    with figure_kit.written_beside(figures, tmp_path / "beside"):
        pass
    assert (tmp_path / "beside/rates.png").read_bytes() == (tmp_path / "alone/rates.png").read_bytes()
    (tmp_path / "file").touch()
    with pytest.raises(FileExistsError, match="file"), figure_kit.written_beside(figures, tmp_path / "file"):
        pass
