#include "emulation/sim/native/team.h"

#include <pthread.h>
#include <sched.h>
#include <stdlib.h>

#define SPINS 2000u     /* then other processes have their turn, */
#define YIELDS 200u     /* and then it sleeps */

struct sim_team {
    struct sim_partitions *all;
    pthread_mutex_t lock;
    pthread_cond_t woken;
    uint32_t round, taken, left; /* atomic: counts windows; partitions taken; threads that are still in it */
    uint32_t asleep, ends;       /* guarded by the lock */
    uint32_t count;
    pthread_t threads[];
};

static void pause_a_little(uint32_t *spins) {
    if (++*spins < SPINS)
        __asm__ __volatile__("" ::: "memory");
    else
        sched_yield();
}

static void take_partitions(struct sim_team *team) {
    struct sim_partitions *all = team->all;
    for (uint32_t i; (i = __atomic_add_fetch(&team->taken, 1, __ATOMIC_RELAXED)) < all->count;) sim_window(all->each[i]);
}

/* The next round; it ends with the team. */
static int await(struct sim_team *team, uint32_t round) {
    for (uint32_t spins = 0; spins < SPINS + YIELDS;) {
        if (__atomic_load_n(&team->round, __ATOMIC_ACQUIRE) != round) return 1;
        pause_a_little(&spins);
    }
    pthread_mutex_lock(&team->lock);
    team->asleep++;
    while (__atomic_load_n(&team->round, __ATOMIC_ACQUIRE) == round && !team->ends) pthread_cond_wait(&team->woken, &team->lock);
    team->asleep--;
    int ends = team->ends;
    pthread_mutex_unlock(&team->lock);
    return !ends;
}

static void *work(void *object) {
    struct sim_team *team = object;
    for (uint32_t round = 0; await(team, round); round++) {
        take_partitions(team);
        __atomic_sub_fetch(&team->left, 1, __ATOMIC_RELEASE);
    }
    return NULL;
}

void sim_team_run(struct sim_team *team, struct sim_partitions *all) {
    if (!team || all->window_events < all->threaded_events) {
        for (uint32_t i = 1; i < all->count; i++) sim_window(all->each[i]);
        return;
    }
    team->all = all;
    __atomic_store_n(&team->taken, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&team->left, team->count, __ATOMIC_RELAXED);
    pthread_mutex_lock(&team->lock);
    __atomic_add_fetch(&team->round, 1, __ATOMIC_RELEASE);
    if (team->asleep) pthread_cond_broadcast(&team->woken);
    pthread_mutex_unlock(&team->lock);
    take_partitions(team);
    for (uint32_t spins = 0; __atomic_load_n(&team->left, __ATOMIC_ACQUIRE);) pause_a_little(&spins);
}

struct sim_team *sim_team_new(uint32_t threads) {
    struct sim_team *team = calloc(1, sizeof *team + threads * sizeof(pthread_t));
    if (!team) return NULL;
    pthread_mutex_init(&team->lock, NULL);
    pthread_cond_init(&team->woken, NULL);
    for (; team->count + 1 < threads; team->count++)
        if (pthread_create(&team->threads[team->count], NULL, work, team)) {
            sim_team_free(team);
            return NULL;
        }
    return team;
}

void sim_team_free(struct sim_team *team) {
    if (!team) return;
    pthread_mutex_lock(&team->lock);
    team->ends = 1;
    pthread_cond_broadcast(&team->woken);
    pthread_mutex_unlock(&team->lock);
    for (uint32_t i = 0; i < team->count; i++) pthread_join(team->threads[i], NULL);
    pthread_cond_destroy(&team->woken);
    pthread_mutex_destroy(&team->lock);
    free(team);
}
