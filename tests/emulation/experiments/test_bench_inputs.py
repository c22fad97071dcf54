"""What ranks sum in the benchmark, and what must come out."""

import numpy as np
import pytest

from emulation.experiments.bench.allreduce.exact_inputs import ExactInputs, SumCheck, tensors_of, tolerance
from switchagg.calls.array_calls import rounds_of
from switchagg.codecs.compression import Compression
from switchagg.codecs.exact.exact import ExactSums
from switchagg.codecs.lanes import WIDTHS, Lanes
from switchagg.codecs.spec import CodecSpec
from switchagg.lockstep import sum_together
from tests.oracles.correct_rounding import combined
from transport.group.method_name import parse


@pytest.mark.parametrize("dtype", ["float32", "int32"])
def test_sums_of_the_inputs_are_known_and_differ_from_operation_to_operation(dtype: str) -> None:
    ranks = [ExactInputs(rank, 3, dtype, 500) for rank in range(3)]
    arrays = [np.zeros(500, dtype) for _ in ranks]
    for numbers, array in zip(ranks, arrays, strict=True):
        numbers.fill(array, 205)
    total = arrays[0] + arrays[1] + arrays[2]
    assert [numbers.wrong(total, 205) for numbers in ranks] == [0, 0, 0]
    assert ranks[0].wrong(total, 206) > 400  # an old result isn't taken for a new one
    total[17] += 1
    assert ranks[2].wrong(total, 205) == 1
    total[17] += 1
    assert [ranks[2].wrong(total, 205, allowed) for allowed in (1.9, 2.0)] == [1, 0]
    total[18] = np.nan if dtype == "float32" else 10**6
    assert ranks[2].wrong(total, 205, 2.0) == 1


@pytest.mark.parametrize("workers", [2, 4, 8])
def test_exact_sums_are_measured_on_values_of_which_as_many_bytes_travel_as_of_gradients(workers: int) -> None:
    elements, codec = 6400, ExactSums()
    numbers = ExactInputs(0, workers, "float32", elements, gradients=True)
    arrays = numbers.of_all(elements, 205)
    expected = combined([array[: numbers.PERIOD] for array in arrays])
    assert numbers.combined(numbers.PERIOD, 205).tolist() == expected.tolist()
    in_turn = np.sum(arrays, axis=0, dtype=np.float32)
    assert (numbers.wrong(in_turn, 205) > 0) == (workers > 2)  # one addition is rounded correctly, more aren't
    ranks = [Compression(CodecSpec(codec), rank, workers) for rank in range(workers)]
    travelled, sums = 0, [own.rounds(array, None) for own, array in zip(ranks, arrays, strict=True)]
    for turn in zip(*sums, strict=True):
        travelled += turn[0].array.nbytes
        total = (np.max if turn[0].op == "max" else np.sum)([own.array for own in turn], axis=0)
        for own in turn:
            own.array[:] = total
    assert [numbers.wrong(array, 205) for array in arrays] == [0] * workers
    assert travelled == pytest.approx(codec.moved(elements, workers)["allreduce"], rel=0.06)


@pytest.mark.parametrize("codec", [*map(Lanes, WIDTHS), "bf16", "fp16"])
def test_a_lossy_sum_of_the_inputs_may_be_off_by_what_its_codec_s_rule_allows(codec: Lanes | str) -> None:
    """Held to sums by the codec: none is wrong, and the bound is no more than six times the greatest error."""
    workers, elements = 3, 4320
    arrays = [np.zeros(elements, np.float32) for _ in range(workers)]
    ranks = [ExactInputs(rank, workers, "float32", elements) for rank in range(workers)]
    for numbers, array in zip(ranks, arrays, strict=True):
        numbers.fill(array, 7)
    exact = sum(arrays, np.zeros(elements, np.float32))
    if isinstance(codec, Lanes):
        name = parse(f"ring~{codec.name}")
        rounds = [rounds_of(array, 360, workers, codec, key=rank) for rank, array in enumerate(arrays)]
        for words in zip(*rounds, strict=True):
            combined = (np.max if words[0][1] == "max" else np.sum)([own for own, _ in words], axis=0)
            for own, _ in words:
                own[:] = combined
        found = arrays[0]
    else:
        name = parse(f"gloo~{codec}")
        found = exact * np.float32(1 + 2.0 ** -(9 if codec == "bf16" else 12))  # half a unit of each last place
    allowed = tolerance(name, workers, "float32")
    assert ranks[1].wrong(found, 7) > 0
    assert ranks[1].wrong(found, 7, allowed) == 0
    assert allowed <= 6 * np.abs(found - exact).max()
    assert tolerance(name, workers, "int32") == tolerance(parse("ring~fixed_point"), workers, "float32") == 0


@pytest.mark.parametrize("codec", ["topk:ratio=0.1+ef", "powersgd+ef", "agreed:ratio=0.5+ef", "lanes8:momentum=0.5+ef"])
@pytest.mark.parametrize("at", [0, 1000])
def test_a_codec_without_a_rule_is_held_to_its_own_sum_in_memory(codec: str, at: int) -> None:
    """One value of the first sum that is off by a hundredth is found; of later sums only whether ranks agree."""
    workers, elements, method = 3, 2048, parse(f"ring~{codec}")
    numbers = [ExactInputs(rank, workers, "float32", elements) for rank in range(workers)]
    arrays = [np.zeros(elements, np.float32) for _ in numbers]
    for own, array in zip(numbers, arrays, strict=True):
        own.fill(array, 9)
    assert all((one == other).all() for one, other in zip(arrays, numbers[1].of_all(elements, 9), strict=True))
    spec = method.spec
    assert spec is not None
    sum_together([Compression(spec, rank, workers) for rank in range(workers)], arrays, tensors_of(method, arrays[0]))
    checks = [SumCheck(method, numbers[0], workers, "float32", 360) for _ in range(2)]
    assert checks[0].wrong(arrays[0], 9) == 0
    assert checks[0].digest(arrays[0]) == checks[1].digest(arrays[1]) != 0
    arrays[0][at] += 0.01 * np.abs(arrays[0]).max()
    assert checks[1].wrong(arrays[0], 9) == 1
    assert checks[1].wrong(arrays[0], 9) == 0
    assert checks[0].digest(arrays[0]) != checks[1].digest(arrays[1])
    exact = SumCheck(parse("ring"), numbers[0], workers, "float32", 360)
    assert (exact.digest(arrays[0]), exact.wrong(sum(numbers[0].of_all(8, 9)), 9)) == (0, 0)
