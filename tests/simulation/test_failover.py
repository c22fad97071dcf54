"""Calls of jobs that lose their switch: the bits of a run that isn't disturbed, or an error, under any faults."""

from simulation.failover_world import FailoverWorld


def test_calls_of_a_job_that_loses_switches_have_the_bits_of_one_that_does_not(seed: int) -> None:
    FailoverWorld(seed).run()
