#pragma once

#include <stdint.h>

/* Raise it with every change of an exported function or struct. */
#define SA_ABI 33u

#define SA_EXPORT __attribute__((visibility("default")))

SA_EXPORT uint32_t sa_abi(void);
SA_EXPORT const char *sa_vectors(void);

/* Hot loops over values are compiled for several instruction sets, the best one chosen when the library is loaded.
   Other machines have one baseline that vectorises (NEON on arm64), or no way to choose (musl has no ifunc).
   x86-64-v4 selects AVX-512 by its feature bits; older compilers can select it only by the name of a processor. All
   are static, which other files of clang's couldn't call, and no two are called alike: their resolvers are global. */
#if defined(__clang__) || __GNUC__ >= 12
#define SA_AVX512 "arch=x86-64-v4"
#else
#define SA_AVX512 "arch=skylake-avx512"
#endif
#if defined(__x86_64__) && defined(__gnu_linux__) && defined(__GLIBC__) && !defined(SA_NO_CLONES)
#define SA_CLONED 1
#define SA_VECTORISED __attribute__((target_clones("default", "avx2", SA_AVX512)))
#else
#define SA_VECTORISED
#endif
