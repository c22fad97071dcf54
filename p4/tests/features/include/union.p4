// What programs about unions share: each packet brings its case and a valid member s; flags say what is valid after it.
header short_t {
    bit<8> x;
}

header long_t {
    bit<16> y;
}

header_union either_t {
    short_t s;
    long_t l;
}

header kind_t {
    bit<8> kind;
    bit<8> flags;
}

struct pair_t {
    bit<8> n;
    either_t u;
}

struct headers {
    kind_t k;
    either_t u;
    either_t[2] us;
}

struct metadata {
    pair_t pair;
}

parser Read(packet_in b, out headers h, inout metadata m, inout standard_metadata_t s) {
    state start {
        b.extract(h.k);
        b.extract(h.u.s);
        transition select(h.k.kind) {
            0x20: longer;
            0x21: stacked;
            default: accept;
        }
    }

    state longer {
        b.extract(h.u.l);
        transition accept;
    }

    state stacked {
        b.extract(h.us.next.s);
        b.extract(h.us.next.l);
        h.us.last.s.setInvalid();
        h.us[0].l = h.us[1].l;
        transition accept;
    }
}

#define FLAGS(u) 5w0 ++ (bit<1>)(u).isValid() ++ (bit<1>)(u).s.isValid() ++ (bit<1>)(u).l.isValid()
