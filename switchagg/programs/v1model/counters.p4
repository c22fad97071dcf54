// Every datagram for the switch is counted once, under what became of it (outcomes.p4).

control Counters(in metadata_t meta) {
    counter(31, CounterType.packets) outcomes;

    apply {
        if (meta.outcome != UNDECIDED) {
            outcomes.count((bit<32>)meta.outcome);
        }
    }
}
