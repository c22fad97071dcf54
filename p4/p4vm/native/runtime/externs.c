/* Hashes, random numbers, counters, meters, records: to the bit as algorithms.py. */
#include <stdlib.h>

#include "p4vm.h"

/* ---- hashes */

static uint64_t crc16(const uint8_t *data, uint64_t size) {
    uint32_t remainder = 0;
    for (uint64_t i = 0; i < size; i++) {
        remainder ^= data[i];
        for (int bit = 0; bit < 8; bit++) remainder = remainder & 1 ? remainder >> 1 ^ 0xa001 : remainder >> 1;
    }
    return remainder;
}

/* Remainders of all nibbles, polynomial 0xedb88320. */
static const uint32_t NIBBLES[16] = {
    0x00000000, 0x1db71064, 0x3b6e20c8, 0x26d930ac, 0x76dc4190, 0x6b6b51f4, 0x4db26158, 0x5005713c,
    0xedb88320, 0xf00f9344, 0xd6d6a3e8, 0xcb61b38c, 0x9b64c2b0, 0x86d3d2d4, 0xa00ae278, 0xbdbdf21c,
};

static uint64_t crc32(const uint8_t *data, uint64_t size) {
    uint32_t remainder = ~0u;
    for (uint64_t i = 0; i < size; i++) {
        remainder ^= data[i];
        remainder = remainder >> 4 ^ NIBBLES[remainder & 15];
        remainder = remainder >> 4 ^ NIBBLES[remainder & 15];
    }
    return (uint32_t)~remainder;
}

static uint32_t reflect(uint32_t value, uint32_t width) {
    uint32_t reflected = 0;
    for (uint32_t bit = 0; bit < width; bit++) reflected |= (value >> bit & 1) << (width - 1 - bit);
    return reflected;
}

static uint64_t custom_crc(const struct p4_crc *crc, const uint8_t *data, uint64_t size) {
    uint32_t top = 1u << (crc->width - 1), mask = top | (top - 1), remainder = crc->initial;
    for (uint64_t i = 0; i < size; i++) {
        uint32_t byte = crc->reflect_data ? reflect(data[i], 8) : data[i];
        remainder ^= byte << (crc->width - 8);
        for (int bit = 0; bit < 8; bit++) remainder = remainder & top ? remainder << 1 ^ crc->polynomial : remainder << 1;
    }
    remainder &= mask;
    return ((crc->reflect_remainder ? reflect(remainder, crc->width) : remainder) ^ crc->final_xor) & mask;
}

void p4_engine_set_crc(struct p4_engine *engine, const struct p4_crc *crc) { engine->crc[crc->width == 32] = *crc; }

static uint64_t xor16(const uint8_t *data, uint64_t size) {
    uint32_t high = 0, low = 0;
    for (uint64_t i = 0; i < size; i += 2) high ^= data[i];
    for (uint64_t i = 1; i < size; i += 2) low ^= data[i];
    return high << 8 | low;
}

static uint64_t csum16(const uint8_t *data, uint64_t size) {
    uint64_t sum = 0;
    for (; size > 1; size -= 2, data += 2) sum += p4_load16(data);
    if (size) sum += (uint64_t)data[0] << 8;
    while (sum >> 16) sum = (sum & 0xffff) + (sum >> 16);
    return ~sum & 0xffff;
}

static uint64_t identity(const uint8_t *data, uint64_t size) {
    uint64_t value = 0;
    for (uint64_t i = 0; i < size && i < 8; i++) value = value << 8 | data[i];
    return value;
}

uint64_t p4_hash(struct p4_engine *engine, enum p4_hash algorithm, const uint8_t *data, uint64_t size) {
    switch (algorithm) {
        case P4_CRC32_CUSTOM:
            if (engine->crc[1].width) return custom_crc(&engine->crc[1], data, size); /* fall through */
        case P4_CRC32: return crc32(data, size);
        case P4_CRC16_CUSTOM:
            if (engine->crc[0].width) return custom_crc(&engine->crc[0], data, size); /* fall through */
        case P4_CRC16: return crc16(data, size);
        case P4_RANDOM: return p4_random(engine);
        case P4_IDENTITY: return identity(data, size);
        case P4_CSUM16: return csum16(data, size);
        case P4_XOR16: return xor16(data, size);
    }
    return 0;
}

uint64_t p4_hash_payload(struct p4_engine *engine, enum p4_hash algorithm, const uint8_t *data, uint64_t size) {
    uint8_t *joined = malloc(size + engine->payload_size + 1);
    if (!joined) {
        engine->counts[P4_NO_MEMORY]++;
        return 0;
    }
    memcpy(joined, data, size);
    if (engine->payload_size) memcpy(joined + size, engine->payload, engine->payload_size);
    uint64_t value = p4_hash(engine, algorithm, joined, size + engine->payload_size);
    free(joined);
    return value;
}

/* ---- random numbers */

uint64_t p4_random(struct p4_engine *engine) {
    uint64_t state = engine->random += 0x9e3779b97f4a7c15ull;
    state = (state ^ state >> 30) * 0xbf58476d1ce4e5b9ull;
    state = (state ^ state >> 27) * 0x94d049bb133111ebull;
    return state ^ state >> 31;
}

/* Returns the high half of a * b. */
static uint64_t high_half(uint64_t a, uint64_t b) {
    uint64_t a0 = (uint32_t)a, a1 = a >> 32, b0 = (uint32_t)b, b1 = b >> 32;
    uint64_t middle = a1 * b0 + (a0 * b0 >> 32), other = a0 * b1 + (uint32_t)middle;
    return a1 * b1 + (middle >> 32) + (other >> 32);
}

uint64_t p4_random_between(struct p4_engine *engine, uint64_t low, uint64_t high) {
    uint64_t drawn = p4_random(engine), count = high - low + 1; /* 0: all 2**64 */
    return low + (count ? high_half(drawn, count) : drawn);
}

/* ---- counters and meters */

void p4_count(struct p4_engine *engine, uint32_t counter, uint64_t index) {
    struct p4_counters *counters = &engine->counters[counter];
    if (index >= counters->cells) {
        engine->counts[P4_COUNTER_OUT_OF_RANGE]++;
        return;
    }
    counters->cell[index].packets++;
    counters->cell[index].bytes += engine->length;
}

#define DUE_MAX (1ull << 62)

static uint32_t meter_color(struct p4_meter *meter, uint64_t now, uint64_t cost) {
    for (uint32_t i = 0; i < meter->count; i++) {
        struct p4_bucket *bucket = &meter->bucket[i];
        double filled = (double)now * bucket->rate;
        uint64_t due = !(filled > 0) ? 0 : filled >= (double)DUE_MAX ? DUE_MAX : (uint64_t)filled;
        uint64_t fresh = due > bucket->filled ? due - bucket->filled : 0;
        bucket->filled = due;
        bucket->tokens = fresh > bucket->burst - bucket->tokens ? bucket->burst : bucket->tokens + fresh;
        if (bucket->tokens < cost) return meter->count - i;
        bucket->tokens -= cost;
    }
    return 0;
}

uint32_t p4_meter_color(struct p4_engine *engine, uint32_t meter, uint64_t index) {
    struct p4_meters *meters = &engine->meters[meter];
    if (index >= meters->cells) {
        engine->counts[P4_METER_OUT_OF_RANGE]++;
        return 0;
    }
    return meter_color(&meters->cell[index], engine->now, meters->by_bytes ? engine->length : 1);
}

/* ---- records */

static void take_first(struct p4_records *records) {
    struct p4_record *first = records->first;
    records->first = first->next;
    if (!records->first) records->last = NULL;
    records->count--;
    free(first);
}

uint64_t *p4_record(struct p4_engine *engine, struct p4_records *records, uint32_t id, uint32_t limbs) {
    struct p4_record *record = calloc(1, sizeof *record + limbs * sizeof *record->value);
    if (!record) {
        engine->counts[P4_NO_MEMORY]++;
        return NULL;
    }
    record->id = id;
    record->limbs = limbs;
    if (records->last)
        records->last->next = record;
    else
        records->first = record;
    records->last = record;
    if (++records->count > engine->program->limits.records) take_first(records);
    return record->value;
}

int p4_failed(struct p4_engine *engine, enum p4_count which, uint32_t id) {
    engine->counts[which]++;
    p4_record(engine, &engine->log, id, 0);
    return P4_DROP;
}

void p4_records_free(struct p4_records *records) {
    while (records->first) take_first(records);
}

const struct p4_record *p4_engine_record(const struct p4_engine *engine, int which) {
    return which ? engine->digests.first : engine->log.first;
}

void p4_engine_take_record(struct p4_engine *engine, int which) {
    struct p4_records *records = which ? &engine->digests : &engine->log;
    if (records->first) take_first(records);
}
