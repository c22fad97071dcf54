/* Sums of random contributions, honest and tampered with, through verified_sums.c: so many of each kind as the first
   argument says, from the seed that is the second. An honest sum must fit (V5, V9), no other one may. */
#include "switchagg/native/worker/verified_sums.h"
#include "script.h"

enum { WORKERS = 8, ELEMENTS = 24, TRIALS_OF_A_KEY = 500, STREAM = 3 };
enum kind { HONEST, BIT, EXCHANGED, DROPPED, OLD, RACK, CODE_TOLD, CODE_USED, MARK_LOST, KINDS };
static const char *const names[KINDS] = {"honest",         "a bit changed", "two results exchanged",    "a rank dropped, another counted twice",
                                         "an old generation", "a rack's sum changed", "another code told", "another code used", "a code above all ranks'"};

static struct sa_verified_sums ranks[WORKERS], old[WORKERS];
static uint8_t parts[WORKERS][4 * ELEMENTS], sums[4 * ELEMENTS];
static uint64_t state;

static uint64_t drawn(void) { /* splitmix64 */
    uint64_t mixed = state += 0x9e3779b97f4a7c15u;
    mixed = (mixed ^ mixed >> 30) * 0xbf58476d1ce4e5b9u;
    mixed = (mixed ^ mixed >> 27) * 0x94d049bb133111ebu;
    return mixed ^ mixed >> 31;
}

static uint32_t below(uint32_t limit) { return (uint32_t)(drawn() % limit); }

/* A chunk: who gives to it, and how. */
struct trial {
    struct sa_job job;
    uint64_t chunk, givers;
    uint32_t kind;
    struct sa_tag_terms terms;
    uint64_t largest; /* ranks whose own code is the agreed one */
};

static void new_keys(struct trial *trial) {
    uint8_t key[2][SA_KEY_BYTES];
    for (uint32_t i = 0; i < sizeof key; i++) key[i / SA_KEY_BYTES][i % SA_KEY_BYTES] = (uint8_t)drawn();
    trial->job = (struct sa_job){.workers = 2 + below(WORKERS - 1), .elements = 8 + below(ELEMENTS - 7), .verify = SA_VERIFY_ON};
    for (uint32_t rank = 0; rank < WORKERS; rank++) {
        sa_verified_end(&ranks[rank]);
        sa_verified_end(&old[rank]);
        CHECK(!sa_verified_init(&ranks[rank], &trial->job, rank, key[0]) && !sa_verified_init(&old[rank], &trial->job, rank, key[1]));
    }
}

static struct sa_tag_terms terms_of(const struct trial *trial, uint32_t rank) {
    struct sa_tag_terms terms = trial->terms;
    terms.is_largest = trial->largest >> rank & 1;
    return terms;
}

static void draw(struct trial *trial) {
    uint32_t n = trial->job.workers, route = below(4), owner = below(n), words = trial->job.elements - SA_TAG_LIMBS;
    uint64_t everyone = (1u << n) - 1;
    trial->chunk = drawn() >> below(24);
    trial->kind = sa_kind(SA_OP_SUM, route % 3, route % 3 ? owner : 0, 0);
    trial->terms = (struct sa_tag_terms){.signed_words = below(2), .presence = route == 3};
    trial->terms.agreed = route != SA_ROUTE_FROM_OWNER && below(2);
    if (trial->terms.agreed) trial->terms.code = (int32_t)below(400) - 200;
    trial->givers = trial->terms.presence ? 1 + below((uint32_t)everyone) : sa_givers(trial->kind, everyone);
    trial->largest = trial->terms.agreed ? (drawn() & everyone) | 1u << (uint32_t)__builtin_ctzll(trial->givers) : 0;
    for (uint32_t rank = 0; rank < n; rank++)
        for (uint32_t i = 0; i < words; i++) {
            uint32_t value = trial->terms.signed_words ? (uint32_t)((int32_t)drawn() / WORKERS) : (uint32_t)drawn() / WORKERS;
            put(parts[rank], 4 * i, 4, trial->terms.presence && i == words - 1 ? 1u << rank : value);
        }
}

/* The sum of what the givers send, with tags of these keys; `other_code`: a rank that goes by another code. */
static void add_up(const struct trial *trial, const struct sa_verified_sums *keys, uint32_t other_code) {
    memset(sums, 0, sizeof sums);
    for (uint32_t rank = 0; rank < trial->job.workers; rank++) {
        if (!(trial->givers >> rank & 1)) continue;
        struct sa_tag_terms terms = terms_of(trial, rank);
        terms.code += rank == other_code;
        sa_verified_put_tag(&keys[rank], STREAM, trial->chunk, &terms, parts[rank]);
        for (uint32_t i = 0; i < trial->job.elements; i++) put(sums, 4 * i, 4, field(sums, 4 * i, 4) + field(parts[rank], 4 * i, 4));
    }
}

static int fits(const struct trial *trial) {
    uint32_t receiver = sa_route(trial->kind) == SA_ROUTE_TO_OWNER ? sa_owner(trial->kind) : 0;
    struct sa_tag_terms terms = terms_of(trial, receiver);
    return sa_verified_fits(&ranks[receiver], STREAM, trial->chunk, trial->kind, &terms, sums);
}

/* Tamper with the sum; returns whether it is no honest one then. */
static int tamper(struct trial *trial, enum kind kind) {
    uint32_t first = (uint32_t)__builtin_ctzll(trial->givers), last = 63 - (uint32_t)__builtin_clzll(trial->givers);
    uint32_t elements = trial->job.elements, at = 4 * below(elements);
    int agreed = (int)trial->terms.agreed;
    switch (kind) {
    case BIT: put(sums, at, 4, field(sums, at, 4) ^ 1u << below(32)); return 1;
    case EXCHANGED: draw(trial); return 1; /* this sum for that chunk */
    case DROPPED:
        for (at = 0; at < 4 * elements; at += 4) put(sums, at, 4, field(sums, at, 4) - field(parts[first], at, 4) + field(parts[last], at, 4));
        return first != last;
    case OLD: add_up(trial, old, WORKERS); return 1;
    case RACK:
        for (at = 0; at < 4 * elements; at += 4) put(sums, at, 4, field(sums, at, 4) + (uint32_t)drawn());
        return 1;
    case CODE_TOLD: trial->terms.code++; return agreed;
    case CODE_USED: add_up(trial, ranks, first); return agreed;
    case MARK_LOST:
        trial->largest = 0;
        add_up(trial, ranks, WORKERS);
        return agreed && !trial->terms.presence;
    default: return 0;
    }
}

int main(int argc, char **argv) {
    CHECK(argc == 3);
    long trials = atol(argv[1]), counted[KINDS] = {0}, wrong[KINDS] = {0};
    state = (uint64_t)atol(argv[2]);
    struct trial trial = {0};
    for (long number = 0; number < trials; number++)
        for (enum kind kind = HONEST; kind < KINDS; kind++) {
            if (kind == HONEST && number % TRIALS_OF_A_KEY == 0) new_keys(&trial);
            draw(&trial);
            add_up(&trial, ranks, WORKERS);
            int tampered = tamper(&trial, kind);
            if (!tampered && kind != HONEST) continue;
            counted[kind]++;
            wrong[kind] += fits(&trial) == tampered;
        }
    for (enum kind kind = HONEST; kind < KINDS; kind++) printf("%ld of %ld: %s\n", wrong[kind], counted[kind], names[kind]);
    return 0;
}
