"""The hello of two members: read back, refused where it is none, disagreements named."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from switchagg.errors import DecodeError
from transport.meshes.hello import (
    ANYBODY,
    HELLO_BYTES_MAX,
    Hello,
    disagreement,
    unpack,
)

MINE = Hello("train", "ring", "tcp", 1, 4)
TEXT = st.text(max_size=60)


@given(TEXT, TEXT, TEXT, st.integers(0, 100), st.integers(1, 100), st.integers(0, ANYBODY))
def test_a_hello_decodes_and_what_follows_it_too(
    job: str, method: str, link: str, member: int, more: int, to: int
) -> None:
    hello = Hello(job, method, link, member, member + more, to)
    packed = hello.pack()
    assert unpack(packed) == (hello, b"")
    assert unpack(packed + b"more") == (hello, b"more")
    assert len(packed) <= HELLO_BYTES_MAX
    for size in range(len(packed)):
        with pytest.raises(DecodeError):
            unpack(packed[:size])


@given(st.binary(max_size=60), st.integers(0, 60))
def test_a_damaged_hello_decodes_or_is_refused(data: bytes, at: int) -> None:
    packed = MINE.pack()
    with contextlib.suppress(DecodeError):
        unpack(packed[:at] + data + packed[at + len(data) :])


@pytest.mark.parametrize(
    ("theirs", "words"),
    [
        (Hello("train", "ring", "tcp", 2, 4), ""),
        (Hello("train", "ring", "tcp", 2, 4, 1), ""),
        (Hello("eval", "ring", "tcp", 2, 4), "member 2 at P came for job 'eval', this member 1 for 'train'"),
        (
            Hello("train", "tree", "udp", 2, 5),
            "member 2 at P came for method 'tree', link 'udp', members '5', this member 1 for 'ring', 'tcp', '4'",
        ),
        (Hello("train", "ring", "tcp", 1, 4), "the one at P says it is member 1, as this member 1 is"),
        (
            Hello("train", "ring", "tcp", 3, 4),
            "the one at P says it is member 3; this member 1 was told that member 2 is there",
        ),
        (Hello("train", "ring", "tcp", 2, 4, 0), "member 2 at P looks for member 0 where this member 1 is"),
    ],
)
def test_disagreements_name_both_sides(theirs: Hello, words: str) -> None:
    assert disagreement(MINE, theirs, "P", 2) == words


@pytest.mark.parametrize(("member", "members"), [(-1, 3), (3, 3), (0, 0), (0, ANYBODY)])
def test_impossible_addresses_are_refused(member: int, members: int) -> None:
    with pytest.raises(ValueError, match="member"):
        Hello("", "", "", member, members)
