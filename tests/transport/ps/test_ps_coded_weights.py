"""Gradients that are coded on their way to servers that keep weights."""

import re

import numpy as np
import pytest

from switchagg.errors import JobError
from tests.shared.ps_world import World
from transport.contracts.group_contract import Array
from transport.group.ps_group import open_ps_client
from transport.meshes.mesh import OutgoingMessage
from transport.ps.config import ASP, DC_ASGD, SSP, PsConfig
from transport.ps.ps_messages import PsMessageKind, PsOp, unpack

ELEMENTS, TIMES = 5760, 20


def weights_after(config: PsConfig, gradients: list[Array], sizes: dict[int, int] | None = None) -> list[Array]:
    """What each worker has after pushing its gradient TIMES times, one worker after the other in each round."""
    world = World(config)
    if sizes is not None:

        def seen(sender: int, to: int, message: OutgoingMessage) -> None:
            head = unpack(message.head)
            if head is not None and head.kind == PsMessageKind.PUSH and head.op == PsOp.GRADIENT:
                sizes[sender] = sizes.get(sender, 0) + len(message.data)

        world.on_delivery = seen
    weights = [np.zeros(ELEMENTS, np.float32) for _ in gradients]
    for rank, mine in enumerate(weights):
        world.call(rank, "init", mine, key=0)
    world.run()
    for _ in range(TIMES):
        for rank, gradient in enumerate(gradients):
            world.call(rank, "push_pull", gradient.copy(), target=weights[rank], key=0)
            world.run()
    for rank in range(len(gradients)):
        world.call(rank, "pull", weights[rank], key=0)
    world.run()
    assert all(one.failure is None for ended in world.finished.values() for one in ended)
    return weights


def gradients_of(workers: int) -> list[Array]:
    """Of very different scale: each worker has its own."""
    random = np.random.default_rng(5)
    return [random.standard_normal(ELEMENTS).astype(np.float32) * np.float32(100.0**rank) for rank in range(workers)]


@pytest.mark.parametrize("mode", [SSP, ASP, DC_ASGD])
def test_what_a_push_lost_is_in_later_ones(mode: str) -> None:
    """After many pushes no more is missing than what one of each worker loses: a step of 1/127 of its row's scale."""
    config = PsConfig(
        2, 2, mode, learning_rate=1.0, slice_elements=2880, codec="lanes8+ef", compensation=0.0,
        staleness=TIMES if mode == SSP else 0,
    )  # fmt: skip
    gradients, sizes = gradients_of(2), dict[int, int]()
    found = weights_after(config, gradients, sizes)
    expected = -TIMES * (gradients[0].astype(np.float64) + gradients[1])
    bound = sum(np.abs(gradient).max() for gradient in gradients) * 1.01 / 127
    for weights in found:
        assert 0 < np.abs(weights - expected).max() < bound
    assert sizes == {rank: TIMES * (ELEMENTS + 4 * ELEMENTS // 1440) for rank in range(2)}


def test_without_feedback_small_values_are_lost() -> None:
    gradient = np.full(ELEMENTS, 1e-6, np.float32)
    gradient[::1000] = 1.0  # a step is 1 / 32767
    lost, kept = (
        weights_after(PsConfig(1, 1, ASP, learning_rate=1.0, codec=codec), [gradient])[0]
        for codec in ("lanes16", "lanes16+ef")
    )
    assert lost[1] == 0
    assert -5e-5 < kept[1] < -1e-5


def test_short_tensors_and_float64_travel_as_they_are() -> None:
    sizes: dict[int, int] = {}
    config = PsConfig(1, 1, ASP, learning_rate=1.0, codec=f"lanes4:least={ELEMENTS + 1}+ef")
    (gradient,) = gradients_of(1)
    found = weights_after(config, [gradient], sizes)[0]
    expected = np.zeros(ELEMENTS, np.float32)
    for _ in range(TIMES):
        expected -= gradient
    assert found.tobytes() == expected.tobytes()
    assert sizes == {0: TIMES * 4 * ELEMENTS}


@pytest.mark.parametrize(
    ("codec", "words"),
    [
        ("lanes8+ef21", "servers that keep weights keep no gradients, as +ef21 would"),
        ("lanes8:warmup=5", "gradients for servers take codecs of rows, with +ef or without"),
        ("lanes9", "codec 'lanes9' is unknown; allowed:"),
    ],
)
def test_what_they_cannot_take_is_refused(codec: str, words: str) -> None:
    with pytest.raises(ValueError, match=re.escape(words)):
        PsConfig(2, mode=ASP, codec=codec)


def test_steps_on_the_mean_are_not_coded_and_say_so() -> None:
    with pytest.raises(JobError, match="codec lanes8: pushes are coded in modes ssp, asp, dc_asgd, not bsp"):
        open_ps_client("tcp", 0, [("127.0.0.1", 1)], config=PsConfig(1, codec="lanes8"))


def test_workers_with_different_codecs_are_named() -> None:
    config = PsConfig(2, 1, ASP, codec="lanes8+ef")
    world = World(config, configs={1: PsConfig(2, 1, ASP, codec="lanes16")})
    world.call(0, "init", np.zeros(5, np.float32), key=0)
    world.run()
    failure = world.finished[0][0].failure
    assert failure is not None
    assert "codec lanes8+ef" in str(failure)
    assert "rank 1 has codec lanes16" in str(failure)
