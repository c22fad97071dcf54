/* What the fuzz targets share: bytes read as a script that never ends early, and checks that stop the fuzzer. */
#ifndef SWITCHAGG_TESTS_SCRIPT_H
#define SWITCHAGG_TESTS_SCRIPT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(condition)                                                                                              \
    do {                                                                                                              \
        if (!(condition)) {                                                                                           \
            fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition);                                   \
            abort();                                                                                                  \
        }                                                                                                             \
    } while (0)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const uint8_t *script;
static size_t script_left;

/* 0 after the end. */
static inline uint32_t byte(void) {
    if (!script_left) return 0;
    script_left--;
    return *script++;
}

/* 1 ... most; small bytes stand for themselves. */
static inline uint32_t count_of(uint32_t most) { return (byte() + most - 1) % most + 1; }

/* Memory of `size` bytes and no byte more: the sanitizer sees the first one beyond. */
static inline uint8_t *exactly(size_t size) {
    uint8_t *memory = malloc(size ? size : 1);
    CHECK(memory);
    return memory;
}

/* Big-endian. */
static inline uint32_t field(const uint8_t *datagram, uint32_t at, uint32_t bytes) {
    uint32_t value = 0;
    for (uint32_t i = 0; i < bytes; i++) value = value << 8 | datagram[at + i];
    return value;
}

static inline void put(uint8_t *datagram, uint32_t at, uint32_t bytes, uint32_t value) {
    for (uint32_t i = 0; i < bytes; i++) datagram[at + i] = (uint8_t)(value >> 8 * (bytes - 1 - i));
}

/* A value that follows from two numbers; many of them are extreme. */
static inline uint32_t some_value(uint32_t seed, uint32_t index) {
    static const uint32_t extreme[] = {0x7fffffff, 0x80000000, 1, 0xffffffff};
    uint32_t mixed = (seed + 1) * 2654435761u + index * 40503u;
    mixed ^= mixed >> 15;
    return seed & 1 ? mixed * 2246822519u : extreme[mixed & 3];
}

#endif
