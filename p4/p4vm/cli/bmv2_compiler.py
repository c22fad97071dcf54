"""`p4c-bm2-ss`, `p4c`: a program checked, its P4Info written, and a JSON file that names the program to our switch."""

import argparse
import hashlib
import json
import sys
from pathlib import Path

from p4vm.control.p4info import unserved
from p4vm.ir import ir_nodes as ir
from p4vm.source import P4Error, P4vmError

IGNORED = {"--p4v": 1, "--std": 1, "--target": 1, "-b": 1, "--arch": 1, "-a": 1, "--p4runtime-format": 1}
"""Options of p4c that change nothing here, with the number of words they take."""


def arguments(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="p4c-bm2-ss",
        description="Check a v1model program for the P4 engine p4vm, and write what controllers and scripts for "
        "bmv2 look for: the P4Info, and a JSON file that names the program. There is nothing compiled in it.",
    )
    parser.add_argument("program", type=Path)
    parser.add_argument("-o", dest="output", type=Path, help="the JSON file, or a folder for it")
    parser.add_argument("--p4runtime-files", default="", metavar="FILE,…", help="the P4Info: .txtpb, .txt, .json, .bin")
    parser.add_argument("-I", dest="include", action="append", default=[])
    parser.add_argument("-D", dest="define", action="append", default=[])
    for option, count in IGNORED.items():
        parser.add_argument(option, nargs=count, help=argparse.SUPPRESS)
    return parser.parse_args(words)


def compiled(program: Path, include: list[str], define: list[str]) -> dict[str, object]:
    """The record that our switch reads to run the program: its place, and a digest of its text."""
    content = hashlib.sha256(program.read_bytes()).hexdigest()
    known = {"program": str(program.resolve()), "include": [str(Path(folder).resolve()) for folder in include]}
    return {"p4vm": {**known, "define": define, "sha256": content}}


def main(words: list[str] | None = None) -> int:
    """Exit code, as p4c's."""
    options = arguments(sys.argv[1:] if words is None else words)
    try:
        from p4vm.compile import front_end

        defines = {name: value or "1" for name, _, value in (macro.partition("=") for macro in options.define)}
        program = front_end(options.program, includes=options.include, defines=defines)
        for warning in [*program.warnings, *(unserved(program) if options.p4runtime_files else [])]:
            print(f"warning: {warning}", file=sys.stderr)
        for file in filter(None, options.p4runtime_files.split(",")):
            _write_p4info(Path(file), program)
        output = options.output or Path()
        if output.suffix != ".json":
            output.mkdir(parents=True, exist_ok=True)
            output /= options.program.with_suffix(".json").name
        output.write_text(json.dumps(compiled(options.program, options.include, options.define), indent=1) + "\n")
    except P4vmError as error:
        print(error, file=sys.stderr)
        return 1
    except OSError as error:
        print(f"{error.filename}: {error.strerror}", file=sys.stderr)
        return 1
    return 0


def _write_p4info(file: Path, program: ir.ProgramIr) -> None:
    try:
        from p4vm.p4runtime.runtime_pipeline import info_file
    except ModuleNotFoundError as error:
        raise P4Error(f"a P4Info needs {error.name}: pip install 'p4vm[p4runtime]'") from None
    file.write_bytes(info_file(program, file.suffix))


if __name__ == "__main__":
    sys.exit(main())
