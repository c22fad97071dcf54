"""Small programs, one feature each, with the packets that tell right from wrong: on both back ends."""

import re
from pathlib import Path

import pytest
from native_programs import compile_many

from p4vm.compile import front_end
from p4vm.control.controlled_switch import ControlledSwitch
from p4vm.engine import Engine
from p4vm.ir import ir_nodes as ir
from p4vm.python.python_engine import PythonEngine
from p4vm.source import P4Error
from p4vm.stf import run

FOLDER = Path(__file__).resolve().parent / "features"
NAMES = sorted(path.stem for path in FOLDER.glob("*.p4"))
PROGRAMS_MIN = 150

# What the engine promises of the language, of v1model and of PSA -> how the names of its programs begin.
PROMISED = {
    "bit<N>": "bits_",
    "int<N>": "signed_",
    "varbit": "varbit_",
    "bool": "bool_",
    "enum": "types_enum",
    "serializable enum": "types_serializable_enum",
    "error": "types_error_values",
    "tuple": "types_tuple",
    "struct": "types_struct",
    "header": "headers_",
    "header_union": "unions_",
    "header stacks": "stacks_",
    "typedef": "types_typedef",
    "type": "types_distinct",
    "const": "types_constants",
    "parser states with select": "select_",
    "value sets": "parser_value_set",
    "lookahead": "parser_lookahead",
    "advance": "parser_advance",
    "extract with varbit": "varbit_extract",
    "verify": "parser_verify",
    "sub-parsers": "parser_of_a_part",
    "sub-controls": "control_instances",
    "exact": "tables_exact",
    "lpm": "tables_lpm",
    "ternary": "tables_ternary",
    "range": "tables_range",
    "optional": "tables_optional",
    "const entries": "tables_const_entries",
    "default actions": "tables_default_action",
    "priorities": "tables_entries_with_priorities",
    "action profiles": "profiles_shared_members",
    "action selectors": "profiles_selector_groups",
    "actions with all directions": "actions_directions",
    "functions": "functions_",
    "switch on action_run": "switch_on_action_run",
    "switch on values": "switch_on_values",
    "if/else": "control_if_else",
    "exit": "control_exit",
    "return": "control_return",
    "slices": "bits_slice",
    "concatenation": "bits_concatenate",
    "shifts": "bits_shift",
    "saturating arithmetic": "saturating_",
    "casts": "bits_conversion",
    "generics": "functions_generic",
    "for loops": "loops_",
    "register": "register_",
    "counter": "counter_packets",
    "direct_counter": "counter_direct",
    "meter": "meter_colours",
    "direct_meter": "meter_direct",
    "hash crc32": "hash_crc32",
    "hash crc32_custom": "hash_crc32_custom",
    "hash crc16": "hash_crc16",
    "hash crc16_custom": "hash_crc16_custom",
    "hash random": "hash_random",
    "hash identity": "hash_identity",
    "hash csum16": "hash_csum16",
    "hash xor16": "hash_xor16",
    "verify_checksum": "checksum_verified",
    "update_checksum": "checksum_updated",
    "checksums with payload": "checksum_with_payload",
    "random": "random_",
    "digest": "digest_",
    "log_msg": "log_",
    "assert/assume": "assert_",
    "mark_to_drop": "drop_",
    "clone": "clone_ingress",
    "clone of egress": "clone_egress",
    "clone with a field list": "clone_keeps",
    "resubmit with a field list": "resubmit_keeps",
    "recirculate with a field list": "recirculate_keeps",
    "multicast": "multicast_",
    "truncate": "truncate_",
    "standard_metadata": "metadata_",
    "PSA's paths of packets": "psa_paths",
    "PSA's externs": "psa_externs",
    "preprocessor": "source_macros",
    "annotations": "source_annotations",
}


@pytest.fixture(scope="module")
def programs() -> dict[str, ir.ProgramIr | P4Error]:
    """All programs before the back ends, or why not."""
    made: dict[str, ir.ProgramIr | P4Error] = {}
    for name in NAMES:
        try:
            made[name] = front_end(FOLDER / f"{name}.p4")
        except P4Error as error:
            made[name] = error
    return made


@pytest.fixture(scope="module")
def native(programs: dict[str, ir.ProgramIr | P4Error]) -> dict[str, Engine]:
    """Engines for all of them, from one library."""
    good = {name: program for name, program in programs.items() if isinstance(program, ir.ProgramIr)}
    try:
        engines = compile_many(list(good.values()))
    except P4Error as error:
        if "compiler" not in str(error):
            raise
        pytest.skip(str(error))
    return dict(zip(good, engines, strict=True))


def lines_after(name: str, mark: str) -> list[str]:
    """Comments of the test that begin with the mark: what it expects beyond packets."""
    text = (FOLDER / f"{name}.stf").read_text()
    return re.findall(rf"^# {mark}: (.*)$", text, re.MULTILINE)


def check(name: str, engine: Engine) -> None:
    switch = ControlledSwitch(engine)
    result = run.run(lambda: switch, FOLDER / f"{name}.stf")
    assert result.failures == []
    assert result.packets_in > 0
    digests = [" ".join(map(str, (digest.receiver, *digest.values))) for digest in engine.take_digests()]
    assert digests == lines_after(name, "digest")
    if wanted := lines_after(name, "log"):
        assert result.printed == wanted


def usable(programs: dict[str, ir.ProgramIr | P4Error], name: str) -> ir.ProgramIr:
    program = programs[name]
    if isinstance(program, P4Error):
        pytest.fail(str(program))
    return program


@pytest.mark.parametrize("name", NAMES)
def test_on_python(name: str, programs: dict[str, ir.ProgramIr | P4Error]) -> None:
    check(name, PythonEngine(usable(programs, name)))


@pytest.mark.parametrize("name", NAMES)
def test_on_native(name: str, programs: dict[str, ir.ProgramIr | P4Error], native: dict[str, Engine]) -> None:
    usable(programs, name)
    check(name, native[name])


def test_there_are_enough_programs_each_with_its_test() -> None:
    assert len(NAMES) >= PROGRAMS_MIN
    assert sorted(path.stem for path in FOLDER.glob("*.stf")) == NAMES


@pytest.mark.parametrize("feature", PROMISED)
def test_every_feature_promised_has_a_program(feature: str) -> None:
    assert any(name.startswith(PROMISED[feature]) for name in NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_every_test_expects_packets_word_for_word(name: str) -> None:
    text = (FOLDER / f"{name}.stf").read_text()
    assert re.search(r"^expect \d+ [0-9a-f ]+ \$$", text, re.MULTILINE) or "check_counter" in text
