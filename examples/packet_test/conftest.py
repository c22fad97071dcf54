"""Packet tests of a live switch: sums, lost results, duplicates, reused slots, strangers, raw bytes, scapy."""

pytest_plugins = ["switchagg.testing"]
