"""Descriptions of calls: what ranks compare, in four words (W12)."""

import numpy as np

from switchagg.description import CallSignature, difference

FLOAT32 = np.dtype(np.float32)


def test_a_root_and_a_checksum_of_sizes_have_bits_of_their_own() -> None:
    reduce = CallSignature("reduce", "max", FLOAT32, 7, root=63, requested_op=5).words(3)
    together = CallSignature("allreduce", "sum", FLOAT32, (5 << 32) + 7, sizes=0xA3).words(4)
    assert reduce[0] == 5 | 1 << 4 | 5 << 5 | ord("f") << 10 | 63 << 18
    assert together == (ord("f") << 10 | 0xA3 << 24, 7, 5, 4)
    assert difference(1, reduce, 0, together) == (
        "rank 1 calls reduce 3 of 7 float16 (min, root 63), "
        "rank 0 calls allreduce 4 of 21474836487 float32 (sum, sizes a3)"
    )
