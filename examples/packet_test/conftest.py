"""Packet tests of a live switch: sums, lost results, duplicates, reused slots, unknown senders, raw bytes, scapy."""

pytest_plugins = ["switchagg.testing"]
