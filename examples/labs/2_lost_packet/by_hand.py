"""The packets of two workers, and for each your prediction of the switch's action.

Job 1, generation 7, has two workers, two values per packet, and a window of two slots, 0 and 1. So chunk 0 goes in slot
0 version 0, chunk 1 in slot 1 version 0, chunk 2 in slot 0 version 1, chunk 3 in slot 1 version 1, chunk 4 in slot 0
version 0 again.

DROP: nobody gets anything. BROADCAST: every worker gets the result. REPLY: the sender alone does.
"""

from switchagg_scapy import Chunk

VALUES = [[1, 2], [10, 20]]


def packet(rank, chunk, **fields):
    """A scapy layer. fields: slot=1, flags="VERSION", flags="RETRANSMISSION", flags="VERSION+RETRANSMISSION", …"""
    return Chunk(job=1, generation=7, rank=rank, chunk=chunk, values=VALUES[rank], **fields)


PACKETS = [
    (packet(0, chunk=0), "DROP"),
    (packet(1, chunk=0), "BROADCAST"),
    # The result gets lost on its way to rank 1. Yours from here on: README.md says what shall happen.
]
