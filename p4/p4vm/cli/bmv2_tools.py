"""`p4vm tools`: a folder of programs for PATH, under the names that scripts for bmv2 call."""

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

import p4vm
from p4vm.cli.outcomes import outcomes

MODULES = {
    "p4c": "bmv2_compiler",
    "p4c-bm2-ss": "bmv2_compiler",
    "simple_switch": "bmv2_switch simple_switch",
    "simple_switch_grpc": "bmv2_switch simple_switch_grpc",
    "simple_switch_CLI": "bmv2_switch simple_switch_CLI",
}
P4_CONFIG = '''"""p4.tmp.P4DeviceConfig of p4lang/PI, in no package: what controllers for bmv2 wrap a program in."""
from google.protobuf import descriptor_pb2, message_factory

_file = descriptor_pb2.FileDescriptorProto(name="p4/tmp/p4config.proto", package="p4.tmp", syntax="proto3")
_message = _file.message_type.add(name="P4DeviceConfig")
_message.field.add(name="reassign", number=1, type=8, label=1)
_message.field.add(name="device_data", number=3, type=12, label=1)
P4DeviceConfig = message_factory.GetMessages([_file])["p4.tmp.P4DeviceConfig"]
'''
MORE = "${PYTHONPATH:+:$PYTHONPATH}"
IMPLEMENTATION = "PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION"  # see p4vm/p4runtime/__init__.py
BESIDE = '"""What the package p4runtime has, and p4.tmp beside it."""\nfrom pkgutil import extend_path\n'
BESIDE += "\n__path__ = extend_path(__path__, __name__)\n"


def tools(folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Made where it isn't there")]) -> None:
    """Write the programs that scripts for bmv2 call into a folder for PATH.

    They are p4c, p4c-bm2-ss, simple_switch, simple_switch_grpc, simple_switch_CLI, and python3 with what their
    controllers import.

    With the folder first on PATH, `make run` of a P4 tutorial runs on this engine, its controllers unchanged.

    **Example**

    `p4vm tools ~/p4tools; export PATH=~/p4tools:$PATH`
    """
    with outcomes():
        typer.echo(f"{folder}: {', '.join(write(folder))}; put it first: export PATH={folder.resolve()}:$PATH")


def write(folder: Path) -> list[str]:
    """The names of the programs written. Raises OSError."""
    (folder / "python/p4/tmp").mkdir(parents=True, exist_ok=True)
    (folder / "python/p4/__init__.py").write_text(BESIDE)
    (folder / "python/p4/tmp/__init__.py").write_text("")
    (folder / "python/p4/tmp/p4config_pb2.py").write_text(P4_CONFIG)
    places = (Path(p4vm.__file__).resolve().parents[1], folder.resolve() / "python", sys.executable)
    package, beside, python = (shlex.quote(str(place)) for place in places)
    for name, module in MODULES.items():
        _script(folder / name, f"PYTHONPATH={package}{MORE} exec {python} -P -m p4vm.cli.{module}")
    _script(folder / "python3", f"{IMPLEMENTATION}=python PYTHONPATH={beside}{MORE} exec {python}")
    return [*MODULES, "python3"]


def _script(path: Path, command: str) -> None:
    path.write_text(f'#!/bin/sh\n{command} "$@"\n')
    path.chmod(0o755)
