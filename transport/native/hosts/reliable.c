/* See reliable.h. */
#include "transport/native/hosts/reliable.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "switchagg/native/room.h"

#define SA_NO_FLIGHT UINT32_MAX
#define SA_FLIGHTS_FIRST 16u

enum sa_flight_state { SA_ARRIVED_THERE, SA_FLYING, SA_LOST };

struct sa_flight {
    int64_t order, sent_ns;
    uint32_t before, after; /* in the list of its state */
    uint8_t state, repeated;
};

/* The sender's ring and lists. */

static inline struct sa_flight *flight_of(const struct sa_sender *sender, uint64_t number) {
    return &sender->flights[number & sender->mask];
}

static inline void append(struct sa_sender *sender, struct sa_flights *list, uint32_t place) {
    struct sa_flight *flights = sender->flights;
    flights[place].before = list->last;
    flights[place].after = SA_NO_FLIGHT;
    if (list->last == SA_NO_FLIGHT)
        list->first = place;
    else
        flights[list->last].after = place;
    list->last = place;
    list->count++;
}

static inline void take_out(struct sa_sender *sender, struct sa_flights *list, uint32_t place) {
    struct sa_flight *flights = sender->flights, *flight = &flights[place];
    if (flight->before == SA_NO_FLIGHT)
        list->first = flight->after;
    else
        flights[flight->before].after = flight->after;
    if (flight->after == SA_NO_FLIGHT)
        list->last = flight->before;
    else
        flights[flight->after].before = flight->before;
    list->count--;
}

static inline uint64_t number_at(const struct sa_sender *sender, uint32_t place) {
    return sender->first + ((place - (uint32_t)sender->first) & sender->mask);
}

static int grow(struct sa_sender *sender) {
    uint32_t before = sender->flights ? sender->mask + 1 : 0, size = before ? 2 * before : SA_FLIGHTS_FIRST;
    struct sa_flight *flights = malloc(size * sizeof *flights);
    if (!flights) return -ENOMEM;
    struct sa_flights *lists[] = {&sender->in_flight, &sender->lost};
    for (uint64_t number = sender->first; number < sender->next; number++) {
        struct sa_flight *flight = &flights[number & (size - 1)];
        *flight = *flight_of(sender, number);
        if (flight->before != SA_NO_FLIGHT) flight->before = (uint32_t)number_at(sender, flight->before) & (size - 1);
        if (flight->after != SA_NO_FLIGHT) flight->after = (uint32_t)number_at(sender, flight->after) & (size - 1);
    }
    for (int i = 0; i < 2; i++) {
        struct sa_flights *list = lists[i];
        if (!list->count) continue;
        list->first = (uint32_t)number_at(sender, list->first) & (size - 1);
        list->last = (uint32_t)number_at(sender, list->last) & (size - 1);
    }
    free(sender->flights);
    sender->flights = flights;
    sender->mask = size - 1;
    return 0;
}

void sa_sender_begin(struct sa_sender *sender, const struct sa_reliable_config *config) {
    *sender = (struct sa_sender){.config = config, .newest = -1, .newest_ns = -1, .rtt_min_ns = (int64_t)1 << 62,
                                 .timeout_at_ns = -1, .loss_at_ns = -1};
    sender->in_flight = sender->lost = (struct sa_flights){SA_NO_FLIGHT, SA_NO_FLIGHT, 0};
    sender->timeout.rto_ns = config->rto_initial_ns;
    sender->timeout.rto_min_ns = config->rto_min_ns;
    sender->timeout.rto_max_ns = config->rto_max_ns;
}

void sa_sender_end(struct sa_sender *sender) {
    free(sender->flights);
    free(sender->sacked);
}

void sa_sender_submit(struct sa_sender *sender, struct sa_reliable_message *message) {
    uint32_t segment_bytes = sender->config->segment_bytes;
    message->first = sender->submitted;
    sender->submitted += message->size_bytes ? (message->size_bytes + segment_bytes - 1) / segment_bytes : 1;
    message->end = sender->submitted;
    message->next = NULL;
    if (sender->last)
        sender->last->next = message;
    else
        sender->oldest = message;
    sender->last = message;
    if (!sender->sending) sender->sending = message;
}

struct sa_reliable_message *sa_sender_returned(struct sa_sender *sender) {
    struct sa_reliable_message *message = sender->oldest;
    if (!message || message->end > sender->first) return NULL;
    sender->oldest = message->next;
    if (!message->next) sender->last = NULL;
    return message;
}

/* Sending. */

/* Returns the time until the first probe. */
static int64_t patience_ns(const struct sa_sender *sender) {
    const struct sa_timeout *timeout = &sender->timeout;
    if (!timeout->srtt_ns) return timeout->rto_ns;
    int64_t wait_ns = 2 * timeout->srtt_ns, least_ns = timeout->rto_min_ns / 4;
    if (wait_ns < least_ns) wait_ns = least_ns;
    return wait_ns < timeout->rto_ns ? wait_ns : timeout->rto_ns;
}

static void describe(const struct sa_reliable_message *message, const struct sa_reliable_config *config,
                     struct sa_segment *segment) {
    uint64_t offset = (segment->number - message->first) * config->segment_bytes;
    bool is_last = segment->number + 1 == message->end;
    segment->size_bytes = is_last ? (uint32_t)(message->size_bytes - offset) : config->segment_bytes;
    segment->flags = is_last ? SA_SEGMENT_LAST : 0;
}

static void transmit(struct sa_sender *sender, uint64_t number, bool repeated, int64_t now_ns,
                     struct sa_reliable_message *message, struct sa_segment *segment) {
    uint32_t place = (uint32_t)number & sender->mask;
    struct sa_flight *flight = &sender->flights[place];
    flight->order = ++sender->order;
    flight->sent_ns = now_ns;
    flight->state = SA_FLYING;
    flight->repeated = repeated;
    append(sender, &sender->in_flight, place);
    sender->counters[SA_SENT]++;
    segment->message = message;
    segment->number = number;
    segment->sent_ns = now_ns;
    describe(message, sender->config, segment);
}

static void transmit_lost(struct sa_sender *sender, int64_t now_ns, struct sa_segment *segment) {
    uint32_t place = sender->lost.first;
    uint64_t number = number_at(sender, place);
    struct sa_reliable_message *message = sender->oldest;
    while (message->end <= number) message = message->next;
    take_out(sender, &sender->lost, place);
    sender->counters[SA_RETRANSMITTED]++;
    transmit(sender, number, true, now_ns, message, segment);
}

int sa_sender_next(struct sa_sender *sender, int64_t now_ns, struct sa_segment *segment) {
    if (sender->lost.count) {
        transmit_lost(sender, now_ns, segment);
    } else if (sender->probe_due) {
        sender->probe_due = false;
        sender->has_probe = true;
        sender->probe_order = ++sender->order;
        sender->probe_ns = now_ns;
        *segment = (struct sa_segment){.sent_ns = now_ns, .flags = SA_SEGMENT_PROBE};
    } else {
        struct sa_reliable_message *message = sender->sending;
        uint64_t number = sender->next, out = number - sender->first;
        if (!message || out >= sender->config->window_segments) return 0;
        if ((!sender->flights || out > sender->mask) && grow(sender)) return -ENOMEM;
        transmit(sender, number, false, now_ns, message, segment);
        if (++sender->next == message->end) sender->sending = message->next;
    }
    if (sender->timeout_at_ns < 0) sender->timeout_at_ns = now_ns + patience_ns(sender);
    return 1;
}

/* Acknowledgements. */

void sa_sender_look(const struct sa_sender *sender) {
    if (!sender->flights) return;
    __builtin_prefetch(flight_of(sender, sender->first), 1);
    __builtin_prefetch(flight_of(sender, sender->first + 2), 1);
    __builtin_prefetch(sender->oldest);
}

/* A segment has arrived: whether that is news. */
static inline bool arrived_one(struct sa_sender *sender, uint64_t number, int64_t echo_ns) {
    struct sa_flight *flight = flight_of(sender, number);
    if (flight->state == SA_ARRIVED_THERE) return false;
    if (flight->state == SA_FLYING) {
        take_out(sender, &sender->in_flight, (uint32_t)number & sender->mask);
        if (flight->order > sender->newest && (!flight->repeated || flight->sent_ns <= echo_ns))
            sender->newest = flight->order;
    } else {
        take_out(sender, &sender->lost, (uint32_t)number & sender->mask);
    }
    flight->state = SA_ARRIVED_THERE;
    return true;
}

static void arrived_below(struct sa_sender *sender, uint64_t first, int64_t echo_ns) {
    for (uint64_t number = sender->first; number < first; number++) arrived_one(sender, number, echo_ns);
    sender->first = first;
    uint32_t remaining = 0;
    for (uint32_t i = 0; i < sender->sacked_count; i++)
        if (sender->sacked[i].end > first) sender->sacked[remaining++] = sender->sacked[i];
    sender->sacked_count = remaining;
}

static struct sa_sacked *sacked_from(struct sa_sender *sender, uint64_t start) {
    for (uint32_t i = sender->sacked_count; i--;)
        if (sender->sacked[i].start == start) return &sender->sacked[i];
    if (!sa_takes_one(&sender->sacked, sender->sacked_count, &sender->sacked_most, 8, sizeof *sender->sacked))
        return NULL;
    sender->sacked[sender->sacked_count] = (struct sa_sacked){start, start};
    return &sender->sacked[sender->sacked_count++];
}

/* The segments of the SACK ranges have arrived; work already done on a range isn't done again. */
static int arrived_ranges(struct sa_sender *sender, const struct sa_ack *ack, bool *is_news) {
    for (uint32_t i = 0; i < ack->count; i++) {
        uint64_t start = ack->first + ack->lows[i], end = ack->first + ack->highs[i];
        if (end > sender->next) end = sender->next;
        struct sa_sacked *done = sacked_from(sender, start);
        if (!done) return -ENOMEM;
        uint64_t from = done->end > sender->first ? done->end : sender->first;
        for (uint64_t number = from; number < end; number++)
            if (arrived_one(sender, number, ack->echo_ns)) *is_news = true;
        if (end > done->end) done->end = end;
    }
    return 0;
}

/* The round trip of the latest frame that came back; of one it overtook: how much longer that was under way. */
static void measure(struct sa_sender *sender, int64_t echo_ns, int64_t rtt_ns) {
    if (echo_ns >= sender->newest_ns) {
        sender->newest_ns = echo_ns;
        sender->rtt_last_ns = rtt_ns;
        if (rtt_ns < sender->rtt_min_ns) sender->rtt_min_ns = rtt_ns;
        return;
    }
    int64_t late_ns = (rtt_ns - sender->rtt_last_ns) * 5 / 4;
    if (late_ns > sender->timeout.rto_ns) late_ns = sender->timeout.rto_ns;
    if (late_ns > sender->late_ns) sender->late_ns = late_ns;
}

/* Segments sent before the newest arrival, and long enough ago, are lost. */
static void find_losses(struct sa_sender *sender, int64_t now_ns) {
    int64_t slack_ns = sender->rtt_min_ns / 4 > sender->late_ns ? sender->rtt_min_ns / 4 : sender->late_ns;
    int64_t allowed_ns = sender->rtt_last_ns + slack_ns;
    sender->loss_at_ns = -1;
    while (sender->in_flight.count) {
        uint32_t place = sender->in_flight.first;
        struct sa_flight *flight = &sender->flights[place];
        if (flight->order > sender->newest) return;
        if (flight->sent_ns + allowed_ns > now_ns) {
            sender->loss_at_ns = flight->sent_ns + allowed_ns;
            return;
        }
        take_out(sender, &sender->in_flight, place);
        append(sender, &sender->lost, place);
        flight->state = SA_LOST;
        sender->late_ns -= sender->late_ns >> 6; /* a late frame is remembered for some hundred losses */
    }
}

int sa_sender_receive(struct sa_sender *sender, const struct sa_ack *ack, int64_t now_ns) {
    int64_t echo_ns = ack->echo_ns;
    if (ack->first > sender->next) {
        sender->counters[SA_ACK_UNKNOWN_SENDERS]++;
        return 0;
    }
    sender->counters[SA_ACKS_IN]++;
    bool is_news = ack->first > sender->first;
    if (is_news) arrived_below(sender, ack->first, echo_ns);
    if (ack->count && arrived_ranges(sender, ack, &is_news)) return -ENOMEM;
    bool probed = sender->has_probe && sender->probe_ns <= echo_ns && echo_ns <= now_ns;
    if (probed) {
        if (sender->probe_order > sender->newest) sender->newest = sender->probe_order;
        sender->has_probe = false;
    }
    if ((is_news || probed) && echo_ns <= now_ns) measure(sender, echo_ns, now_ns - echo_ns);
    if (is_news) {
        sa_timeout_sample(&sender->timeout, now_ns > echo_ns ? now_ns - echo_ns : 0);
        sender->timeouts = 0;
        sender->probe_due = false;
        bool is_waiting = sender->in_flight.count || sender->lost.count;
        sender->timeout_at_ns = is_waiting ? now_ns + patience_ns(sender) : -1;
    }
    if (sender->in_flight.count)
        find_losses(sender, now_ns);
    else
        sender->loss_at_ns = -1;
    return 0;
}

int sa_sender_handle_timer(struct sa_sender *sender, int64_t now_ns) {
    if (sender->loss_at_ns >= 0 && now_ns >= sender->loss_at_ns) find_losses(sender, now_ns);
    if (sender->timeout_at_ns < 0 || now_ns < sender->timeout_at_ns) return 0;
    sender->timeouts++;
    sender->counters[SA_TIMEOUTS]++;
    if (sender->timeouts > sender->config->retry_limit) return -ETIMEDOUT;
    struct sa_timeout *timeout = &sender->timeout;
    if (sender->timeouts > 1 || !timeout->srtt_ns) /* the first may have been the earlier one */
        timeout->rto_ns = 2 * timeout->rto_ns < timeout->rto_max_ns ? 2 * timeout->rto_ns : timeout->rto_max_ns;
    sender->timeout_at_ns = now_ns + timeout->rto_ns;
    sender->probe_due = !sender->lost.count;
    return 0;
}

/* Receiving. */

void sa_receiver_begin(struct sa_receiver *receiver, const struct sa_reliable_config *config) {
    *receiver = (struct sa_receiver){.config = config, .ack_at_ns = -1};
    receiver->arrived_end = &receiver->arrived;
}

void sa_receiver_end(struct sa_receiver *receiver) {
    free(receiver->early);
    free(receiver->ranges);
}

/* The first range whose end is not below `number`. */
static uint32_t range_from(const struct sa_receiver *receiver, uint64_t number) {
    uint32_t low = 0, high = receiver->range_count;
    while (low < high) {
        uint32_t middle = (low + high) / 2;
        if (receiver->ranges[middle].end < number)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static bool is_early(const struct sa_receiver *receiver, uint64_t number) {
    uint32_t at = range_from(receiver, number + 1);
    return at < receiver->range_count && receiver->ranges[at].start <= number;
}

/* Takes the next segment in order. */
static void take(struct sa_receiver *receiver, struct sa_reliable_message *ended) {
    receiver->expected++;
    if (!ended) return;
    ended->after = NULL;
    *receiver->arrived_end = ended;
    receiver->arrived_end = &ended->after;
}

static void take_early(struct sa_receiver *receiver) {
    if (!receiver->range_count || receiver->ranges[0].start != receiver->expected) return;
    uint64_t end = receiver->ranges[0].end;
    memmove(receiver->ranges, receiver->ranges + 1, --receiver->range_count * sizeof *receiver->ranges);
    while (receiver->expected < end) take(receiver, receiver->early[receiver->expected & receiver->early_mask]);
}

/* Makes room for segments up to `number`, and for another range. */
static int make_room(struct sa_receiver *receiver, uint64_t number) {
    uint64_t needed = number - receiver->expected;
    if (!receiver->early || needed > receiver->early_mask) {
        uint32_t size = SA_FLIGHTS_FIRST;
        while (size <= needed) size *= 2;
        struct sa_reliable_message **messages = malloc(size * sizeof *messages);
        if (!messages) return -ENOMEM;
        for (uint32_t i = 0; i < receiver->range_count; i++)
            for (uint64_t held = receiver->ranges[i].start; held < receiver->ranges[i].end; held++)
                messages[held & (size - 1)] = receiver->early[held & receiver->early_mask];
        free(receiver->early);
        receiver->early = messages;
        receiver->early_mask = size - 1;
    }
    bool room = sa_takes_one(&receiver->ranges, receiver->range_count, &receiver->range_most, 8, sizeof *receiver->ranges);
    return room ? 0 : -ENOMEM;
}

/* The range that it is in now. */
static struct sa_sacked *add_to_ranges(struct sa_receiver *receiver, uint64_t number) {
    struct sa_sacked *ranges = receiver->ranges;
    uint32_t at = range_from(receiver, number);
    if (at < receiver->range_count && ranges[at].end == number) {
        ranges[at].end++;
    } else {
        memmove(ranges + at + 1, ranges + at, (receiver->range_count - at) * sizeof *ranges);
        ranges[at] = (struct sa_sacked){number, number + 1};
        receiver->range_count++;
    }
    if (at + 1 < receiver->range_count && ranges[at + 1].start == number + 1) {
        ranges[at].end = ranges[at + 1].end;
        receiver->range_count--;
        memmove(ranges + at + 1, ranges + at + 2, (receiver->range_count - at - 1) * sizeof *ranges);
    }
    return &ranges[at];
}

static int take_beyond_gap(struct sa_receiver *receiver, const struct sa_segment *segment) {
    uint64_t number = segment->number, recent[SA_SACK_RANGES] = {number};
    if (make_room(receiver, number)) return -ENOMEM;
    receiver->early[number & receiver->early_mask] = segment->flags ? segment->message : NULL;
    const struct sa_sacked *range = add_to_ranges(receiver, number);
    uint32_t count = 1;
    for (uint32_t i = 0; i < receiver->recent_count && count < SA_SACK_RANGES; i++) {
        uint64_t earlier = receiver->recent[i];
        if (earlier < range->start || earlier >= range->end) recent[count++] = earlier;
    }
    memcpy(receiver->recent, recent, sizeof recent);
    receiver->recent_count = count;
    return 0;
}

int sa_receiver_receive(struct sa_receiver *receiver, const struct sa_segment *segment, int64_t now_ns) {
    const struct sa_reliable_config *config = receiver->config;
    uint64_t number = segment->number, expected = receiver->expected;
    if (number >= expected + config->window_segments) {
        receiver->counters[SA_BEYOND_WINDOW]++;
        return 0;
    }
    receiver->counters[SA_SEGMENTS_IN]++;
    bool is_probe = segment->flags == SA_SEGMENT_PROBE;
    bool is_next = number == expected && !is_probe;
    bool is_duplicate = !is_probe && (number < expected || (receiver->range_count && is_early(receiver, number)));
    if (!receiver->pending || !(is_duplicate || (number == expected && !receiver->range_count)))
        receiver->echo_ns = segment->sent_ns;
    receiver->pending++;
    if (is_next) {
        if (receiver->range_count) receiver->ack_now = true;
        take(receiver, segment->flags ? segment->message : NULL);
        take_early(receiver);
        if (receiver->pending >= config->ack_every_segments || segment->flags)
            receiver->ack_now = true;
        else if (receiver->ack_at_ns < 0)
            receiver->ack_at_ns = now_ns + config->delayed_ack_ns;
        return 0;
    }
    receiver->ack_now = true;
    if (is_duplicate)
        receiver->counters[SA_DUPLICATES]++;
    else if (!is_probe)
        return take_beyond_gap(receiver, segment);
    return 0;
}

/* Ranges of the segments that came last, the last first (RFC 2018): each is told several times. */
static void report_ranges(const struct sa_receiver *receiver, struct sa_ack *ack) {
    uint64_t expected = receiver->expected;
    for (uint32_t i = 0; i < receiver->recent_count; i++) {
        if (!is_early(receiver, receiver->recent[i])) continue;
        const struct sa_sacked *range = &receiver->ranges[range_from(receiver, receiver->recent[i] + 1)];
        uint32_t low = (uint32_t)(range->start - expected), known = 0;
        while (known < ack->count && ack->lows[known] != low) known++;
        if (known < ack->count) continue;
        ack->lows[ack->count] = low;
        ack->highs[ack->count++] = (uint32_t)(range->end - expected);
    }
}

int sa_receiver_next(struct sa_receiver *receiver, int64_t now_ns, struct sa_ack *ack) {
    if (!receiver->ack_now && (receiver->ack_at_ns < 0 || now_ns < receiver->ack_at_ns)) return 0;
    ack->first = receiver->expected;
    ack->echo_ns = receiver->echo_ns;
    ack->count = 0;
    if (receiver->range_count) report_ranges(receiver, ack);
    receiver->counters[SA_ACKS_OUT]++;
    receiver->pending = 0;
    receiver->ack_now = false;
    receiver->ack_at_ns = -1;
    return 1;
}

void sa_receiver_handle_timer(struct sa_receiver *receiver, int64_t now_ns) {
    if (receiver->ack_at_ns >= 0 && now_ns >= receiver->ack_at_ns) receiver->ack_now = true;
}

/* Frames. */

static uint8_t *put(uint8_t *at, uint64_t value, int bytes) {
    for (int i = bytes; i--; value >>= 8) at[i] = (uint8_t)value;
    return at + bytes;
}

static uint8_t *put_header(uint8_t *frame, uint32_t kind_and_flags, uint32_t connection, uint64_t number,
                           int64_t sent_ns, uint64_t tag) {
    frame = put(put(frame, 0x5254, 2), kind_and_flags, 2);
    return put(put(put(put(frame, connection, 4), number, 8), (uint64_t)sent_ns, 8), tag, 8);
}

uint32_t sa_segment_frame(const struct sa_segment *segment, const struct sa_reliable_config *config,
                          uint32_t connection, uint8_t *frame) {
    const struct sa_reliable_message *message = segment->message;
    uint64_t tag = message ? message->tag : 0;
    uint8_t *at = put_header(frame, 1 << 8 | segment->flags, connection, segment->number, segment->sent_ns, tag);
    if (!message) return SA_RELIABLE_BYTES;
    uint64_t offset = (segment->number - message->first) * config->segment_bytes, left = segment->size_bytes;
    if (offset < message->head_bytes) {
        uint64_t some = message->head_bytes - offset < left ? message->head_bytes - offset : left;
        memcpy(at, message->head + offset, some);
        at += some;
        offset += some;
        left -= some;
    }
    if (message->data)
        memcpy(at, message->data + (offset - message->head_bytes), left);
    else
        memset(at, 0, left);
    return SA_RELIABLE_BYTES + segment->size_bytes;
}

uint32_t sa_ack_frame(const struct sa_ack *ack, uint32_t connection, uint8_t *frame) {
    uint8_t *at = put_header(frame, 2 << 8 | ack->count, connection, ack->first, ack->echo_ns, 0);
    for (uint32_t i = 0; i < ack->count; i++) at = put(put(at, ack->lows[i], 4), ack->highs[i], 4);
    return (uint32_t)(at - frame);
}
