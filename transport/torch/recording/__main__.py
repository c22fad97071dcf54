"""Record a rank of a program: python -m transport.torch.recording [options] PROGRAM [ARGS…], under torchrun.

Writes STEM.rankR.json.gz. Exit code 1 with one line if the program ended before enough was recorded.
"""

import argparse
import os
import runpy
import sys
from pathlib import Path

from transport.torch.recording.recorder import Recorder


def main() -> None:
    parser = argparse.ArgumentParser(prog="transport.torch.recording")
    parser.add_argument("--stem", type=Path, required=True)
    parser.add_argument("--warmup", type=int, default=5)
    parser.add_argument("--iterations", type=int, default=10)
    parser.add_argument("--stop", action="store_true")
    parser.add_argument("--module", action="store_true")
    parser.add_argument("program")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    arguments = parser.parse_args()
    rank = os.environ.get("RANK", "0")
    path = Path(f"{arguments.stem}.rank{rank}.json.gz").absolute()
    recorder = Recorder(path, arguments.warmup, arguments.iterations, stop=arguments.stop)
    sys.argv = [arguments.program, *arguments.arguments]
    with recorder.watch():
        if arguments.module:
            sys.path[0] = ""
            runpy.run_module(arguments.program, run_name="__main__", alter_sys=True)
        else:
            sys.path[0] = str(Path(arguments.program).resolve().parent)
            runpy.run_path(arguments.program, run_name="__main__")
    if not recorded(recorder, arguments, rank):
        sys.exit(1)


def recorded(recorder: Recorder, arguments: argparse.Namespace, rank: str) -> bool:
    """Whether the recording is complete; a line on stderr says so if not."""
    if not recorder.recorded:
        needed = arguments.warmup + arguments.iterations + 1
        sys.stderr.write(
            f"switchagg: {arguments.program}: rank {rank} ended after {recorder.steps} steps of its optimizer; "
            f"{needed} are needed: let it train longer, or give --warmup and --iterations\n"
        )
    return recorder.recorded


if __name__ == "__main__":
    main()
