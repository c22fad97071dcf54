"""Our numbers of what is sent: the bytes of codecs, and the time that fewer of them save.

Each function takes a published result and returns our numbers by the names of its cells; its file has the constants.
"""

from __future__ import annotations

from emulation.experiments.reproduce.published import Numbers, Published
from emulation.scenario.bounds import coded_share
from emulation.scenario.profiles.model_profile import load
from switchagg.codecs.array_codec import ArrayCodec
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
    """Images per second where an iteration is computing, a sum, and a rest that the fewest workers' cell fixes."""
    constants = published.constants
    batch, workers_of_cells = constants["batch"], constants["workers"]
    values, alone_ns = load(constants["profile"]).elements, batch * 1e9 / constants["images_per_s_alone"]

    def network_ns(codec: str, workers: int) -> float:
        """Of one sum: two passes of the ring, or one of what all ranks chose."""
        steps, array_bytes = 2 * (workers - 1), 4.0 * values
        if codec:
            steps, array_bytes = workers - 1, _array_codec(codec).moved(values, workers)["all_gather"]
        return float(steps * (constants["step_ns"] + array_bytes / workers * constants["ns_per_byte"]))

    numbers = dict[str, float]()
    for method, codec in constants["codecs"].items():
        least = workers_of_cells[0]
        rest_ns = batch * 1e9 / published.number(f"{least} workers, {method}") - alone_ns - network_ns(codec, least)
        for workers in workers_of_cells:
            iteration_ns = alone_ns + rest_ns + network_ns(codec, workers)
            numbers[f"{workers} workers, {method}"] = batch * 1e9 / iteration_ns
    return numbers


def union_of_blocks(published: Published) -> Numbers:
    """Milliseconds of a sum by codec `nonzero`, linear in the share of the array it sums; two cells fix the line."""
    densities = {int(zeros): density for zeros, density in published.constants["densities"].items()}

    def summed_share(workers: int, zeros: int) -> float:
        """The blocks that some rank has, and the map: a count of 8 bits for each block of 256 values."""
        return float(1 - (1 - densities[zeros]) ** workers + 1 / 1024)

    def name(workers: int, zeros: int) -> str:
        return f"{workers} workers, {zeros} % zeros"

    few, dense, sparse = published.constants["workers"][0], min(densities), max(densities)
    rise = published.number(name(few, dense)) - published.number(name(few, sparse))
    slope = rise / (summed_share(few, dense) - summed_share(few, sparse))
    start = published.number(name(few, dense)) - slope * summed_share(few, dense)
    return {
        name(workers, zeros): start + slope * summed_share(workers, zeros)
        for workers in published.constants["workers"]
        for zeros in densities
    }


def lanes_of_bytes(published: Published) -> Numbers:
    """How many times less than float32 a codec puts on the wire, through the switch: alike in both directions."""
    constants = published.constants
    method = MethodName("switch", "udp", codec=constants["codec"])
    less = coded_share(method, "float32", 360, constants["workers"])
    return {"to the aggregator": less, "from the aggregator": less}
