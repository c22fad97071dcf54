"""The slices of a call and the server of each: the same on all members.

A longer array becomes a multiple of k slices of equal size, assigned to the k servers in turn, so that all servers
transfer the same number of bytes, to within an element per slice. A shorter one goes whole to one server: that of its
key modulo k, or, if the tensors are declared, the server with the fewest bytes so far (largest tensors first). The
first slice of a key always goes to the same server, whatever the call: there, calls that don't match are detected.

The cut never changes. A slice whose server is lost has another one (L11), `Sharding.server_of`.
"""

from collections.abc import Collection, Sequence
from typing import NamedTuple

from transport.ps.ps_messages import EVERYBODY


class ServerSlice(NamedTuple):
    """Elements low … high-1 of a call. server: 0 … k-1. source: the rank whose values it carries, or EVERYBODY, who
    are combined; sink: the rank that gets the result, or EVERYBODY."""

    number: int
    low: int
    high: int
    server: int
    source: int
    sink: int


class Sharding:
    """servers: k. slice_elements: most of a slice. tensor_bytes: sizes of declared tensors, keys 0, 1, … spares:
    further servers, numbered from k, for slices of those that are lost."""

    def __init__(self, servers: int, slice_elements: int, tensor_bytes: Sequence[int] = (), *, spares: int = 0) -> None:
        self.servers = servers
        self.spares = spares
        self.slice_elements = slice_elements
        self._first = _balance(servers, tensor_bytes, 4 * slice_elements)

    def first_server(self, key: int) -> int:
        """The server of a key's first slice."""
        return self._first[key] if key < len(self._first) else key % self.servers

    def server_of(self, key: int, part: ServerSlice, lost: Collection[int]) -> int:
        """The server that a slice has without those that are lost (L11): its own; else the first that lives of the
        spares, and then of the others, in an order that is fixed for the slice. So what one loss has moved stays where
        it is at the next, and the slices of a lost server go to all others in turn. Not all may be lost."""
        home = part.server
        if home not in lost:
            return home
        spares = (self.servers + (home + place) % self.spares for place in range(self.spares))
        turn, rest = key // self.servers + part.number // self.servers, self.servers - 1
        following = ((home + 1 + (turn + place) % rest) % self.servers for place in range(rest))
        return next(server for servers in (spares, following) for server in servers if server not in lost)

    def cut(self, key: int, elements: int, source: int = EVERYBODY, sink: int = EVERYBODY) -> list[ServerSlice]:
        """The slices of an array that is treated alike throughout. No elements make one empty slice."""
        pieces = self._pieces(elements)
        first = self.first_server(key)
        return [
            ServerSlice(
                i, i * elements // pieces, (i + 1) * elements // pieces, (first + i) % self.servers, source, sink
            )
            for i in range(pieces)
        ]

    def cut_shards(self, key: int, elements: int, workers: int, *, gather: bool) -> list[ServerSlice]:
        """The slices of an array whose elements r*E//n … (r+1)*E//n-1 belong to rank r.

        gather: rank r gives its shard to all; otherwise all give theirs, combined for rank r.
        """
        first = self.first_server(key)
        slices: list[ServerSlice] = []
        for rank in range(workers):
            low, high = rank * elements // workers, (rank + 1) * elements // workers
            pieces = -(-(high - low) // self.slice_elements)  # 0 for an empty shard
            for piece in range(pieces):
                at = low + piece * (high - low) // pieces, low + (piece + 1) * (high - low) // pieces
                server = (first + len(slices)) % self.servers
                ends = (rank, EVERYBODY) if gather else (EVERYBODY, rank)
                slices.append(ServerSlice(len(slices), *at, server, *ends))
        return slices or [ServerSlice(0, 0, 0, first, 0 if gather else EVERYBODY, EVERYBODY if gather else 0)]

    def _pieces(self, elements: int) -> int:
        if elements <= self.slice_elements:
            return 1
        pieces = -(-elements // self.slice_elements)
        return min(-(-pieces // self.servers) * self.servers, elements)


def _balance(servers: int, tensor_bytes: Sequence[int], spread_bytes: int) -> list[int]:
    """The first server of each declared tensor. Tensors above spread_bytes load all servers alike."""
    load = [0] * servers
    first = [0] * len(tensor_bytes)
    for key in sorted(range(len(tensor_bytes)), key=lambda key: (-tensor_bytes[key], key)):
        first[key] = min(range(servers), key=lambda server: (load[server], server))
        if tensor_bytes[key] <= spread_bytes:
            load[first[key]] += tensor_bytes[key]
    return first
