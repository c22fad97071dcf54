"""Which PyTorch is new enough."""

import re

LEAST = (2, 11)
"""The oldest PyTorch that has what is used here; pyproject.toml and docs/training.md say the same."""


def too_old(version: str) -> str:
    """The remedy for a PyTorch of this version, like "2.13.0+cpu", in a line; "" if it is new enough."""
    numbers = tuple(map(int, re.findall(r"\d+", version)[:2]))
    least = ".".join(map(str, LEAST))
    return "" if numbers >= LEAST else f"older than {least}, which switchagg needs; run: pip install 'torch>={least}'"
