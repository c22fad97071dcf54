"""Time-outs: one table of how long anything here waits, who sets it, and which must be longer than which.

docs/reference/timeouts.md has what can be set, as `table` writes it. The places that wait own their numbers: `where`
names them, and tests compare. What users set is checked where it is known: see `short_for_fallback`.
"""

from dataclasses import dataclass

LEASE_LEAST_S = 1.0
"""Shortest lease: two beats and their repetitions fit in a quarter of it, and a thread may be held up for as long."""

CLAIMS_PER_LEASE = 4
"""A part of the lease is how long a heartbeat may be on its way (C3)."""

RECOVERY_S = 1.0
"""What a job with a fallback needs between its switch's loss, as it is noticed, and the end of its calls."""


@dataclass(frozen=True)
class TimeOut:
    """seconds: the default. where: the dotted name of what holds it, "" where it is computed. set_by: the option, or
    "constant". rule: its number, or "". ends: what happens then. exceeds: names of others; by default it is longer
    than these together."""

    name: str
    seconds: float
    where: str
    set_by: str
    rule: str
    ends: str
    exceeds: tuple[str, ...] = ()


SWITCH = (
    TimeOut("again", 0.1, "transport.control.heartbeats.AGAIN_NS", "constant", "C9",
            "a request without an answer is repeated by a fresh connection"),
    TimeOut("beat", 0.2, "transport.control.heartbeats.BEAT_NS", "constant", "C9", "the next heartbeat", ("again",)),
    TimeOut("claim", 1.0, "", "a quarter of the lease", "C3",
            "a second process that claims a rank is refused if the first one answers", ("beat",)),
    TimeOut("silence", 1.0, "transport.control.control_client.SILENT_NS", "constant", "C13",
            "missing results are the control plane's fault, not the data path's", ("beat", "again")),
    TimeOut("lease", 4.0, "transport.switch.daemon_options.DaemonOptions.lease_s", "`switchagg switch --lease`",
            "C6, C12", "a worker, a leaf or the switch that sends nothing is dead", ("claim",)),
    TimeOut("patience", 4.0, "", "the lease; with a fallback, half of call or group if that is less, but 1 s or more",
            "C12", "a rank leaves a switch that is silent", ("beat", "again")),
    TimeOut("recovery", RECOVERY_S, "transport.contracts.timeouts.RECOVERY_S", "constant", "C22",
            "what a job needs to go on without its switch: it is no limit"),
    TimeOut("meet", 10.0, "transport.group.moving_session.MEET_S", "constant", "L10",
            "ranks that have lost their switch go without one that doesn't come to the hosts, and the job ends",
            ("lease", "recovery")),
    TimeOut("meet dead", 2.0, "transport.group.moving_session.MEET_DEAD_S", "constant, at least a lease", "L10",
            "the same, of a rank that the switch takes for dead"),
    TimeOut("sleeper", 1800.0, "", "call and group; with `SWITCHAGG_ELASTIC` 2 s or a lease", "L16",
            "ranks that lost their switch wait no longer for a rank that was stopped: the job ends",
            ("lease", "recovery", "meet")),
    TimeOut("standby", 10.0, "transport.group.way_back.STANDBY_S", "constant", "L8",
            "ranks try the next switch of their list", ("lease",)),
    TimeOut("room", 8.0, "", "two leases", "C5, C21",
            "a complete job that lacks slots is refused; a job that was asked to make room and didn't fails",
            ("lease",)),
    TimeOut("kept", 12.0, "", "three leases", "C24", "slots of a job that moves are given to others", ("room",)),
    TimeOut("join", 30.0, "transport.worker.join_options.JoinOptions.timeout_s",
            "`timeout_s`, `SWITCHAGG_JOIN_TIMEOUT_S`; at most group", "C5", "the ranks that are missing are named",
            ("room",)),
    TimeOut("refusal", 2.0, "transport.control.control_client.JOIN_GRACE_S", "constant, after join", "C5",
            "a rank waits no longer for the switch to say who is missing", ("beat", "again")),
    TimeOut("leave", 1.0, "transport.worker.session_membership.LEAVE_S", "constant", "C7",
            "a rank that leaves goes without the switch's echo", ("beat", "again")),
    TimeOut("answer", 5.0, "transport.worker.session_membership.ANSWER_MARGIN_S", "constant, after join", "",
            "a join fails whose thread says nothing", ("refusal", "leave")),
    TimeOut("outcome", 10.0, "transport.torch.rendezvous.GRACE_S", "constant, after join", "",
            "a process group waits no longer for how others' joins ended", ("answer", "leave")),
    TimeOut("stall", 10.0, "transport.worker.path_diagnosis.STALL_S", "constant", "C13",
            "the switch is asked what has arrived; a second look after 5 s ends the calls", ("lease", "silence")),
    TimeOut("below", 1.0, "transport.control.snapshots.BELOW_S", "constant", "C20",
            "a switch answers for its job without one that is below"),
    TimeOut("status", 5.0, "transport.worker.session_membership.STATUS_S", "constant", "C14",
            "`status()` raises JobError", ("below", "again")),
    TimeOut("diagnosis", 5.0, "transport.worker.worker_loop.DIAGNOSIS_S", "constant, after call", "W9",
            "a call that has timed out fails, though nobody has said who is missing", ("lease",)),
    TimeOut("call", 1800.0, "switchagg.join.CALL_TIMEOUT_S", "`call_timeout_s`; PyTorch: group", "W9",
            "a call fails that waits for a rank which is alive", ("patience", "recovery", "stall")),
    TimeOut("group", 1800.0, "torch.distributed.distributed_c10d.default_pg_timeout", "`init_process_group(timeout=…)`",
            "", "a call of PyTorch fails, and its group with it", ("patience", "recovery", "stall")),
    TimeOut("names", 1.0, "transport.torch.calls.reducer.ANSWER_S", "constant, after group", "",
            "a call of PyTorch fails without the names of the ranks it waits for"),
    TimeOut("wait", 10.0, "transport.torch.calls.reducer.WAIT_MARGIN_S", "constant, after group", "",
            "`wait()` returns, if a call doesn't end itself", ("names", "diagnosis")),
)  # fmt: skip
DAEMON = (
    TimeOut("drain", 5.0, "transport.switch.daemon_options.DaemonOptions.drain_s", "`switchagg switch --drain`", "C27",
            "jobs that haven't left a switch after its SIGTERM fail", ("lease",)),
    TimeOut("farewell", 0.7, "transport.control.control_server.FINAL_ANSWERS_S", "constant", "C10",
            "a switch that stops answers no more", ("beat", "again")),
    TimeOut("withdrawal", 5.0, "transport.control.leaf.JOIN_S", "constant", "C18", "a leaf goes without an echo"),
    TimeOut("command", 10.0, "transport.switch.switch_loop.ANSWER_S", "constant", "",
            "the data plane counts as hung, and the switch fails"),
    TimeOut("stop", 20.0, "transport.switch.daemon.STOP_S", "constant", "", "the control plane counts as hung",
            ("farewell", "withdrawal", "command")),
    TimeOut("unit", 30.0, "", "`TimeoutStopSec` of the systemd unit; the switch extends it as it needs", "",
            "systemd kills the switch", ("drain", "stop")),
)  # fmt: skip
HOSTS = (
    TimeOut("hello", 5.0, "transport.meshes.tcp_gathering.HELLO_S", "constant", "M5",
            "a connection ends that has not proved to be a member's"),
    TimeOut("telling", 3.0, "transport.meshes.hello.TELL_S", "constant", "",
            "a member that knows why the job can't begin waits no longer for others to hear it"),
    TimeOut("meeting", 30.0, "transport.group.group_opening.GroupOptions.timeout_s",
            "`timeout_s`, `SWITCHAGG_JOIN_TIMEOUT_S`; at most group", "", "the members that are missing are named",
            ("hello", "telling")),
    TimeOut("mesh beat", 0.2, "transport.links.outages.BEAT_NS", "constant", "", "a UDP peer is sent something"),
    TimeOut("udp silence", 15.0, "transport.meshes.udp_mesh.UdpMeshOptions.silence_s", "`silence_s`", "",
            "a UDP peer is gone", ("mesh beat",)),
    TimeOut("tcp silence", 30.0, "transport.meshes.tcp_gathering.TcpOptions.silence_s", "`silence_s`", "",
            "a TCP peer is gone, after 2 s more; twice as late before Linux 6.15"),
    TimeOut("host call", 1800.0, "transport.group.group_opening.GroupOptions.call_timeout_s",
            "`call_timeout_s`; PyTorch: group", "", "a call that stands still fails, naming the rank it waits for",
            ("udp silence", "tcp silence", "tcp silence")),
    TimeOut("server beat", 1.0, "transport.ps.config.PsConfig.heartbeat_s", "`heartbeat_s`", "", "the next heartbeat"),
    TimeOut("dead", 10.0, "transport.ps.config.PsConfig.dead_after_s", "`dead_after_s`", "",
            "a worker or a server is dead, after a beat and 2 s more; a server's slices move (L13)", ("server beat",)),
    TimeOut("first message", 300.0, "transport.ps.liveness.START_NS", "constant", "",
            "a worker or a server that has not sent anything is dead", ("meeting", "dead")),
    TimeOut("parting", 5.0, "transport.ps.ps_server.PARTING_NS", "constant", "",
            "a server whose job failed waits no longer for workers to hear it"),
    TimeOut("interrupt", 8.0, "emulation.cli.daemons.server_command.PARTING_S", "constant", "",
            "`switchagg server` ends after Ctrl-C", ("parting",)),
)  # fmt: skip
EMULATOR = (
    TimeOut("exit", 3.0, "emulation.testbed.mininet.trainer_processes.EXIT_S", "constant", "",
            "a rank that has finished and doesn't exit is killed", ("leave",)),
    TimeOut("alarm", 10.0, "emulation.testbed.trainers.trainer.EXIT_SECONDS", "constant", "",
            "a rank whose run is gone ends itself", ("exit",)),
    TimeOut("run", 60.0, "emulation.testbed.mininet.mininet_run.SILENCE_S",
            "not set; 3 s for each rank, 10 times an iteration's bound, and 5 s come on top", "",
            "a run of which no rank reports anything is given up", ("lease", "stall", "alarm")),
    TimeOut("cleaning", 30.0, "emulation.cli.outcomes.CLEANING_S", "constant", "",
            "a second Ctrl-C is heard while a command ends what it started", ("alarm", "interrupt")),
)  # fmt: skip
PARTS = {
    "A job and its switch": SWITCH,
    "The switch's own end": DAEMON,
    "Host methods and parameter servers": HOSTS,
    "Mininet": EMULATOR,
}
TIME_OUTS = {time_out.name: time_out for time_out in (*SWITCH, *DAEMON, *HOSTS, *EMULATOR)}
"""All, by name."""


def table(time_outs: tuple[TimeOut, ...]) -> str:
    """The time-outs that are no constants, as a table in Markdown."""
    rows = ["| time-out | seconds | set by | then |", "|---|---|---|---|"]
    for entry in time_outs:
        if entry.set_by.startswith("constant"):
            continue
        then = f"{entry.ends} ({entry.rule})" if entry.rule else entry.ends
        rows.append(f"| {entry.name} | {entry.seconds:g} | {entry.set_by} | {then} |")
    return "\n".join(rows) + "\n"


def long_lease(lease_s: float) -> str:
    """What a lease asks of joins that have the default time-out, or "" if nothing."""
    room_s = lease_s * TIME_OUTS["room"].seconds / TIME_OUTS["lease"].seconds
    if room_s < TIME_OUTS["join"].seconds:
        return ""
    return (
        f"a lease of {lease_s:g} s: jobs that wait for slots, and ranks that start again, may wait for {room_s:g} s; "
        "give joins more (SWITCHAGG_JOIN_TIMEOUT_S, timeout_s)"
    )


def switch_patience_s(limit_s: float) -> float:
    """How long a rank with a fallback waits for a silent switch, where its calls end after limit_s, so that the job can
    go on without the switch before that. A lease that is shorter ends the wait earlier."""
    return max(LEASE_LEAST_S, limit_s / 2)


def short_for_fallback(limit_s: float) -> str:
    """Why calls that end after limit_s can't go on without their switch, or ""."""
    least_s = LEASE_LEAST_S + RECOVERY_S
    if limit_s >= least_s:
        return ""
    return (
        f"a time-out of {limit_s:g} s ends calls before a lost switch is noticed ({LEASE_LEAST_S:g} s) and left "
        f"({RECOVERY_S:g} s): give {least_s:g} s or more, or no fallback"
    )
