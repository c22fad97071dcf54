"""Metrics of a switch, made of a status answer when Prometheus asks (docs/failures.md).

Labels have few values: names of counters, job ids, which the switch uses again, and ranks. Names of jobs and addresses
of members are for those who hold a key (C14), whom HTTP doesn't know, so jobs are numbers here; `names` says otherwise.
"""

from collections.abc import Iterable, Iterator, Mapping

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric

from transport.control.control_messages import JobStatus, MemberActivity, StatusAnswer

FATES = ("absorbed", "broadcast", "reply", "up", "up_again", "resend", "abstained")
DROP, LINK, REFUSED = "drop_", "link_", "refused_"
OUTCOMES = ("admitted", "failed", "ended")
MEMBER_ENDS = {
    "members_lost": "Members whose lease ended",
    "left": "Members that left on their own",
    "left_wrong_sum": "Members that left as a sum was wrong",
}
SILENT_NS = 1_000_000_000

PACKETS_OF_MEMBERS = ("sent", "retransmitted")


def switch_families(answer: StatusAnswer, start_s: float, names: bool = False) -> Iterator[Metric]:
    """The metrics of an answer with details. start_s: Unix time of the switch's start. names: with names of jobs."""
    info = InfoMetricFamily("switchagg_switch", "The switch's data plane, and what carries its packets")
    info.add_metric((), {"data_plane": answer.data_plane, "link": answer.link})
    yield info
    yield _gauge("switchagg_start_time_seconds", "When the switch started (Unix time)", start_s)
    yield _gauge("switchagg_slots", "Slots of the switch", answer.slots)
    yield _gauge("switchagg_free_slots", "Slots that no job has", answer.free_slots)
    yield _gauge("switchagg_switches_below", "Switches that send their sums to this one", len(answer.switches))
    jobs = GaugeMetricFamily("switchagg_jobs", "Jobs now", labels=("state",))
    jobs.add_metric(("running",), answer.running)
    jobs.add_metric(("waiting",), answer.gathering)
    yield jobs
    yield from _of_packets(answer.data_counters)
    yield from _of_control(answer.control_counters)
    yield from _of_jobs(answer.jobs, names)


def _of_packets(counters: Mapping[str, int]) -> Iterator[Metric]:
    fates = {name: count for name, count in counters.items() if name in FATES or name.startswith(DROP)}
    fates = {**dict.fromkeys(("absorbed", "broadcast", "drop_unauthenticated", "drop_unknown_sender"), 0), **fates}
    yield _counter("switchagg_packets", "Packets of workers and switches, by what became of them", "verdict", fates)
    on_link = {name.removeprefix(LINK): count for name, count in counters.items() if name.startswith(LINK)}
    for unit in ("bytes", "datagrams"):
        counts = {name.removesuffix(f"_{unit}"): count for name, count in on_link.items() if name.endswith(f"_{unit}")}
        yield _counter(f"switchagg_link_{unit}", f"{unit.title()} on the link", "direction", counts)
        on_link = {name: count for name, count in on_link.items() if not name.endswith(f"_{unit}")}
    loop_counts = {name: count for name, count in counters.items() if name not in fates and not name.startswith(LINK)}
    yield _counter("switchagg_link_events", "Other counters of link and loop", "event", {**on_link, **loop_counts})


def _of_control(counters: Mapping[str, int]) -> Iterator[Metric]:
    counts = dict(counters)
    joins = CounterMetricFamily("switchagg_joins", "Joins of ranks, each counted once", counts.pop("joins", 0))
    yield joins
    outcomes = {name: counts.pop(name, 0) for name in OUTCOMES}
    yield _counter("switchagg_job_outcomes", "Jobs that were admitted, failed, ended", "outcome", outcomes)
    refused = {name.removeprefix(REFUSED): counts.pop(name) for name in list(counts) if name.startswith(REFUSED)}
    refused = {"no_room": 0, **refused}
    refused["other"] = max(0, counts.pop("refused", 0) - refused["no_room"])
    yield _counter("switchagg_joins_refused", "Joins that were refused", "reason", refused)
    for name, text in MEMBER_ENDS.items():
        metric = name if name.startswith("members") else f"members_{name}"
        yield CounterMetricFamily(f"switchagg_{metric}", text, counts.pop(name, 0))
    yield _counter("switchagg_control_events", "Other counters of the control plane", "event", counts)


def _of_jobs(jobs: Iterable[JobStatus], names: bool) -> Iterator[Metric]:
    info = InfoMetricFamily("switchagg_job", "Running jobs", labels=("job_id",))
    slots = GaugeMetricFamily("switchagg_job_slots", "Slots of a job", labels=("job_id",))
    states = GaugeMetricFamily("switchagg_job_members", "Members of a job, by state", labels=("job_id", "state"))
    place = ("job_id", "rank")
    silent = GaugeMetricFamily("switchagg_member_silent_seconds", "Since a member was last heard", labels=place)
    packets = CounterMetricFamily("switchagg_member_packets", "Packets that a member sent", labels=(*place, "kind"))
    results = CounterMetricFamily("switchagg_member_results", "Sums of chunks that a member received", labels=place)
    volumes = CounterMetricFamily("switchagg_member_received_bytes", "Bytes that a member received", labels=place)
    wrong = CounterMetricFamily("switchagg_member_wrong_sums", "Sums that a member refused as wrong", labels=place)
    drops = CounterMetricFamily(
        "switchagg_member_dropped_packets", "Packets that a member dropped", labels=(*place, "reason")
    )
    events = CounterMetricFamily("switchagg_member_events", "Other counters of a member", labels=(*place, "event"))
    for job in jobs:
        number = str(job.job_id)
        terms = {"workers": str(job.workers), "codec": job.terms.codec, "verify": job.terms.verify}
        named = {"name": job.name} if names else {}
        info.add_metric((number,), {**terms, "packets": job.packets, **named})
        slots.add_metric((number,), job.terms.requested_slots)
        departed = {departure.place.rank for departure in job.departed}
        for state, count in _states(job, departed).items():
            states.add_metric((number, state), count)
        for member in job.activity:
            key = number, str(member.rank)
            if member.rank not in departed:
                silent.add_metric(key, member.silent_ns / 1e9)
            counts = dict(member.counters)
            for kind in PACKETS_OF_MEMBERS:
                packets.add_metric((*key, kind), counts.pop(kind, 0))
            results.add_metric(key, counts.pop("results", 0))
            volumes.add_metric(key, counts.pop("link_received_bytes", 0))
            wrong.add_metric(key, counts.pop("wrong_sums", 0))
            for name, count in counts.items():
                family, label = (drops, name.removeprefix(DROP)) if name.startswith(DROP) else (events, name)
                family.add_metric((*key, label), count)
    yield from (info, slots, states, silent, packets, results, volumes, wrong, drops, events)


def _states(job: JobStatus, departed: set[int]) -> dict[str, int]:
    def is_silent(member: MemberActivity) -> bool:
        return member.rank not in departed and member.silent_ns >= SILENT_NS

    silent = sum(map(is_silent, job.activity))
    return {"alive": len(job.members) - silent - len(departed), "silent": silent, "left": len(departed)}


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(name, text, value)


def _counter(name: str, text: str, label: str, counts: Mapping[str, int]) -> Metric:
    family = CounterMetricFamily(name, text, labels=(label,))
    for value, count in sorted(counts.items()):
        family.add_metric((value.removeprefix(DROP) if label == "reason" else value,), count)
    return family
