"""`python -m tools.bench where`: samples are attributed to the parts of a packet's time."""

import os
import time
from pathlib import Path

import pytest

from emulation.scenario.errors import RunFailed
from switchagg.native import library
from tools.bench import packet_cpu, sampling
from tools.bench.sampling import Sample, Sampler, Symbols, _Table

KERNEL = """ffffffff81000000 T _stext
ffffffff81000100 T do_syscall_64
ffffffff81000200 T __sys_sendmmsg
ffffffff81000300 t handle_softirqs
ffffffff81000400 T try_to_wake_up.isra.0
ffffffff81000500 T _copy_from_iter
ffffffff81000600 T sysvec_reschedule
"""
CORE = """0000000000001000 t quantise32.avx2
0000000000001100 t sa_greatest_magnitude.arch_x86_64_v4
0000000000001200 T sa_plane_accept
0000000000001300 T sa_worker_run
"""


def symbols() -> Symbols:
    made = object.__new__(Symbols)
    made._kernel, made._functions, made._places = _Table(KERNEL), _Table(CORE), {7: (0x51000, 0x52000, 0x50000)}
    return made


def in_kernel(*offsets: int) -> Sample:
    address, *chain = (0xFFFFFFFF81000000 + offset for offset in offsets)
    return Sample(7, 0, address, (address, *chain))


@pytest.mark.parametrize(
    ("sample", "part"),
    [
        (Sample(7, 0, 0x51010, ()), "values to integers"),
        (Sample(7, 0, 0x51110, ()), "exponents"),
        (Sample(7, 0, 0x51210, ()), "switch rule"),
        (Sample(7, 0, 0x51310, ()), packet_cpu.LOOP),
        (Sample(7, 0, 0x99999, ()), packet_cpu.OTHER_USER),
        (in_kernel(0x510, 0x210, 0x110), "kernel: copy in"),
        (in_kernel(0x10, 0x410, 0x310, 0x210, 0x110), "kernel: wake-ups"),
        (in_kernel(0x10, 0x310, 0x210, 0x110), "kernel: delivery (softirq)"),
        (in_kernel(0x10, 0x210, 0x110), "kernel: send"),
        (in_kernel(0x610), packet_cpu.OTHER_KERNEL),
    ],
)
def test_the_innermost_known_function_decides(sample: Sample, part: str) -> None:
    assert packet_cpu.part_of(sample, symbols()) == part
    assert part in packet_cpu.PARTS


def test_a_packet_s_time_is_split_by_the_samples() -> None:
    samples = [in_kernel(0x510, 0x210), in_kernel(0x210), Sample(7, 0, 0x51010, ()), Sample(7, 0, 0x51020, ())]
    found = packet_cpu.share(samples, 800.0, symbols(), {})
    assert found.parts == {"values to integers": 400.0, "kernel: copy in": 200.0, "kernel: send": 200.0}
    assert found.functions == {"quantise32": 400.0, "_copy_from_iter": 200.0, "__sys_sendmmsg": 200.0}


def test_only_samples_of_calls_count() -> None:
    samples = [Sample(pid, time_ns, 1, ()) for pid in (7, 8) for time_ns in (5, 10, 19, 20, 30, 39, 45)]
    assert [one.time_ns for one in packet_cpu.within(samples, 7, [(10, 20), (30, 40)])] == [10, 19, 30, 39]


def test_the_parts_name_functions_of_the_core() -> None:
    """A function that was renamed must not fall into another part unseen."""
    if reason := library.missing():
        pytest.skip(reason)
    names = set(_Table(sampling.listed(Path(library.load()._name)))._names)
    if not names:
        pytest.skip("no nm, or a library without symbols")
    inlined = {"address", "combine", "sa_own_codes", "emit", "swap32", "split64", "join64", "add_products"}
    assert {name for part in packet_cpu.USER_PARTS.values() for name in part} - inlined <= names


def test_a_busy_loop_is_sampled(requires_root_namespaces: None) -> None:
    with Sampler() as sampler:
        begun = time.process_time_ns()
        while time.process_time_ns() - begun < 40_000_000:
            pass
    mine = [sample for sample in sampler.samples if sample.pid == os.getpid()]
    assert 20 <= len(mine) <= 200  # of 100


def test_without_privileges_one_line_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(cpu: int) -> int:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(sampling, "_open", refuse)
    with pytest.raises(RunFailed, match="run it as root"), Sampler():
        pass
