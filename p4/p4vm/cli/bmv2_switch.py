"""`simple_switch_grpc`, `simple_switch`, `simple_switch_CLI`: their command lines as those of `p4vm`."""

import argparse
import hashlib
import json
import os
import sys
from pathlib import Path
from typing import Any

from p4vm.source import P4Error, read_text

THRIFT_PORT, GRPC_ADDRESS = 9090, "0.0.0.0:9559"
UNUSED = ("--nanolog", "--notifications-addr", "--log-level", "-L", "--log-file", "--drop-port", "--dump-packet-data")
"""Options of bmv2 with a value that change nothing here."""


def run_words(name: str, words: list[str]) -> list[str]:
    """`p4vm …` for a command line of simple_switch or simple_switch_grpc. Raises P4Error."""
    parser = argparse.ArgumentParser(prog=name, description=f"{name} on the P4 engine p4vm.")
    parser.add_argument("json", nargs="?", type=Path, help="what the stand-in for p4c wrote")
    parser.add_argument("-i", "--interface", action="append", default=[], metavar="PORT@INTERFACE")
    parser.add_argument("--no-p4", action="store_true")
    parser.add_argument("--pcap", nargs="?", const=".")
    parser.add_argument("--log-console", action="store_true")
    parser.add_argument("--device-id", default="0")
    parser.add_argument("--thrift-port", default=str(THRIFT_PORT))
    parser.add_argument("--grpc-server-addr", default=GRPC_ADDRESS)
    parser.add_argument("--cpu-port")
    parser.add_argument("--priority-queues", type=int, default=1)
    for option in UNUSED:
        parser.add_argument(option, help=argparse.SUPPRESS)
    options = parser.parse_args([word for word in words if word != "--"])  # bmv2: options of the target stand behind it
    if options.json is None or options.no_p4:
        raise P4Error(f"{name}: start it with a program (…/prog.json): the engine can't take one later")
    if options.priority_queues > 1:
        raise P4Error(f"{name}: --priority-queues {options.priority_queues}: a port has one queue here")
    content = program_of(options.json)
    command = ["run", content["program"], "--control", f"127.0.0.1:{options.thrift_port}"]
    for option, values in (("-I", content["include"]), ("-D", content["define"]), ("-i", options.interface)):
        command += [word for value in values for word in (option, value)]
    command += ["--pcap", options.pcap] if options.pcap else []
    command += ["--log"] if options.log_console else []
    if name == "simple_switch_grpc":
        command += ["--p4runtime", options.grpc_server_addr, "--device-id", options.device_id]
        command += ["--cpu-port", options.cpu_port] if options.cpu_port else []
    return command


def program_of(path: Path) -> dict[str, Any]:
    """The record that the stand-in for p4c wrote. Raises P4Error: it is something else, or the program has changed."""
    try:
        content = json.loads(read_text(path)).get("p4vm")
    except (ValueError, AttributeError):
        content = None
    if not isinstance(content, dict):
        raise P4Error(f"{path}: not made by our p4c-bm2-ss; compile it again with `p4vm tools` on PATH")
    program = Path(content["program"])
    if not program.exists() or hashlib.sha256(program.read_bytes()).hexdigest() != content["sha256"]:
        raise P4Error(f"{path}: {program} has changed since; compile it again")
    return content


def main() -> int:
    """argv[1]: the name that was called."""
    name, words = sys.argv[1], sys.argv[2:]
    try:
        if name == "simple_switch_CLI":
            parser = argparse.ArgumentParser(prog=name)
            parser.add_argument("--thrift-port", default=str(THRIFT_PORT))
            command = ["cli", "--control", f"127.0.0.1:{parser.parse_args(words).thrift_port}"]
        else:
            command = run_words(name, words)
    except P4Error as error:
        print(error, file=sys.stderr)
        return 1
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, "-P", "-m", "p4vm.cli.main", *command])


if __name__ == "__main__":
    sys.exit(main())
