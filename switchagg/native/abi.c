/* What `library.py` asks first: a library built from older sources than the Python beside it must not be used. */
#include "abi.h"

SA_EXPORT uint32_t sa_abi(void) { return SA_ABI; }

/* The instruction set of the clones of SA_VECTORISED that this processor runs, for whoever wants to know. */
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
