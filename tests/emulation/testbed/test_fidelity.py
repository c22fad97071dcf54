"""The certificate's arithmetic: which gaps count, what they should be, and what makes a run INVALID."""

import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from emulation.testbed.certificate import departures, fidelity, monitor
from emulation.testbed.certificate.departures import Departures
from emulation.testbed.certificate.fidelity import (
    Certificate,
    LinkTrace,
    backlogged_gaps,
    gap_measures,
    judge,
    rejoined,
)
from emulation.testbed.certificate.processes import busiest, busy_since, spent_by_others, usage

RATE_BPS = 200_000_000
FRAME = 1514
FRAME_NS = 60_560  # FRAME × 8 / RATE

# As recorded on a 200 Mb/s uplink that one TCP stream keeps busy: (ns, bytes on the wire), then (before, after, queued)
RECORDED_DEPARTURES = [
    (0, 68130), (2724999, 68130), (5452341, 68130), (8175743, 68130), (10900683, 68130), (13627507, 68130),
    (16351830, 68130), (19075729, 68130), (21813652, 68130), (24525689, 68130), (27253761, 68130), (29976781, 68130),
    (32701370, 68130), (35428381, 68130), (38153940, 68130), (40876913, 68130), (43602478, 54504), (45782975, 68130),
    (48505868, 68130), (51232667, 68130), (53957608, 68130), (56683903, 68130), (59411861, 68130), (62134113, 36336),
    (63586932, 25738), (64614016, 68130), (67345538, 57532), (69642895, 68130), (72371634, 68130), (75093512, 68130),
    (77820331, 39364), (79392106, 68130), (82127053, 68130), (84842022, 68130), (87568932, 68130), (90293454, 68130),
]  # fmt: skip
RECORDED_POLLS = [
    (1629463, 1709593, 136260), (11955343, 12027432, 136260), (22233043, 22300772, 136260),
    (32526656, 32591536, 136260), (42848882, 42915162, 190764), (53135022, 53212840, 136260),
    (64794236, 64876298, 57532), (75244018, 75314560, 107494), (85548293, 85616487, 136260),
]  # fmt: skip


def trace_of(
    time_ns: Any, size: Any, polls: list[tuple[int, int, int]], rate_bps: int = RATE_BPS, cuts_bundles: bool = False
) -> LinkTrace:
    trace = LinkTrace(rate_bps, cuts_bundles)
    trace.add_departures(Departures(np.asarray(time_ns, dtype=np.int64), np.asarray(size, dtype=np.int64), True))
    for poll in polls:
        trace.add_poll(*poll)
    trace.digest()
    return trace


def full_link(gaps_ns: Any, size: int = FRAME) -> LinkTrace:
    """A link that stays backlogged, with these gaps between frames of one size."""
    time_ns = np.concatenate([[0], np.cumsum(np.asarray(gaps_ns, dtype=np.int64))])
    return trace_of(time_ns, np.full(len(time_ns), size), [(-1, -1, size * len(time_ns))])


def verdict(trace: LinkTrace, rate_bps: int = RATE_BPS, **others: Any) -> Certificate:
    return judge(gap_measures([trace]) | {"peak_bps": 0.0} | others, rate_bps)


# ---- bundles that the kernel cuts after the queue


def cut(bundles: int, segments: int, last: int = FRAME) -> tuple[list[int], list[int]]:
    """Bundles at the link's rate, their segments 2 µs apart; the last of each has another size."""
    size = (segments - 1) * FRAME + last
    period_ns = size * 8_000_000_000 // RATE_BPS
    times = [bundle * period_ns + 2_000 * k for bundle in range(bundles) for k in range(segments)]
    return times, ([FRAME] * (segments - 1) + [last]) * bundles


@pytest.mark.parametrize(("segments", "last"), [(16, FRAME), (16, 300), (44, FRAME), (1, FRAME), (3, 62)])
def test_a_bundle_cut_on_its_way_out_counts_as_one_departure(segments: int, last: int) -> None:
    times, sizes = cut(200, segments, last)
    joined_ns, joined = rejoined(np.array(times), np.array(sizes), RATE_BPS)
    assert joined.tolist() == [(segments - 1) * FRAME + last] * 200
    assert joined_ns.tolist() == times[::segments]


def test_a_link_whose_bundles_are_cut_is_valid_and_one_that_runs_ahead_is_not() -> None:
    times, sizes = cut(1000, 16)
    poll = [(-1, -1, sum(sizes))]
    assert verdict(trace_of(times, sizes, poll, cuts_bundles=True)).valid
    assert not verdict(trace_of(times, sizes, poll)).valid
    halved = [time_ns // 2 for time_ns in times]  # twice the rate that was asked for
    assert not verdict(trace_of(halved, sizes, poll, cuts_bundles=True)).valid


def test_frames_that_never_were_a_bundle_stay_apart() -> None:
    apart = [0, FRAME_NS // 5, FRAME_NS, FRAME_NS + 1_000]  # too far apart; then a larger frame close behind
    _, sizes = rejoined(np.array(apart), np.array([FRAME, FRAME, 500, FRAME]), RATE_BPS)
    assert sizes.tolist() == [FRAME, FRAME, 500, FRAME]
    _, sizes = rejoined(np.arange(100), np.full(100, FRAME), RATE_BPS)  # more than a bundle holds
    assert sizes.max() <= 70_000
    assert sizes.sum() == 100 * FRAME


# ---- which gaps are judged


def test_gaps_are_checked_for_as_many_bytes_as_a_poll_found_queued() -> None:
    time_ns = np.arange(10) * FRAME_NS
    sizes = np.full(10, FRAME)
    # three frames were queued between frames 2 and 3: frames 3, 4 and 5, hence two gaps
    poll = (2 * FRAME_NS + 10, 2 * FRAME_NS + 20, 3 * FRAME)
    gaps, ideal = backlogged_gaps(time_ns, sizes, [poll], RATE_BPS)
    assert gaps.tolist() == [FRAME_NS, FRAME_NS]
    assert ideal.tolist() == [FRAME_NS, FRAME_NS]
    # a byte less, and the third frame need not have been there
    gaps, _ = backlogged_gaps(time_ns, sizes, [(poll[0], poll[1], poll[2] - 1)], RATE_BPS)
    assert len(gaps) == 1


def test_bytes_sent_during_a_poll_are_subtracted() -> None:
    time_ns = np.arange(10) * FRAME_NS
    sizes = np.full(10, FRAME)
    # the answer may have been given before or after frame 3 left
    gaps, _ = backlogged_gaps(time_ns, sizes, [(2 * FRAME_NS + 10, 3 * FRAME_NS + 20, 3 * FRAME)], RATE_BPS)
    assert len(gaps) == 1


def test_polls_that_overlap_count_a_gap_once() -> None:
    time_ns = np.arange(10) * FRAME_NS
    polls = [(-1, -1, 6 * FRAME), (FRAME_NS + 1, FRAME_NS + 2, 6 * FRAME)]
    gaps, _ = backlogged_gaps(time_ns, np.full(10, FRAME), polls, RATE_BPS)
    assert len(gaps) == 7  # frames 0 … 7


def test_idle_time_is_ignored() -> None:
    """Bursts of 20 frames, 10 ms apart: the link is idle most of the time, and perfect."""
    bursts = [np.arange(20) * FRAME_NS + start for start in range(0, 100_000_000, 10_000_000)]
    polls = [(int(burst[0]) - 5, int(burst[0]) - 1, 20 * FRAME) for burst in bursts]
    time_ns = np.concatenate(bursts)
    measures = gap_measures([trace_of(time_ns, np.full(len(time_ns), FRAME), polls)])
    assert measures["backlogged_gaps"] == 10 * 19
    assert measures["gap_deviation_p99"] < 0.001


def test_a_poll_after_the_last_departure_and_an_empty_trace_are_harmless() -> None:
    assert gap_measures([trace_of([0, FRAME_NS], [FRAME, FRAME], [(10**12, 10**12, 9000)])])["backlogged_gaps"] == 0
    assert gap_measures([trace_of([], [], [(0, 0, 9000)])])["backlogged_gaps"] == 0
    assert gap_measures([trace_of([5], [FRAME], [(0, 0, 9000)])])["backlogged_gaps"] == 0


def test_short_frames_are_checked_together_with_those_after_them() -> None:
    """An acknowledgement leaves a timer's coarseness after its bundle: 66 bytes take 2.6 µs, the timer 20."""
    sizes, time_ns, now = [], [], 0
    for _ in range(200):
        time_ns += [now, now + 2_725_200 + 20_000]  # the acknowledgement is 20 µs late …
        sizes += [68_130, 66]
        now += 2_725_200 + 2_640  # … and the next bundle is in time
    trace = trace_of(time_ns, sizes, [(-1, -1, sum(sizes))])
    assert gap_measures([trace])["gap_deviation_p90"] < 0.01
    raw = np.abs(np.diff(time_ns) / (np.array(sizes[:-1]) * 8e9 / RATE_BPS) - 1)
    assert np.quantile(raw, 0.9) > 5  # what judging each gap by itself would say


def test_a_series_of_short_frames_is_checked_in_units_of_a_full_frame() -> None:
    time_ns = np.arange(1000) * 2_640
    gaps, ideal = backlogged_gaps(time_ns, np.full(1000, 66), [(-1, -1, 66_000)], RATE_BPS)
    assert 40 <= len(gaps) <= 48
    assert ideal.min() >= 20 * 2_640
    assert np.allclose(gaps, ideal)


def test_no_gap_is_measured_across_departures_that_the_capture_lost() -> None:
    trace = LinkTrace(RATE_BPS)
    trace.add_poll(-1, -1, 100 * FRAME)
    trace.add_departures(Departures(np.arange(5) * FRAME_NS, np.full(5, FRAME), complete=False))
    trace.add_poll(49 * FRAME_NS, 49 * FRAME_NS, 100 * FRAME)
    trace.add_departures(Departures((50 + np.arange(5)) * FRAME_NS, np.full(5, FRAME), complete=True))
    trace.digest()
    measures = gap_measures([trace])
    assert measures["backlogged_gaps"] == 4 + 4
    assert measures["gap_deviation_p99"] < 0.001


# ---- the verdict


def test_a_recorded_link_is_near_the_ideal() -> None:
    trace = trace_of(*zip(*RECORDED_DEPARTURES, strict=True), RECORDED_POLLS)
    measures = gap_measures([trace])
    assert measures["departures"] == 36
    assert measures["backlogged_gaps"] >= 8
    assert measures["gap_deviation_median"] < 0.002
    assert measures["gap_deviation_p90"] < 0.01
    assert 0.995 < measures["backlogged_rate_share"] < 1.005
    # the same departures would be a poor 300 Mb/s
    other = trace_of(*zip(*RECORDED_DEPARTURES, strict=True), RECORDED_POLLS, rate_bps=300_000_000)
    assert gap_measures([other])["gap_deviation_median"] > 0.4


def test_an_ideal_link_is_valid() -> None:
    certificate = verdict(full_link([FRAME_NS] * 500))
    assert (certificate.valid, certificate.reasons, certificate.valid_rate_bps) == (True, [], None)
    assert certificate.measures["gap_deviation_curve"][0] == [0.001, 0.0]
    assert certificate.bounds["gap_deviation_p90"] == 0.25


def test_uneven_gaps_are_invalid_though_the_rate_is_right() -> None:
    """As a timer of 1 ms would make them: nothing for a while, then many at once."""
    gaps = np.tile([1, 1, 1, 1, 1, 1, 1, 8 * FRAME_NS - 7], 100)
    certificate = verdict(full_link(gaps))
    assert not certificate.valid
    assert certificate.measures["backlogged_rate_share"] == pytest.approx(1.0, abs=0.02)
    late = "so communication times hold delays of this machine: choose a lower rate or fewer workers."
    assert [re.sub(r"left [\d.e+]+ %", "left … %", reason) for reason in certificate.reasons] == [
        f"Half of the bytes left … % or more off their time (at most 5 % allowed), {late}",
        f"A tenth of the bytes left … % or more off their time (at most 25 % allowed), {late}",
    ]
    assert certificate.valid_rate_bps == 5_000_000  # deviation 7 against a bound of 0.25: 200 Mb/s × 0.25 / 7


# Sends of a worker under FSDP2: bundles of 16, and between them packets without values, single and in bundles.
MIXTURE = [24_032, 24_032, 992, 930, 24_032, 62, 1_502, 992, 24_032, 992, 992, 930, 24_032, 24_032, 992, 1_502]


def mixture(late_ns: float, at_rate: float = 1.0, stall_ns: int = 0) -> LinkTrace:
    """A backlogged link with these sends. late_ns: mean of the timer's lateness, after which HTB catches up. stall_ns:
    so long nothing leaves, once in 200 sends, and that is lost."""
    sizes = np.tile(MIXTURE, 300)
    begins = np.concatenate([[0], np.cumsum(sizes[:-1] * 8e9 / RATE_BPS / at_rate)])
    begins += np.arange(len(sizes)) // 200 * stall_ns
    late = np.random.default_rng(5).exponential(late_ns, len(sizes)) if late_ns else 0
    return trace_of(np.maximum.accumulate(begins + late), sizes, [(-1, -1, int(sizes.sum()))])


def test_what_a_timer_errs_between_short_sends_counts_by_their_bytes() -> None:
    """20 µs late, as recorded, is a third of what a full frame takes at 200 Mb/s, and 2 % of a bundle of 16."""
    trace = mixture(late_ns=20_000)
    certificate = verdict(trace)
    assert certificate.valid, certificate.reasons
    assert certificate.measures["gap_deviation_p90"] < 0.1


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        (mixture(0, at_rate=0.95), "Full links carried 95.0% of their rate (at least"),
        (mixture(0, at_rate=1.06), "carried 106.0% of their rate"),
        (mixture(20_000, stall_ns=5_000_000), "of their rate (at least 97% needed)"),
        (mixture(400_000), "A tenth of the bytes left"),
        (
            full_link(np.tile([0, 0, 0, 4 * FRAME_NS], 100)),
            "A tenth of the bytes left",
        ),  # nothing for 242 µs, then four frames
        (full_link(np.tile([0, 2 * FRAME_NS], 100)), "A tenth of the bytes left"),
    ],
    ids=["slow", "fast", "stalled", "late timers", "bursts of four", "bursts of two"],
)
def test_whatever_the_sends_a_link_that_is_wrong_is_invalid(wrong: LinkTrace, reason: str) -> None:
    assert any(reason in found for found in verdict(wrong).reasons)


def test_even_short_sends_do_not_hide_uneven_bundles() -> None:
    """Two bundles leave at once, then nothing for twice their time; between them 20 frames each in time."""
    bundle_ns = 16 * FRAME_NS
    gaps = np.tile([0, *[FRAME_NS] * 40, 2 * bundle_ns], 100)
    sizes = np.tile([16 * FRAME, *[FRAME] * 40, 16 * FRAME], 100)
    times = np.concatenate([[0], np.cumsum(gaps)[:-1]])
    certificate = verdict(trace_of(times, sizes, [(-1, -1, int(sizes.sum()))]))
    assert any("A tenth of the bytes left" in reason for reason in certificate.reasons)


def test_lost_tokens_are_invalid_and_name_a_lower_rate() -> None:
    certificate = verdict(full_link([FRAME_NS] * 300 + [10 * FRAME_NS] * 5 + [FRAME_NS] * 300))
    assert not certificate.valid
    assert certificate.reasons == [
        "Full links carried 93.1% of their rate (at least 97% needed), so communication took longer than such "
        "links let it: choose a lower rate or fewer workers."
    ]
    assert certificate.valid_rate_bps == 100_000_000


def test_a_port_that_is_not_shaped_is_invalid() -> None:
    certificate = verdict(full_link([FRAME_NS // 10] * 500))
    assert any("this machine does not hold rates" in reason for reason in certificate.reasons)


def test_links_that_were_never_full_are_not_valid() -> None:
    certificate = verdict(full_link([FRAME_NS] * 10), rate_bps=5_000_000_000, peak_bps=2_700_000_000.0)
    assert not certificate.valid
    assert len(certificate.reasons) == 1
    assert "No link was full for long enough to be judged (10 gaps" in certificate.reasons[0]
    assert "choose a rate below the 2.7 Gb/s of the busiest link." in certificate.reasons[0]
    assert certificate.valid_rate_bps == 2_000_000_000
    silent = verdict(LinkTrace(RATE_BPS))
    assert (silent.valid, silent.valid_rate_bps) == (False, None)


@pytest.mark.parametrize(
    ("others", "reason", "rate_bps"),
    [
        (
            {"network_thread_wait_ns": 4e6},
            "waited for a CPU for as long as 100 kB take on the link",
            100_000_000,
        ),  # 100 kB at 200 Mb/s
        (
            {"timer_lateness_p99_ns": 41e6},
            "One timer in a hundred was 41 ms or more late (at most 20 ms allowed)",
            50_000_000,
        ),
        (
            {"lost_share": 2e-4, "losses": {"udp_receive_buffer": 7, "interface": 0}},
            "This machine itself lost 0.02 % of the frames (udp_receive_buffer 7)",
            100_000_000,
        ),
    ],
)
def test_load_beside_the_links_counts(others: dict[str, Any], reason: str, rate_bps: int) -> None:
    certificate = verdict(full_link([FRAME_NS] * 500), **others)
    assert not certificate.valid
    assert len(certificate.reasons) == 1
    assert reason in certificate.reasons[0]
    assert certificate.valid_rate_bps == rate_bps


def test_a_run_beside_other_programs_is_told_of_them_and_not_of_a_lower_rate() -> None:
    late = {"timer_lateness_p99_ns": 41e6, "cpu_stolen_share": 0.05}
    certificate = verdict(full_link([FRAME_NS] * 500), **late, cpu_other_share=0.38)
    assert certificate.reasons[-1].startswith("Other programs had 43% of the CPUs' time, so")
    assert (len(certificate.reasons), certificate.valid_rate_bps) == (2, None)
    assert verdict(full_link([FRAME_NS] * 500), **late, cpu_other_share=0.02).valid_rate_bps == 50_000_000
    assert verdict(full_link([FRAME_NS] * 500), cpu_other_share=0.9).valid, "links as they should be need no remedy"


def test_cpu_time_is_that_of_descendants_ended_ones_included() -> None:
    busy = "import time\nwhile time.process_time() < 0.3: pass\n"
    burn = [sys.executable, "-S", "-c", busy]
    before = usage(os.getpid()).run_ticks
    child = "import subprocess, sys\nsubprocess.run([sys.executable, '-S', '-c', sys.argv[1]], check=True)\n"
    subprocess.run([sys.executable, "-S", "-c", child, busy], check=True)
    subprocess.run(burn, check=True)
    spent_s = (usage(os.getpid()).run_ticks - before) / os.sysconf("SC_CLK_TCK")
    assert spent_s >= 0.55
    assert usage(2**31 - 1).run_ticks == 0


def test_other_programs_are_named_and_their_share_is_of_all_cpus() -> None:
    """The tree of a process that idles is ours; what else of this test computes is not."""
    burn = "import time\nwhile time.process_time() < {}: pass\n"  # ends by itself, whatever happens here
    with subprocess.Popen([sys.executable, "-S", "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE) as idle:
        before = usage(idle.pid)
        subprocess.run([sys.executable, "-S", "-c", burn.format(0.4)], check=True)
        with subprocess.Popen([sys.executable, "-S", "-c", burn.format(20)]) as burning:
            time.sleep(0.5)
            share, programs = busy_since(before, idle.pid)
            spent = spent_by_others(before, usage(idle.pid))
            burning.kill()
        idle.communicate()
    name = Path(sys.executable).name[:15]
    assert share > 0.01
    assert dict(programs)[name] > 0.01
    assert spent[name] > 0
    assert busiest({"a": 5, "b": 90, "c": 1, "d": 40, "e": 30}, 200) == [("b", 0.45), ("d", 0.2), ("e", 0.15)]
    assert busiest({"a": 1}, 200) == [], "half a percent is no reason"


def test_the_same_wait_matters_less_on_a_slower_link() -> None:
    certificate = verdict(full_link([FRAME_NS * 2] * 500), rate_bps=100_000_000, network_thread_wait_ns=4e6)
    assert not any("wait" in reason for reason in certificate.reasons)


@pytest.mark.parametrize(
    ("rate", "step"),
    [
        (1e9, 1_000_000_000),
        (9.99e8, 500_000_000),
        (2e8, 200_000_000),
        (4.9e6, 2_000_000),
        (1e6, 1_000_000),
        (9e5, None),
    ],
)
def test_rates_come_in_steps(rate: float, step: int | None) -> None:
    assert fidelity.rate_step(rate) == step


# ---- who waits


def threads(**spent: tuple[int, int, int]) -> monitor.Threads:
    """Threads "p<pid>_t<thread>" that ran, waited (ns) and had turns."""
    watched = monitor.Threads()
    for name, counts in spent.items():
        key = tuple(int(part[1:]) for part in name.split("_"))
        watched._spent[key] = list(counts)  # type: ignore[index]
    return watched


def test_the_process_with_the_longest_wait_per_time_slice_counts() -> None:
    second = 1_000_000_000
    measures = threads(p1_t1=(second, second, 1000), p1_t2=(0, second, 10), p2_t1=(second, second, 4000)).measures(
        10 * second
    )
    assert measures["network_thread_wait_ns"] == 2 * second / 1010
    assert measures["network_thread_waiting_most"] == "process 1"
    assert (measures["network_threads"], measures["network_threads_waited_ns"]) == (3, 3 * second)


def test_an_idle_process_is_ignored_but_a_starved_one_counts() -> None:
    second = 1_000_000_000
    idle = threads(p1_t1=(1000, second // 200, 2)).measures(second)
    assert idle["network_thread_wait_ns"] == 0.0
    starved = threads(p1_t1=(1000, second // 2, 2)).measures(second)
    assert starved["network_thread_wait_ns"] == second / 4
    assert monitor.Threads().measures(second)["network_thread_wait_ns"] is None


def test_unreadable_threads_do_not_count_as_threads_that_never_wait() -> None:
    blind = monitor.Threads()
    blind.watch(2**22 + 1, 2**22 + 1)  # above any process id: as on a kernel without schedstat
    measures = blind.measures(1_000_000_000)
    assert measures["network_threads_unseen"]
    certificate = verdict(full_link([FRAME_NS] * 500), **measures)
    assert [reason for reason in certificate.reasons if "schedstat" in reason]
    assert not certificate.valid
    assert not monitor.Threads().measures(1_000_000_000)["network_threads_unseen"], "nobody was to be watched"


# ---- sizes


def frame(length: int, gso_bytes: int, protocol: int, tcp_header_words: int = 0) -> tuple[int, ...]:
    return (1, length, 0, 0, gso_bytes, protocol, tcp_header_words << 4)


def test_a_bundle_counts_as_its_segments_with_all_their_headers() -> None:
    frames = np.array(
        [
            frame(1514, 0, 6, 8),
            frame(66 + 45 * 1448, 1448, 6, 8),  # TCP with a time stamp: 45 segments of 1514
            frame(66 + 44 * 1448 + 100, 1448, 6, 8),  # the last is short
            frame(42 + 16 * 1460, 1460, 17),  # UDP
            frame(42, 0, 17),
        ],
        dtype=departures._RING,
    )
    assert departures.wire_bytes(frames).tolist() == [1514, 45 * 1514, 44 * 1514 + 166, 16 * 1502, 42]
