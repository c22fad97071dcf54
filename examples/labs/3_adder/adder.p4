// S4 for packets of four values. A packet comes here with its values in hdr.values0.v0 to v3, and leaves with the sums
// in them: they are what a result carries. Yours to write: all but `write`.
//
// meta.index   where this slot version is in the registers
// meta.before  bitmap of the ranks whose packets were here before this one, 0 if it is the first
// meta.rank    bitmap of this packet's rank: one bit
// meta.mask    bitmap of the ranks whose values make the sum
// meta.header_only    1: this packet brings no values
// hdr.chunk.op 0: SUM, else MAX, of signed numbers

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

    apply {
        if (meta.before & meta.mask == 0) {
            write(); // the first values of a chunk replace what the registers held
        }
    }
}
