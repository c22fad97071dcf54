"""Metrics for Prometheus, by its client library: an HTTP server of this process, off unless somebody asks for it.

Imported by switch, torch and emulation; imports no room of transport. Start at metrics_server.py; worker_metrics.py has
what a process with groups serves, `transport.switch.switch_metrics` what a switch does.
"""
