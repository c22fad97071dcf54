/* What `library.py` asks first: a library built from older sources than the Python beside it must not be used. */
#include "abi.h"

SA_EXPORT uint32_t sa_abi(void) { return SA_ABI; }
