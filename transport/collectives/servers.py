"""Plans of the synchronous parameter server: shards are summed in one place each, in the order of ranks.

Asynchronous modes, backup workers and the like need a server that decides: transport.ps.
"""

from transport.collectives.plan import Draft, Plan
from transport.collectives.rings import split


def ps_allreduce(member: int, workers: int, elements: int, servers: int = 1) -> Plan:
    """Dedicated servers are members n … n+k-1: a worker sends and gets the array once, a server n/k times its bytes.

    A server's array needs no content. Workers begin with different servers, and segments go to all
    in turn: no port is idle, and answers overlap with what still comes.
    """
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


def ps_colocated_allreduce(member: int, workers: int, elements: int, servers: int = 0) -> Plan:
    """Every server sits on a rank, keeps that rank's own share of its shard and gets the others'. servers: 0: all."""
    draft = Draft(member, workers, elements)
    ranks = colocated_servers(workers, servers)
    shards = split(0, elements, len(ranks))
    start = next((number for number, rank in enumerate(ranks) if rank > member), 0)
    order = [(start + turn) % len(ranks) for turn in range(len(ranks))]  # those after us first: nobody gets all at once
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
