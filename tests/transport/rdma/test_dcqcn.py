"""DCQCN in C, held to a model in Python written from the paper, and to what must hold whatever happens."""

import ctypes
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from switchagg.native import library
from switchagg.native.headers import SA_ALPHA_ONE, SA_CNP_INTERVAL_NS, struct
from transport.rdma.dcqcn import DcqcnConfig, ReactionPoint, default_config

pytestmark = pytest.mark.skipif(bool(library.missing()), reason=f"needs the compiled core: {library.missing()}")

LINE_BPS = 10_000_000_000
STEP_NS = 55_000


@dataclass
class Model:
    """The paper's algorithm, one period at a time, in integers rounded as in dcqcn.h."""

    config: Any
    current: int = 0
    target: int = 0
    alpha: int = SA_ALPHA_ONE
    steps: dict[str, int] = field(default_factory=lambda: {"timer": 0, "bytes": 0})
    sent: int = 0
    cut_ns: int | None = None
    timer_ns: int = 0
    alpha_ns: int = 0

    def __post_init__(self) -> None:
        self.current = self.target = self.config.line_bps

    def cnp(self, now_ns: int) -> None:
        if self.cut_ns is not None and now_ns - self.cut_ns < self.config.cut_interval_ns:
            return
        self.pass_time(now_ns)
        self.target = self.current
        self.current = max(self.config.min_bps, self.current - self.current * self.alpha // (2 * SA_ALPHA_ONE))
        self.alpha += (SA_ALPHA_ONE - self.alpha) >> self.config.gain_shift
        self.steps = {"timer": 0, "bytes": 0}
        self.sent = 0
        self.cut_ns = self.timer_ns = self.alpha_ns = now_ns

    def pass_time(self, now_ns: int) -> None:
        while self.alpha_ns + self.config.alpha_timer_ns <= now_ns:
            self.alpha -= -(-self.alpha >> self.config.gain_shift)
            self.alpha_ns += self.config.alpha_timer_ns
        while self.timer_ns + self.config.timer_ns <= now_ns:
            self.step("timer")
            self.timer_ns += self.config.timer_ns

    def send(self, size: int, now_ns: int) -> None:
        self.pass_time(now_ns)
        self.sent += size
        while self.sent >= self.config.byte_counter:
            self.step("bytes")
            self.sent -= self.config.byte_counter

    def step(self, which: str) -> None:
        if self.current == self.config.line_bps:
            return
        self.steps[which] += 1
        rounds = self.config.recovery_rounds
        if max(self.steps.values()) > rounds:
            above = min(self.steps.values()) - rounds
            more = above * self.config.hyper_bps if above > 0 else self.config.additive_bps
            self.target = min(self.config.line_bps, self.target + more)
        self.current = (self.current + self.target + 1) // 2


def test_defaults_are_the_papers() -> None:
    config = default_config(LINE_BPS)
    assert [getattr(config, name) for name, *_ in DcqcnConfig._fields_] == [
        *(LINE_BPS, 1_000_000, 40_000_000, 400_000_000, 10_000_000),
        *(55_000, 55_000, 50_000, 5, 8),
    ]
    slow = default_config(100_000)
    assert slow.min_bps == slow.line_bps == 100_000


def test_the_first_cut_halves_the_rate_and_recovery_returns_to_it_exactly() -> None:
    sender = ReactionPoint(default_config(LINE_BPS))
    sender.cnp(0)
    assert (sender.rate_bps(0), sender.state.target_bps, sender.state.cuts) == (LINE_BPS // 2, LINE_BPS, 1)
    rates = [sender.rate_bps(step * STEP_NS) for step in range(1, 6)]
    assert rates == [LINE_BPS - (LINE_BPS // 2 >> step) for step in range(1, 6)]
    while (step := sender.state.timer_steps) < 60:
        sender.rate_bps((step + 1) * STEP_NS)
        if sender.rate_bps((step + 1) * STEP_NS) == LINE_BPS:
            break
    assert sender.rate_bps(60 * STEP_NS) == LINE_BPS


def test_a_cut_is_as_deep_as_alpha_says() -> None:
    config = default_config(LINE_BPS)
    sender = ReactionPoint(config)
    quiet_ns = 2_000 * STEP_NS  # alpha falls by a 256th each time
    sender.rate_bps(quiet_ns)
    alpha = sender.state.alpha
    assert 0 < alpha < SA_ALPHA_ONE // 100
    sender.cnp(quiet_ns)
    assert sender.state.current_bps == LINE_BPS - LINE_BPS * alpha // (2 * SA_ALPHA_ONE)
    assert sender.state.alpha == alpha + ((SA_ALPHA_ONE - alpha) >> 8)


def test_increase_is_additive_with_one_counter_and_hyper_with_both() -> None:
    config = default_config(LINE_BPS)
    sender = ReactionPoint(config)
    sender.cnp(0)
    sender.cnp(100_000)  # now the target is below the line
    target = sender.state.target_bps
    sender.rate_bps(100_000 + 5 * STEP_NS)
    assert sender.state.target_bps == target
    sender.rate_bps(100_000 + 6 * STEP_NS)
    assert sender.state.target_bps == target + config.additive_bps
    now_ns = 100_000 + 6 * STEP_NS
    for _ in range(5):
        sender.on_sent(config.byte_counter, now_ns)
    assert sender.state.target_bps == target + 6 * config.additive_bps
    sender.on_sent(config.byte_counter, now_ns)  # both counters are 1 above F
    assert sender.state.target_bps == target + 6 * config.additive_bps + config.hyper_bps
    sender.rate_bps(now_ns + STEP_NS)  # 2 and 1
    sender.on_sent(config.byte_counter, now_ns + STEP_NS)  # 2 and 2
    assert sender.state.target_bps == target + 6 * config.additive_bps + 4 * config.hyper_bps


def test_no_number_of_cuts_goes_below_the_least_rate() -> None:
    sender = ReactionPoint(default_config(LINE_BPS))
    for number in range(40):
        sender.cnp(number * 50_000)
    assert sender.rate_bps(39 * 50_000) == 1_000_000
    assert sender.allowance(1500, 39 * 50_000) == 1500


def test_cnps_closer_than_the_interval_cut_once() -> None:
    sender = ReactionPoint(default_config(LINE_BPS))
    for now_ns in (0, 1, 49_999):
        sender.cnp(now_ns)
    assert (sender.state.cnps, sender.state.cuts, sender.state.current_bps) == (3, 1, LINE_BPS // 2)
    sender.cnp(50_000)
    assert sender.state.cuts == 2


ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(["cnp", "send", "wait"]),
        st.integers(0, 300_000),
        st.integers(0, 3_000_000),
    ),
    max_size=60,
)
CONFIGS = st.builds(
    lambda line, low, more, hyper, count, timer, alpha, interval, rounds, gain: DcqcnConfig(
        line, max(1, line // low), line // more, hyper, count, timer, alpha, interval, rounds, gain
    ),
    st.integers(1_000_000, 400_000_000_000),
    st.integers(1, 1000),
    st.integers(1, 60_000),
    st.integers(0, 1_000_000_000),
    st.integers(1_000, 10_000_000),
    st.integers(1_000, 100_000),
    st.integers(1_000, 100_000),
    st.integers(0, 60_000),
    st.integers(0, 8),
    st.integers(1, 16),
)


@given(CONFIGS, ACTIONS)
def test_agrees_with_the_model_and_stays_between_least_and_line(
    config: Any, actions: list[tuple[str, int, int]]
) -> None:
    sender, model, now_ns = ReactionPoint(config), Model(config), 0
    for what, pause_ns, size in actions:
        now_ns += pause_ns
        if what == "cnp":
            sender.cnp(now_ns)
            model.cnp(now_ns)
        elif what == "send":
            sender.on_sent(size, now_ns)
            model.send(size, now_ns)
        else:
            sender.rate_bps(now_ns)
        model.pass_time(now_ns)
        assert sender.rate_bps(now_ns) == model.current
        assert (sender.state.target_bps, sender.state.alpha) == (model.target, model.alpha)
        assert config.min_bps <= model.current <= model.target <= config.line_bps


@given(st.integers(1_000_000, 100_000_000_000), st.lists(st.integers(0, 200_000), max_size=80), st.integers(1, 65_536))
def test_pacing_sends_what_the_rate_allows_and_no_more(line_bps: int, pauses: list[int], burst: int) -> None:
    """Without a CNP the rate is the line's: over any span at most burst + a packet + rate * time leaves."""
    sender, now_ns, sent, packet = ReactionPoint(default_config(line_bps)), 0, 0, 1500
    for pause_ns in pauses:
        now_ns += pause_ns
        allowed = sender.allowance(burst, now_ns)
        assert allowed <= burst
        assert (sender.next_ns(burst, now_ns) == now_ns) == (allowed > 0)
        while allowed > 0:
            sender.on_sent(packet, now_ns)
            sent += packet
            allowed = sender.allowance(burst, now_ns)
        due_ns = sender.next_ns(burst, now_ns)
        assert due_ns > now_ns
        assert sent < burst + packet + line_bps * now_ns // 8_000_000_000 + 1
        assert sent >= burst or not pauses
    if pauses:
        assert sender.allowance(burst, sender.next_ns(burst, now_ns)) > 0


def test_bytes_sent_before_a_cut_are_paced_at_the_rates_after_it() -> None:
    """At the least rate the debt would last for 0.5 s; the rate is back after a few ms, and the wait ends with it."""
    sender, now_ns = ReactionPoint(default_config(1_000_000_000)), 0
    for _ in range(400):
        now_ns += 50_000
        sender.cnp(now_ns)
    assert sender.rate_bps(now_ns) == 1_000_000
    sender.on_sent(2 << 16, now_ns)
    begun_ns = now_ns
    while not sender.allowance(1 << 16, now_ns):
        assert now_ns < sender.next_ns(1 << 16, now_ns) <= now_ns + 55_000
        now_ns = sender.next_ns(1 << 16, now_ns)
    assert now_ns - begun_ns < 10_000_000
    late = ReactionPoint(default_config(1_000_000_000))
    late.cnp(0)
    late.on_sent(2 << 16, 0)  # half a second of this, at the rate of then
    assert late.allowance(1 << 16, 1_500_000) > 0


def test_a_long_pause_costs_no_time_and_overflows_nothing() -> None:
    sender = ReactionPoint(default_config(LINE_BPS))
    sender.cnp(0)
    year_ns = 365 * 86_400 * 1_000_000_000
    assert sender.rate_bps(year_ns) == LINE_BPS
    assert sender.state.alpha == 0
    assert sender.allowance(65_536, 100 * year_ns) == 65_536
    for _ in range(1000):
        sender.on_sent(1 << 24, 100 * year_ns)
    assert sender.next_ns(1, 100 * year_ns) - 100 * year_ns < 1_000_000_000


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("line_bps", 999),
        ("line_bps", 4_000_000_000_001),
        ("min_bps", 0),
        ("min_bps", LINE_BPS + 1),
        ("additive_bps", LINE_BPS // 65_536 - 1),
        ("byte_counter", 0),
        ("timer_ns", 0),
        ("alpha_timer_ns", 0),
        ("cut_interval_ns", -1),
        ("gain_shift", 0),
        ("gain_shift", 17),
    ],
)
def test_impossible_settings_are_refused(name: str, value: int) -> None:
    config = default_config(LINE_BPS)
    setattr(config, name, value)
    with pytest.raises(ValueError, match="outside its bounds"):
        ReactionPoint(config)


def test_a_receiver_s_next_cnp_is_due_after_the_interval_exactly() -> None:
    gate = struct("sa_cnp_gate")()
    due = [library.load().sa_cnp_due(ctypes.byref(gate), SA_CNP_INTERVAL_NS, now_ns) for now_ns in (7, 50_006, 50_007)]
    assert due == [True, False, True]


@given(st.lists(st.integers(0, 30_000), min_size=1, max_size=100))
def test_a_receiver_answers_marks_with_at_most_one_cnp_in_an_interval(pauses: list[int]) -> None:
    gate, now_ns, answered = struct("sa_cnp_gate")(), 0, []
    for pause_ns in pauses:
        now_ns += pause_ns
        if library.load().sa_cnp_due(ctypes.byref(gate), SA_CNP_INTERVAL_NS, now_ns):
            answered.append(now_ns)
    assert (gate.marked, gate.cnps) == (len(pauses), len(answered))
    assert answered[0] == pauses[0], "the first mark is answered at once"
    assert all(later - earlier >= SA_CNP_INTERVAL_NS for earlier, later in pairwise(answered))
    assert now_ns - answered[-1] < SA_CNP_INTERVAL_NS
