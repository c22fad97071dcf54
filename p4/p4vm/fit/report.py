"""The text and JSON that `p4vm fit` prints."""

from typing import Any

from p4vm.fit.chip_model import Fit, Memory
from p4vm.fit.place import memory_blocks


def text(fit: Fit) -> str:
    """A table of stages, the totals beside what the chip has, and faults and warnings, if there are any."""
    limits = fit.limits
    lines = [f"{'stage':>5}  {'tables':>6}  {'stateful ALUs':>13}  {'SRAM':>5}  {'TCAM':>4}  what"]
    for number, stage in enumerate(fit.stages[: fit.stages_used], 1):
        what = ", ".join(unit.name for unit in stage.units)
        lines.append(
            f"{number:>5}  {len(stage.units):>6}  {stage.stateful_alus:>13}  {stage.sram_blocks:>5}  "
            f"{stage.tcam_blocks:>4}  {what if len(what) <= 70 else what[:67] + '...'}"
        )
    values = summary(fit)
    lines += ["", *(f"{name:<22}{value}" for name, value in rows(values, limits.header_bits))]
    if fit.faults:
        count = len(fit.faults)
        lines += ["", f"It does not fit: {count} rule{'s are' if count > 1 else ' is'} broken", *map(str, fit.faults)]
    lines += ["", *(f"warning: {warning}" for warning in fit.warnings)] if fit.warnings else []
    return "\n".join(lines)


def rows(values: dict[str, Any], header_bits: int) -> list[tuple[str, str]]:
    passes = 1 + values["recirculations"]
    return [
        ("stages", f"{values['stages']['used']} of {values['stages']['available']}"),
        ("stateful ALUs", f"{values['stateful_alus']['used']} of {values['stateful_alus']['available']}"),
        ("register accesses", f"{values['register_accesses']} in a pass at most, each register once"),
        ("SRAM blocks", f"{values['sram_blocks']['used']} of {values['sram_blocks']['available']}"),
        ("TCAM blocks", f"{values['tcam_blocks']['used']} of {values['tcam_blocks']['available']}"),
        *((f"{where} header bits", f"{bits} of {header_bits}") for where, bits in values["header_bits"].items()),
        ("recirculations", f"{values['recirculations']} (a packet makes {passes} pass{'es' if passes > 1 else ''})"),
        ("share of line rate", f"{100 * values['line_rate_share']:.1f} %"),
    ]


def summary(fit: Fit) -> dict[str, Any]:
    """The same as values for JSON: counts, SRAM in blocks of 16 KiB, shares as fractions."""
    limits = fit.limits
    registers = [memory for memory in fit.memories if memory.alu]
    return {
        "program": fit.file,
        "fits": not fit.faults,
        "stages": {"used": fit.stages_used, "available": limits.stages},
        **{
            name: {
                "used": sum(getattr(stage, name) for stage in fit.stages),
                "available": limits.stages * getattr(limits, name),
            }
            for name in ("stateful_alus", "sram_blocks", "tcam_blocks")
        },
        "register_accesses": most_accesses(fit),
        "header_bits": fit.header_bits,
        "recirculations": fit.recirculations,
        "line_rate_share": fit.line_rate_share,
        "registers": [register_row(fit, memory) for memory in registers],
        "placement": [
            {"stage": number, "tables": [unit.name for unit in stage.units]}
            for number, stage in enumerate(fit.stages, 1)
            if stage.units
        ],
        "faults": [str(fault) for fault in fit.faults],
        "warnings": [str(warning) for warning in fit.warnings],
    }


def most_accesses(fit: Fit) -> int:
    """An upper bound for one packet in one pass: registers on ways that exclude each other are all counted."""
    touched: set[Memory] = {a.memory for unit in fit.units for a in unit.accesses if a.memory.alu}
    return len(touched)


def register_row(fit: Fit, memory: Memory) -> dict[str, Any]:
    stage = next((number for number, stage in enumerate(fit.stages, 1) if memory in stage.memories), None)
    return {
        "name": memory.name,
        "kind": memory.kind,
        "cells": memory.entries,
        "bits": memory.width,
        "stage": stage,
        "sram_blocks": memory_blocks(memory, fit.limits),
        "line": memory.position.line,
    }
