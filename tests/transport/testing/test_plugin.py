"""`-p switchagg.testing`: options, fixtures, golden packets as tests, and what a failure shows."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from dataplane_names import WITHOUT_P4

from switchagg.dataplane.plane_kinds import DATAPLANES
from switchagg.native.library import missing
from switchagg.testing import JoinedSwitch, Op, Packet, Route, describe, difference, encode
from switchagg.wire import HEADER_BYTES
from transport.control.control_client import query_status
from transport.switch.daemon import SwitchDaemon
from transport.switch.daemon_options import DaemonOptions
from transport.testing.packets import bytes_of, fields_of

pytest_plugins = ["pytester"]

PLUGIN = ("-p", "switchagg.testing", "-p", "no:cacheprovider")

VECTORS = Path(__file__).parents[2] / "vectors"
NUMBERED = ("s1_unknown_senders", "s2_takeover", "s7_generation", "s7_admission", "s8_jobs", "q2_finalised")
"""Vectors with several jobs and streams, generations, slots of nobody, what slots hold, partial sums, refusals."""

EXAMPLE = Path(__file__).parents[3] / "examples" / "packet_test"
RESULT = Packet(1, 7, 2, 3, Op.MAX, 9, 1, 4, np.arange(12, dtype=np.int32), True, True, Route.TO_OWNER, 5, True, True)


def test_fixtures_run_on_each_plane_and_a_failure_shows_what_the_switch_counted(pytester: pytest.Pytester) -> None:
    pytester.makeconftest('pytest_plugins = ["switchagg.testing"]')
    pytester.makepyfile(
        """
        import pytest
        from switchagg.testing import BROADCAST, REPLY

        def test_right(job):
            one = job(workers=1)
            one.contribute(0, 0, 5)
            one.expect(BROADCAST, 5)

        def test_wrong(job):
            two = job()
            two.contribute(0, 0, 5)
            two.expect(REPLY, 5)

        @pytest.mark.dataplane("reference")
        def test_marked(dataplane, switch):
            assert switch.dataplane == dataplane == "reference"
        """
    )
    done = pytester.runpytest("-p", "no:cacheprovider", "--dataplane", "native", "--dataplane", "reference", "-k", "t_")
    done.assert_outcomes(passed=3, failed=3)  # the command line stands above the mark, which then fails for `native`
    done.stdout.fnmatch_lines(
        [
            "*rank 0 sent: contribution job 1 generation 7 stream 0 *; the switch counted it as absorbed (S3, S4: *)",
            "*expected REPLY: a result for rank 0 alone (S5)",
            "*- switch -*",
            "job 1 generation 7 admitted: *",
            "counters: absorbed 1",
        ]
    )
    alone = pytester.runpytest("-p", "no:cacheprovider", "-k", "marked")
    alone.assert_outcomes(passed=1, deselected=2)


def test_golden_packets_run_live(pytester: pytest.Pytester) -> None:
    """Each of ours on the planes without a compiler of P4; a wrong one is told with its line."""
    wrong, more = ((VECTORS / f"{name}.stf").read_text() for name in ("s5_broadcast", "s8_jobs"))
    more = more.replace("expect 1", "# expect 1", 1)
    pytester.makefile(".stf", other="packet 0 00\n", more=more, wrong=wrong.replace("08 ff", "09 ff"))
    planes = [name for name in WITHOUT_P4 if not (DATAPLANES[name].compiled and missing())]
    chosen = [word for name in planes for word in ("--dataplane", name)]
    done = pytester.runpytest(*PLUGIN, *chosen, str(VECTORS), ".")
    done.assert_outcomes(passed=len(planes) * len(list(VECTORS.glob("*.stf"))), failed=2 * len(planes))
    done.stdout.fnmatch_lines(
        ["more.stf:10: packet 1 *: nothing that the file expects is this:", "*to port 1: result *"]
    )
    done.stdout.fnmatch_lines(["wrong.stf:*: expect 0 *", "*expected 9, received 8"])
    partial = pytester.runpytest(*PLUGIN, "--dataplane", "p4", "-rs", str(VECTORS / "q2_finalised.stf"))
    partial.assert_outcomes(skipped=1)
    partial.stdout.fnmatch_lines(["*data plane p4 has no trees, or no partial sums"])


def test_a_switch_that_runs_somewhere(pytester: pytest.Pytester) -> None:
    """Its controller numbers jobs, so packets of files are renumbered; it has another job, so no number is theirs."""
    options = DaemonOptions("tcp://127.0.0.1:0", ("127.0.0.1", 0), "reference")
    with SwitchDaemon(options) as daemon, JoinedSwitch(daemon.control_endpoint) as other:  # in this process
        mine = other.job(workers=1, window=3)
        first = mine.config.generation
        mine.restart(first)
        assert mine.config.generation != first
        assert query_status(daemon.control_endpoint).running == 1
        for path in (*EXAMPLE.glob("*.py"), *(VECTORS / f"{name}.stf" for name in NUMBERED)):
            shutil.copy(path, pytester.path)
        told = [*PLUGIN, "--switch", daemon.control_endpoint, "-rs"]
        done = pytester.runpytest(*told)
        outcomes = done.parseoutcomes()
        assert set(outcomes) == {"passed", "skipped"}
        assert sum(outcomes.values()) == 8 + len(NUMBERED)
        assert outcomes["skipped"] in (1, 2)  # without scapy one more
        done.stdout.fnmatch_lines(["*trees and refusals are the controller's there"])
        wrong = (VECTORS / "s5_broadcast.stf").read_text().replace("08 ff", "09 ff")
        pytester.makefile(".stf", wrong=wrong)
        pytester.runpytest(*told, "wrong.stf").stdout.fnmatch_lines(
            ["wrong.stf:*: expect 0 *", "*expected 9, received 8"]
        )
    pytester.runpytest(*PLUGIN, "--switch", "here:1").stderr.fnmatch_lines(["*expected tcp://HOST:PORT*"])


def test_lines_that_are_none(pytester: pytest.Pytester) -> None:
    pytester.makefile(".stf", a="switch 1 1\nsend 0 00\n", b="switch 1 1\njob id=1\n", c="switch 1 1\nswitch 1 1\n")
    done = pytester.runpytest(*PLUGIN, "--dataplane", "reference")
    done.assert_outcomes(failed=3)
    done.stdout.fnmatch_lines(["a.stf:2: send 0 00: a line begins with switch, job,*"])
    done.stdout.fnmatch_lines(["b.stf:2: job id=1: not as tests/vectors/README.md says: KeyError('streams')"])
    done.stdout.fnmatch_lines(["c.stf:2: switch 1 1: `switch SLOTS ELEMENTS` is the first line, and only that"])


def test_packets_in_words() -> None:
    assert describe(encode(RESULT)) == (
        "result job 1 generation 7 stream 2 chunk 4 slot 9 version 1 rank 3 MAX TO_OWNER 5 RETRANSMISSION CLOSE MARKED "
        "[0, 1, 2, 3, 4, 5, 6, 7, …]"
    )
    assert describe(b"\x01\xff") == "2 bytes: 01ff"
    assert describe(b"") == "0 bytes: none"
    assert describe(b"GET / HTTP/1.1\r\nHost: x").endswith("magic 0x4745 wire_version 5 elements 3338 [] and 3a2078")
    assert difference(encode(RESULT), encode(RESULT)) == []


@pytest.mark.parametrize("at", range(HEADER_BYTES + 48))
def test_every_byte_is_of_a_field(at: int) -> None:
    """What differs in any byte is named, by one line."""
    data = bytearray(encode(RESULT))
    data[at] ^= 1
    (line,) = difference(encode(RESULT), bytes(data))
    name = line.split()[0]
    wanted, got = fields_of(encode(RESULT))[name], fields_of(bytes(data))[name]
    assert line.split(None, 1)[1] == f"expected {wanted}, received {got}"


def test_scapy_s_layers_are_bytes() -> None:
    inet = pytest.importorskip("scapy.layers.inet", reason="scapy is not installed: pip install scapy")
    packet = inet.IP(dst="127.0.0.1") / inet.UDP(dport=5556) / encode(RESULT)
    assert bytes_of(packet) == bytes_of(packet[inet.UDP].payload) == bytes_of(RESULT) == encode(RESULT)
