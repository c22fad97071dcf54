"""The fields that the C core has of `switchagg.job.PacketTerms`: a header for its sources, a list for ctypes.

`setup.py` writes the header, so that a new term needs no line of C but its use. It imports nothing that needs NumPy.
"""

from dataclasses import Field, fields
from typing import Any

from switchagg.job import PacketTerms

HEADER = "rule/packet_terms.h"


def width_of(entry: "Field[Any]") -> int:
    """Bits of a term's field in C: of words their place in the list of words, of numbers as many as the range needs."""
    return 32 if entry.metadata.get("high", 0) < 1 << 32 else 64


def header() -> str:
    """The header: the members of `struct sa_job` that are terms, and an enumerator for each word."""
    members, words = [], []
    for entry in fields(PacketTerms):
        kind = "uint32_t" if width_of(entry) == 32 else "int64_t"
        members.append(f"    {kind} {entry.name}; /* {entry.metadata['about']} */")
        for place, word in enumerate(entry.metadata.get("allowed", ())):
            words.append(f"    SA_{entry.name.upper()}_{word.upper()} = {place},")
    return "\n".join(
        [
            "/* Written by setup.py from switchagg.job.PacketTerms. */",
            "#pragma once",
            "",
            "enum sa_word {",
            *words,
            "};",
            "",
            "#define SA_PACKET_TERMS \\",
            *(f"{line} \\" for line in members),
            "",
            "",
        ]
    )


def values(terms: PacketTerms) -> dict[str, int]:
    """A job's terms as C has them, by name."""
    numbers = {}
    for entry in fields(PacketTerms):
        value, allowed = getattr(terms, entry.name), entry.metadata.get("allowed")
        numbers[entry.name] = allowed.index(value) if allowed else value
    return numbers
