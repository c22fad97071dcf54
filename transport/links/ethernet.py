"""Ethernet's header. Standard library only: Mininet's own command line shapes links under the system's Python."""

ETHERNET_BYTES = 14
"""The kernel's interface counters and its shapers don't count FCS, preamble and gap."""
