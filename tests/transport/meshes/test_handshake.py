"""The handshake of two members (M1 to M5): its bytes, and that nobody passes it without the token."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from switchagg.errors import DecodeError
from transport.meshes.job_key import job_key
from transport.meshes.mesh_handshake import (
    MESSAGE_BYTES_MAX,
    HandshakeKind,
    Listener,
    PeerSession,
    kind_of,
    pack_opening,
    size_bytes,
)

TOKEN = "0123456789abcdef0123456789abcdef"
KEY, OTHER_KEY = job_key(TOKEN, "train"), job_key(TOKEN[::-1], "train")
NONCE, SECRET = bytes(range(16)), bytes(range(100, 132))
LISTENER = Listener(KEY, SECRET)
GOLDEN = {
    "opening": (
        "736168656c6f0003000102030405060708090a0b0c0d0e0f000000000000000000000000000000000000000000000000"
        "00000000000000000000000000000000"
    ),
    "challenge": (
        "736168656c6f0103d2950f6fb45ca313c3238f32daacf8aea3e457ec0f44e11f849b6d18e7925487e53c26b7e6bd30ab"
        "a6c2b99850eb3956"
    ),
    "proof": (
        "736168656c6f0203000102030405060708090a0b0c0d0e0f0c72fc73d11b474c65fa73087cf3637a067b94fb834286c3"
        "ff2306059ccf49c4001368656c6c6f206f6620746865206469616c6572"
    ),
    "answer": (
        "736168656c6f0303000102030405060708090a0b0c0d0e0f27e38fa19b693f9a85ce398d875c2b3704dbb3e357ec673b"
        "f71bd61085e5d4c9001568656c6c6f206f6620746865206c697374656e6572"
    ),
    "refusal": (
        "736168656c6f0403000102030405060708090a0b0c0d0e0f0457bf5c1aee126bf6c26bf39811357bf56adff755d964f9"
        "57bafb865219715d0005776f726473"
    ),
}


def run(key: bytes = KEY, nonce: bytes = NONCE, place: bytes = b"here") -> dict[str, bytes]:
    """All messages of a handshake; key: the dialer's. Raises DecodeError."""
    opening = pack_opening(nonce)
    challenge = LISTENER.challenge(opening, place)
    dialing = PeerSession.challenged(key, nonce, challenge)
    proof = dialing.seal(HandshakeKind.PROOF, b"hello of the dialer")
    listening, body = LISTENER.session(proof, place)
    assert body == b"hello of the dialer"
    answer, refusal = listening.seal(HandshakeKind.ANSWER, b"hello of the listener"), listening.refusal("words")
    assert dialing.open(HandshakeKind.ANSWER, answer) == b"hello of the listener"
    assert dialing.open(HandshakeKind.REFUSAL, refusal) == b"words"
    return {"opening": opening, "challenge": challenge, "proof": proof, "answer": answer, "refusal": refusal}


def test_the_bytes_of_a_handshake_are_these() -> None:
    assert {name: message.hex() for name, message in run().items()} == GOLDEN
    assert job_key("", "train").hex() == "0480a254bc4c588b7f9f81e7d7ae5a6efe604def7fbb56bbc7628f4d2538013b"


def test_a_message_s_start_gives_its_length_and_a_challenge_is_shorter_than_its_opening() -> None:
    messages = run()
    for message in messages.values():
        assert all(size_bytes(message[:size]) > size for size in range(len(message)))
        assert size_bytes(message) == len(message) <= MESSAGE_BYTES_MAX
    assert len(messages["challenge"]) < len(messages["opening"])


@pytest.mark.parametrize("key", [OTHER_KEY, job_key("", "train"), job_key(TOKEN, "train")[::-1]])
def test_who_has_another_key_passes_on_neither_side(key: bytes) -> None:
    with pytest.raises(DecodeError, match="another token"):
        run(key)
    forged = PeerSession(key, NONCE, LISTENER.challenge(pack_opening(NONCE), b"here")[8:24], True)
    with pytest.raises(DecodeError, match="another token"):
        LISTENER.session(forged.seal(HandshakeKind.PROOF, b""), b"here")


def test_without_a_token_the_job_s_name_is_the_key_and_with_one_it_is_not() -> None:
    assert job_key("", "train") != job_key("", "other")
    assert job_key(TOKEN, "train") == job_key(TOKEN, "other")
    assert job_key("", TOKEN) != job_key(TOKEN, "")


@pytest.mark.parametrize(
    "replayed",
    [
        lambda proof: Listener(KEY, SECRET[::-1]).session(proof, b"here"),  # to the next process
        lambda proof: LISTENER.session(proof, b"there"),  # on another connection
        lambda proof: LISTENER.session(proof[:8] + NONCE[::-1] + proof[24:], b"here"),  # for another opening
        lambda proof: PeerSession.challenged(KEY, NONCE[::-1], run()["challenge"]),  # a listener's
        lambda proof: PeerSession(KEY, NONCE, run()["challenge"][8:24], True).open(
            HandshakeKind.PROOF, proof
        ),  # to its sender
    ],
)
def test_what_was_recorded_proves_nothing_elsewhere(replayed: Callable[[bytes], object]) -> None:
    proof = run()["proof"]
    LISTENER.session(proof, b"here")
    with pytest.raises(DecodeError):
        replayed(proof)


@given(st.sampled_from(["challenge", "proof", "answer", "refusal"]), st.integers(0, 200), st.integers(1, 255))
def test_no_byte_of_what_proves_something_may_differ(name: str, at: int, change: int) -> None:
    messages = run()
    damaged = bytearray(messages[name])
    damaged[at % len(damaged)] ^= change
    dialing = PeerSession.challenged(KEY, NONCE, messages["challenge"])
    openers: dict[str, Callable[[], object]] = {
        "challenge": lambda: PeerSession.challenged(KEY, NONCE, damaged),
        "proof": lambda: LISTENER.session(damaged, b"here"),
        "answer": lambda: dialing.open(HandshakeKind.ANSWER, damaged),
        "refusal": lambda: dialing.open(HandshakeKind.REFUSAL, damaged),
    }
    with pytest.raises(DecodeError):
        openers[name]()


@given(st.binary(max_size=1200), st.booleans())
def test_bytes_that_are_no_message_are_refused(data: bytes, magic: bool) -> None:
    data = b"sahelo" * magic + data
    for read in (
        lambda: LISTENER.session(data, b"here"),
        lambda: PeerSession.challenged(KEY, NONCE, data),
        lambda: PeerSession(KEY, NONCE, NONCE, True).open(HandshakeKind.ANSWER, data),
    ):
        with pytest.raises(DecodeError):
            read()


def test_a_wrong_magic_is_detected_at_its_first_byte_and_another_version_is_named() -> None:
    with pytest.raises(DecodeError):
        size_bytes(b"G")
    with pytest.raises(DecodeError, match="it speaks version 9 of the handshake, this member version 3"):
        size_bytes(run()["challenge"].replace(b"sahelo\x01\x03", b"sahelo\x01\x09"))
    newer = pack_opening(NONCE).replace(b"sahelo\x00\x03", b"sahelo\x00\x09")
    assert (
        kind_of(LISTENER.challenge(newer, b"")) is HandshakeKind.CHALLENGE
    )  # by which the newer one sees the difference
