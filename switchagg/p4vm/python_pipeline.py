"""The v1model pipeline around a program's routines, in Python; what it decides holds for every back end.

Order and passes
1.  One call of `process`: two first-in-first-out queues. Ingress queue: the packet, then what is resubmitted or
    recirculated. Egress queue: copies. The egress queue is emptied before the next pass through ingress; output is in
    the order in which packets leave egress.
2.  A pass through ingress: standard metadata and metadata zero but for what 3 says; parser; parser_error; verify;
    ingress. Then, in this order: clone (its copies join the egress queue), resubmit, multicast, drop, unicast.
3.  Zero but for: a packet from a port: ingress_port, packet_length, ingress_global_timestamp = now_us. Resubmitted (type
    6) or recirculated (4): packet_length, instance_type, and the field list's fields of metadata. ingress_port and the
    timestamp are 0 then, as in simple_switch. All values are cut to the field's width.
4.  What ingress asks for ends with its pass, but for recirculate, which holds for the unicast packet, and truncate, which
    holds for the unicast and multicast copies. The last call of clone, resubmit and recirculate in a pass counts, the
    smallest of truncate. Clone in ingress is always I2E, in egress E2E, whatever its type argument; resubmit in egress
    does nothing. session & 0x7FFF names the session; an unknown one clones nothing.
5.  I2E clone: the bytes as this pass got them are parsed again (standard: ingress_port alone), then standard and
    metadata zero but for instance_type 1 and the field list's fields as ingress left them. One parse for all copies.
6.  A session's copies: the multicast group's, in order, then its own replicas, in order. Each has egress_rid = instance.
7.  Multicast (mcast_grp != 0): a copy of all headers (also what invalid ones store), metadata and standard for each
    replica, egress_rid = instance, instance_type 5. A group without replicas: the packet is dropped.
8.  Unicast: egress_spec is the port, instance_type 0 (also after resubmit and recirculate).
9.  Egress: egress_port (of the copy), egress_spec = 0, packet_length = bytes the packet had when it entered its last
    pass through ingress, enq_timestamp = now_us, deq_timedelta = 0, enq_qdepth = deq_qdepth = the depth set for the
    port, egress_global_timestamp = now_us. Other fields as ingress left them.
10. After egress: clone E2E (headers as they are; standard and metadata zero but for instance_type 2 and the field list;
    the payload; it joins the end of the egress queue), then drop if egress_spec == 511, then compute, deparser, truncate,
    then recirculate or output on the copy's port (which may be any number given to set_group and set_mirror).
11. A field list that doesn't exist keeps nothing. clone, clone3, resubmit, recirculate with data or without keep nothing.
12. Bounds. On its way from the port to where it is a copy may have gone through PASSES_MAX resubmissions, recirculations
    and E2E clones; and one incoming packet may cause RUNS_MAX passes through ingress and egress in all. Who comes next is
    dropped: too_many_passes += 1, dropped += 1. Turns of loops are counted over all that one incoming packet causes, in
    all loops together: the turn after LOOP_TURNS_MAX drops the packet that is being processed (and any later one that
    turns): too_many_turns += 1, dropped += 1.
13. A dropped pass (12, or a failed assert or assume) ends at once: no clones, no compute; what it had written to
    registers, counters, digests and log stays. In the parser of an I2E clone it drops the clones alone (once).

Parser
14. States entered are counted per run of the parser, sub-parsers included; accept and reject are none. Entering one
    more than PARSER_STEPS_MAX: error ParserTimeout, reject. An error's number is its place in program.errors, 0 if the
    program doesn't have it.
15. Reject ends the parser where it stands: the packet goes on, parser_error set (0 after an explicit `transition
    reject`); parser_rejected += 1, for each run of the parser. The statement that failed has changed nothing, and moved
    nothing. After a parser that accepts, parser_error is 0, whatever the program wrote there.
16. extract, lookahead and advance work at any bit. Errors in this order: StackOutOfBounds (of Next), ParserInvalidArgument
    (only extract with varbits: fixed and variable bits together not a multiple of 8), PacketTooShort, HeaderTooShort.
    A lookahead sets a header valid, and reads its varbit as empty.
17. The payload starts at the next whole byte after the parser's cursor. Emitted bits are padded with zeros to whole
    bytes once, before the payload. A packet's own length is packet_in.length(), bytes.
18. Next and Last beyond the stack, wherever they stand in an expression that is evaluated: StackOutOfBounds, reject;
    outside parsers they read zero and write nothing. && || and ?: evaluate only what they need.
19. push_front, pop_front: new elements are zero and invalid, nextIndex = min(size, next + count), max(0, next - count).
    A Build of an array has nextIndex 0. SizeBits counts 0 for invalid headers.

Externs
20. Register, counter and meter beyond their size: read gives 0, color is 0, nothing is written; counters.names
    register_out_of_range, counter_out_of_range, meter_out_of_range += 1. An instance has at most CELLS_MAX cells.
21. Counters count packets and bytes, whatever their type; bytes: as packet_length in 9, in ingress too. Direct counters
    count each hit once, before the action; direct_counter.count does nothing more. A direct meter takes its color at a
    hit, before the action; direct_meter.read gives the color of the last apply of its table for this pass, 0 if that
    missed or wasn't. Values wrap at 2**64.
22. verify_checksum: where condition holds and H differs from the checksum: checksum_error = 1 in standard. Not tested
    where the checksum is a field of an invalid header. update_checksum: where condition holds.
23. digest: queued when called, ingress and egress; all scalars in order, fields of invalid headers too. The oldest of
    more than LOG_MAX are dropped; so with the log's lines.
24. log_msg: each {…} stands for the next value, decimal (bool 1 or 0, int<W> with its sign; records flattened as in 23);
    more braces than values stay as written, more values than braces are left out; \\{ and \\} are braces. A failed assert
    or assume: line "FILE:LINE:COLUMN: assert failed" (or assume), counters.names assert_failed or assume_failed += 1, and
    the packet is dropped. mark_to_drop: egress_spec = 511, mcast_grp = 0.
25. `dropped` counts each pass that ends in a drop: by 511, by an empty group, by a bound, by assert; `sent` what
    `process` returns.

Tables
26. Keys are compared as patterns of W bits, ranges of int<W> as signed numbers. Only exact, lpm and selector keys: the
    longest prefix wins (the sum of lengths, were there several lpm keys), then the first entry given. Else the smallest
    priority wins, then the first entry given; lpm is then a mask.
27. A member that doesn't exist, an empty group or one that doesn't exist: a miss. A miss runs the default action, hit is
    false. `action` is the index of what ran. Entries and default of the program are there from the start.
28. Value sets: entries are alternatives; their kinds of match as those of tables, exact unless annotated.
"""
