#include "switchagg/native/worker/verified_sums.h"

#include <stdlib.h>
#include <string.h>

static uint64_t hash_of(const struct sa_verified_sums *sums, const struct sa_tag_terms *terms, const uint8_t *payload) {
    if (terms->signed_words) return sa_hash_signed(&sums->hash, payload);
    return sa_hash_unsigned(&sums->hash, payload, sums->hash.count);
}

void sa_verified_put_tag(const struct sa_verified_sums *sums, uint32_t stream, uint64_t chunk,
                         const struct sa_tag_terms *terms, uint8_t *payload) {
    uint64_t tag = hash_of(sums, terms, payload);
    tag = sa_tag_add(tag, sa_tag_pads(&sums->key, chunk, stream, sums->rank, sums->rank + 1, terms->code));
    if (terms->is_largest) tag = sa_tag_add(tag, sums->code_mark);
    for (uint32_t limb = 0; limb < SA_TAG_LIMBS; limb++) {
        uint32_t element = SA_BE32((uint32_t)(tag >> SA_TAG_LIMB_BITS * limb) & SA_TAG_LIMB_MASK);
        memcpy(payload + 4ull * (sums->hash.count + limb), &element, sizeof element);
    }
}

/* The sum of tags in a result: its limbs have added up without a carry between them. */
static uint64_t tag_of(const struct sa_verified_sums *sums, const uint8_t *payload) {
    uint64_t tag = 0;
    for (uint32_t limb = 0; limb < SA_TAG_LIMBS; limb++) {
        uint32_t element;
        memcpy(&element, payload + 4ull * (sums->hash.count + limb), sizeof element);
        tag = sa_tag_add(tag, sa_tag_shift(SA_BE32(element), SA_TAG_LIMB_BITS * limb));
    }
    return tag;
}

/* The pads of the ranks whose bits are set, a run of neighbours at a time; `givers` is how many there are. */
static uint64_t pads_of_present(const struct sa_verified_sums *sums, uint32_t stream, uint64_t chunk, int32_t code,
                                uint64_t present, uint32_t *givers) {
    uint64_t pads = 0;
    *givers = (uint32_t)__builtin_popcountll(present);
    while (present) {
        uint32_t first = (uint32_t)__builtin_ctzll(present), end = first + 1;
        while (end < sums->workers && present >> end & 1) end++;
        pads = sa_tag_add(pads, sa_tag_pads(&sums->key, chunk, stream, first, end, code));
        present &= ~((2ull << (end - 1)) - (1ull << first));
    }
    return pads;
}

/* The ranks that a partial sum names; bits of no rank are left to the hash. */
static uint64_t present_in(const struct sa_verified_sums *sums, uint32_t presence, const uint8_t *payload) {
    uint64_t present = 0;
    for (uint32_t i = 0; i < presence; i++) {
        uint32_t word;
        memcpy(&word, payload + 4ull * (sums->hash.count - presence + i), sizeof word);
        present |= (uint64_t)SA_BE32(word) << 32 * i;
    }
    return present & ((1ull << sums->workers) - 1); /* SA_WORKERS_MAX - 1 at most */
}

int sa_verified_fits(const struct sa_verified_sums *sums, uint32_t stream, uint64_t chunk, uint32_t kind,
                     const struct sa_tag_terms *terms, const uint8_t *payload) {
    uint32_t owner = sa_owner(kind), route = sa_route(kind), givers = sums->workers;
    uint64_t pads = 0;
    if (terms->presence)
        pads = pads_of_present(sums, stream, chunk, terms->code, present_in(sums, terms->presence, payload), &givers);
    else if (route != SA_ROUTE_FROM_OWNER)
        pads = sa_tag_pads(&sums->key, chunk, stream, 0, sums->workers, terms->code);
    if (route != SA_ROUTE_ALL) {
        uint64_t pads_of_owner = sa_tag_pads(&sums->key, chunk, stream, owner, owner + 1, terms->code);
        pads = route == SA_ROUTE_FROM_OWNER ? pads_of_owner : sa_tag_subtract(pads, pads_of_owner);
        givers = route == SA_ROUTE_FROM_OWNER ? 1 : givers - 1;
    }
    uint64_t rest = sa_tag_subtract(sa_tag_subtract(tag_of(sums, payload), hash_of(sums, terms, payload)), pads);
    if (!terms->agreed) return rest == 0;
    /* Marks that must be there: an agreed code is the own one of a rank, which partial sums, and the owner's place, may lack. */
    uint64_t marks = 0;
    int elsewhere = terms->presence || (route == SA_ROUTE_TO_OWNER && terms->is_largest), fits = elsewhere && rest == 0;
    for (uint32_t i = 0; i < givers && !fits; i++) {
        marks = sa_tag_add(marks, sums->code_mark);
        fits = rest == marks;
    }
    return fits;
}

int sa_verified_init(struct sa_verified_sums *sums, const struct sa_job *job, uint32_t rank, const uint8_t *key) {
    *sums = (struct sa_verified_sums){.rank = rank, .workers = job->workers, .partial = job->partial};
    if (job->verify != SA_VERIFY_ON) return 0;
    uint32_t words = job->elements - SA_TAG_LIMBS;
    if (!(sums->coefficients = malloc(SA_HASH_MEMORY(words) * sizeof *sums->coefficients))) return -1;
    sums->elements = SA_TAG_LIMBS;
    sums->key = sa_tag_key_of(key);
    sa_linear_hash_init(&sums->hash, &sums->key, words, sums->coefficients, true);
    sums->code_mark = sa_tag_random(&sums->key, 0, 0, SA_TAG_CODE_MARK, 0, 0);
    if (job->secret != SA_SECRET_ON) return 0;
    sums->mask_key = sa_mask_key_of(key + SA_KEY_BYTES);
    sums->unmasked = calloc(job->elements, sizeof *sums->unmasked);
    return sums->unmasked ? 0 : -1;
}

void sa_verified_end(struct sa_verified_sums *sums) {
    free(sums->coefficients);
    free(sums->unmasked);
}

/* ---- masks */

void sa_verified_mask(const struct sa_verified_sums *sums, uint32_t stream, uint64_t chunk, uint8_t *payload) {
    sa_mask(&sums->mask_key, chunk, stream, sums->rank, sums->rank + 1, payload, sums->hash.count, payload);
}

const uint8_t *sa_verified_unmask(const struct sa_verified_sums *sums, uint32_t stream, uint64_t chunk, uint32_t kind,
                                  const uint8_t *payload) {
    uint32_t count = sums->hash.count, owner = sa_owner(kind), first = 0, end = sums->workers;
    uint8_t *out = (uint8_t *)sums->unmasked;
    if (sa_route(kind) == SA_ROUTE_FROM_OWNER) first = owner, end = owner + 1;
    memcpy(out + 4ull * count, payload + 4ull * count, 4ull * SA_TAG_LIMBS);
    sa_mask(&sums->mask_key, chunk, stream, end, first, payload, count, out);
    if (sa_route(kind) == SA_ROUTE_TO_OWNER) sa_mask(&sums->mask_key, chunk, stream, owner, owner + 1, out, count, out);
    return out;
}
