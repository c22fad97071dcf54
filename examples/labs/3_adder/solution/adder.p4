// S4 for packets of four values: what leaves in hdr.values0 are the sums so far.

// A register's value and the packet's, combined into both.
#define COMBINE(sum, value, combined) sum.read(so_far, meta.index); value = combined; sum.write(meta.index, value);
#define ADD(sum, value) COMBINE(sum, value, value + so_far)
#define MAX(sum, value) COMBINE(sum, value, (int<32>)value > (int<32>)so_far ? value : so_far)

control Sums(inout headers_t hdr, in metadata_t meta) {
    register<bit<32>>(2 * SLOTS) sum0;
    register<bit<32>>(2 * SLOTS) sum1;
    register<bit<32>>(2 * SLOTS) sum2;
    register<bit<32>>(2 * SLOTS) sum3;

    @atomic action write() {
        sum0.write(meta.index, hdr.values0.v0);
        sum1.write(meta.index, hdr.values0.v1);
        sum2.write(meta.index, hdr.values0.v2);
        sum3.write(meta.index, hdr.values0.v3);
    }

    @atomic action read() {
        sum0.read(hdr.values0.v0, meta.index);
        sum1.read(hdr.values0.v1, meta.index);
        sum2.read(hdr.values0.v2, meta.index);
        sum3.read(hdr.values0.v3, meta.index);
    }

    @atomic action add() {
        bit<32> so_far;
        ADD(sum0, hdr.values0.v0)
        ADD(sum1, hdr.values0.v1)
        ADD(sum2, hdr.values0.v2)
        ADD(sum3, hdr.values0.v3)
    }

    @atomic action max() {
        bit<32> so_far;
        MAX(sum0, hdr.values0.v0)
        MAX(sum1, hdr.values0.v1)
        MAX(sum2, hdr.values0.v2)
        MAX(sum3, hdr.values0.v3)
    }

    apply {
        if (meta.before & meta.mask == 0) {
            write(); // the first values of a chunk replace what the registers held
        } else if (meta.before & meta.rank != 0 || meta.header_only == 1) {
            read(); // sent again, or without values: it adds nothing, but its result needs the sums
        } else if (hdr.chunk.op == 0) {
            add();
        } else {
            max();
        }
    }
}
