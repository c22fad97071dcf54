"""Our numbers of what is sent: the bytes of codecs, and the time that fewer of them save.

Each function takes a published result and returns our numbers by the names of its cells; its file has the constants.
"""

from __future__ import annotations

import numpy as np

from emulation.experiments.reproduce.published import Numbers, Published
from emulation.scenario.bounds import coded_share
from emulation.scenario.profiles.model_profile import load
from switchagg.codecs.array_codec import ArrayCodec
from switchagg.codecs.rotated.thc import LANE_BITS
from switchagg.codecs.spec import parse_codec
from transport.group.method_name import MethodName

MIB = 1 << 20


def codec_bytes(published: Published) -> Numbers:
    """MiB of each model's gradient: dense, and as one rank sends it. The codec thins matrices; vectors go whole."""
    constants, numbers = published.constants, dict[str, float]()
    codec = _array_codec(constants["codec"])
    for model, tensors in constants["models"].items():
        matrices, vectors = tensors if isinstance(tensors, list) else _tensors(tensors)
        sent_bytes = sum(sum(codec.moved(values, 1).values()) for values in matrices) + 4 * sum(vectors)
        numbers[f"{model}, dense"] = 4 * (sum(matrices) + sum(vectors)) / MIB
        numbers[f"{model}, compressed"] = sent_bytes / MIB
    return numbers


def _array_codec(text: str) -> ArrayCodec:
    codec = parse_codec(text).codec
    assert isinstance(codec, ArrayCodec)
    return codec


def _tensors(profile: str) -> tuple[list[int], list[int]]:
    """Elements of a profile's matrices and of its vectors: biases, and what a norm has of the same size."""
    matrices, vectors = list[int](), list[int]()
    for layer in load(profile).layers:
        bias = layer.tensors.get("bias")
        for size in layer.tensors.values():
            (vectors if size == bias else matrices).append(size)
    return matrices, vectors


def sums_of_chosen_values(published: Published) -> Numbers:
    """Images per second and GPU, of an iteration that is computing, coding and a sum of what a codec sends.

    Of the model that calibrates, the cells of the fewest workers fix what coding takes by value, at the nominal time of
    a byte, those of more workers what a byte takes there, all for each method.
    """
    constants, numbers = published.constants, dict[str, float]()
    calibrating, workers_of_cells = constants["calibrates"], constants["workers"]
    values = {model: _values(tensors) for model, tensors in constants["models"].items()}

    def iteration_ns(model: str, images_per_s: float) -> float:
        return float(constants["batch"][model] * 1e9 / images_per_s)

    def steps_and_bytes(model: str, codec: str, workers: int) -> tuple[float, float]:
        """Nanoseconds of steps, and bytes, of a rank: two passes of the ring, or one of what all ranks chose."""
        if codec:
            steps = workers - 1
            return steps * constants["step_ns"], steps * _moved_bytes(codec, values[model], workers) / workers
        steps = 2 * (workers - 1)
        return steps * constants["step_ns"], steps * 4.0 * values[model] / workers

    for method, codec in constants["codecs"].items():
        value_ns = 0.0
        for workers in workers_of_cells:
            rate = published.number(f"{calibrating}, {workers} workers, {method}")
            steps_ns, size_bytes = steps_and_bytes(calibrating, codec, workers)
            alone_ns = iteration_ns(calibrating, constants["images_per_s_alone"][calibrating])
            beside_ns = iteration_ns(calibrating, rate) - alone_ns - steps_ns
            if workers == workers_of_cells[0]:
                value_ns = (beside_ns - size_bytes * constants["ns_per_byte"]) / values[calibrating]
            byte_ns = (beside_ns - value_ns * values[calibrating]) / size_bytes
            for model in values:
                steps_ns, size_bytes = steps_and_bytes(model, codec, workers)
                alone_ns = iteration_ns(model, constants["images_per_s_alone"][model])
                whole_ns = alone_ns + value_ns * values[model] + steps_ns + byte_ns * size_bytes
                numbers[f"{model}, {workers} workers, {method}"] = constants["batch"][model] * 1e9 / whole_ns
    return numbers


def _values(tensors: str | int) -> int:
    """Of a profile, or as given."""
    return load(tensors).elements if isinstance(tensors, str) else tensors


def _moved_bytes(codec: str, values: int, workers: int) -> float:
    return float(_array_codec(codec).moved(values, workers)["all_gather"])


def union_of_blocks(published: Published) -> Numbers:
    """Milliseconds of a sum of blocks, linear in the number of workers, the share of blocks that a worker sends, its
    own, and the share it gets, those that some worker has. Four cells fix the line."""
    densities = {int(zeros): density for zeros, density in published.constants["densities"].items()}

    def terms(workers: int, zeros: int) -> tuple[float, ...]:
        return 1.0, workers, densities[zeros], 1 - (1 - densities[zeros]) ** workers

    places = {
        f"{workers} workers, {zeros} % zeros": terms(workers, zeros)
        for workers in published.constants["workers"]
        for zeros in densities
    }
    calibrating = [cell for cell in published.cells if cell.role == "calibrates"]
    line = np.linalg.solve([places[cell.name] for cell in calibrating], [cell.published for cell in calibrating])
    return {name: float(np.dot(row, line)) for name, row in places.items()}


def lanes_of_bytes(published: Published) -> Numbers:
    """How many times less than float32 a codec puts on the wire, through the switch: alike in both directions."""
    constants = published.constants
    method = MethodName("switch", "udp", codec=constants["codec"])
    less = coded_share(method, "float32", 360, constants["workers"])
    narrow = 1 / (1 / less - (LANE_BITS - constants["index_bits"]) / 32)
    return {
        "to the aggregator": less,
        "from the aggregator": less,
        "to the aggregator, in lanes of 4 bits": narrow,
    }
