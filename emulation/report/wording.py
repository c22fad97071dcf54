# ruff: noqa: RUF001  (multiplication signs and dashes are meant)
"""Numbers and findings as sentences, the same in the terminal's table and in the report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from emulation.results.results import pace_ns
from emulation.results.shares import busiest_shared, part_of_job
from emulation.results.speedups import BEYOND_BOUND_FACTOR, DISTURBED, inexact, resolved, slower_than_pace
from emulation.scenario.bounds import busiest
from emulation.scenario.scenario import Scenario
from emulation.scenario.scenario_tables import AUTO, FLOW, FORMULA, PACKET
from emulation.scenario.topologies.racks import workers_by_rack
from emulation.scenario.topologies.shared_nics import hosts_of
from emulation.scenario.topologies.topology import HASH
from emulation.scenario.topologies.topology_kinds import TOPOLOGIES
from transport.group.method_name import METHODS, MethodName
from transport.links.link_kinds import LINKS
from transport.ps.config import BACKUP, BSP
from transport.schedule.schedule_table import POLICIES

PART_TOLD = 0.03
"""Parts of a shared link that differ by so much are told beside a speed-up."""

SIMULATED = {
    PACKET: "every packet is simulated",
    FLOW: "calls are simulated as flows on links",
    FORMULA: "calls are computed by a formula",
    AUTO: "calls are simulated as finely as the time allowed",
}
"""By the fidelity level of virtual time."""


def name_of(method: MethodName) -> str:
    """A method as tables and legends name it: "ring", "ring over ZeroMQ", "switch, lanes8+ef, P3". A default link isn't
    named."""
    schedule = f", {POLICIES[method.policy].label}{_options(method)}" if method.schedule else ""
    codec = f", {method.codec}" if method.codec else ""
    return method.look.label + _over(method) + codec + schedule + (", secret" if method.secret else "")


def short_names(methods: Sequence[MethodName]) -> dict[MethodName, str]:
    """Names of methods that stand together: without a schedule's options, unless two would be named alike."""
    bare = {method: name_of(replace(method, schedule=method.policy)) for method in methods}
    names = list(bare.values())
    return {method: name if names.count(name) == 1 else name_of(method) for method, name in bare.items()}


def in_text(method: MethodName) -> str:
    """A method within a sentence: "Gloo", "the ring over ZeroMQ", "the switch with lanes8+ef and P3"."""
    schedule = f"{POLICIES[method.policy].label}{_options(method)}" if method.schedule else ""
    more = " and ".join(filter(None, (method.codec, schedule, "secret sums" * method.secret)))
    return method.look.article + method.look.label + _over(method) + (f" with {more}" if more else "")


def description(entry: dict[str, Any], scenario: Scenario) -> str:
    """What a method of a results document does, in one sentence. scenario: the document's."""
    method: MethodName = entry["method"]
    control = entry["environment"].get("tcp_congestion_control")
    parts = [method.look.summary.format(control=f" ({control})" if control else "")]
    if method.method == "gloo" and entry["backend"] == "sim":
        parts = ["PyTorch's own host allreduce by its algorithm, a ring, on the same links; the switch only forwards"]
    if method.method == "ps":
        parts += _servers(scenario)
    if codec := entry["summary"].get("codec"):
        bits = f"{codec['bits_per_value']:.3g} bits a value"
        if "bits_per_weight" in codec:
            parts.append(f"gradients are pushed in {bits} by {method.codec}, weights come back in float32")
        else:
            parts.append(f"float32 travels in {bits} by {method.codec}, what is shorter or of another type as it is")
    if method.schedule:
        parts.append(POLICIES[method.policy].summary)
    return "; ".join(parts) + "."


def entry_of(built: dict[str, Any], method: MethodName) -> dict[str, Any]:
    """What a document has of a method."""
    return next(entry for entry in built["methods"] if entry["method"] == method)


def replayed(built: dict[str, Any]) -> bool:
    """Whether nothing was trained: a model as numbers."""
    return bool(built["scenario"].workload.profile)


def codec_text(entry: dict[str, Any]) -> tuple[str, str]:
    """How many bits a rank gives for a value, and what is to be known of it."""
    codec = entry["summary"].get("codec")
    if codec is None:
        return "32 bits", "fixed point" if entry["method"].in_packets else "float32"
    more = f"weights come back in {codec['bits_per_weight']:.3g}" if "bits_per_weight" in codec else ""
    return f"{codec['bits_per_value']:.3g} bits", more if codec["adds"] else "gathered: it does not add"


def against_baseline(built: dict[str, Any], entry: dict[str, Any], key: str) -> str:
    """What training came to, beside the baseline; "" for methods without a codec whose sums are exact. key: of the
    summary."""
    sentences = "codec" in entry["summary"] or inexact(built["scenario"], entry)
    if not sentences or entry["comparison"] is None:
        return ""
    before, after = entry_of(built, built["baseline"])["summary"][key], entry["summary"][key]
    if before is None or after is None:
        return ""
    if key == "final_accuracy":
        return f"{100 * (after - before):+.2f} points against {in_text(built['baseline'])}"
    return f"{number_text(before)} with {in_text(built['baseline'])}"


def _servers(scenario: Scenario) -> list[str]:
    """Where parameter servers are, and their mode."""
    ps, workers = scenario.ps, scenario.topology.workers
    count = ps.servers
    text = f"{count} server{'s' if count != 1 else ''} with {'links' if count != 1 else 'a link'} of their own"
    parts = [text.replace("their", "its") if count == 1 else text if count else "one beside each worker, on its link"]
    if ps.mode == BACKUP:
        first = f"the first {workers - ps.backups} of {workers} workers"
        return [*parts, f"mode {BACKUP}: a mean holds the gradients of {first}, the same on all ranks"]
    return parts if ps.mode == BSP else [*parts, f"mode {ps.mode}"]


def busiest_link(numbers: dict[str, Any]) -> str:
    """Whose link bounds a method with servers of their own; "" for any other. numbers: its summary."""
    if "bound_wire_bytes_per_server" not in numbers:
        return ""
    return "the servers' links" if numbers["bound"]["traffic_factor"] > 1 else "the workers' links"


def _over(method: MethodName) -> str:
    return f" over {LINKS[method.link].label}" if method.link != METHODS[method.method].link else ""


def _options(method: MethodName) -> str:
    options = method.schedule.partition(":")[2]
    return f" ({options})" if options else ""


MEASURE_NAMES = {
    "backlogged_gaps": "gaps between queued frames seen",
    "gap_deviation_median": "deviation of a gap, median byte",
    "gap_deviation_p90": "deviation of a gap, 90th percentile of bytes",
    "gap_deviation_p99": "deviation of a gap, 99th percentile of bytes",
    "backlogged_rate_share": "rate of backlogged links / rate asked for",
    "network_thread_wait_ns": "wait of a network thread for a CPU, mean per turn",
    "network_thread_wait_bytes": "wait of a network thread, as bytes at line rate",
    "timer_lateness_p50_ns": "lateness of a timer, median",
    "timer_lateness_p99_ns": "lateness of a timer, 99th percentile",
    "lost_share": "frames lost by the machine itself",
    "departures": "departures seen",
    "backlogged_ns": "time links were backlogged, all together",
    "network_threads": "threads that carry the network",
    "network_threads_ran_ns": "CPU time of those threads",
    "network_threads_waited_ns": "their waiting for a CPU, all together",
    "duration_ns": "watched for",
    "cpu_pressure_share": "time some thread of the machine waited for a CPU",
    "cpu_idle_share": "CPU time idle",
    "cpu_stolen_share": "CPU time taken by the hypervisor",
    "cpu_other_share": "CPU time of other programs",
    "tcp_retransmitted": "TCP segments sent again",
    "losses": "losses by the machine",
    "sent_packets": "packets sent",
    "queue_drops": "drops by the emulated queues",
    "peak_bps": "busiest link",
    "backlogged_polls_share": "share of polls that found a queue",
    "monitor_cpu_share": "CPU share of the measurement itself",
}


def time_text(ns: float | None) -> str:
    """A duration with three significant digits and a unit a person would choose."""
    if ns is None:
        return "–"
    for unit, size in (("s", 1e9), ("ms", 1e6), ("µs", 1e3)):
        if abs(ns) >= size:
            return f"{_three_digits(ns / size)} {unit}"
    return f"{ns:.0f} ns"


def bytes_text(size_bytes: float | None) -> str:
    """Bytes in powers of ten."""
    if size_bytes is None:
        return "–"
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if abs(size_bytes) >= size:
            return f"{_three_digits(size_bytes / size)} {unit}"
    return f"{size_bytes:.0f} B"


def rate_text(rate_bps: float) -> str:
    """Bits per second in powers of ten, without superfluous zeros."""
    for unit, size in (("Gb/s", 1e9), ("Mb/s", 1e6), ("kb/s", 1e3)):
        if rate_bps >= size:
            return f"{rate_bps / size:g} {unit}"
    return f"{rate_bps:g} b/s"


def percent_text(share: float | None, digits: int = 1) -> str:
    return "–" if share is None else f"{100 * share:.{digits}f} %"


def number_text(value: float | None, digits: int = 4) -> str:
    return "–" if value is None else f"{value:.{digits}g}"


def count_text(value: int) -> str:
    return f"{value:,}".replace(",", " ")  # a thin space: neither a decimal comma nor a point


def times_text(factor: float | None) -> str:
    return "–" if factor is None else f"{factor:.{0 if factor >= 100 else 2}f}×"


def _three_digits(value: float) -> str:
    size = abs(value)
    return f"{value:.0f}" if size >= 99.95 else f"{value:.1f}" if size >= 9.995 else f"{value:.2f}"


def measure_text(name: str, value: Any) -> str:
    """A measure of a certificate or a fact of a machine, by the unit at the end of its name."""
    if isinstance(value, dict):
        return ", ".join(f"{key} {measure_text(name, entry)}" for key, entry in value.items())
    if value is None:
        return "not measured"
    if isinstance(value, list):
        return " ".join(map(str, value))
    if isinstance(value, bool | str):
        return value if isinstance(value, str) else "yes" if value else "no"
    if name.endswith("_ns"):
        return time_text(value)
    if name.endswith("_s"):
        return time_text(1e9 * value)
    if name.endswith("_bytes"):
        return bytes_text(value)
    if name.endswith("_bps"):
        return rate_text(float(f"{value:.3g}"))
    if name.endswith("_share") or "_deviation_" in name:
        return f"{100 * value:.3g} %"
    return count_text(value) if isinstance(value, int) else number_text(value)


def facts(values: dict[str, Any]) -> list[tuple[str, str]]:
    """Facts of a machine for people: names without their units, and values with them."""
    return [
        (name.removesuffix("_bytes").removesuffix("_s").replace("_", " "), measure_text(name, value))
        for name, value in values.items()
    ]


def faster_text(speedup: float) -> str:
    """ "1.30× faster", "1.20× slower" or "as fast": ±1 % counts as equal."""
    if 1 / 1.01 < speedup < 1.01:
        return "as fast"
    return f"{speedup:.2f}× faster" if speedup > 1 else f"{1 / speedup:.2f}× slower"


def topology_text(built: dict[str, Any]) -> str:
    """What the network is, and which link limits each method, in sentences; "" for the usual topology."""
    scenario: Scenario = built["scenario"]
    summary, ranks = TOPOLOGIES[scenario.topology.kind].summary, scenario.topology.ranks_per_host
    if ranks > 1:
        summary = (
            f"{summary or 'one switch'}; {ranks} ranks on each host share its link, and are joined inside by links "
        )
        summary += f"of {rate_text(scenario.topology.inside_bps)}"
    if not summary:
        return ""
    limits = []
    for entry in built["methods"]:
        most = busiest(entry["method"].method, scenario.network)
        limits.append(f"of {in_text(entry['method'])} {' to '.join(most.hop)}, {float(most.arrays):.2f}×")
    links, topologies = scenario.links("switch"), scenario.network.topologies("switch")
    if racks := TOPOLOGIES[scenario.topology.kind].racks:
        fabric = scenario.topology.fabric
        sizes = workers_by_rack(fabric, hosts_of(fabric, scenario.topology.workers))
        summary += f" ({'hosts' if ranks > 1 else 'workers'} in a rack: {', '.join(map(str, sizes))}; "
        summary += f"oversubscription of up-links {scenario.topology.oversubscription:g}:1)"
    if (spines := scenario.topology.spines) > 1:
        summary += f"; {spines} at the top, each with an equal part of the rate of up-links, where a host method's "
        summary += "flow takes one by a hash" if scenario.topology.paths == HASH else "frame takes any"
        summary += f"; the switch sums over {len(topologies)} tree{'s' * (len(topologies) > 1)}"
    aggregating = [name for name in links.switches if any(name in tree.aggregators for tree in topologies)]
    if racks or len(aggregating) > 1:
        summary += f". Switches that aggregate: {', '.join(aggregating)}"
        summary += "; the others forward" * (len(links.switches) > len(aggregating))
    return f"The network: {summary}. The busiest link, and how often it carries the gradients: {'; '.join(limits)}."


def gradient_delay(entry: dict[str, Any]) -> float | None:
    """How many gradients of others were applied before one that was computed without them, on average; None where
    gradients are summed."""
    delay: float | None = entry.get("environment", {}).get("gradient_delay_mean")
    return delay


def why_different(entry: dict[str, Any]) -> str:
    """What it means that ranks ended with different parameters."""
    if gradient_delay(entry) is None:
        return "the allreduce was not exact"
    return "the servers' weights did not reach all alike"


def links_text(built: dict[str, Any]) -> str:
    """ "4 workers on 200 Mb/s links"."""
    topology = built["scenario"].topology
    workers = topology.workers
    return f"{workers} worker{'s' if workers != 1 else ''} on {rate_text(topology.rate_bps)} links"


def what_was_compared(built: dict[str, Any]) -> str:
    """What was compared: methods, model, workers, links and where, as a sentence."""
    scenario, methods = built["scenario"], built["methods"]
    names = [in_text(entry["method"]) for entry in methods]
    who = f"{len(names)} methods" if names[4:] else " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))
    count = count_text(methods[0]["parameters"]).replace(" ", "\u00a0")  # a number ends no line
    parameters = f"{count} parameters"
    what = f"trained the same model ({scenario.workload.name}, {parameters})"
    if replayed(built):
        what = f"moved the gradients of one profile ({scenario.workload.profile}, {parameters}), without training,"
    where = "in Mininet: with real packets, in real time, on one machine"
    if built["backend"] == "sim":
        where = f"in virtual time: {SIMULATED[scenario.virtual_time.fidelity_level]}"
    return f"{who[0].upper()}{who[1:]} {what} with {links_text(built)}, {where}."


def finding(built: dict[str, Any]) -> str:
    """What a page says first, of an iteration, like "1.40× faster": of the methods of `finding_about`."""
    if (outcome := built["finding"]) is None:
        return f"{time_text(built['methods'][0]['summary']['iteration_ns']['median'])} an iteration"
    quoted = outcome["comparison"]["headline"]
    if quoted["speedup"] is None:
        return "No clear speed-up"
    number: str = speedup_text(quoted["speedup"]) if resolved(quoted["interval"]) else "No difference beyond noise"
    number += " at equal compute" * quoted["at_equal_compute"]
    return number + ", but learned less" * (not outcome["learned"])


def finding_about(built: dict[str, Any]) -> str:
    """The methods that `finding` compares, and the number against the baseline where that is another one."""
    if (outcome := built["finding"]) is None:
        return ""
    text = f"{in_text(outcome['method'])} against {in_text(outcome['over'])}"
    if outcome["over"] == built["baseline"]:
        return text
    first = entry_of(built, outcome["method"])["comparison"]["headline"]["speedup"]
    return f"{text}, the fastest without a switch; {times_text(first)} against {in_text(built['baseline'])}"


def interval_text(interval: Sequence[float] | None) -> str:
    """ "1.31 … 1.39×"; "" without one."""
    return f"{interval[0]:.2f} … {interval[1]:.2f}×" if interval else ""


def headline(built: dict[str, Any]) -> str:
    """The finding in a few sentences, from the numbers alone: the fastest method that learned what the baseline did."""
    first, *more = findings(built)
    return " ".join([f"Over {links_text(built)}, {first[0].lower()}{first[1:]}", *more])


def findings(built: dict[str, Any]) -> list[str]:
    """The same, without the links."""
    if (outcome := built["finding"]) is None:
        only = built["methods"][0]
        median = time_text(only["summary"]["iteration_ns"]["median"])
        return [f"An iteration with {in_text(only['method'])} took {median}."]
    numbers, worse, count = outcome["comparison"], outcome["worse"], len(built["methods"])
    which, over, baseline = (in_text(method) for method in (outcome["method"], outcome["over"], built["baseline"]))
    compared = entry_of(built, outcome["method"])
    speedup = compared["comparison"]["headline"]["speedup"]
    if count > 2 and speedup is not None:
        first = "the fastest" if speedup >= 1 else "after the baseline the fastest"
        among = f"those that learned as much as {baseline}" if worse and outcome["learned"] else f"{count} methods"
        which = f"{which}, {first} of {among},"
    best = ", the fastest method without a switch" * (over != baseline)
    sentences = [f"{_quoted(numbers['headline'], which, over + best)}."]
    if over != baseline:
        equal = " at equal compute" * compared["comparison"]["headline"]["at_equal_compute"]
        sentences.append(f"Over {baseline}, the scenario's baseline, the gain is {times_text(speedup)}{equal}.")
    accuracy = against_baseline(built, compared, "final_accuracy")
    if outcome["learned"] and accuracy and inexact(built["scenario"], compared):
        sentences.append(f"Its sums are not exact: test accuracy in the end {accuracy}.")
    if worse:
        rows = [(method, against_baseline(built, entry_of(built, method), "final_accuracy")) for method in worse]
        lost = ", ".join(f"{in_text(method)} ({text.partition(' against')[0]})" for method, text in rows)
        which = (
            "Faster, but worse by more than a point" if outcome["learned"] else f"None learned as much as {baseline}"
        )
        sentences.append(f"{which}: {lost}.")
    if not numbers["compute_alike"]:
        sentences.append(unequal_compute(entry_of(built, outcome["over"]), compared, numbers))
    if numbers["communication_speedup"] is not None and numbers["communication_speedup_bound"]:
        interval = numbers["communication_speedup_interval"]
        speed = f"was {faster_text(numbers['communication_speedup'])}"
        speed = speed if resolved(interval) else "showed no difference beyond noise"
        beside = f" ({interval_text(interval)})" if interval else ""
        bound = f"{numbers['communication_speedup_bound']:.2f}×"
        sentences.append(f"Communication alone {speed}{beside}; the bound is {bound}.")
    return sentences


def _quoted(quoted: dict[str, Any], which: str, baseline: str) -> str:
    """What may be said of an iteration with a method against the baseline, with its interval and its limit."""
    speedup, interval = quoted["speedup"], quoted["interval"]
    if speedup is None:
        return f"The speed-up of an iteration with {which} over {baseline} is unclear"
    beside = f" (95 % interval {interval_text(interval)})" if interval else ""
    equal = " at equal compute" * quoted["at_equal_compute"]
    if not resolved(interval):
        return f"An iteration with {which} showed no difference{equal} from {baseline} beyond noise{beside}"
    speed = faster_text(speedup)
    verdict = f"as fast{equal} as with {baseline}" if speed == "as fast" else f"{speed}{equal} than with {baseline}"
    limit = f"; the limit, if communication were free, is {times_text(quoted['limit'])}" if quoted["limit"] else ""
    return f"An iteration with {which} was {verdict}{beside}{limit}"


def speedup_text(speedup: float) -> str:
    """As a headline: "1.40× faster", "0.79×: slower" or "1.00×: as fast"."""
    words = faster_text(speedup)
    return words if words.endswith("faster") else f"{times_text(speedup)}: {words.rpartition('× ')[2]}"


def bound_text(speedup: float, bound: float | None) -> str:
    """ "bound 1.50×", or that it was exceeded; "" without one."""
    if not bound:
        return ""
    return f"{'beyond the bound of' if speedup > BEYOND_BOUND_FACTOR * bound else 'bound'} {times_text(bound)}"


def unequal_compute(base: dict[str, Any], entry: dict[str, Any], numbers: dict[str, Any]) -> str:
    """That a method's workers computed for longer or shorter than another's, what is left at equal compute, and what
    else was busy. numbers: their comparison."""
    before, after = (time_text(row["summary"]["compute_ns"]["median"]) for row in (base, entry))
    measured = f"as measured an iteration's speed-up is {times_text(numbers['iteration_speedup'])}"
    if numbers["headline"]["speedup"] is None:
        equal = times_text(numbers["iteration_speedup_at_equal_compute"])
        measured += f" and at equal compute {equal}, which are too far from each other to quote either"
    ranks = (
        f"Ranks computed for {before} with {in_text(base['method'])} and for {after} with {in_text(entry['method'])}"
    )
    return f"{ranks}, so a part of the difference is not the method's: {measured}.{_busy(base, entry)}"


def _busy(*entries: dict[str, Any]) -> str:
    """What other programs had of the CPUs with each of these methods, where that was measured, as a sentence."""
    sentences = [
        f"{in_text(entry['method'])} {busy_text(entry['certificate']['measures'])}"
        for entry in entries
        if entry["certificate"] and "cpu_other_share" in entry["certificate"]["measures"]
    ]
    return f" Other programs had of the CPUs' time: with {', with '.join(sentences)}." if sentences else ""


def busy_text(measures: dict[str, Any]) -> str:
    """ "47 % (ffmpeg 31 %, python3 16 %)": the share of other programs, the busiest named."""
    named = ", ".join(f"{name} {percent_text(share, 0)}" for name, share in measures.get("cpu_other_programs", []))
    return percent_text(measures["cpu_other_share"], 0) + (f" ({named})" if named else "")


def disturbances(built: dict[str, Any]) -> list[tuple[MethodName, str]]:
    """Why methods of a document are DISTURBED: a sentence each."""
    sentences = []
    paced_ns = pace_ns(built["scenario"])
    for entry in built["methods"]:
        if entry["verdict"] == DISTURBED and slower_than_pace(entry, paced_ns):
            took = time_text(entry["summary"]["compute_ns"]["median"])
            text = f"Ranks computed for {took}, not the scenario's {time_text(paced_ns)}, so iterations took too long."
            sentences.append((entry["method"], text + _busy(entry)))
        if entry["comparison"] is not None and not entry["comparison"]["compute_alike"]:
            base = entry_of(built, built["baseline"])
            sentences.append((entry["method"], unequal_compute(base, entry, entry["comparison"])))
    return sentences


def explanations(built: dict[str, Any]) -> list[str]:
    """What the speed-ups consist of: sentences for each method but the baseline, as far as there are bounds."""
    sentences = []
    for entry in built["methods"]:
        numbers = entry["comparison"]
        if numbers is None or not numbers["relative_efficiency"] or not numbers["communication_speedup_bound"]:
            continue
        sentences += [_communication_explained(built, entry), _iteration_explained(built, entry)]
    return sentences


def _communication_explained(built: dict[str, Any], entry: dict[str, Any]) -> str:
    base = entry_of(built, built["baseline"])
    numbers, baseline = entry["comparison"], in_text(built["baseline"])
    shares = percent_text(entry["summary"]["share_of_bound"]), percent_text(base["summary"]["share_of_bound"])
    text = (
        f"Communication speed-up {numbers['communication_speedup']:.2f} = {numbers['communication_speedup_bound']:.2f} "
        f"(bound: fewer bytes on each link, and framing) × {numbers['relative_efficiency']:.2f} "
        f"({in_text(entry['method'])} reaches {shares[0]} of its own bound, {baseline} {shares[1]} of its own)."
    )
    if numbers["beyond_bound"]:
        losses = "to latency between its steps" if built["backend"] == "sim" else "to latency, TCP and CPU time"
        if built["scenario"].faults.of_packets:
            losses += " and to the repair of faults"
            losses += ", which the other may do without," * METHODS[entry["method"].method].loses
        if (fabric := built["scenario"].topology.fabric).spines > 1 and fabric.paths == HASH:
            losses += ", and to flows that share a spine while another is idle,"
        text += (
            f" It is beyond the bound: the part above {numbers['communication_speedup_bound']:.2f} is no merit of "
            f"{in_text(entry['method'])} but what {baseline} loses {losses} on these links."
        )
    links = [busiest_shared(row) for row in (base, entry)]
    if links[0] is not None and links[1] is not None:
        before, after = (part_of_job(link) for link in links if link is not None)
        if abs(after - before) >= PART_TOLD:
            text += (
                f" Of the busiest shared link the job had {percent_text(after, 0)} with {in_text(entry['method'])} and "
                f"{percent_text(before, 0)} with {baseline}: what it takes from others, or leaves them, is no merit."
            )
    return text


def _iteration_explained(built: dict[str, Any], entry: dict[str, Any]) -> str:
    base = entry_of(built, built["baseline"])
    numbers, baseline = entry["comparison"], in_text(built["baseline"])
    before, after = (row["summary"]["compute_ns"]["median"] for row in (base, entry))
    if not numbers.get("same_wait", True):
        return (
            f"Iteration speed-up {numbers['iteration_speedup']:.2f}: the slowest rank that a sum waits for computes "
            f"for {time_text(before)} with {baseline}, for {time_text(after)} with {in_text(entry['method'])}."
        )
    compute = f"compute ({time_text(before)}) is not what a method changes"
    if not numbers["compute_alike"]:
        compute = (
            f"compute took {time_text(before)} with {baseline} and {time_text(after)} with "
            f"{in_text(entry['method'])}, since workers and network share this machine's CPUs; a method "
            f"should not change it, and at equal compute the speed-up is "
            f"{times_text(numbers['iteration_speedup_at_equal_compute'])}"
        )
    return (
        f"Iteration speed-up {numbers['iteration_speedup']:.2f}: {compute}; an "
        f"iteration could gain at most {times_text(numbers['iteration_speedup_if_communication_were_free'])} over "
        f"{baseline}, if communication were free."
    )
