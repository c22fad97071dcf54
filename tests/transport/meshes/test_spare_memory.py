"""Memory is reused when, and only when, nothing refers to it any more."""

import numpy as np

from transport.meshes.spare_memory import SPARE_BYTES_MAX, SPARES_MAX, SpareMemory


def address(memory: memoryview) -> int:
    return int(np.frombuffer(memory, np.uint8).ctypes.data)


def test_memory_in_use_is_never_given_out_again() -> None:
    spare = SpareMemory()
    chance = np.random.default_rng(1)
    held: list[tuple[object, bytes]] = []
    for number in range(2000):
        size = int(chance.integers(1, 400))
        memory = spare.take(size)
        assert len(memory) == size
        assert not memory.readonly
        memory[:] = bytes([number % 256]) * size
        # Held in every way in which a message may be: as it is, a part of it, an array on it.
        looks = (memory, memory[size // 2 :], np.frombuffer(memory, np.uint8), memory.cast("B"))[number % 4]
        held.append((looks, bytes(looks)))  # type: ignore[call-overload]
        del memory, looks
        if len(held) > 20:
            held.pop(int(chance.integers(len(held))))
        assert all(bytes(looks) == content for looks, content in held)  # type: ignore[call-overload]


def test_released_memory_is_reused() -> None:
    spare = SpareMemory()
    first = spare.take(1000)
    place = address(first)
    second = spare.take(1000)
    assert address(second) != place
    del first
    assert address(spare.take(900)) == place
    longer = spare.take(2000)
    assert len(longer) == 2000
    assert address(spare.take(0) or longer) == address(longer)


def test_spare_memory_is_bounded() -> None:
    spare = SpareMemory()
    many = [spare.take(10) for _ in range(3 * SPARES_MAX)]
    large = [spare.take(SPARE_BYTES_MAX // 2) for _ in range(3)]
    assert len({address(one) for one in many + large}) == 3 * SPARES_MAX + 3
    assert len(spare._spares) == SPARES_MAX
    del many
    large.append(spare.take(SPARE_BYTES_MAX // 2))
    large.append(spare.take(SPARE_BYTES_MAX))
    assert sum(len(one) for one in spare._spares) <= SPARE_BYTES_MAX
