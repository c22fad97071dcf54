/* See qp.h: states, work requests, completions. */
#include "transport/native/roce/qp.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define DEPTH_MAX (1u << 20)
#define WINDOW_MAX (1u << 22)

/* ---- completion queue */

int sa_cq_new(struct sa_cq *cq, uint32_t capacity) {
    *cq = (struct sa_cq){.capacity = capacity};
    if (!capacity || capacity > DEPTH_MAX) return -EINVAL;
    cq->ring = calloc(capacity, sizeof *cq->ring);
    return cq->ring ? 0 : -ENOMEM;
}

void sa_cq_free(struct sa_cq *cq) {
    free(cq->ring);
    *cq = (struct sa_cq){0};
}

uint32_t sa_cq_poll(struct sa_cq *cq, struct sa_completion *completions, uint32_t most) {
    uint32_t count = cq->count < most ? cq->count : most;
    for (uint32_t i = 0; i < count; i++) {
        completions[i] = cq->ring[cq->first];
        cq->first = cq->first + 1 == cq->capacity ? 0 : cq->first + 1;
    }
    cq->count -= count;
    return count;
}

static bool claim(struct sa_cq *cq) {
    if (cq->count + cq->claimed >= cq->capacity) return false;
    cq->claimed++;
    return true;
}

static void complete(struct sa_cq *cq, const struct sa_completion *completion) {
    uint32_t at = cq->first + cq->count;
    cq->ring[at < cq->capacity ? at : at - cq->capacity] = *completion;
    cq->claimed--;
    cq->count++;
    cq->pushed++;
}

/* ---- making and states */

int sa_qp_init(struct sa_qp *qp, uint32_t number, uint32_t transport, uint32_t domain, struct sa_memory *memory,
               struct sa_cq *send_cq, struct sa_cq *receive_cq, uint32_t send_depth, uint32_t receive_depth,
               bool signal_all) {
    if (transport != SA_ROCE_RC && transport != SA_ROCE_UC) return -EINVAL;
    if (!send_depth || send_depth > DEPTH_MAX || !receive_depth || receive_depth > DEPTH_MAX) return -EINVAL;
    *qp = (struct sa_qp){
        .number = number,
        .transport = transport,
        .domain = domain,
        .memory = memory,
        .send_cq = send_cq,
        .receive_cq = receive_cq,
        .send_depth = send_depth,
        .receive_depth = receive_depth,
        .signal_all = signal_all,
        .retry_ns = SA_QP_NEVER,
        .reorder = {.gap_ns = SA_REORDER_NONE, .nak_ns = SA_REORDER_NONE},
    };
    qp->sends = calloc(send_depth, sizeof *qp->sends);
    qp->receives = calloc(receive_depth, sizeof *qp->receives);
    if (!qp->sends || !qp->receives) {
        free(qp->sends);
        free(qp->receives);
        return -ENOMEM;
    }
    send_cq->users++;
    receive_cq->users++;
    return 0;
}

static void release(struct sa_qp *qp, uint32_t key) {
    struct sa_region *region = sa_memory_find(qp->memory, key);
    if (region) region->uses--;
}

/* All work requests are forgotten. */
static void drop_all(struct sa_qp *qp) {
    for (; qp->send_head < qp->send_tail; qp->send_head++) {
        const struct sa_send_entry *entry = &qp->sends[qp->send_head % qp->send_depth];
        if (entry->memory) release(qp, entry->request.lkey);
        qp->send_cq->claimed--;
    }
    for (; qp->receive_head < qp->receive_tail; qp->receive_head++) {
        release(qp, qp->receives[qp->receive_head % qp->receive_depth].lkey);
        qp->receive_cq->claimed--;
    }
    qp->send_cursor = qp->send_tail;
    qp->answers = qp->verb = 0;
    qp->retry_ns = SA_QP_NEVER;
    sa_reorder_reset(&qp->reorder);
}

void sa_qp_free(struct sa_qp *qp) {
    drop_all(qp);
    qp->send_cq->users--;
    qp->receive_cq->users--;
    free(qp->sends);
    free(qp->receives);
}

void sa_qp_fail(struct sa_qp *qp) {
    if (qp->state == SA_QPS_ERR) return;
    qp->state = SA_QPS_ERR;
    qp->verb = 0;
    qp->retry_ns = SA_QP_NEVER;
    sa_reorder_reset(&qp->reorder);
    while (qp->send_head < qp->send_tail) sa_qp_finish_send(qp, SA_WC_FLUSHED);
    while (qp->receive_head < qp->receive_tail)
        sa_qp_finish_receive(qp, &(struct sa_completion){.status = SA_WC_FLUSHED, .opcode = SA_WC_RECEIVE});
}

static bool mtu_is_valid(uint32_t mtu) {
    return mtu >= SA_ROCE_MTU_MIN && mtu <= SA_ROCE_MTU_MAX && !(mtu & (mtu - 1));
}

static int to_receive(struct sa_qp *qp, const struct sa_qp_attributes *wanted) {
    if (!mtu_is_valid(wanted->path_mtu) || wanted->peer > SA_ROCE_BITS24 || wanted->receive_psn > SA_ROCE_BITS24 ||
        wanted->min_rnr_timer > 31)
        return -EINVAL;
    uint32_t access = qp->attributes.access;
    qp->attributes = *wanted;
    qp->attributes.access = access;
    qp->expected = wanted->receive_psn;
    qp->after_far = SA_QP_NO_PSN;
    qp->msn = qp->verb = qp->answers = 0;
    qp->skipping = qp->not_ready = false;
    sa_reorder_reset(&qp->reorder);
    return 0;
}

static int to_send(struct sa_qp *qp, const struct sa_qp_attributes *wanted, int64_t now_ns) {
    if (wanted->send_psn > SA_ROCE_BITS24 || wanted->timeout > 31 || wanted->retry_count > 7 || wanted->rnr_retry > 7 ||
        !wanted->window_packets || wanted->window_packets > WINDOW_MAX)
        return -EINVAL;
    qp->paced = wanted->line_bps != 0;
    if (qp->paced) {
        struct sa_dcqcn_config config;
        sa_dcqcn_defaults(&config, wanted->line_bps);
        if (sa_dcqcn_init(&qp->rate, &config, now_ns)) return -EINVAL;
    }
    qp->attributes.send_psn = wanted->send_psn;
    qp->attributes.timeout = wanted->timeout;
    qp->attributes.retry_count = wanted->retry_count;
    qp->attributes.rnr_retry = wanted->rnr_retry;
    qp->attributes.window_packets = wanted->window_packets;
    qp->attributes.line_bps = wanted->line_bps;
    sa_qp_reset_requests(qp, now_ns);
    return 0;
}

int sa_qp_modify(struct sa_qp *qp, enum sa_qp_state state, const struct sa_qp_attributes *attributes, int64_t now_ns) {
    enum sa_qp_state from = qp->state;
    int result = -EINVAL;
    if (state == SA_QPS_RESET) {
        drop_all(qp);
        result = 0;
    } else if (state == SA_QPS_ERR) {
        sa_qp_fail(qp);
        return 0;
    } else if (from == SA_QPS_RESET && state == SA_QPS_INIT) {
        qp->attributes = (struct sa_qp_attributes){.access = attributes->access};
        result = attributes->access & ~(uint32_t)(SA_ACCESS_LOCAL_WRITE | SA_ACCESS_REMOTE_WRITE) ? -EINVAL : 0;
    } else if (from == SA_QPS_INIT && state == SA_QPS_RTR) {
        result = to_receive(qp, attributes);
    } else if (from == SA_QPS_RTR && state == SA_QPS_RTS) {
        result = to_send(qp, attributes, now_ns);
    } else if ((from == SA_QPS_RTS && state == SA_QPS_SQD) || (from == SA_QPS_SQD && state == SA_QPS_RTS)) {
        result = 0;
    }
    if (!result) qp->state = state;
    return result;
}

/* ---- work requests */

int sa_qp_post_send(struct sa_qp *qp, const struct sa_send_request *request) {
    if (qp->state != SA_QPS_RTS && qp->state != SA_QPS_SQD && qp->state != SA_QPS_ERR) return -EINVAL;
    if (request->opcode > SA_WR_SEND_WITH_IMMEDIATE || request->length > SA_MESSAGE_MAX ||
        request->flags & ~(uint32_t)(SA_SEND_SIGNALED | SA_SEND_SOLICITED))
        return -EINVAL;
    if (qp->send_tail - qp->send_head == qp->send_depth || !claim(qp->send_cq)) return -ENOMEM;
    struct sa_send_entry *entry = &qp->sends[qp->send_tail++ % qp->send_depth];
    uint32_t mtu = qp->attributes.path_mtu ? qp->attributes.path_mtu : SA_ROCE_MTU_MIN;
    *entry = (struct sa_send_entry){.request = *request, .first = qp->post_sequence};
    entry->packets = request->length ? (uint32_t)(((uint64_t)request->length + mtu - 1) / mtu) : 1;
    qp->post_sequence += entry->packets;
    if (qp->state == SA_QPS_ERR) {
        sa_qp_finish_send(qp, SA_WC_FLUSHED);
        return 0;
    }
    if (request->length) {
        entry->memory = sa_memory_reach(qp->memory, qp->domain, request->lkey, request->address, request->length, 0);
        if (entry->memory)
            sa_memory_find(qp->memory, request->lkey)->uses++;
        else
            entry->fault = SA_WC_LOCAL_PROTECTION;
    }
    sa_qp_check_front(qp);
    return 0;
}

int sa_qp_post_receive(struct sa_qp *qp, const struct sa_receive_request *request) {
    if (qp->state == SA_QPS_RESET) return -EINVAL;
    if (qp->receive_tail - qp->receive_head == qp->receive_depth || !claim(qp->receive_cq)) return -ENOMEM;
    struct sa_receive_request *receive = &qp->receives[qp->receive_tail++ % qp->receive_depth];
    *receive = *request;
    struct sa_region *region = sa_memory_find(qp->memory, request->lkey);
    if (region && region->domain == qp->domain)
        region->uses++;
    else
        receive->lkey = 0; /* even if the key becomes valid later: nothing would keep its region registered */
    if (qp->state == SA_QPS_ERR)
        sa_qp_finish_receive(qp, &(struct sa_completion){.status = SA_WC_FLUSHED, .opcode = SA_WC_RECEIVE});
    return 0;
}

void sa_qp_finish_send(struct sa_qp *qp, uint32_t status) {
    const struct sa_send_entry *entry = &qp->sends[qp->send_head++ % qp->send_depth];
    if (qp->send_cursor < qp->send_head) qp->send_cursor = qp->send_head;
    if (entry->memory) release(qp, entry->request.lkey);
    if (status == SA_WC_SUCCESS && !qp->signal_all && !(entry->request.flags & SA_SEND_SIGNALED)) {
        qp->send_cq->claimed--;
        return;
    }
    complete(qp->send_cq,
             &(struct sa_completion){
                 .id = entry->request.id,
                 .status = status,
                 .opcode = entry->request.opcode <= SA_WR_WRITE_WITH_IMMEDIATE ? SA_WC_WRITE : SA_WC_SEND,
                 .queue_pair = qp->number,
                 .bytes = entry->request.length,
             });
}

void sa_qp_finish_receive(struct sa_qp *qp, const struct sa_completion *completion) {
    const struct sa_receive_request *request = &qp->receives[qp->receive_head++ % qp->receive_depth];
    struct sa_completion entry = *completion;
    entry.id = request->id;
    entry.queue_pair = qp->number;
    release(qp, request->lkey);
    complete(qp->receive_cq, &entry);
}

void sa_qp_check_front(struct sa_qp *qp) {
    if (qp->send_head == qp->send_tail || qp->state == SA_QPS_ERR) return;
    uint32_t fault = qp->sends[qp->send_head % qp->send_depth].fault;
    if (!fault) return;
    sa_qp_finish_send(qp, fault);
    sa_qp_fail(qp);
}
