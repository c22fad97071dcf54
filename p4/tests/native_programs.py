"""Programs for the tests of the native back end: every operator at many widths, every kind of match, packets whose
headers start anywhere."""

import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from differential import compare

from p4vm.c_code.c_program import c_of
from p4vm.cache import Cache, default_cache
from p4vm.check.check_program import check
from p4vm.engine import PACKET_BYTES_MAX
from p4vm.front.parse_program import parse_text
from p4vm.ir import ir_nodes as ir
from p4vm.lower.lower_program import lower
from p4vm.native import build
from p4vm.native.native_engine import NativeEngine
from p4vm.python.python_engine import PythonEngine

WIDTHS = (1, 7, 8, 15, 16, 24, 31, 32, 33, 48, 63, 64, 65, 100, 127, 128, 129, 192, 320)
OPERATORS = ("+", "-", "*", "|+|", "|-|", "&", "|", "^")
COMPARISONS = ("==", "!=", "<", "<=", ">", ">=")

REST = """
control Nothing(inout headers hdr, inout metadata meta) { apply { } }
control Deparse(packet_out packet, in headers hdr) { apply { packet.emit(hdr); } }
V1Switch(Parse(), Nothing(), In(), Out(), Nothing(), Deparse()) main;
"""


EGRESS = "control Out(inout headers hdr, inout metadata meta, inout standard_metadata_t standard) { apply { } }"


def lowered(text: str, file: str, egress: str = EGRESS) -> ir.ProgramIr:
    """headers, metadata, Parse and In are in the text."""
    whole = "#include <core.p4>\n#include <v1model.p4>\n" + text + egress + REST
    return lower(check(parse_text(whole, file)), file)


def numbers(widths: Sequence[int], *, signed: bool) -> ir.ProgramIr:
    """For each width: two operands come in, results of all operators leave, in place of as many zeros."""
    kind = "int" if signed else "bit"
    headers, fields, extracts, statements = [], [], [], []
    for width in widths:
        t = f"{kind}<{width}>"
        results = [f"hdr.h{width}.a {operator} hdr.h{width}.b" for operator in OPERATORS]
        results += [f"-hdr.h{width}.a", f"~hdr.h{width}.b", f"hdr.h{width}.a << hdr.h{width}.by"]
        results += [f"hdr.h{width}.a >> hdr.h{width}.by", f"hdr.h{width}.b << 3", f"hdr.h{width}.b >> 5"]
        results += [f"hdr.h{width}.flag == 1 ? hdr.h{width}.a : hdr.h{width}.b"]
        bits = [f"(hdr.h{width}.a {operator} hdr.h{width}.b) ? 1w1 : 0" for operator in COMPARISONS]
        declared = [f"{t} a; {t} b; bit<9> by; bit<1> flag;"]
        declared += [f"{t} r{at};" for at in range(len(results))]
        declared += [f"bit<1> c{at};" for at in range(len(bits))]
        declared += [f"bit<{width + 70}> joined; int<{width + 33}> extended; bit<{max(width - 3, 1)}> cut;"]
        headers.append(f"header h{width}_t {{ {' '.join(declared)} }}")
        fields.append(f"h{width}_t h{width};")
        extracts.append(f"packet.extract(hdr.h{width});")
        statements += [f"hdr.h{width}.r{at} = {result};" for at, result in enumerate(results)]
        statements += [f"hdr.h{width}.c{at} = {result};" for at, result in enumerate(bits)]
        whole = f"(bit<{width}>)hdr.h{width}.a"
        low = f"(bit<35>)(bit<{width}>)hdr.h{width}.b"
        statements.append(f"hdr.h{width}.joined = {whole} ++ {low} ++ 35w5;")
        extended = f"(int<{width + 33}>)" + ("" if signed else f"(int<{width}>)")
        statements.append(f"hdr.h{width}.extended = {extended}hdr.h{width}.a;")
        if width > 3:
            statements.append(f"hdr.h{width}.cut = ({whole})[{width - 2}:2];")
            statements.append(f"hdr.h{width}.a[{width - 2}:1] = hdr.h{width}.b[{width - 3}:0];")
    text = (
        "\n".join(headers)
        + f"""
        struct headers {{ {" ".join(fields)} }}
        struct metadata {{ }}
        parser Parse(packet_in packet, out headers hdr, inout metadata meta, inout standard_metadata_t standard) {{
            state start {{ {" ".join(extracts)} transition accept; }}
        }}
        control In(inout headers hdr, inout metadata meta, inout standard_metadata_t standard) {{
            apply {{ standard.egress_spec = 1; {" ".join(statements)} }}
        }}
    """
    )
    return lowered(text, f"{kind} of all widths")


TABLES = """
header keys_t {
    bit<1> flag; bit<7> small; bit<70> wide; bit<2> pad; int<33> signed; bit<128> address; bit<15> kind; bit<128> said;
    bit<8> color; bit<32> drawn;
}
struct headers { keys_t keys; }
struct metadata { bit<8> color; }
parser Parse(packet_in packet, out headers hdr, inout metadata meta, inout standard_metadata_t standard) {
    state start { packet.extract(hdr.keys); transition accept; }
}
control In(inout headers hdr, inout metadata meta, inout standard_metadata_t standard) {
    direct_counter(CounterType.packets_and_bytes) hits;
    direct_meter<bit<8>>(MeterType.bytes) police;
    action_selector(HashAlgorithm.crc32, 16, 16) choice;
    action_profile(16) profile;
    register<int<100>>(5) wide;
    register<bit<200>>(3) wider;
    register<bit<1>>(5) flags;
    action say(bit<128> what, bit<9> port, bit<70> more) {
        hdr.keys.said = what ^ (bit<128>)more; standard.egress_spec = port;
        wide.write((bit<32>)hdr.keys.small & 7, (int<100>)(bit<100>)more);
        wider.write((bit<32>)hdr.keys.small & 3, 72w0 ++ what);
    }
    action metered(bit<16> what) { police.read(meta.color); hdr.keys.color = meta.color; hdr.keys.kind = what[14:0]; }
    action drop() { mark_to_drop(standard); }
    table exactly {
        key = { hdr.keys.flag: exact; hdr.keys.small: exact; hdr.keys.wide: exact; hdr.keys.signed: exact; }
        actions = { say; drop; NoAction; }
        counters = hits;
        default_action = NoAction;
    }
    table longest {
        key = { hdr.keys.flag: exact; hdr.keys.address: lpm; }
        actions = { say; metered; NoAction; }
        meters = police;
        default_action = NoAction;
    }
    table prior {
        key = {
            hdr.keys.wide: ternary; hdr.keys.signed: range; hdr.keys.address: range; hdr.keys.kind: optional;
            hdr.keys.small: lpm; hdr.keys.flag: exact;
        }
        actions = { say; drop; NoAction; }
        default_action = NoAction;
    }
    table selected {
        key = { hdr.keys.kind: exact; hdr.keys.address: selector; hdr.keys.signed: selector; }
        actions = { say; drop; NoAction; }
        implementation = choice;
    }
    table profiled {
        key = { hdr.keys.small: ternary; }
        actions = { say; drop; NoAction; }
        implementation = profile;
    }
    table nothing { actions = { say; NoAction; } default_action = NoAction; }
    apply {
        standard.egress_spec = 2;
        if (exactly.apply().hit) { hdr.keys.pad = 1; } else { hdr.keys.pad = 2; }
        switch (longest.apply().action_run) {
            say: { hdr.keys.kind = 7; } metered: { hdr.keys.small = 3; } default: { }
        }
        prior.apply(); selected.apply(); profiled.apply(); nothing.apply();
        int<100> before; wide.read(before, (bit<32>)hdr.keys.small);
        hdr.keys.said = hdr.keys.said + (bit<128>)(int<128>)before;
        bit<200> more; wider.read(more, 1); hdr.keys.address = more[150:23];
        bit<1> flag; flags.read(flag, (bit<32>)hdr.keys.small); flags.write((bit<32>)hdr.keys.small, ~flag);
        random(hdr.keys.drawn, (bit<32>)hdr.keys.small << 4, 1000);
        int<33> drawn = 0; random(drawn, hdr.keys.signed, 5); hdr.keys.drawn = hdr.keys.drawn ^ (bit<32>)(bit<33>)drawn;
        hash(hdr.keys.kind, HashAlgorithm.crc16, 15w3, { hdr.keys.said, hdr.keys.flag, hdr.keys.signed }, 17w0x8000);
        log_msg("{} and {}", { hdr.keys.signed, hdr.keys.said });
        digest<tuple<int<33>, bit<128>>>(1, { hdr.keys.signed, hdr.keys.said });
    }
}
"""

ANYWHERE = """
header odd_t { bit<3> a; bit<13> b; int<70> c; bit<1> more; }
header tail_t { bit<4> size; varbit<300> rest; bit<5> last; bit<99> wide; bit<7> pad; }
header whole_t { bit<16> a; bit<24> b; bit<40> c; bit<56> d; bit<64> e; bit<128> f; bit<8> g; }
header_union either_t { odd_t odd; whole_t whole; }
struct headers { odd_t[3] odds; either_t either; tail_t tail; whole_t whole; whole_t[2] wholes; }
struct metadata { bit<16> at; }
parser Parse(packet_in packet, out headers hdr, inout metadata meta, inout standard_metadata_t standard) {
    state start {
        packet.extract(hdr.odds.next);
        transition select(hdr.odds.last.a, hdr.odds.last.more) {
            (_, 1): start; (0 .. 2, 0): either; (3, 0): whole; (4 &&& 6, 0): tail; (6, _): ahead;
        }
    }
    state either { packet.extract(hdr.either.odd); transition tail; }
    state whole {
        packet.extract(hdr.either.whole); packet.extract(hdr.wholes.next); meta.at = (bit<16>)hdr.wholes.lastIndex;
        transition select(packet.lookahead<bit<17>>()) { 0 .. 0x8000: wholes; default: accept; }
    }
    state wholes { packet.extract(hdr.wholes.next); packet.extract(hdr.wholes.next); transition accept; }
    state ahead {
        odd_t odd = packet.lookahead<odd_t>(); meta.at = (bit<16>)odd.b; packet.advance((bit<32>)odd.a);
        packet.extract(hdr.whole); transition accept;
    }
    state tail { packet.extract(hdr.tail, (bit<32>)(packet.lookahead<bit<4>>()) * 21); transition accept; }
}
control In(inout headers hdr, inout metadata meta, inout standard_metadata_t standard) {
    apply {
        standard.egress_spec = 1;
        if (standard.parser_error != error.NoError) { standard.egress_spec = 2; }
        if (hdr.odds[1].isValid()) { hdr.odds.push_front(1); }
        if (hdr.odds[2].isValid()) { hdr.odds[0] = hdr.odds[2]; hdr.odds.pop_front(2); }
        if (hdr.tail.isValid()) { hdr.tail.wide = hdr.tail.wide + (bit<99>)meta.at; }
        if (hdr.wholes[0] == hdr.wholes[1]) { hdr.whole.g = 9; }
        if (hdr.either.isValid()) { hdr.whole.setValid(); hdr.whole.b = (bit<24>)meta.at; }
        odd_t spare; spare.setInvalid(); spare.b = 5;
        if (spare == hdr.either.odd) { hdr.whole.a = 77; }
        bit<16> sum;
        hash(sum, HashAlgorithm.csum16, 16w0, { hdr.odds[0], hdr.tail, hdr.either.whole, meta.at }, 17w0x10000);
        meta.at = sum;
        hdr.wholes[meta.at[1:0]].a = sum;
        if (hdr.odds[meta.at[2:1]].isValid()) { hdr.whole.setInvalid(); }
    }
}
"""

PASSES = """
header command_t { bit<8> what; bit<8> turn; bit<16> port; }
header seen_t {
    bit<32> kind; bit<9> port; bit<16> rid; bit<32> length; bit<48> stamp; bit<19> depth;
    bit<8> kept; bit<8> lost; bit<4> pad;
}
struct headers { seen_t seen; command_t command; }
struct metadata { @field_list(1) bit<8> kept; bit<8> lost; bit<16> turns; }
parser Parse(packet_in packet, out headers hdr, inout metadata meta, inout standard_metadata_t standard) {
    state start {
        packet.extract(hdr.command);
        transition select(hdr.command.what, standard.packet_length) { (20, _): start; (5, 0): clone; default: accept; }
    }
    state clone { packet.advance(24); transition accept; }
}
control In(inout headers hdr, inout metadata meta, inout standard_metadata_t standard) {
    apply {
        bit<8> what = hdr.command.what;
        standard.egress_spec = hdr.command.port[8:0];
        meta.lost = 8; meta.kept = meta.kept + 1;
        hdr.command.turn = hdr.command.turn + 1;
        if (what == 1 || what == 2 && meta.kept < 3) { resubmit_preserving_field_list(1); }
        if (what == 3 || what == 4 && hdr.command.turn < 5) { recirculate_preserving_field_list(1); }
        if (what == 5) { clone_preserving_field_list(CloneType.I2E, 5, 1); }
        if (what == 6) { standard.mcast_grp = 3; truncate(10); }
        if (what == 7) {
            for (bit<32> i = 0; i < 9000; i = i + 1) { meta.turns = meta.turns + 1; }
            resubmit_preserving_field_list(1);
        }
        if (what == 8) { assert(hdr.command.port == 0); }
        if (what == 12 && standard.instance_type != 4) { standard.mcast_grp = 9; }
        if (what == 15) { truncate(21); }
        if (what == 13) { clone(CloneType.I2E, 6); mark_to_drop(standard); }
    }
}
control Out(inout headers hdr, inout metadata meta, inout standard_metadata_t standard) {
    apply {
        bit<8> what = hdr.command.what;
        hdr.seen = { standard.instance_type, standard.egress_port, standard.egress_rid, standard.packet_length,
            standard.egress_global_timestamp, standard.enq_qdepth, meta.kept, meta.lost, 0 };
        if (what == 9 || what == 10 && standard.instance_type != 2 || what == 16 && standard.egress_rid < 2) {
            clone_preserving_field_list(CloneType.E2E, 5, 1);
        }
        if (what == 11) { mark_to_drop(standard); }
        if (what == 12) { recirculate_preserving_field_list(1); }
        if (what == 14) { clone(CloneType.E2E, 6); }
    }
}
"""


def passes() -> ir.ProgramIr:
    """What a packet's first byte asks for: resubmission, recirculation, clones, copies, too much of each."""
    return lowered(PASSES, "passes of all kinds", "")


def tables() -> ir.ProgramIr:
    return lowered(TABLES, "tables of all kinds")


def few_numbers() -> ir.ProgramIr:
    """Enough widths for every branch of the runtime."""
    return numbers((8, 33, 65, 129), signed=True)


def anywhere() -> ir.ProgramIr:
    return lowered(ANYWHERE, "headers at any bit")


def compile_many(
    programs: Sequence[ir.ProgramIr], *, optimize: int = 0, cache: Path | None = None
) -> list[NativeEngine]:
    """Engines for programs as IR, all in one library: one run of the compiler. Raises P4Error."""
    by = build.needed_compiler()
    sources = [c_of(program, str(at)) for at, program in enumerate(programs)]
    with TemporaryDirectory(prefix="p4vm-") as folder:
        cache_folder = default_cache() if cache is None else Cache(Path(cache))
        library = Path(folder, "programs.so")
        texts, files = [text for text, _ in sources], [program.file for program in programs]
        build.library_of(by, texts, files, build.runtime_object(by, cache_folder), library, optimize)
        return [
            NativeEngine(program, library, layout, str(at))
            for at, (program, (_, layout)) in enumerate(zip(programs, sources, strict=True))
        ]


def main() -> None:
    """Compare the back ends; CC says how C is compiled. Arguments: where the runtime is, if not here: then less."""
    build.RUNTIME_OPTIMIZE = 0
    makers = [tables, anywhere, few_numbers]
    if len(sys.argv) > 1:
        build.RUNTIME = Path(sys.argv[1])
        makers = [tables]
    with TemporaryDirectory() as folder:
        engines = compile_many([make() for make in makers], cache=Path(folder))
    for engine in engines:
        compare(PythonEngine(engine.program), engine, packets=120)
        for size in (0, 1, 1500, 65_536, PACKET_BYTES_MAX, PACKET_BYTES_MAX + 1):
            engine.process(1, bytes([size & 255]) * size)
        engine.close()
    print("alike")


if __name__ == "__main__":
    main()
