"""Commands that get several signals: the first ends them in order, and no further one cuts that short."""

import signal
import subprocess
import sys
import time
from collections.abc import Sequence

import pytest

from tests.transport.contracts.meshes import free_addresses

SWITCHAGG = [sys.executable, "-m", "emulation.cli.main"]
ENDS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
CLEANS_UP = """
import time
from {package} import outcomes
outcomes.CLEANING_S = 2
with outcomes.outcomes():
    try:
        print("ready", flush=True)
        time.sleep(60)
    finally:
        time.sleep({seconds})
        print("cleaned", flush=True)
"""
START_S, END_S = 60.0, 60.0


def signalled(command: Sequence[str], ready: str) -> tuple[int, str, str]:
    """What a command ends with that gets one signal after the other from its ready line on, and what it prints."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert ready in process.stdout.readline()
            end, sent = time.monotonic() + END_S, 0
            while process.poll() is None and time.monotonic() < end:
                process.send_signal(ENDS[sent % 3])
                sent += 1
                time.sleep(0.002)
            output, errors = process.communicate(timeout=START_S)
        finally:
            process.kill()
    return process.returncode, output, errors


def test_a_switch_ends_in_order() -> None:
    addresses = ["--control", "tcp://127.0.0.1:0", "--data", "127.0.0.1:0"]
    code, _, errors = signalled([*SWITCHAGG, "switch", *addresses], "ready")
    assert (code, "Traceback" in errors) == (0, False)


def test_a_server_ends_in_order() -> None:
    places = ["--workers", "127.0.0.1:1", "--servers", "{}:{}".format(*free_addresses(1)[0])]
    code, _, errors = signalled([*SWITCHAGG, "server", *places], "waiting")
    assert (code, errors) == (130, "switchagg: interrupted; everything it had started is stopped\n")


@pytest.mark.parametrize(
    ("package", "message"),
    [
        ("emulation.cli", "switchagg: interrupted; everything it had started is stopped"),
        ("p4vm.cli", "p4vm: interrupted"),
    ],
)
@pytest.mark.parametrize(("seconds", "cleaned"), [(1, "cleaned\n"), (60, "")])
def test_what_is_cleaned_up_is_cleaned_up_to_its_end(seconds: int, cleaned: str, package: str, message: str) -> None:
    """If that takes too long, a signal is heard again."""
    program = CLEANS_UP.format(seconds=seconds, package=package)
    code, output, errors = signalled([sys.executable, "-c", program], "ready")
    assert (code, output) == (1, cleaned)  # of Typer's Exit, outside its command
    assert message in errors
