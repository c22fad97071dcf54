"""Workloads: the same model everywhere, every sample once per epoch, and they learn."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from emulation.scenario.errors import WorkloadError
from emulation.scenario.profiles.buckets import bucket_layout
from emulation.scenario.workload_kinds import WORKLOADS
from emulation.workloads.replicas import Replicas
from emulation.workloads.tasks import text as text_module
from emulation.workloads.tasks.digits import DigitsTask
from emulation.workloads.tasks.images import ImagesTask
from emulation.workloads.tasks.text import TextTask
from emulation.workloads.workload import build_workload, learning_task

WORKERS, BATCH = 4, 32


def average(replicas: Replicas, gradients: list[list[np.ndarray]]) -> list[list[np.ndarray]]:
    """What an exact allreduce gives every rank."""
    workers = len(gradients)
    averaged = [np.sum(buckets, axis=0) / np.float32(workers) for buckets in zip(*gradients, strict=True)]
    assert [flat.size for flat in averaged] == [bucket.elements for bucket in replicas.buckets]
    return [averaged] * workers


def train(replicas: Replicas, iterations: int) -> None:
    for iteration in range(iterations):
        replicas.apply(iteration, average(replicas, replicas.gradients(iteration)))


# ---- data


def test_an_epoch_gives_each_sample_to_one_rank_once() -> None:
    ranks = [build_workload("digits", 3, rank, WORKERS, BATCH) for rank in range(WORKERS)]
    steps = ranks[0].task.samples // (WORKERS * BATCH)
    first = [rank.sample_indices(step) for step in range(steps) for rank in ranks]
    second = [rank.sample_indices(step) for step in range(steps, 2 * steps) for rank in ranks]
    for epoch in (first, second):
        seen = np.concatenate(epoch)
        assert len(seen) == steps * WORKERS * BATCH
        assert len(set(seen.tolist())) == len(seen)
        assert seen.min() >= 0
        assert seen.max() < ranks[0].task.samples
    assert not np.array_equal(first, second)


def test_the_batch_of_an_iteration_is_reproducible() -> None:
    one = build_workload("digits", 3, 1, WORKERS, BATCH)
    before, _ = one.train_batch(7)
    one.train_batch(60)  # another epoch
    again, _ = one.train_batch(7)
    other_seed, _ = build_workload("digits", 4, 1, WORKERS, BATCH).train_batch(7)
    assert torch.equal(before, again)
    assert not torch.equal(before, other_seed)


def test_held_out_digits_are_not_learnt_from() -> None:
    task = DigitsTask()
    (held_out, _) = next(task.held_out())
    held = {image.numpy().tobytes() for image in held_out}
    learnt = {np.ascontiguousarray(image[:, 1:9, 1:9]).tobytes() for image in task._padded}
    assert len(held) == 360
    assert not held & learnt


def test_digits_move_by_at_most_a_pixel() -> None:
    task = DigitsTask()
    images, labels = task.batch(np.zeros(200, np.int64), np.random.default_rng(0))
    whole = task._padded[0, 0]
    allowed = {whole[r : r + 8, c : c + 8].tobytes() for r in range(3) for c in range(3)}
    assert {np.ascontiguousarray(image[0]).tobytes() for image in images.numpy()} == allowed
    assert set(labels.tolist()) == {int(task._labels[0])}


def test_held_out_images_are_not_learnt_from() -> None:
    task = ImagesTask()
    (held_out, labels) = next(task.held_out())
    held = {image.numpy().tobytes() for image in held_out}
    learnt = {np.ascontiguousarray(image[:, 2:18, 2:18]).tobytes() for image in task._padded}
    assert (len(held), len(learnt)) == (2048, 8192)
    assert not held & learnt
    assert np.bincount(labels).min() > 150


def test_text_targets_are_the_next_bytes_and_windows_are_disjoint() -> None:
    task = TextTask()
    inputs, targets = task.batch(np.array([5, 6, task.samples - 1]), np.random.default_rng(0))
    assert torch.equal(inputs[:, 1:], targets[:, :-1])
    assert bytes(inputs[:2].flatten().tolist()) == task._learnt[5 * 64 : 7 * 64].tobytes()
    assert len(task.source_sha256) == 64


def test_text_without_sources_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(text_module.sysconfig, "get_path", lambda _: str(tmp_path))
    with pytest.raises(WorkloadError, match="use a Python that ships them, or the workload digits"):
        text_module._standard_library.__wrapped__()


@pytest.mark.parametrize(
    ("name", "batch", "message"),
    [("digits", 400, "lower batch_per_worker to 359 or less"), ("didgits", 1, "there are: digits, images")],
)
def test_impossible_workloads_are_refused_with_how_to_fix_them(name: str, batch: int, message: str) -> None:
    with pytest.raises(WorkloadError, match=message):
        build_workload(name, 1, 0, WORKERS, batch)


# ---- models


@pytest.mark.parametrize(("name", "low", "high"), [("digits", 1e6, 2e6), ("images", 1e5, 2e5), ("text", 9e6, 12e6)])
def test_initial_parameters_follow_from_the_seed_alone(name: str, low: float, high: float) -> None:
    ranks = [build_workload(name, 5, rank, 2, 4) for rank in range(2)]
    torch.rand(3)  # the global generator may be anywhere
    other = build_workload(name, 6, 0, 2, 4)
    assert ranks[0].parameter_sha256() == ranks[1].parameter_sha256() != other.parameter_sha256()
    assert low <= ranks[0].parameters <= high
    assert ranks[0].gradient_bytes == 4 * ranks[0].parameters
    assert not list(ranks[0].model.buffers())  # nothing but gradients to exchange


def test_building_a_workload_leaves_the_global_generator_alone() -> None:
    torch.manual_seed(1)
    expected = torch.rand(2)
    torch.manual_seed(1)
    build_workload("digits", 5, 0, 1, 4)
    assert torch.equal(torch.rand(2), expected)


def test_the_gpt_never_looks_ahead() -> None:
    model = build_workload("text", 1, 0, 1, 1).model
    symbols = torch.randint(0, 256, (2, 64), generator=torch.Generator().manual_seed(0))
    changed = symbols.clone()
    changed[:, 40:] = (changed[:, 40:] + 1) % 256
    with torch.no_grad():
        before, after = model(symbols), model(changed)
    torch.testing.assert_close(before[:, :40], after[:, :40])
    assert not torch.allclose(before[:, 40:], after[:, 40:])


def test_the_learning_rate_rises_and_falls_to_zero() -> None:
    one = build_workload("digits", 1, 0, 1, 4, iterations=100)
    rates = [one.learning_rate(iteration) for iteration in range(101)]
    assert rates.index(max(rates)) == 9
    assert rates[10:] == sorted(rates[10:], reverse=True)
    assert rates[100] == pytest.approx(0.0)


# ---- learning, all ranks in this process


def test_digits_reaches_97_percent_on_4_workers() -> None:
    replicas = Replicas("digits", 1, WORKERS, BATCH, iterations=80)
    train(replicas, 80)
    assert replicas.evaluate().accuracy >= 0.97
    assert len(set(replicas.parameter_hashes())) == 1


def test_images_are_learnt_neither_at_once_nor_wholly() -> None:
    replicas = Replicas("images", 1, 1, 64, iterations=160)
    scores = []
    for iteration in range(160):
        replicas.apply(iteration, average(replicas, replicas.gradients(iteration)))
        if iteration in (9, 159):
            scores.append(replicas.evaluate().accuracy)
    assert scores[0] < 0.3
    assert 0.5 < scores[1] < 0.95


def test_the_loss_of_text_falls() -> None:
    replicas = Replicas("text", 1, 2, 2, iterations=12)
    first = replicas.evaluate()
    train(replicas, 12)
    last = replicas.evaluate()
    assert first.loss == pytest.approx(np.log(256), abs=0.3)  # begins by knowing nothing
    assert last.loss < 4.0


def test_the_same_seed_gives_the_same_bits() -> None:
    hashes = []
    for _ in range(2):
        replicas = Replicas("digits", 2, 2, 8, iterations=5)
        train(replicas, 5)
        hashes.append(replicas.parameter_hashes())
    assert hashes[0] == hashes[1]


def test_a_rank_with_other_gradients_diverges() -> None:
    replicas = Replicas("digits", 2, 2, 8, iterations=5)
    averaged = average(replicas, replicas.gradients(0))
    wrong = [flat.copy() for flat in averaged[1]]
    wrong[-1][0] += 1.0
    replicas.apply(0, [averaged[0], wrong])
    first, second = replicas.parameter_hashes()
    assert first != second


def test_averaged_gradients_are_those_of_the_whole_batch() -> None:
    """Data-parallel training is training on the global batch: within rounding, for float32 sums in another order."""
    replicas = Replicas("digits", 2, 2, 8, iterations=5)
    averaged = np.concatenate(average(replicas, replicas.gradients(0))[0])
    both = [one.train_batch(0) for one in replicas.workloads]
    images, labels = (torch.cat(parts) for parts in zip(*both, strict=True))
    model = replicas.workloads[0].model
    model.zero_grad()
    nn.functional.cross_entropy(model(images), labels).backward()
    parameters = list(model.parameters())
    order = [index for bucket in replicas.buckets for index in bucket.parameters]
    whole = np.concatenate([parameters[index].grad.numpy().reshape(-1) for index in order])
    np.testing.assert_allclose(averaged, whole, atol=1e-5)


# ---- buckets


def test_buckets_cover_all_parameters_and_become_ready_in_order() -> None:
    replicas = Replicas("digits", 1, 1, 8)
    indices = [index for bucket in replicas.buckets for index in bucket.parameters]
    assert sorted(indices) == list(range(len(indices)))
    assert sum(bucket.elements for bucket in replicas.buckets) == replicas.parameters
    assert max(replicas.buckets[0].parameters) == len(indices) - 1  # the output side comes first
    fractions = [bucket.ready_fraction for bucket in replicas.buckets]
    assert len(fractions) == 3
    assert fractions == sorted(fractions)
    assert fractions[-1] == 1.0
    assert replicas.forward_fraction == pytest.approx(1 / 3, abs=0.02)  # backward: twice the forward operations
    ready_ns = replicas.ready_ns(60_000_000)
    assert ready_ns[-1] == 60_000_000
    assert 20_000_000 <= ready_ns[0] < ready_ns[1] < 30_000_000


def test_a_bucket_closes_once_it_is_full() -> None:
    sizes_bytes = [40, 1200, 40, 40]
    assert bucket_layout([3, 2, 1, 0], sizes_bytes, 80) == [[3, 2], [1], [0]]
    assert bucket_layout([3, 2, 1, 0], sizes_bytes, 1 << 20) == [[3, 2, 1, 0]]


def test_measuring_changes_no_parameters() -> None:
    replicas = Replicas("digits", 1, 1, 8)
    before = replicas.parameter_hashes()
    assert replicas.measure_compute_ns() > 0
    assert replicas.parameter_hashes() == before


def test_every_workload_names_the_source_of_its_data() -> None:
    for name in WORKLOADS:
        task = learning_task(name)
        assert task.source
        assert len(task.source_sha256) == 64
