/* CRC-32 as zlib computes it (reflected polynomial 0xedb88320), per byte on the hot path of RoCEv2: carry-less
   multiplication where the processor has it (checked once), else sixteen table look-ups for 16 bytes. And its
   arithmetic: a CRC register is a polynomial over GF(2) of degree below 32, x^0 in the highest bit, modulo the CRC's
   own. */
#pragma once

#include <stddef.h>
#include <stdint.h>

/* As zlib's crc32(crc, bytes, size): 0 to begin with, the last result to continue. */
uint32_t sa_crc32(uint32_t crc, const uint8_t *bytes, size_t size);

/* Returns the CRC of `head` and `rest` joined. Where a short head would be left to the tables, which fall out of the
   cache between packets, it is folded together with the beginning of the rest. head_bytes is at most 112. */
uint32_t sa_crc32_joined(const uint8_t *head, size_t head_bytes, const uint8_t *rest, size_t rest_bytes);

/* Computes sa_crc32 by tables alone, for comparison. */
uint32_t sa_crc32_portable(uint32_t crc, const uint8_t *bytes, size_t size);

/* The product of two registers modulo the CRC's polynomial. */
uint32_t sa_crc32_multiply(uint32_t a, uint32_t b);

/* x^(-8 * bytes): undoes the shift by `bytes` bytes of zeros. */
uint32_t sa_crc32_unshift(uint32_t bytes);
