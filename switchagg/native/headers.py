"""The compiled core as its C headers describe it: functions, structs, enums and constants, for ctypes.

Nothing of it is typed a second time in Python. Headers are read when a name is first asked for; `SA_…` and `SIM_…`
constants and enumerators are attributes of this module. Headers keep to plain C: a prototype begins its line, comments
are `/* */`, and no two headers give one name two meanings.
"""

import ctypes
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from struct import Struct
from typing import Any

ROOT = Path(__file__).parents[2]
FOLDERS = ("switchagg/native", "transport/native", "emulation/sim/native")
"""Where the C of the one library lies, below ROOT, where #includes begin; a room includes only those before it."""

_SCALARS: dict[str, Any] = {
    "void": None,
    "bool": ctypes.c_bool,
    "char": ctypes.c_char,
    "int": ctypes.c_int,
    "float": ctypes.c_float,
    "double": ctypes.c_double,
    "size_t": ctypes.c_size_t,
    **{f"{kind}{bits}_t": getattr(ctypes, f"c_{kind}{bits}") for kind in ("int", "uint") for bits in (8, 16, 32, 64)},
}
_LIMITS = {f"UINT{bits}_MAX": (1 << bits) - 1 for bits in (8, 16, 32, 64)}
_LIMITS |= {f"INT{bits}_MAX": (1 << (bits - 1)) - 1 for bits in (8, 16, 32, 64)}
_LIMITS |= {f"INT{bits}_MIN": -1 << (bits - 1) for bits in (8, 16, 32, 64)}

_MEMBER = re.compile(r"((?:(?:struct|union|enum) )?\w+) (.+)", re.DOTALL)
_NESTED = re.compile(r"(struct|union|enum) ?(\w*) ?\{(.*)\} ?(.*)", re.DOTALL)
_FUNCTION_POINTER = re.compile(r"(.+?)\( ?\* ?(\w+) ?\) ?\((.*)\)", re.DOTALL)
_DECLARATOR = re.compile(r"([* ]*)(\w+)((?:\[[^\]]+\])*)")


def __getattr__(name: str) -> int:
    """The value of a constant or an enumerator."""
    if name not in _expressions():
        raise AttributeError(f"no header of the compiled core defines {name}")
    value = globals()[name] = _value(_expressions()[name])  # the next time it is an ordinary attribute
    return value


@cache
def struct(name: str) -> Any:
    """The ctypes class of `struct name`; `np.dtype` takes it, too.

    Pointers in it are `c_void_p`, pointers to functions their CFUNCTYPE. Where a member has a type that ctypes lacks
    (128 bits), the class has those before it: such a struct is only read in place. Raises AttributeError.
    """
    if name not in _bodies():
        raise AttributeError(f"no header of the compiled core defines struct {name}")
    return _aggregate(ctypes.Structure, name, *_bodies()[name])


def structure(name: str, members: str) -> Any:
    """The ctypes class of another library's struct, whose members are given as C writes them."""
    return _aggregate(ctypes.Structure, name, members)


def packed(name: str) -> Struct:
    """A packer of `struct name`, whose members are integers, addresses and arrays of them: quicker than its class.

    An array of bytes is one `bytes`.
    """
    code = ""
    for _, kind in struct(name)._fields_:
        is_array = issubclass(kind, ctypes.Array)
        code += f"{kind._length_}{kind._type_._type_}".replace("B", "s") if is_array else kind._type_
    return Struct(code)


@cache
def names(enum: str, prefix: str) -> tuple[str, ...]:
    """The enumerators of an enum, in lower case, without the prefix: those before the one that counts them, which is
    called as the enum in the plural. Raises AttributeError."""
    match = re.search(rf"\benum {enum} ?\{{([^}}]*)\}}", _text())
    if match is None:
        raise AttributeError(f"no header of the compiled core defines enum {enum}")
    words = re.findall(r"(?:^|,)\s*(\w+)", match[1])
    if f"{enum}s".upper() in words:
        words = words[: words.index(f"{enum}s".upper())]
    assert all(word.startswith(prefix) for word in words), (enum, prefix)
    return tuple(word.removeprefix(prefix).lower() for word in words)


@cache
def callback(name: str) -> Any:
    """The CFUNCTYPE of `typedef result (*name)(parameters)`. Raises AttributeError."""
    match = re.search(rf"^typedef ([^;(]+?)\(\*{re.escape(name)}\)\(([^;]*)\);", _text(), re.MULTILINE)
    if match is None:
        raise AttributeError(f"no header of the compiled core defines the function type {name}")
    return ctypes.CFUNCTYPE(_result(match[1]), *_parameters(match[2]))


def declare(function: Any, name: str) -> None:
    """Give a loaded function its result and parameters.

    Pointers that it takes are `c_void_p`: an address, an array, bytes or `ctypes.byref` of something. A pointer that it
    returns is text (char), an indexable pointer (numbers), or else an address. Raises AttributeError without a
    prototype.
    """
    if name not in _prototypes():
        raise AttributeError(f"no header of the compiled core declares {name}")
    result, parameters = _prototypes()[name]
    function.restype, function.argtypes = _result(result), _parameters(parameters)


def sources(suffix: str) -> list[Path]:
    """All files of the library's C with this suffix (.c, .h), BPF programs left out."""
    paths = (path for folder in FOLDERS for path in sorted((ROOT / folder).rglob(f"*{suffix}")))
    return [path for path in paths if not path.stem.endswith(".bpf")]


@cache
def _text() -> str:
    """All headers: without comments and `const`, continued lines joined, single blanks."""
    text = "\n".join(path.read_text(encoding="utf-8") for path in sources(".h"))
    text = re.sub(r"/\*[^*]*(?:\*[^/][^*]*)*\*/", "", text).replace("\\\n", " ").replace("const ", "")
    return re.sub(r"  +", " ", text)


@cache
def _bodies() -> dict[str, tuple[str, int]]:
    """The members of each struct, and the alignment that it asks for, in bytes."""
    aligned = r"(?: __attribute__\(\(aligned\((\d+)\)\)\))?"
    matches = re.findall(r"\bstruct (\w+) ?\{((?:[^{}]++|\{[^{}]*\})*)\}" + aligned, _text())
    return {name: (members, int(alignment or 1)) for name, members, alignment in matches}


@cache
def _prototypes() -> dict[str, tuple[str, str]]:
    """Result and parameters of each function."""
    matches = re.findall(
        r"^(?:SA_EXPORT )?(\w[\w *]*?)(sa_\w+)\(((?:[^(){};]++|\([^()]*\))*)\);", _text(), re.MULTILINE
    )
    return {name: (result, parameters) for result, name, parameters in matches}


@cache
def _expressions() -> dict[str, str]:
    """What constants and enumerators stand for, in C."""
    texts = dict(re.findall(r"^#define (\w+) (.+)$", _text(), re.MULTILINE))
    for body in re.findall(r"\benum ?\w* ?\{([^}]*)\}", _text()):
        following = "0"
        for entry in filter(None, map(str.strip, body.split(","))):
            name, _, text = entry.partition(" = ")
            texts[name] = text or following
            following = f"{name} + 1"
    return texts


class _Constants(dict[str, int]):
    def __missing__(self, name: str) -> int:
        return _LIMITS[name] if name in _LIMITS else __getattr__(name)


def _value(text: str) -> int:
    """The value of a constant expression of integers."""
    plain = re.sub(r"\b(0[xX][0-9a-fA-F]+|\d+)[uUlL]+\b", r"\1", text.strip())
    return int(eval(plain, {"__builtins__": {}}, _Constants()))


def _aggregate(base: Any, name: str, body: str, alignment: int = 1) -> Any:
    """A class of ctypes.Structure or Union with the members that `body` declares; `complete`: with all of them."""
    body = re.sub(r"\b[A-Z]\w+\b", lambda word: _member_macros().get(word[0], word[0]), body)
    fields: list[tuple[str, Any]] = []
    members = _split(body, ";")
    for member in members:
        try:
            added = _member(member)
        except (AttributeError, KeyError):  # a type that ctypes lacks, or that is not of these headers
            break
        fields += [*_padding(fields, getattr(added[0][1], "alignment", 1)), *added]
    else:
        members = []
    fields += _padding(fields, alignment)
    return type(name, (base,), {"_fields_": fields, "complete": not members, "alignment": alignment})


def _padding(fields: Sequence[tuple[str, Any]], alignment: int) -> Sequence[tuple[str, Any]]:
    """What makes a struct's bytes so far a multiple of an alignment, which ctypes lacks."""
    if alignment == 1:
        return []
    size = ctypes.sizeof(type("", (ctypes.Structure,), {"_fields_": fields}))
    return [(f"padding_{len(fields)}", ctypes.c_uint8 * (-size % alignment))]


@cache
def _member_macros() -> dict[str, str]:
    """Macros that stand for members of a struct."""
    return dict(re.findall(r"^#define (\w+) (.*;) *$", _text(), re.MULTILINE))


def _member(text: str) -> list[tuple[str, Any]]:
    """Fields of a declaration of one or several members. Raises KeyError for a type that ctypes lacks."""
    if nested := _NESTED.fullmatch(text):
        kinds = {"struct": ctypes.Structure, "union": ctypes.Union}
        base = ctypes.c_uint if nested[1] == "enum" else _aggregate(kinds[nested[1]], nested[2], nested[3])
        declarators = nested[4]
        if not getattr(base, "complete", True):
            raise KeyError(text)
    elif pointer := _FUNCTION_POINTER.fullmatch(text):
        return [(pointer[2], ctypes.CFUNCTYPE(_result(pointer[1]), *_parameters(pointer[3])))]
    else:
        simple = _MEMBER.fullmatch(text)
        if simple is None:
            raise KeyError(text)
        base, declarators = simple[1], simple[2]
    fields = []
    for declarator in _split(declarators, ","):
        match = _DECLARATOR.fullmatch(declarator)
        if match is None:
            raise KeyError(text)
        stars, name, bounds = match.groups()
        kind = ctypes.c_void_p if "*" in stars else _type(base) if isinstance(base, str) else base
        for bound in reversed(re.findall(r"\[([^\]]+)\]", bounds)):
            kind *= _value(bound)
        fields.append((name, kind))
    return fields


def _type(text: str) -> Any:
    """A type that is no pointer. Raises KeyError where ctypes lacks it."""
    kind, _, name = text.strip().rpartition(" ")
    if kind == "enum":
        return ctypes.c_uint
    if kind == "struct":
        if not struct(name).complete:
            raise KeyError(name)
        return struct(name)
    return _SCALARS[name] if not kind and name in _SCALARS else callback(text.strip())


def _result(text: str) -> Any:
    base = text.strip()
    if not base.endswith("*"):
        return _type(base)
    target = _SCALARS.get(base[:-1].strip())
    if target is ctypes.c_char:
        return ctypes.c_char_p
    return ctypes.POINTER(target) if target else ctypes.c_void_p


def _parameters(text: str) -> list[Any]:
    return [_parameter(parameter) for parameter in _split(text, ",") if parameter != "void"]


def _parameter(text: str) -> Any:
    kind = re.sub(r" ?\w+$", "", text)
    return ctypes.c_uint if kind.startswith("enum ") else _SCALARS.get(kind, ctypes.c_void_p)


def _split(text: str, separator: str) -> list[str]:
    """Its parts, each in a line; a separator between brackets separates nothing."""
    parts, depth = [""], 0
    for character in re.sub(r"\s+", " ", text):
        depth += {"(": 1, "{": 1, "[": 1, ")": -1, "}": -1, "]": -1}.get(character, 0)
        if character == separator and not depth:
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip() for part in parts if part.strip()]
