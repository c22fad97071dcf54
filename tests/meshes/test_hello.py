"""The hello of two members: read back, refused as soon as it can be none, disagreements named."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from switchagg.errors import DecodeError
from transport.meshes.hello import (
    ANYBODY,
    HELLO_BYTES_MAX,
    REFUSAL_BYTES_MAX,
    Hello,
    disagreement,
    pack_refusal,
    refusal_in,
    size_bytes,
    unpack,
)

MINE = Hello("train", "ring", "tcp", 1, 4)
TEXT = st.text(max_size=60)


@given(TEXT, TEXT, TEXT, st.integers(0, 100), st.integers(1, 100), st.integers(0, ANYBODY))
def test_a_hello_decodes_and_its_start_gives_its_length(
    job: str, method: str, link: str, member: int, more: int, to: int
) -> None:
    hello = Hello(job, method, link, member, member + more, to)
    packed = hello.pack()
    assert unpack(packed) == hello
    assert len(packed) <= HELLO_BYTES_MAX
    for size in range(17):
        assert size_bytes(packed[:size]) == 17
    for size in range(17, len(packed) + 1, 7):
        assert size_bytes(packed[:size]) == len(packed)


@given(st.binary(max_size=900))
def test_bytes_that_are_no_hello_are_refused(data: bytes) -> None:
    with pytest.raises(DecodeError):
        unpack(data)


@given(st.binary(max_size=60), st.integers(0, 60))
def test_a_damaged_hello_decodes_or_is_refused(data: bytes, at: int) -> None:
    packed = MINE.pack()
    with contextlib.suppress(DecodeError):
        unpack(packed[:at] + data + packed[at + len(data) :])


def test_a_wrong_magic_is_detected_at_its_first_byte() -> None:
    with pytest.raises(DecodeError):
        size_bytes(b"G")
    assert size_bytes(b"") == size_bytes(b"sa") == 17


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
        (
            Hello("", "", "", 2, 4, version=9),
            "member 2 at P speaks version 9 of the protocol, this member 1 version 2",
        ),
    ],
)
def test_disagreements_name_both_sides(theirs: Hello, words: str) -> None:
    assert disagreement(MINE, theirs, "P", 2) == words


def test_another_version_is_detected_from_the_start_of_a_hello() -> None:
    packed = bytearray(MINE.pack())
    packed[7] = 3
    packed[-1] = 0xFF  # what follows may be anything
    assert unpack(packed) == Hello("", "", "", 1, 4, version=3)


@pytest.mark.parametrize(("member", "members"), [(-1, 3), (3, 3), (0, 0), (0, ANYBODY)])
def test_impossible_addresses_are_refused(member: int, members: int) -> None:
    with pytest.raises(ValueError, match="member"):
        Hello("", "", "", member, members)


@pytest.mark.parametrize("words", ["member 1 came for 'tree', this member 0 for 'ring'", "é" * 2000])
def test_a_refusal_is_found_once_it_is_whole(words: str) -> None:
    frame = pack_refusal(words)
    assert len(frame) <= REFUSAL_BYTES_MAX
    assert all(refusal_in(frame[:length]) == "" for length in range(len(frame)))
    assert words.startswith(refusal_in(frame + b"what follows").removesuffix("\N{REPLACEMENT CHARACTER}"))
    assert refusal_in(Hello("a", "ring", "tcp", 0, 2).pack()) == ""
