"""What ranks agree on from one table, and that no two of them ever go different ways: L4 to L7."""

import random
from collections.abc import Sequence

import pytest

from switchagg.failover.agreement import Agreement, CallPath, MemberRow, Mover, NextMove, Stage, decide


def row(
    stage: Stage,
    place: int = 0,
    frozen: bool = True,
    made_parts: Sequence[int] = (4, 2),
    lowest: Sequence[int] = (1, 2),
    target: int = 0,
) -> MemberRow:
    return MemberRow(stage, place, target, frozen, tuple(made_parts), tuple(lowest))


AT, LEAVING, LOST, AWAY = row(Stage.AT_SWITCH, 8), row(Stage.LEAVING, 8), row(Stage.LOST), row(Stage.AWAY, 9)


@pytest.mark.parametrize(
    ("rows", "move"),
    [
        ((AT, AT), NextMove.WAIT),
        ((AT, LEAVING), NextMove.WAIT),
        ((LEAVING, LEAVING._replace(frozen=False)), NextMove.FREEZE),
        ((AT, LOST), NextMove.LOSE),
        ((LEAVING, LOST), NextMove.LOSE),
        ((AWAY, LOST), NextMove.LOSE),
        ((LOST, LOST._replace(frozen=False)), NextMove.FREEZE),
        ((AWAY, AWAY._replace(place=0)), NextMove.WAIT),
        ((AWAY, AWAY._replace(place=10)), NextMove.WAIT),
        ((AWAY._replace(place=0),) * 2, NextMove.WAIT),
        ((AWAY, AWAY._replace(frozen=False)), NextMove.FREEZE),
        *(((row(Stage.CLOSING), other), NextMove.STAY) for other in (AT, LEAVING, LOST, AWAY)),
    ],
)
def test_every_mixture_of_stages_has_one_decision(rows: tuple[MemberRow, ...], move: NextMove) -> None:
    assert decide(rows) == decide(rows[::-1]) == Agreement(move)


def test_the_first_part_that_goes_another_way_is_the_greatest_that_any_rank_has_made() -> None:
    more = {"made_parts": (3, 5), "lowest": (2, 1)}
    assert decide([LEAVING, LEAVING._replace(**more)]) == Agreement(NextMove.TO_HOSTS, (4, 5))
    assert decide([LOST, LOST._replace(**more)]) == Agreement(NextMove.RECOVER, (4, 5), (1, 1))
    assert decide([AWAY, AWAY._replace(**more)]) == Agreement(NextMove.TO_SWITCH, (4, 5), place=9)


def test_the_switch_that_rank_0_tries_is_the_one_for_all() -> None:
    rows = [LOST._replace(target=2), LOST._replace(target=1)]
    assert decide(rows).target == 2
    movers = [Mover(), Mover()]
    movers[0].target = 2
    table = [mover.row((0,), (0,)) for mover in movers]
    for mover in movers:
        mover.apply(table)
    assert [mover.target for mover in movers] == [2, 2]


def test_a_row_travels_as_integers() -> None:
    sent = row(Stage.AWAY, 1 << 32, False, (1 << 40, 0, 7), (3, 0, 1 << 39), 5)
    assert len(sent.words()) == 4 + 2 * 3
    assert MemberRow.of_words(sent.words()) == sent


def test_a_rank_without_a_session_begins_as_one_that_has_lost_it() -> None:
    mover, other = Mover(), Mover(place=7)
    assert (mover.stage, mover.frozen, other.stage, other.frozen) == (Stage.LOST, True, Stage.AT_SWITCH, False)
    for move in (NextMove.LOSE, NextMove.RECOVER):
        table = [mover.row((0,), (0,)), other.row((3,), (1,))]
        assert mover.apply(table).move == other.apply(table).move == move
    assert decide(table) == Agreement(NextMove.RECOVER, (3,), (0,))
    assert (mover.stage, mover.frozen, other.stage, other.frozen) == (Stage.AWAY, False) * 2


def test_a_session_that_is_lost_during_an_exchange_is_lost_after_it() -> None:
    mover, other = Mover(), Mover()
    table = [mover.row((0,), (0,)), other.row((0,), (0,))]
    for rank in (mover, other):
        rank.apply(table)
        rank.joined(5)
        rank.drained()
    for _ in range(2):
        table = [mover.row((0,), (0,)), other.row((0,), (0,))]
        if table[0].frozen:
            mover.session_lost(5)
        agreement = mover.apply(table)
        other.apply(table)
    assert agreement == Agreement(NextMove.TO_SWITCH, (0,), place=5)
    assert (mover.stage, other.stage) == (Stage.LOST, Stage.AT_SWITCH)


class Rank:
    """A rank whose user makes calls on one stream. paths: what has carried each of its parts, or ends it."""

    def __init__(self, place: int) -> None:
        self.mover = Mover(place)
        self.place, self.low, self.end = place, 0, 0  # of the switch, or the last one: its parts
        self.paths: list[str] = []
        self.finished: set[int] = set()

    def make(self) -> None:
        if not self.mover.frozen:
            self.paths.append(self.path_of(len(self.paths)))

    def path_of(self, part: int) -> str:
        path = self.mover.path_of(0, part)
        return f"switch {self.place}" if path is CallPath.SWITCH else path.name

    def row(self) -> MemberRow:
        made = len(self.paths)
        end = min(made, self.end) if self.mover.stage is Stage.AWAY else made
        lowest = next((part for part in range(self.low, end) if part not in self.finished), max(self.low, end))
        return self.mover.row((made,), (lowest,))

    @property
    def is_drained(self) -> bool:
        return self.end <= len(self.paths) and set(range(self.low, self.end)) <= self.finished

    def apply(self, table: list[MemberRow]) -> None:
        agreement = self.mover.apply(table)
        if agreement.first:
            (self.end,) = agreement.first
        if agreement.move is NextMove.RECOVER:
            for part in range(agreement.lowest[0], min(self.end, len(self.paths))):
                assert self.paths[part] == f"switch {self.place}"
                assert self.path_of(part) == "RECOVERY"
                self.paths[part] = "RECOVERY"
        elif agreement.move is NextMove.TO_SWITCH:
            self.low, self.place = self.end, agreement.place


class Job:
    """Ranks that make and finish parts when they like; sessions fail on some ranks, and on the others later."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.ranks = [Rank(1) for _ in range(self.random.choice((2, 3, 4)))]
        self.generation = 1
        self.steps = (self.make, self.make, self.finish, self.finish, self.lose, self.ask, self.join, self.drain)

    def step(self) -> None:
        rank = self.random.choice(self.ranks)
        self.random.choice((*self.steps, self.exchange, self.exchange, self.exchange))(rank)

    def make(self, rank: Rank) -> None:
        rank.make()

    def finish(self, rank: Rank) -> None:
        """A part that all have made."""
        made = min(len(other.paths) for other in self.ranks)
        if waiting := [part for part in range(made) if part not in rank.finished]:
            rank.finished.add(self.random.choice(waiting))

    def lose(self, rank: Rank) -> None:
        if self.random.random() < 0.3:
            rank.mover.session_lost(self.random.choice((rank.place, self.generation)))

    def ask(self, rank: Rank) -> None:
        rank.mover.asked_to_leave()

    def join(self, rank: Rank) -> None:
        if rank.mover.stage is Stage.AWAY:
            self.generation += self.random.random() < 0.1
            rank.mover.joined(self.generation)

    def drain(self, rank: Rank) -> None:
        if rank.mover.stage is Stage.AWAY and rank.is_drained:
            rank.mover.drained()

    def exchange(self, rank: Rank) -> None:
        table = [other.row() for other in self.ranks]
        for other in self.ranks:
            other.apply(table)
        stages = {other.mover.stage for other in self.ranks}
        assert stages <= {Stage.AT_SWITCH, Stage.LEAVING, Stage.LOST} or stages <= {Stage.AWAY, Stage.LOST}
        for part in range(min(len(other.paths) for other in self.ranks)):
            assert len({other.paths[part] for other in self.ranks}) == 1, part


def test_no_two_ranks_carry_a_part_by_different_paths(seed: int) -> None:
    job = Job(seed)
    for _ in range(400):
        job.step()
