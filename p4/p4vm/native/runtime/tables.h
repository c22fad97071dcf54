/* Tables: which entry, if any, fits a key. Entries come from the best to the worst: the first that fits is the answer.

   A key is `words` limbs, in which fields are packed, then a field of limbs for each range. Entries with equal masks form
   a group; one hash of chains holds all groups, so exact tables ask once, lpm tables once per length in use. */
#pragma once

#include <stdint.h>


enum p4_entry_kind { P4_ACTION, P4_MEMBER, P4_GROUP };

/* Field by field as `ENTRY` in native/native_tables.py. */
struct p4_entry {
    uint32_t kind;
    uint32_t target; /* the action's index; slot of a member or group in the profile, UINT32_MAX: there is none */
    uint32_t direct; /* cell of direct counters and meters */
    uint32_t argument; /* first limb of the action's data */
};

struct p4_group {
    const uint64_t *mask;
    uint32_t best; /* its first entry */
};

struct p4_table {
    uint32_t words, range_words;
    uint32_t ranges;
    const uint8_t *range_limbs; /* of each range */
    uint32_t count, group_count, bucket_mask;
    uint64_t *values, *bounds; /* count * words; count * 2 * range_words: low, then high */
    uint64_t *masks;           /* group_count * words */
    struct p4_group *groups;   /* by their best entry */
    uint32_t *group_of, *next, *buckets; /* of entries: number of the group; the next in the chain, from 1; 0: none */
    struct p4_entry *entries;
    uint64_t *arguments;
    struct p4_entry fallback; /* the default action */
    uint64_t *fallback_arguments;
    uint64_t met_pass; /* of the direct meter: the pass that asked last, and the color */
    uint32_t color;
};

/* The action that runs for a packet. */
struct p4_call {
    uint32_t action, hit;
    const uint64_t *arguments;
};

/* Members of an action profile, groups of a selector: by slots. */
struct p4_profile {
    struct p4_call *members;
    uint64_t *arguments;
    uint32_t member_count, group_count;
    uint32_t *firsts; /* group_count + 1, into `chosen` */
    uint32_t *chosen; /* slots of members; UINT32_MAX: there is none */
};

/* Replace everything. masks, values: as keys; all are copied. Returns 0, or -1 without memory, and nothing has
   changed. */
int p4_table_set(struct p4_table *table, uint32_t count, const uint64_t *values, const uint64_t *masks,
                 const uint64_t *bounds, const struct p4_entry *entries, const uint64_t *arguments,
                 uint64_t argument_count);
int p4_table_default(struct p4_table *table, uint32_t action, const uint64_t *arguments, uint32_t argument_count);
void p4_table_free(struct p4_table *table);
/* NULL: none fits. */
const struct p4_entry *p4_table_find(const struct p4_table *table, const uint64_t *key);
/* The action that an entry leads to; NULL: a miss. hash: of the selector's keys, if it is a group. profile: NULL: the
   table has none. */
struct p4_call p4_table_call(const struct p4_table *table, const struct p4_profile *profile,
                             const struct p4_entry *entry, uint64_t hash);

/* calls: member_count of (action, first limb); firsts and chosen as in the struct. Returns 0, or -1 without memory. */
int p4_profile_set(struct p4_profile *profile, uint32_t member_count, const uint32_t *calls, const uint64_t *arguments,
                   uint64_t argument_count, uint32_t group_count, const uint32_t *firsts, const uint32_t *chosen);
void p4_profile_free(struct p4_profile *profile);
