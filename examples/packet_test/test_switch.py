"""A switch as its workers meet it, packet by packet; passes on any that keeps the rules of switchagg/PROTOCOL.md.

    pytest examples/packet_test                     # the fastest data plane here
    pytest examples/packet_test --dataplane all     # each that can run here
    pytest examples/packet_test --switch tcp://10.0.0.1:5555    # one that runs somewhere

Change `my_sequence` first. docs/packet-tests.md goes through it, and plants a fault.
"""

import pytest

from switchagg.testing import BROADCAST, DROP, REPLY, encode


def my_sequence(job):
    """What the ranks send, in this order: (rank, packet). Change it to a sequence of your own."""
    for chunk in range(3):
        for rank in range(2):
            yield rank, job.contribution(rank, chunk, values=[10 * rank + 1, chunk])


def test_my_sequence_under_faults(under_faults):
    under_faults(my_sequence, workers=2, elements=2, window=1)


def test_the_last_contribution_brings_everybody_the_sum(job):
    two = job(workers=2, elements=4)
    two.contribute(rank=0, chunk=0, values=[1, 2, 3, 4])
    two.expect(DROP, counted="absorbed")
    two.contribute(rank=1, chunk=0, values=[10, 20, 30, 40])
    two.expect(BROADCAST, values=[11, 22, 33, 44])


def test_who_lost_the_result_asks_and_gets_it_alone(job):
    two = job(workers=2)
    two.contribute(rank=0, chunk=0, values=5)
    two.contribute(rank=1, chunk=0, values=3)
    two.expect(BROADCAST, values=8)
    two.contribute(rank=0, chunk=0, values=5, retransmission=True)
    two.expect(REPLY, values=8)


def test_a_duplicate_adds_nothing(job):
    two = job(workers=2)
    for _ in range(3):
        two.contribute(rank=0, chunk=0, values=5)
        two.expect(DROP)
    two.contribute(rank=1, chunk=0, values=3)
    two.expect(BROADCAST, values=8)


def test_a_slot_is_used_again_two_windows_later(job):
    two = job(workers=2, window=1)
    for chunk in range(4):  # slot 0; versions 0, 1, 0, 1
        two.contribute(rank=0, chunk=chunk, values=chunk)
        two.expect(DROP, counted="absorbed")
        two.contribute(rank=1, chunk=chunk, values=100)
        two.expect(BROADCAST, values=100 + chunk)
    two.contribute(rank=0, chunk=1, values=1)
    two.expect(DROP, counted="drop_older")


def test_other_generations_and_other_addresses_change_nothing(job, switch):
    two = job(workers=2)
    two.contribute(rank=0, chunk=0, values=5, generation=two.config.generation ^ 1)
    two.expect(DROP, counted="drop_generation")
    two.send(rank=1, packet=two.contribution(rank=0, chunk=0, values=5))  # rank 0's, from rank 1's address
    two.expect(DROP, counted="drop_port")
    unknown_sender = switch.open_port()
    assert switch.deliver(unknown_sender, two.contribution(rank=0, chunk=0, values=5)) == "drop_unknown_sender"
    assert unknown_sender.receive(timeout_s=0) is None
    two.contribute(rank=0, chunk=0, values=1)
    two.contribute(rank=1, chunk=0, values=2)
    two.expect(BROADCAST, values=3)


def test_bytes_that_are_no_packet_are_counted(job):
    one = job(workers=1)
    whole = encode(one.contribution(rank=0, chunk=0, values=5))
    for wrong, counter in ((whole[:19], "drop_short"), (whole[:-1], "drop_length"), (b"?" + whole[1:], "drop_magic")):
        one.send(rank=0, packet=wrong)
        one.expect(DROP, counted=counter)
    one.send(rank=0, packet=whole)
    one.expect(BROADCAST, values=5)


def test_packets_of_scapy(job):
    layers = pytest.importorskip("switchagg_scapy", reason="pip install scapy, then: switchagg examples scapy")
    two = job(workers=2, elements=2)
    numbers = {"job": two.config.job_id, "generation": two.config.generation, "slot": two.config.slots[0]}
    two.send(rank=0, packet=layers.Chunk(**numbers, rank=0, values=[1, -2]))
    two.send(rank=1, packet=layers.Chunk(**numbers, rank=1, values=[3, 4]))
    result = layers.Chunk(**numbers, rank=1, values=[4, 2], flags="RESULT")
    two.expect_packets({0: result, 1: result})
