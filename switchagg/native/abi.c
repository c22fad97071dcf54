/* `library.py` checks it first: a library built from older sources than the Python code must not be used. */
#include "switchagg/native/abi.h"

SA_EXPORT uint32_t sa_abi(void) { return SA_ABI; }

/* Name of the instruction set for which this processor runs the clones of SA_VECTORISED functions. */
SA_EXPORT const char *sa_vectors(void) {
#if defined(SA_CLONED)
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512cd"))
        return "AVX-512";
    return __builtin_cpu_supports("avx2") ? "AVX2" : "SSE2";
#elif defined(__ARM_NEON)
    return "NEON";
#else
    return "what the compiler takes for granted";
#endif
}
