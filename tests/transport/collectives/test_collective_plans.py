"""Every algorithm of every kind: right results in any order of delivery, the same bits everywhere, exact counts."""

from typing import Any

import numpy as np
import pytest
from collective_net import integers, run_once

from switchagg.calls.call_request import CallRequest
from switchagg.description import KINDS, shard_range
from tests.oracles.sent_volumes import SENT_VOLUMES, SentVolume
from transport.collectives.collective import Task
from transport.collectives.collective_plan import CollectivePlan, Receive, Send
from transport.collectives.collective_table import COLLECTIVES, fitting, plan, with_kind
from transport.collectives.halving import blocks, reversed_bits
from transport.collectives.rings import hierarchical_group, torus_sides
from transport.collectives.trees import binary_tree, complementary_trees
from transport.group.method_name import host_methods

WORKERS = (1, 2, 3, 4, 5, 6, 7, 8, 12, 13, 16)
ALLREDUCES = with_kind("allreduce")


@pytest.mark.parametrize("algorithm", ALLREDUCES)
@pytest.mark.parametrize("workers", WORKERS)
def test_allreduce_sums_integers_exactly_whatever_the_order(algorithm: str, workers: int) -> None:
    for elements in (0, 1, workers - 1, workers + 1, 45):
        arrays = integers(workers, elements, seed=workers)
        expected = np.sum(arrays, axis=0)
        run_once("allreduce", algorithm, arrays, seed=elements)
        for array in arrays:
            assert np.array_equal(array, expected)


@pytest.mark.parametrize("algorithm", ALLREDUCES)
def test_the_largest_job_works(algorithm: str) -> None:
    for workers, elements in ((31, 40), (64, 70)):
        arrays = integers(workers, elements, seed=1)
        expected = np.max(arrays, axis=0)
        run_once("allreduce", algorithm, arrays, "max")
        assert all(np.array_equal(array, expected) for array in arrays)


@pytest.mark.parametrize("algorithm", ALLREDUCES)
@pytest.mark.parametrize("workers", [3, 5, 8, 12])
def test_floats_are_the_same_to_the_bit_on_all_ranks_and_in_any_order(algorithm: str, workers: int) -> None:
    generator = np.random.default_rng(workers)
    given = [
        (generator.standard_normal(101) * 10.0 ** generator.integers(-8, 8)).astype(np.float32) for _ in range(workers)
    ]
    results = set()
    for seed in (1, 2, 3):
        arrays = [array.copy() for array in given]
        run_once("allreduce", algorithm, arrays, seed=seed)
        results.update(array.tobytes() for array in arrays)
    assert len(results) == 1
    exact = np.sum(given, axis=0, dtype=np.float64)
    largest = np.sum(np.abs(given), axis=0, dtype=np.float64)
    got = np.frombuffer(results.pop(), np.float32)
    assert np.all(np.abs(got - exact) <= workers * np.finfo(np.float32).eps * largest)


@pytest.mark.parametrize("algorithm", with_kind("reduce_scatter"))
@pytest.mark.parametrize("workers", WORKERS)
def test_reduce_scatter_leaves_each_rank_its_shard(algorithm: str, workers: int) -> None:
    if not COLLECTIVES[algorithm].kinds["reduce_scatter"].fits(workers):
        return
    for elements in (0, workers - 1, 50):
        arrays = integers(workers, elements, seed=2)
        expected = np.sum(arrays, axis=0)
        run_once("reduce_scatter", algorithm, arrays, seed=elements)
        for rank, array in enumerate(arrays):
            low, high = shard_range(elements, rank, workers)
            assert np.array_equal(array[low:high], expected[low:high])


@pytest.mark.parametrize("algorithm", with_kind("all_gather"))
@pytest.mark.parametrize("workers", WORKERS)
def test_all_gather_spreads_the_shards(algorithm: str, workers: int) -> None:
    if not COLLECTIVES[algorithm].kinds["all_gather"].fits(workers):
        return
    for elements in (0, workers - 1, 50):
        expected = np.arange(elements)
        arrays = [np.full(elements, -1) for _ in range(workers)]
        for rank, array in enumerate(arrays):
            low, high = shard_range(elements, rank, workers)
            array[low:high] = expected[low:high]
        run_once("all_gather", algorithm, arrays, seed=elements)
        assert all(np.array_equal(array, expected) for array in arrays)


@pytest.mark.parametrize("algorithm", with_kind("broadcast"))
@pytest.mark.parametrize("workers", WORKERS)
def test_broadcast_gives_all_what_the_root_has(algorithm: str, workers: int) -> None:
    for root in {0, workers // 2, workers - 1}:
        arrays = integers(workers, 37, seed=3)
        expected = arrays[root].copy()
        run_once("broadcast", algorithm, arrays, seed=root, root=root)
        assert all(np.array_equal(array, expected) for array in arrays)


@pytest.mark.parametrize("algorithm", with_kind("reduce"))
@pytest.mark.parametrize("workers", WORKERS)
def test_reduce_gives_the_root_the_sum(algorithm: str, workers: int) -> None:
    for root in {0, workers // 2, workers - 1}:
        arrays = integers(workers, 37, seed=3)
        expected = np.sum(arrays, axis=0)
        run_once("reduce", algorithm, arrays, seed=root, root=root)
        assert np.array_equal(arrays[root], expected)


@pytest.mark.parametrize("workers", [2, 3, 4, 7, 8, 9])
def test_no_rank_leaves_a_barrier_before_all_have_entered(workers: int) -> None:
    from collective_net import Net

    net = Net(workers, seed=workers)
    last = workers // 2
    for rank in range(workers):
        if rank != last:
            net.parties[rank].submit(CallRequest("barrier"), "dissemination", np.empty(0), now_ns=0)
    net.run()
    assert net.ends == [[]] * workers
    net.parties[last].submit(CallRequest("barrier"), "dissemination", np.empty(0), now_ns=0)
    net.run()
    assert net.failures() == [""] * workers


# ---- counts


def plans(
    kind: Any, algorithm: str, workers: int, elements: int, root: int = 0, option: int = 0
) -> list[CollectivePlan]:
    return [plan(Task(kind, algorithm, member, workers, elements, root, option)) for member in range(workers)]


def sent(each: CollectivePlan) -> SentVolume:
    """By a plan, whose messages are not cut into segments."""
    sends = [operation for operation in each.operations if isinstance(operation, Send)]
    return SentVolume(len(sends), sum(one.high - one.low for one in sends))


CASES = [
    (kind, algorithm, workers)
    for kind in KINDS
    for algorithm in with_kind(kind)
    for workers in (*range(1, 18), 24, 31, 64)
    if COLLECTIVES[algorithm].kinds[kind].fits(workers)
]


@pytest.mark.parametrize("kind", KINDS)
def test_every_rank_sends_what_the_closed_formula_says(kind: str) -> None:
    for case_kind, algorithm, workers in CASES:
        if case_kind != kind or (case_kind, algorithm) not in SENT_VOLUMES:
            continue
        for elements in (7, 1000 + workers):
            for member, each in enumerate(plans(kind, algorithm, workers, elements, workers // 3)):
                task = Task(case_kind, algorithm, member, workers, elements, workers // 3)
                assert sent(each) == SENT_VOLUMES[case_kind, algorithm](task), (algorithm, workers, elements, member)


@pytest.mark.parametrize("workers", [2, 4, 8, 16, 32, 64])
def test_the_counts_of_powers_of_two_are_the_textbooks(workers: int) -> None:
    elements = 64 * 63  # every piece has the same size
    steps = workers.bit_length() - 1
    share = 2 * elements * (workers - 1) // workers
    expected = {
        "ring": (2 * (workers - 1), share),
        "halving_doubling": (2 * steps, share),
        "naive_ring": (workers - 1, (workers - 1) * elements),
        "recursive_doubling": (steps, steps * elements),
        "direct": (2 * (workers - 1), share),
    }
    for algorithm, counts in expected.items():
        for each in plans("allreduce", algorithm, workers, elements):
            assert sent(each) == counts


@pytest.mark.parametrize("workers", range(2, 65))
def test_trees_send_twice_per_edge_and_no_rank_more_than_twice_the_array(workers: int) -> None:
    tree = plans("allreduce", "tree", workers, 10)
    assert sum(sent(each).messages for each in tree) == 2 * (workers - 1)
    assert sent(tree[0]).messages == (workers - 1).bit_length()  # the root
    assert sent(tree[workers - 1 - workers % 2]).messages == 1  # the highest odd rank is a leaf
    double = plans("allreduce", "double_tree", workers, 10)
    assert sum(sent(each).messages for each in double) == 2 * 2 * (workers - 1)
    assert sum(sent(each).elements for each in double) == 2 * (workers - 1) * 10
    assert max(sent(each).elements for each in double) <= 2 * 10


@pytest.mark.parametrize(("kind", "algorithm"), sorted({(kind, algorithm) for kind, algorithm, _ in CASES}))
def test_every_send_has_a_receive_of_the_same_length(kind: str, algorithm: str) -> None:
    for case_kind, name, workers in CASES:
        if (case_kind, name) != (kind, algorithm) or workers > 20:
            continue
        sends, receives = {}, {}
        for each in plans(kind, algorithm, workers, 101, 0):
            for operation in each.operations:
                if isinstance(operation, Send):
                    key = (each.member, operation.to, operation.step)
                    assert key not in sends
                    sends[key] = operation.high - operation.low
                elif isinstance(operation, Receive):
                    receives[operation.sender, each.member, operation.step] = operation.high - operation.low
        assert sends == receives


# ---- parts


def test_binary_blocks_are_the_powers_of_two_of_the_number() -> None:
    assert blocks(1) == [(0, 1)]
    assert blocks(13) == [(0, 8), (8, 4), (12, 1)]
    assert [reversed_bits(value, 8) for value in range(8)] == [0, 4, 2, 6, 1, 5, 3, 7]
    assert reversed_bits(0, 1) == 0


def test_a_torus_is_as_square_as_possible_and_a_prime_is_one_ring() -> None:
    assert [torus_sides(workers) for workers in (1, 6, 12, 16, 13, 64)] == [
        (1, 1),
        (3, 2),
        (4, 3),
        (4, 4),
        (13, 1),
        (8, 8),
    ]
    ring = plans("allreduce", "ring", 13, 100)
    assert [each.operations for each in plans("allreduce", "torus", 13, 100)] == [each.operations for each in ring]


def test_groups_must_divide_the_workers() -> None:
    assert [hierarchical_group(workers) for workers in (1, 2, 9, 12, 7)] == [1, 2, 3, 2, 7]
    assert hierarchical_group(12, 4) == 4
    with pytest.raises(ValueError, match="groups of 5 don't divide 12 workers"):
        plan(Task("allreduce", "hierarchical", 0, 12, 10, option=5))
    arrays = integers(12, 50, seed=4)
    expected = np.sum(arrays, axis=0)
    run_once("allreduce", "hierarchical", arrays, option=6)
    assert np.array_equal(arrays[7], expected)


@pytest.mark.parametrize("workers", range(2, 65))
def test_the_two_trees_are_trees_and_complementary(workers: int) -> None:
    for tree in (0, 1):
        nodes = [complementary_trees(rank, workers)[tree] for rank in range(workers)]
        for rank, (parent, children) in enumerate(nodes):
            assert len(children) <= 2
            assert all(nodes[child][0] == rank for child in children)
            assert parent is None or rank in nodes[parent][1]
        seen, frontier = set(), [rank for rank, (parent, _) in enumerate(nodes) if parent is None]
        assert len(frontier) == 1
        while frontier:
            rank = frontier.pop()
            assert rank not in seen
            seen.add(rank)
            frontier += nodes[rank][1]
        assert len(seen) == workers
    inner_in_both = [
        rank for rank in range(workers) if all(len(children) == 2 for _, children in complementary_trees(rank, workers))
    ]
    assert inner_in_both == []
    assert binary_tree(0, 1) == (None, [])


def test_every_method_has_an_algorithm_for_every_kind() -> None:
    for method in (*host_methods(), "auto"):
        for kind in KINDS:
            for workers in (1, 2, 3, 64):
                name = fitting(kind, method, workers)
                if kind != "allreduce" or method in ALLREDUCES:
                    plan(Task(kind, name, workers - 1, workers, 10))
    assert fitting("allreduce", "torus", 5) == "torus"
    assert fitting("reduce_scatter", "halving_doubling", 8) == "halving_doubling"
    assert fitting("reduce_scatter", "halving_doubling", 6) == "ring"
    assert fitting("broadcast", "ring", 6) == "ring"
    assert fitting("broadcast", "torus", 6) == "tree"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("broadcast", "torus", 0, 4, 1), "torus broadcast is not defined; there are: ring, tree"),
        (("broadcast", "tree", 0, 4, 1, 4), "broadcast with root 4 of 4"),
        (("reduce_scatter", "halving_doubling", 0, 6, 1), "6 workers; it is defined for powers of two"),
        (("allreduce", "direct", 0, 4, 1, 0, 5), "5 roots on 4 workers"),
    ],
)
def test_undefined_collectives_are_refused(arguments: tuple[Any, ...], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        plan(Task(*arguments))
