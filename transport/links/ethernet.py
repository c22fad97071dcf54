"""Ethernet's header. Standard library only: Mininet's own command line shapes links under the system's Python."""

ETHERNET_BYTES = 14
"""Neither the kernel's interface counters nor its shapers count FCS, preamble and gap."""
