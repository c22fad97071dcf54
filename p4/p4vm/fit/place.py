"""Gives every logical table a stage, as a compiler for Tofino must: dependencies first, then what a stage holds."""

from dataclasses import replace

from p4vm.fit.chip_model import Access, Fault, Limits, Memory, PipelineStage, Unit, meet


def distance(earlier: Unit, later: Unit, certain: bool = False) -> tuple[int, str]:
    """How many stages `later` must come after `earlier`, and the field that says so; (-1, "") if it needn't. certain:
    leave out what a compiler may get around: where `later` runs, `earlier` ran and only copied, so it may copy too; or
    it runs after some of that table's actions alone; or the program says that it doesn't matter."""
    if earlier.direction != later.direction or earlier.excludes(later):
        return -1, ""
    if certain and (earlier.unordered or later.unordered or earlier.decides & {node for node, _ in later.branch}):
        return -1, ""
    copies = certain and later.branch[: len(earlier.branch)] == earlier.branch
    written_fields = earlier.computed if copies else earlier.writes
    if shared := meet(written_fields, later.matched | later.reads | later.writes):
        return 1, shared
    for count, fields in later.conditions:
        if earlier.number < count and (shared := meet(written_fields, set(fields))):
            return 1, shared
    if shared := meet(earlier.matched | earlier.reads, later.writes):
        return 0, shared  # it may be overwritten at the end of the stage that reads it
    return -1, ""


def without_room(units: list[Unit], limits: Limits) -> list[Fault]:
    """Faults that remain even if a stage held everything: a chain of results longer than the stages, registers that
    need each other's results."""
    endless = replace(
        limits, stages=len(units) + 1, stateful_alus=1 << 30, tables=1 << 30, sram_blocks=1 << 30, tcam_blocks=1 << 30
    )
    placement = Placement(units, endless, certain=True)
    placement.run()
    late = next((unit for unit in units if unit.stage >= limits.stages), None)
    if late is not None:
        placement.faults.append(Fault(placement.waits(late, late.stage, limits), late.position))
    for unit in units:
        unit.stage = -1
    return placement.faults


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
            before = ((u, a) for u, a in uses[:number] if u is not unit and not u.excludes(unit))
            user, clash = next(before, (None, None))
            if user is not None and clash is not None:
                known = {node for node, _ in unit.branch}
                faults.append(
                    Fault(
                        f"{memory.kind} {memory.name} is accessed a second time in one pass, after line "
                        f"{clash.position.line}; a pass may touch each register once",
                        access.position,
                        certain=not user.decides & known,  # another action of that table than the one that touches it?
                    )
                )
                break
    return faults


class Placement:
    """Stages filled in program order, as one compiler might: that something finds no room is no proof. certain: see
    `distance`."""

    def __init__(self, units: list[Unit], limits: Limits, certain: bool = False) -> None:
        self.units = units
        self.limits = limits
        self.stages = [PipelineStage() for _ in range(limits.stages)]
        self.faults: list[Fault] = []
        self._mates: dict[Memory, list[Unit]] = {}
        self._placing: list[Unit] = []
        for unit in units:
            for access in unit.accesses:
                mates = self._mates.setdefault(access.memory, [])
                if unit not in mates:
                    mates.append(unit)
        self._before = {
            later: [(unit, *wait) for unit in units[:number] if (wait := distance(unit, later, certain))[0] >= 0]
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
            message = self.waits(last, start, self.limits)
        elif len(group) == 1 and self._spread(start, last):
            return True
        else:
            message = f"{last.name} finds no room in stages {start + 1} to {self.limits.stages}: {lacking}"
        registers = sum(memory.alu for memory in self._mates)
        certain = "stateful ALUs" in lacking and registers > self.limits.stages * self.limits.stateful_alus
        self.faults.append(Fault(message, last.position, certain))
        return False

    def waits(self, unit: Unit, stage: int, limits: Limits) -> str:
        return f"{unit.name} needs stage {stage + 1} of {limits.stages}; it waits for: {' <- '.join(self._chain(unit))}"

    def _spread(self, start: int, unit: Unit) -> bool:
        """A table whose memories are its entries' own may go on in the next stages, some of its entries in each."""
        limits, memories = self.limits, [access.memory for access in unit.accesses]
        alus = sum(memory.alu for memory in memories)
        if any(memory.alu and not memory.direct for memory in memories):
            return False
        sram, tcam = unit.sram_blocks + sum(map(self._blocks, memories)), unit.tcam_blocks
        parts: list[tuple[PipelineStage, int, int]] = []
        for number in range(start, limits.stages):
            stage = self.stages[number]
            if len(stage.units) < limits.tables and stage.stateful_alus + alus <= limits.stateful_alus:
                some = (
                    min(sram, limits.sram_blocks - stage.sram_blocks),
                    min(tcam, limits.tcam_blocks - stage.tcam_blocks),
                )
                parts.append((stage, *some))
                sram, tcam = sram - some[0], tcam - some[1]
            if not sram and not tcam:
                for stage, blocks, rows in parts:
                    stage.units.append(unit)
                    stage.memories += memories
                    stage.sram_blocks += blocks
                    stage.tcam_blocks += rows
                unit.stage = number
                return True
        return False

    def _lacks(self, stage: PipelineStage, group: list[Unit]) -> str:
        """The resource that the stage lacks; "" if the group fits."""
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

    def _new_memories(self, stage: PipelineStage, group: list[Unit]) -> list[Memory]:
        accessed = {access.memory: None for unit in group for access in unit.accesses}
        return [memory for memory in accessed if memory not in stage.memories]

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
        """The chain of units before a unit, back to the first stage: names, lines and the fields between."""
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
