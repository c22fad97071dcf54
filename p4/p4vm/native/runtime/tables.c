/* See tables.h. */
#include "tables.h"

#include <stdlib.h>
#include <string.h>

#include "bits.h"

static uint64_t mix(uint64_t hash, uint64_t word) {
    hash = (hash ^ word) * 0x9e3779b97f4a7c15ull;
    return hash ^ hash >> 32;
}

static uint32_t hash_masked(const uint64_t *key, const uint64_t *mask, uint32_t words, uint32_t group) {
    uint64_t hash = group + 1;
    for (uint32_t i = 0; i < words; i++) hash = mix(hash, key[i] & mask[i]);
    return (uint32_t)(hash ^ hash >> 17);
}

static uint32_t hash_words(const uint64_t *key, uint32_t words) {
    uint64_t hash = 1;
    for (uint32_t i = 0; i < words; i++) hash = mix(hash, key[i]);
    return (uint32_t)(hash ^ hash >> 17);
}

static void *copy(const void *from, uint64_t count, uint64_t size) {
    void *duplicate = calloc(count ? count : 1, size ? size : 1);
    if (duplicate && count && size) memcpy(duplicate, from, count * size);
    return duplicate;
}

static uint32_t buckets_for(uint32_t count) {
    uint32_t size = 2;
    while (size < 2ull * count && size < 1u << 31) size *= 2;
    return size;
}

/* Number the distinct masks, in the order of their first entries. Returns 0, or -1 without memory. */
static int form_groups(struct p4_table *table, const uint64_t *masks) {
    uint32_t size = buckets_for(table->count), *seen = calloc(size, sizeof *seen);
    if (!seen) return -1;
    for (uint32_t i = 0; i < table->count; i++) {
        const uint64_t *mask = masks + (uint64_t)i * table->words;
        uint32_t at = hash_words(mask, table->words) & (size - 1);
        while (seen[at] && memcmp(table->groups[seen[at] - 1].mask, mask, table->words * sizeof *mask))
            at = (at + 1) & (size - 1);
        if (!seen[at]) {
            uint64_t *group_mask = table->masks + (uint64_t)table->group_count * table->words;
            memcpy(group_mask, mask, table->words * sizeof *mask);
            table->groups[table->group_count] = (struct p4_group){group_mask, i};
            seen[at] = ++table->group_count;
        }
        table->group_of[i] = seen[at] - 1;
    }
    free(seen);
    return 0;
}

static void link_chains(struct p4_table *table) {
    for (uint32_t i = table->count; i-- > 0;) { /* so that the best stand first */
        uint64_t *value = table->values + (uint64_t)i * table->words;
        const uint64_t *mask = table->groups[table->group_of[i]].mask;
        for (uint32_t j = 0; j < table->words; j++) value[j] &= mask[j];
        uint32_t at = hash_masked(value, mask, table->words, table->group_of[i]) & table->bucket_mask;
        table->next[i] = table->buckets[at];
        table->buckets[at] = i + 1;
    }
}

static void free_entries(struct p4_table *table) {
    free(table->values);
    free(table->bounds);
    free(table->masks);
    free(table->groups);
    free(table->group_of);
    free(table->next);
    free(table->buckets);
    free(table->entries);
    free(table->arguments);
}

int p4_table_set(struct p4_table *table, uint32_t count, const uint64_t *values, const uint64_t *masks,
                 const uint64_t *bounds, const struct p4_entry *entries, const uint64_t *arguments,
                 uint64_t argument_count) {
    struct p4_table fresh = *table;
    uint32_t size = buckets_for(count);
    fresh.count = count;
    fresh.group_count = 0;
    fresh.bucket_mask = size - 1;
    fresh.values = copy(values, count, fresh.words * sizeof *values);
    fresh.bounds = copy(bounds, count, 2 * fresh.range_words * sizeof *bounds);
    fresh.masks = calloc((uint64_t)count * fresh.words + 1, sizeof *masks);
    fresh.groups = calloc(count + 1ull, sizeof *fresh.groups);
    fresh.group_of = calloc(count + 1ull, sizeof *fresh.group_of);
    fresh.next = calloc(count + 1ull, sizeof *fresh.next);
    fresh.buckets = calloc(size, sizeof *fresh.buckets);
    fresh.entries = copy(entries, count, sizeof *entries);
    fresh.arguments = copy(arguments, argument_count, sizeof *arguments);
    if (!fresh.values || !fresh.bounds || !fresh.masks || !fresh.groups || !fresh.group_of || !fresh.next || !fresh.buckets ||
        !fresh.entries || !fresh.arguments || form_groups(&fresh, masks)) {
        free_entries(&fresh);
        return -1;
    }
    link_chains(&fresh);
    free_entries(table);
    *table = fresh;
    return 0;
}

int p4_table_default(struct p4_table *table, uint32_t action, const uint64_t *arguments, uint32_t argument_count) {
    uint64_t *data = copy(arguments, argument_count, sizeof *arguments);
    if (!data) return -1;
    free(table->fallback_arguments);
    table->fallback_arguments = data;
    table->fallback = (struct p4_entry){.kind = P4_ACTION, .target = action};
    return 0;
}

void p4_table_free(struct p4_table *table) {
    free_entries(table);
    free(table->fallback_arguments);
}

/* Whether the key lies within all of an entry's ranges. */
static int within(const struct p4_table *table, uint32_t entry, const uint64_t *key) {
    const uint64_t *low = table->bounds + (uint64_t)entry * 2 * table->range_words, *high = low + table->range_words;
    for (uint32_t i = 0, at = 0; i < table->ranges; at += table->range_limbs[i++]) {
        uint32_t limbs = table->range_limbs[i];
        if (p4_wide_compare(key + at, low + at, limbs) < 0 || p4_wide_compare(key + at, high + at, limbs) > 0) return 0;
    }
    return 1;
}

static int fits(const struct p4_table *table, uint32_t entry, uint32_t group, const uint64_t *key) {
    if (table->group_of[entry] != group) return 0;
    const uint64_t *value = table->values + (uint64_t)entry * table->words, *mask = table->groups[group].mask;
    for (uint32_t i = 0; i < table->words; i++)
        if ((key[i] & mask[i]) != value[i]) return 0;
    return !table->ranges || within(table, entry, key + table->words);
}

const struct p4_entry *p4_table_find(const struct p4_table *table, const uint64_t *key) {
    uint32_t best = UINT32_MAX;
    for (uint32_t g = 0; g < table->group_count && table->groups[g].best < best; g++) {
        uint32_t at = hash_masked(key, table->groups[g].mask, table->words, g) & table->bucket_mask;
        for (uint32_t i = table->buckets[at]; i && i - 1 < best; i = table->next[i - 1])
            if (fits(table, i - 1, g, key)) {
                best = i - 1;
                break;
            }
    }
    return best == UINT32_MAX ? NULL : &table->entries[best];
}

static struct p4_call default_call(const struct p4_table *table) {
    return (struct p4_call){table->fallback.target, 0, table->fallback_arguments};
}

struct p4_call p4_table_call(const struct p4_table *table, const struct p4_profile *profile,
                             const struct p4_entry *entry, uint64_t hash) {
    if (!entry) return default_call(table);
    if (entry->kind == P4_ACTION) return (struct p4_call){entry->target, 1, table->arguments + entry->argument};
    if (!profile) return default_call(table);
    uint32_t member = entry->target;
    if (entry->kind == P4_GROUP) {
        if (member >= profile->group_count) return default_call(table);
        uint32_t first = profile->firsts[member], count = profile->firsts[member + 1] - first;
        if (!count) return default_call(table);
        member = profile->chosen[first + hash % count];
    }
    if (member >= profile->member_count) return default_call(table);
    return profile->members[member];
}

int p4_profile_set(struct p4_profile *profile, uint32_t member_count, const uint32_t *calls, const uint64_t *arguments,
                   uint64_t argument_count, uint32_t group_count, const uint32_t *firsts, const uint32_t *chosen) {
    struct p4_profile fresh = {.member_count = member_count, .group_count = group_count};
    fresh.members = calloc(member_count + 1ull, sizeof *fresh.members);
    fresh.arguments = copy(arguments, argument_count, sizeof *arguments);
    fresh.firsts = copy(firsts, group_count + 1ull, sizeof *firsts);
    fresh.chosen = copy(chosen, firsts[group_count], sizeof *chosen);
    if (!fresh.members || !fresh.arguments || !fresh.firsts || !fresh.chosen) {
        p4_profile_free(&fresh);
        return -1;
    }
    for (uint32_t i = 0; i < member_count; i++)
        fresh.members[i] = (struct p4_call){calls[2 * i], 1, fresh.arguments + calls[2 * i + 1]};
    p4_profile_free(profile);
    *profile = fresh;
    return 0;
}

void p4_profile_free(struct p4_profile *profile) {
    free(profile->members);
    free(profile->arguments);
    free(profile->firsts);
    free(profile->chosen);
}
