"""`method[@link][+schedule]`."""

import re

import pytest

from transport.group.method_name import METHODS, MethodName, links_of, parse
from transport.schedule.table import POLICIES


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
    ],
)
def test_method_names_are_parsed(text: str, expected: MethodName) -> None:
    assert parse(text) == expected
    assert str(parse(text)) == text


@pytest.mark.parametrize("method", METHODS)
def test_written_names_parse_to_the_same_method(method: str) -> None:
    for link in ("", *links_of(method)):
        for schedule in ("", *POLICIES):
            name = parse(method + (f"@{link}" if link else "") + (f"+{schedule}" if schedule else ""))
            assert parse(str(name)) == name
            assert name.slug.replace("-", "").replace("_", "").isalnum()


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
        ("x" * 1000, "method '" + "x" * 60 + "…' is unknown"),
    ],
)
def test_wrong_names_are_reported_in_one_line(text: str, words: str) -> None:
    with pytest.raises(ValueError, match="^" + re.escape(words)) as caught:
        parse(text)
    assert "\n" not in str(caught.value)
