// What becomes of a datagram for the switch: it is counted once, under one of these.

const bit<8> ABSORBED          = 0;
const bit<8> BROADCAST         = 1;
const bit<8> REPLY             = 2;
const bit<8> DROP_DUPLICATE    = 3;
const bit<8> DROP_OLDER        = 4;
const bit<8> DROP_SHORT        = 5;  // from here on: P6
const bit<8> DROP_MAGIC        = 6;
const bit<8> DROP_WIRE_VERSION = 7;
const bit<8> DROP_OP           = 8;
const bit<8> DROP_FLAGS        = 9;
const bit<8> DROP_LENGTH       = 10;
const bit<8> DROP_RESULT       = 11; // from here on: S1
const bit<8> DROP_JOB          = 12;
const bit<8> DROP_GENERATION   = 13;
const bit<8> DROP_STREAM       = 14;
const bit<8> DROP_SLOT         = 15;
const bit<8> DROP_RANK         = 16;
const bit<8> DROP_PORT         = 17;
const bit<8> DROP_OWNER        = 18;
const bit<8> DROP_ELEMENTS     = 19;
const bit<8> DROP_CHECKSUM     = 20; // P5, or IPv4's
const bit<8> DROP_TRUNCATED    = 21; // the frame ends before the datagram does
const bit<8> NOT_OURS          = 22; // forwarded, or not, as the tables say
const bit<8> UNDECIDED         = 255;
