"""How codecs are written."""

import pytest

from switchagg.codecs.spec import parse_codec


@pytest.mark.parametrize(
    "text", ["lanes8", "lanes16+ef", "lanes8:least=0,warmup=5+ef21", "lanes4:momentum=0.9+ef", "fixed_point"]
)
def test_a_codec_is_written_as_it_was_read(text: str) -> None:
    assert str(parse_codec(text)) == text


def test_options_as_by_default_are_left_out() -> None:
    assert str(parse_codec("lanes8:least=1024,momentum=0")) == "lanes8"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("topk:ratio=0", "ratio=0: must be a number above 0, up to 1"),
        ("threshold:tau=0", "tau=0: must be a number above 0"),
        ("zip", "unknown; allowed: fixed_point"),
        ("lanes8:ratio=0.1", "allowed: least=…"),
        ("lanes8:least=-1", "a whole number from 0"),
        ("lanes8+eff", "allowed: +ef, +ef21"),
        ("lanes8+ef+ef21", "allowed: +ef, +ef21"),
        ("fixed_point+ef", "nothing is lost"),
        ("lanes8:momentum=0.9+ef21", "write +ef"),
    ],
)
def test_what_cant_be_is_refused_with_what_can(text: str, says: str) -> None:
    with pytest.raises(ValueError, match="codec") as refused:
        parse_codec(text)
    assert says in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_codec_brings_its_momentum_to_error_feedback() -> None:
    texts = ("dgc", "dgc+ef", "dgc:momentum=0+ef", "dgc:momentum=0.5+ef", "dgc+ef21", "topk+ef")
    specs = [parse_codec(text) for text in texts]
    assert [spec.momentum for spec in specs] == [0, 0.9, 0, 0.5, 0, 0]
    assert [str(spec) for spec in specs] == list(texts)


def test_workers_beyond_what_a_codec_sums_are_refused() -> None:
    with pytest.raises(ValueError, match="lanes4 can't sum 8 workers"):
        parse_codec("lanes4").for_workers(8)
