"""Gives every logical table a stage, as a compiler for Tofino must: dependencies first, then what a stage holds."""

from __future__ import annotations

from p4vm.fit.model import Access, Fault, Limits, Memory, Stage, Unit, meet


def distance(earlier: Unit, later: Unit) -> tuple[int, str]:
    """How many stages `later` must come after `earlier`, and the field that says so; (-1, "") if it needn't."""
    if earlier.direction != later.direction or earlier.excludes(later):
        return -1, ""
    if shared := meet(earlier.written, later.matched | later.read | later.written):
        return 1, shared
    if shared := meet(earlier.matched | earlier.read, later.written):
        return 0, shared  # it may be overwritten at the end of the stage that reads it
    return -1, ""


def repeated_accesses(units: list[Unit]) -> list[Fault]:
    """Registers that one packet would touch more than once in a pass."""
    faults = []
    users: dict[Memory, list[tuple[Unit, Access]]] = {}
    for unit in units:
        for access in unit.accesses:
            users.setdefault(access.memory, []).append((unit, access))
    for memory, uses in users.items():
        if not memory.alu:
            continue
        for number, (unit, access) in enumerate(uses):
            clash = next((a for u, a in uses[:number] if u is not unit and not u.excludes(unit)), None)
            if clash is not None:
                faults.append(
                    Fault(
                        f"{memory.kind} {memory.name} is accessed a second time in one pass, after line "
                        f"{clash.position.line}; a pass may touch each register once",
                        access.position,
                    )
                )
                break
    return faults


class Placement:
    """Stages filled in program order."""

    def __init__(self, units: list[Unit], limits: Limits) -> None:
        self.units = units
        self.limits = limits
        self.stages = [Stage() for _ in range(limits.stages)]
        self.faults: list[Fault] = []
        self._mates: dict[Memory, list[Unit]] = {}
        self._placing: list[Unit] = []
        for unit in units:
            for access in unit.accesses:
                mates = self._mates.setdefault(access.memory, [])
                if unit not in mates:
                    mates.append(unit)
        self._before = {
            later: [(unit, *found) for unit in units[:number] if (found := distance(unit, later))[0] >= 0]
            for number, later in enumerate(units)
        }

    def run(self) -> None:
        """Place all units, or stop at the first that can't be, with a fault."""
        for unit in self.units:
            if unit.stage < 0 and not self._place(self._together(unit)):
                return

    def _together(self, unit: Unit) -> list[Unit]:
        """Units that share a register lie in one stage, whatever branch they are on."""
        group = [unit]
        for member in group:
            for access in member.accesses:
                group += [mate for mate in self._mates[access.memory] if mate not in group]
        return group

    def _earliest(self, unit: Unit, group: list[Unit]) -> int:
        """After all it depends on; what has no stage yet is placed first. -1: that couldn't be."""
        stage = 0
        for earlier, apart, _ in self._before[unit]:
            if earlier in group:
                continue
            if earlier.stage < 0 and not self._place(self._together(earlier)):
                return -1
            stage = max(stage, earlier.stage + apart)
        return stage

    def _place(self, group: list[Unit]) -> bool:
        if group[0] in self._placing:
            names = " and ".join(sorted({access.memory.name for unit in group for access in unit.accesses}))
            message = f"the uses of {names} need each other's results, but must lie in one stage"
            self.faults.append(Fault(message, group[0].position))
            return False
        self._placing += group
        placed = self._place_once(group)
        del self._placing[-len(group) :]
        return placed

    def _place_once(self, group: list[Unit]) -> bool:
        start = 0
        for unit in group:
            earliest = self._earliest(unit, group)
            if earliest < 0:
                return False
            start = max(start, earliest)
        lacking = ""
        for number in range(start, self.limits.stages):
            lacking = self._lacks(self.stages[number], group)
            if not lacking:
                self._put(number, group)
                return True
        last = group[-1]
        if start >= self.limits.stages:
            chain = " <- ".join(self._chain(last))
            message = f"{last.name} needs stage {start + 1} of {self.limits.stages}; it waits for: {chain}"
        else:
            message = f"{last.name} finds no room in stages {start + 1} to {self.limits.stages}: {lacking}"
        self.faults.append(Fault(message, last.position))
        return False

    def _lacks(self, stage: Stage, group: list[Unit]) -> str:
        """What the stage has too little of; "" if the group fits."""
        limits = self.limits
        new = self._new_memories(stage, group)
        wanted = (
            ("logical tables", len(stage.units) + len(group), limits.tables),
            ("stateful ALUs", stage.stateful_alus + sum(m.alu for m in new), limits.stateful_alus),
            (
                "SRAM blocks",
                stage.sram_blocks + sum(u.sram_blocks for u in group) + sum(map(self._blocks, new)),
                limits.sram_blocks,
            ),
            ("TCAM blocks", stage.tcam_blocks + sum(u.tcam_blocks for u in group), limits.tcam_blocks),
        )
        return next((f"{want} {what}, a stage has {has}" for what, want, has in wanted if want > has), "")

    def _new_memories(self, stage: Stage, group: list[Unit]) -> list[Memory]:
        found = {access.memory: None for unit in group for access in unit.accesses}
        return [memory for memory in found if memory not in stage.memories]

    def _blocks(self, memory: Memory) -> int:
        return memory_blocks(memory, self.limits)

    def _put(self, number: int, group: list[Unit]) -> None:
        stage = self.stages[number]
        for memory in self._new_memories(stage, group):
            stage.memories.append(memory)
            stage.sram_blocks += self._blocks(memory)
        for unit in group:
            unit.stage = number
            stage.units.append(unit)
            stage.sram_blocks += unit.sram_blocks
            stage.tcam_blocks += unit.tcam_blocks

    def _chain(self, unit: Unit) -> list[str]:
        """What a unit waits for, and that for what, back to the first stage: names, lines and the fields between."""
        words: list[str] = []
        while len(words) <= self.limits.stages:
            candidates = [(e.stage + apart, e, name) for e, apart, name in self._before[unit] if apart and e.stage >= 0]
            if not candidates:
                break
            _, unit, name = max(candidates, key=lambda candidate: candidate[0])
            words.append(f"{unit.name} ({name})" if unit.bare else f"{unit.name} (line {unit.position.line}, {name})")
        return words


def memory_blocks(memory: Memory, limits: Limits) -> int:
    """SRAM blocks of a register, meter or counter: its bits, and one block to write while it is read."""
    return -(-memory.bits // limits.sram_block_bits) + 1
