"""Trees of switches, as the controller makes them: H1, C18 to C20, all pure."""

from dataclasses import replace

from switchagg.controller.switch_registry import Switches, merged_ranks
from switchagg.controller.tree_controller import TreeController
from switchagg.join import ROOT, Join
from switchagg.membership import (
    JobAdmitted,
    JobEvicted,
    JobFailed,
    JobReady,
    JoinRefused,
    Running,
    SwitchOffer,
    Waiting,
)
from transport.control.hop_secrets import HopSecrets
from transport.control.shares import share_message

SECOND = 1_000_000_000


def offer(name: str, above: str = ROOT, number: int = 1, **more: int) -> SwitchOffer:
    made = SwitchOffer(name, above, (f"10.1.0.{number}", 5556), f"tcp://10.1.0.{number}:5555", 1000 + number, 4096, 360)
    return replace(made, **more)


def switches(*offers: SwitchOffer) -> Switches:
    made = Switches(4 * SECOND)
    for each in offers:
        assert made.register(each, 0) == ("", False)
    return made


def at(*vias: str) -> list[tuple[str, tuple[str, int]]]:
    return [(via, (f"10.0.0.{rank}", 7)) for rank, via in enumerate(vias)]


def test_children_are_ranks_of_their_switch_and_a_job_s_root_is_the_lowest_above_all() -> None:
    made = switches(offer("pod"), offer("rack1", "pod", 2), offer("rack2", "pod", 3), offer("idle", ROOT, 4))
    shares = made.tree(at("rack2", "rack1", "rack2"))
    assert not isinstance(shares, str)
    assert [(share.switch, share.parent, share.rank) for share in shares] == [
        ("pod", None, 0),
        ("rack2", "pod", 0),
        ("rack1", "pod", 1),
    ]
    assert shares[0].children == (("10.1.0.3", 5556), ("10.1.0.2", 5556))
    assert shares[0].below == ((0, 2), (1,))
    assert shares[1].below == ((0,), (2,))
    places = JobAdmitted("one", None, None, (), "", shares)  # type: ignore[arg-type]
    assert [(place[0].switch, place[1]) for rank in range(3) if (place := places.place(rank))] == [
        ("rack2", 0),
        ("rack1", 0),  # not the pod, of which it is all that is below one child
        ("rack2", 1),
    ]
    assert [share.switch for share in made.tree(at("rack1", "rack1"))] == ["rack1"]  # type: ignore[union-attr]
    assert [share.switch for share in made.tree(at("", ""))] == [ROOT]  # type: ignore[union-attr]
    # the pod has rack 2's sum, rack 1 lacks its worker; rank 1 of rack 2 is the parent's bit
    assert merged_ranks(shares, {"pod": (0,), "rack1": (), "rack2": (0, 1, 2)}) == (0, 2)


def test_a_switch_has_room_for_so_many_children() -> None:
    made = switches(offer("rack1"))
    assert not isinstance(made.tree(at(*["rack1"] * 63, "")), str)
    assert made.tree(at(*["rack1"] * 64, "")) == "switch 'rack1' would have 64 workers and switches below; 63 fit"
    assert not isinstance(made.tree(at(*["rack1"] * 64)), str)  # it is the root then
    assert made.tree(at(*[""] * 64, "rack1")) == "switch '' would have 65 workers and switches below; 64 fit"


def test_circles_twins_and_orphans_are_told_why() -> None:
    made = switches(offer("a"), offer("b", "a", 2))
    assert made.register(offer("c", "c", 3), 0) == ("switches in a circle: 'c' is below 'c'", False)
    circle = replace(offer("a", "b"), incarnation=9)
    assert made.register(circle, 0) == ("switches in a circle: 'a' is below 'b' is below 'a'", False)
    fault, again = made.register(offer("d", "e", 3), 0)
    assert again
    assert "is below 'e', which has not registered here yet" in fault
    fault, again = made.register(offer("a", ROOT, 5), 0)
    assert again
    assert "has that name and is alive; give switch 'a' at 10.1.0.5:5556 another --name" in fault
    assert made.register(replace(offer("a"), incarnation=9), 0) == ("", False)
    assert made.lost() == [("a", "switch 'a' at 10.1.0.1:5556 was restarted")]
    assert made.register(offer("f" * 101), 0)[0].startswith("switch name")


class World:
    """A controller, two racks, and joins by way of them."""

    def __init__(self, slots: int = 64) -> None:
        self.numbers = iter(range(1, 1000))
        self.controller = TreeController(slots, 360, lambda: next(self.numbers), lease_ns=4 * SECOND)
        for number, name in enumerate(("rack1", "rack2"), 1):
            assert self.controller.register(offer(name, ROOT, number, slots=32), 0) == ("", False)

    def join(self, job: str, vias: list[str], slots: int = 8, now_ns: int = 0) -> None:
        for rank, via in enumerate(vias):
            number = next(self.numbers)
            address = (f"10.0.{number}.{rank}", 7)
            self.controller.join(
                Join(
                    job=job,
                    rank=rank,
                    workers=len(vias),
                    elements=360,
                    streams=1,
                    window_slots=slots,
                    address=address,
                    incarnation=number,
                    timeout_ns=60 * SECOND,
                    via=via,
                    congestion="none",
                ),
                now_ns,
            )

    def events(self) -> list[object]:
        found = []
        while (event := self.controller.next_event()) is not None:
            found.append(event)
        return found

    def admitted(self) -> JobAdmitted:
        return next(event for event in self.events() if isinstance(event, JobAdmitted))

    def take(self, number: int, *jobs: JobAdmitted, fault: str = "") -> None:
        held = {(one.job.job_id, one.job.generation): fault for one in jobs}
        assert self.controller.beat(1000 + number, held, 0)


def test_workers_are_told_once_all_switches_have_the_job() -> None:
    world = World()
    world.join("one", ["rack1", "rack2", "rack2"])
    admitted = world.admitted()
    for share in admitted.shares:  # a switch below gets the whole job
        assert share_message(admitted, share, ("", 5556), HopSecrets("none")).config() == admitted.job
    member = admitted.members[0].incarnation
    assert isinstance(world.controller.membership_state(member), Waiting)
    assert [share.switch for _, share in world.controller.shares(1001)] == ["rack1"]
    world.take(1, admitted)
    assert not world.events()
    world.take(2, admitted)
    assert world.events() == [JobReady(admitted)]
    assert isinstance(world.controller.membership_state(member), Running)
    world.controller.handle_timer(4 * SECOND - 1)
    assert not world.events()


def test_a_refusal_a_death_and_a_stop_end_the_job_at_all_levels() -> None:
    world = World()
    for end in ("refusal", "stop", "death"):
        world.join("one", ["rack1", "rack2"])
        admitted = world.admitted()
        if end == "refusal":
            world.take(2, admitted, fault="no memory")
        elif end == "stop":
            world.controller.withdraw(1002, "maintenance")
            world.controller.register(offer("rack2", ROOT, 2), 0)
        else:
            world.take(1, admitted)
            for one in admitted.members:
                world.controller.heartbeat(one.incarnation, 3 * SECOND)
            world.controller.beat(1001, {}, 3 * SECOND)
            world.controller.handle_timer(4 * SECOND)
        evicted, failed = world.events()
        assert isinstance(evicted, JobEvicted)
        assert isinstance(failed, JobFailed)
        assert "switch 'rack2'" in failed.reason
        assert not world.controller.shares(1001)


def test_slots_are_the_lowest_free_at_all_switches_of_a_job() -> None:
    world = World()
    world.join("one", ["rack1", "rack1"])
    assert world.admitted().job.slots == (0, 8)
    world.join("two", ["rack2", "rack2"])
    assert world.admitted().job.slots == (0, 8)
    world.join("both", ["rack1", "rack2"])
    assert world.admitted().job.slots == (8, 16)
    world.join("root", ["", ""], slots=48)
    assert world.admitted().job.slots == (16, 64)
    assert world.controller.free_slots() == 64 - 8 - 48


def test_what_no_tree_can_serve_waits_as_for_slots_and_is_then_refused() -> None:
    for via, slots, said in (
        ("rack9", 8, "switch 'rack9' is not registered here; registered: 'rack1', 'rack2'"),
        ("rack1", 40, "switch 'rack1' at 10.1.0.1:5556 has 32 slots of up to 360 elements, the job needs 40 slots"),
    ):
        world = World()
        world.join("one", [via, ""], slots)
        assert not world.events()
        world.controller.beat(1001, {}, 7 * SECOND)
        for gathering in world.controller.waiting():
            for one in gathering.present:
                world.controller.heartbeat(one.incarnation, 7 * SECOND)
        world.controller.beat(1002, {}, 7 * SECOND)
        world.controller.handle_timer(8 * SECOND)
        (refused,) = world.events()
        assert isinstance(refused, JoinRefused)
        assert said in refused.reason
        assert not refused.lacks_room
