// The switch of switchagg.p4 below another one: H1 to H5. What LEAF changes: the parent is asked for in
// admission.p4, its result doesn't move held.p4 and is one rank more in seen.p4, and the verdict is leaf_verdict.p4's.
//
// Macros: those of switchagg.p4.

#define LEAF
#include "switchagg.p4"
