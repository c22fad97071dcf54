"""`method[@link][~codec[:options][+ef|+ef21]][+schedule][+secret]`."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from switchagg.codecs import CODECS
from switchagg.codecs.spec import FEEDBACK, parse_codec
from transport.group.method_name import GLOO_CODECS, METHODS, MethodName, links_of, parse
from transport.schedule.schedule_table import POLICIES


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("switch", MethodName("switch", "udp")),
        ("switch@rdma+p3", MethodName("switch", "rdma", "p3")),
        ("ring", MethodName("ring", "tcp")),
        ("ps", MethodName("ps", "zeromq")),
        ("gloo+wfbp", MethodName("gloo", "", "wfbp")),
        (
            "ps@tcp+bytescheduler:partition=1MB,credit=4MB",
            MethodName("ps", "tcp", "bytescheduler:partition=1MB,credit=4MB"),
        ),
        ("switch~lanes8", MethodName("switch", "udp", codec="lanes8")),
        ("switch@rdma~lanes8+ef+p3", MethodName("switch", "rdma", "p3", "lanes8+ef")),
        ("ring~lanes8:least=0,momentum=0.9+ef", MethodName("ring", "tcp", "", "lanes8:least=0,momentum=0.9+ef")),
        ("auto~lanes16+ef21", MethodName("auto", "tcp", "", "lanes16+ef21")),
        ("ring~lanes8+p3:slice=40000", MethodName("ring", "tcp", "p3:slice=40000", "lanes8")),
        ("gloo~bf16", MethodName("gloo", "", codec="bf16")),
        ("gloo~exact", MethodName("gloo", "", codec="exact")),
        ("switch+secret", MethodName("switch", "udp", secret=True)),
        ("switch~exact+secret", MethodName("switch", "udp", "", "exact", secret=True)),
        ("switch@rdma~lanes8+ef+p3+secret", MethodName("switch", "rdma", "p3", "lanes8+ef", secret=True)),
    ],
)
def test_method_names_are_parsed(text: str, expected: MethodName) -> None:
    assert parse(text) == expected
    assert str(parse(text)) == text


@pytest.mark.parametrize("method", METHODS)
def test_written_names_parse_to_the_same_method(method: str) -> None:
    for link in ("", *links_of(method)):
        for schedule in ("", *POLICIES):
            name = parse(method + (f"@{link}" if link else "") + (f"+{schedule}" if schedule else ""), virtual=True)
            assert parse(str(name), virtual=True) == name
            assert name.slug.replace("-", "").replace("_", "").isalnum()


def takes(codec: str, feedback: str) -> bool:
    try:
        parse_codec(f"{codec}+{feedback}")
    except ValueError:
        return False
    return True


WITH = {"": sorted(CODECS)} | {feedback: [name for name in CODECS if takes(name, feedback)] for feedback in FEEDBACK}


@given(st.data())
def test_names_with_codecs_are_written_as_they_are_read(data: st.DataObject) -> None:
    """Options that are as by default, and default links, are left out; then nothing changes any more."""
    method = data.draw(st.sampled_from([name for name, one in METHODS.items() if links_of(name) and not one.loses]))
    link, feedback = data.draw(st.sampled_from(links_of(method))), data.draw(st.sampled_from(("", *FEEDBACK)))
    codec = data.draw(st.sampled_from(WITH[feedback]))
    options = data.draw(st.dictionaries(st.sampled_from(("least", "warmup")), st.integers(0, 5000)))
    schedule = data.draw(st.sampled_from(("", "p3", "wfbp", "bytescheduler:partition=1MB,credit=4MB")))
    words = ",".join(f"{word}={value}" for word, value in options.items())
    coded = codec + (f":{words}" if words else "") + (f"+{feedback}" if feedback else "")
    secret = method == "switch" and data.draw(st.booleans())
    name = parse(f"{method}@{link}~{coded}" + (f"+{schedule}" if schedule else "") + "+secret" * secret)
    assert (name.method, name.link, name.schedule, name.secret) == (method, link, schedule, secret)
    spec = name.spec
    assert spec is not None
    assert (spec.name, spec.feedback, spec.least, spec.warmup) == (
        codec,
        feedback,
        options.get("least", 1024),
        options.get("warmup", 0),
    )
    assert parse(str(name)) == name
    assert str(parse(str(name))) == str(name)
    assert re.fullmatch(r"[\w.-]+", name.slug)


def test_gloo_has_pytorch_s_own_codecs() -> None:
    assert [parse(f"gloo~{codec}").codec for codec in GLOO_CODECS] == list(GLOO_CODECS)
    assert parse("gloo~bf16").spec is None


def test_default_links_are_left_out() -> None:
    assert str(parse("ring@tcp")) == "ring"
    assert str(parse("switch@udp+p3")) == "switch+p3"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "method '' is unknown; allowed: switch, gloo, ring"),
        ("rings", "method 'rings' is unknown"),
        ("switch@tcp", "method switch: link 'tcp' can't carry it; allowed: udp, zeromq, rdma"),
        ("ring@", "method ring: link '' can't carry it"),
        ("gloo@tcp", "method gloo: link 'tcp' can't carry it; it brings its own"),
        ("ring+", "schedule '' is unknown; allowed: bsp"),
        ("ring+fast", "schedule 'fast' is unknown"),
        ("ring+p3:slice=x", "schedule p3: slice=x: must be a whole number from 1"),
        ("ring+wfbp:slice=1", "schedule wfbp: option 'slice=1' is unknown; it has none"),
        ("ring~", "codec '' is unknown; allowed: fixed_point"),
        ("ring~lane8", "codec 'lane8' is unknown"),
        ("ring~lanes8+fast", "schedule 'fast' is unknown"),
        ("ring~lanes8+ef+fast", "schedule 'fast' is unknown"),
        ("ring~lanes8:ratio=1", "codec lanes8: option 'ratio=1' is unknown"),
        ("ring~fixed_point+ef", "codec fixed_point: nothing is lost in it"),
        ("ring+p3~lanes8", "method ring: '~lanes8' stands before the schedule: ring~CODEC+SCHEDULE"),
        ("ring~lanes8@udp", "codec 'lanes8@udp' is unknown"),
        (
            "gloo~lanes8",
            "method gloo: codec 'lanes8' is none of its; allowed: exact, or PyTorch's own hooks: bf16, fp16",
        ),
        ("gloo~exact+p3", "method gloo: codec 'exact+p3' is none of its"),
        ("ring~exact+ef", "codec exact: nothing is lost in it, so +ef has nothing to feed back"),
        ("ring~exact:least=9", "codec exact: every sum goes through it, so it takes no least=9"),
        ("ring~exact:warmup=1", "codec exact: every sum goes through it, so it takes no warmup"),
        ("gloo~bf16+ef", "method gloo: codec 'bf16+ef' is none of its"),
        ("ring+secret", "method ring+secret: sums by ring travel as they are; use method switch, or have a link"),
        ("gloo~bf16+secret", "method gloo+secret: sums by gloo travel as they are"),
        ("mlt+secret", "method mlt+secret: sums by mlt travel as they are"),
        ("switch+secret+p3", "schedule 'secret+p3' is unknown"),
        ("switch+secret+secret", "schedule 'secret' is unknown"),
        ("x" * 1000, "method '" + "x" * 60 + "…' is unknown"),
    ],
)
def test_wrong_names_are_reported_in_one_line(text: str, words: str) -> None:
    with pytest.raises(ValueError, match="^" + re.escape(words)) as caught:
        parse(text)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "meant"), [("rings", "ring"), ("ring@rmda", "rdma"), ("ring+wfpb", "wfbp"), ("ring~lane8", "lanes8")]
)
def test_a_name_like_a_known_one_is_suggested(text: str, meant: str) -> None:
    with pytest.raises(ValueError, match=f"; did you mean '{meant}'"):
        parse(text)
