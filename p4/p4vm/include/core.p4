// The core library of P4-16, after the language specification 1.2.5: what every architecture has.

#ifndef SWITCHAGG_CORE_P4
#define SWITCHAGG_CORE_P4
#define _CORE_P4_ // the name fragments of programs ask for

// What can go wrong in a parser. Programs may add their own.
error {
    NoError,
    PacketTooShort,        // extract, lookahead or advance beyond the packet's end
    NoMatch,               // no case of a select holds
    StackOutOfBounds,      // next or last of a header stack beyond its bounds
    HeaderTooShort,        // more bits for a varbit field than its type holds
    ParserTimeout,         // too many states
    ParserInvalidArgument  // an argument that the operation can't take, such as a varbit of half a byte
}

extern packet_in {
    // Read a header and move on; it becomes valid. A stack's `next` moves on in the stack too.
    void extract<T>(out T hdr);
    // The same for a header with one varbit field, which gets so many bits.
    void extract<T>(out T variableSizeHeader, in bit<32> variableFieldSizeInBits);
    // Read without moving on.
    T lookahead<T>();
    void advance(in bit<32> sizeInBits);
    // Bytes of the whole packet.
    bit<32> length();
}

extern packet_out {
    // Append a header if it is valid; of stacks, unions and structs all headers in order.
    void emit<T>(in T hdr);
}

// In parsers: false sets parser_error and goes to reject.
extern void verify(in bool check, in error toSignal);

// Checked when the program is compiled; gives true.
extern bool static_assert(bool check, string message);
extern bool static_assert(bool check);

action NoAction() {}

match_kind {
    exact,
    ternary,
    lpm
}

#endif
