// Where programs for bmv2's psa_switch look for the architecture.
#include <psa.p4>
