// The switch of PROTOCOL.md for packets of four values. All its parts are switchagg's own but one: adder.p4, yours.

#define ELEMENTS 4
#define SUMS "adder.p4"
#include <switchagg.p4>
