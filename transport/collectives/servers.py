"""Plans of the synchronous parameter server: shards are summed in one place each, in the order of ranks.

Asynchronous modes, backup workers and the like need a server that decides: transport.ps.
"""

from transport.collectives.collective import (
    Algorithm,
    Collective,
    Cost,
    Costs,
    Load,
    Option,
    Pace,
    Sent,
    Task,
    part_size,
)
from transport.collectives.plan import Draft, Plan
from transport.collectives.rings import split


def ps_allreduce(task: Task) -> Plan:
    """Dedicated servers are members n … n+k-1: a worker sends and gets the array once, a server n/k times its bytes.

    A server's array needs no content. Workers begin with different servers, and segments go to all
    in turn: no port is idle, and answers overlap with what still comes. option: k.
    """
    member, workers, elements, servers = task.member, task.workers, task.elements, task.option
    draft = Draft(member, workers + servers, elements)
    shards = split(0, elements, servers)
    if member >= workers:
        low, high = shards[member - workers]
        for rank in range(workers):
            draft.receive(rank, low, high, rank > 0)
        for turn in range(workers):
            draft.send((turn + member) % workers, low, high)  # servers answer different workers first
        return draft.plan()
    order = [(member + turn) % servers for turn in range(servers)]
    for server in order:
        draft.send(workers + server, *shards[server])
    for server in order:
        draft.receive(workers + server, *shards[server], False)
    return draft.plan()


def colocated_servers(workers: int, servers: int = 0) -> list[int]:
    """The ranks that are servers too, evenly spread; 0: all. ValueError for more servers than workers."""
    if not 0 <= servers <= workers:
        raise ValueError(f"ps_colocated: {servers} servers on {workers} workers; allowed: 0 (all) … {workers}")
    servers = servers or workers
    return [number * workers // servers for number in range(servers)]


def ps_colocated_allreduce(task: Task) -> Plan:
    """Every server sits on a rank, keeps that rank's own share of its shard and gets the others'. option: how many."""
    member, workers, elements = task.member, task.workers, task.elements
    draft = Draft(member, workers, elements)
    ranks = colocated_servers(workers, task.option)
    shards = split(0, elements, len(ranks))
    start = next((number for number, rank in enumerate(ranks) if rank > member), 0)
    # those after us first: no server gets all at once
    order = [(start + turn) % len(ranks) for turn in range(len(ranks))]
    others = [number for number in order if ranks[number] != member]
    for number in others:
        draft.send(ranks[number], *shards[number])
    if member in ranks:
        low, high = shards[ranks.index(member)]
        peers = [rank for rank in range(workers) if rank != member]
        for rank in peers:
            draft.receive(rank, low, high, True)
        for turn in range(len(peers)):
            draft.send(peers[(turn + member) % len(peers)], low, high)
    for number in others:
        draft.receive(ranks[number], *shards[number], False)
    return draft.plan()


# ---- what a member sends


def _sent_by_ps(task: Task) -> Sent:
    if task.member < task.workers:
        return Sent(task.option, task.elements)
    return Sent(task.workers, task.workers * part_size(task.elements, task.option, task.member - task.workers))


def _sent_by_colocated(task: Task) -> Sent:
    ranks = colocated_servers(task.workers, task.option)
    serves = task.member in ranks
    own = part_size(task.elements, len(ranks), ranks.index(task.member)) if serves else 0
    answers = task.workers - 1 if serves else 0
    return Sent(len(ranks) - int(serves) + answers, task.elements - own + answers * own)


# ---- costs


def _ps_textbook(load: Load) -> Cost:
    p, n, servers = load
    return Cost(2, 2 * max(1.0, p / servers) * n, p * n / servers)


def _ps_seconds(load: Load, pace: Pace) -> float:
    p, n, servers = load
    last = p * min(n / servers, pace.segment_bytes)  # the answers to the last segment leave one after the other
    return 2 * pace.alpha + (max(1.0, p / servers) * n + last) * pace.beta


def _colocated_bytes(load: Load) -> float:
    """Bytes that the port of a rank with a server sends: shards to the others, answers to all."""
    servers = len(colocated_servers(load.workers, load.option))
    return ((servers - 1) + (load.workers - 1)) * load.size_bytes / servers


def _colocated_textbook(load: Load) -> Cost:
    servers = load.option or load.workers
    return Cost(2, _colocated_bytes(load), (load.workers - 1) * load.size_bytes / servers)


def _colocated_seconds(load: Load, pace: Pace) -> float:
    return 2 * pace.alpha + _colocated_bytes(load) * pace.beta


PS = Collective(
    "ps",
    {"allreduce": Algorithm(ps_allreduce, _sent_by_ps)},
    Costs(_ps_textbook, _ps_seconds),
    option=Option("servers", default=1, members=True),
)
PS_COLOCATED = Collective(
    "ps_colocated",
    {"allreduce": Algorithm(ps_colocated_allreduce, _sent_by_colocated)},
    Costs(_colocated_textbook, _colocated_seconds),
    option=Option("servers"),
    meet=lambda workers: workers - 1,
)
