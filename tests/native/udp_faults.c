/* udp.c over a kernel that fails: partial sends, a full socket or device, refusals of a destination or of segmentation,
   cut bundles, overflows. Run as: udp_faults SEED. Every datagram must leave in order exactly once or be counted as lost,
   and what arrives must be taken apart as it was put together. */
#define sendmmsg fake_sendmmsg
#define sendmsg fake_sendmsg
#define recvmmsg fake_recvmmsg
#include "transport/native/network/udp.c"
#undef sendmmsg
#undef sendmsg
#undef recvmmsg

#include <arpa/inet.h>
#include <stdio.h>

#define ROWS 4000u
#define CHECK(condition) \
    do { \
        if (!(condition)) { \
            fprintf(stderr, "line %d: not so: %s\n", __LINE__, #condition); \
            exit(1); \
        } \
    } while (0)

static uint64_t chance;
static uint32_t left_rows[ROWS + 1]; /* numbers of the datagrams that left, in order */
static uint32_t left_count, full_count, gso_sends_after_fallback;
static bool gso_broken, refused_gso, says_priority, has_trailers;
static uint32_t expected_tos, overflow;

static uint32_t below(uint32_t limit) {
    chance = chance * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(chance >> 33) % limit;
}

/* The segment size a message asks for, 0 if none; checks its TOS, and the priority, which must come after it. */
static uint32_t segment_of(const struct msghdr *header) {
    uint32_t segment = 0, tos = 256, priority = 256;
    struct msghdr copy = *header;
    for (struct cmsghdr *c = CMSG_FIRSTHDR(&copy); c; c = CMSG_NXTHDR(&copy, c)) {
        if (c->cmsg_level == SOL_UDP && c->cmsg_type == UDP_SEGMENT) {
            uint16_t size;
            CHECK(c->cmsg_len == CMSG_LEN(sizeof size));
            memcpy(&size, CMSG_DATA(c), sizeof size);
            segment = size;
        } else {
            int value;
            bool is_tos = c->cmsg_level == IPPROTO_IP && c->cmsg_type == IP_TOS;
            CHECK(c->cmsg_len == CMSG_LEN(sizeof value));
            CHECK(is_tos || (c->cmsg_level == SOL_SOCKET && c->cmsg_type == SO_PRIORITY && tos != 256));
            memcpy(&value, CMSG_DATA(c), sizeof value);
            *(is_tos ? &tos : &priority) = (uint32_t)value;
        }
    }
    CHECK(tos == expected_tos);
    uint32_t urgency = tos >> 5 > 6 ? 6 : tos >> 5;
    CHECK(priority == (says_priority && tos != 256 ? urgency : 256));
    return segment;
}

/* Let a message leave: note the number that stands at the head of each of its datagrams. */
static uint32_t leave(const struct msghdr *header) {
    static uint8_t flat[70000];
    uint32_t length = 0, segment = segment_of(header);
    for (size_t i = 0; i < header->msg_iovlen; i++) {
        CHECK(length + header->msg_iov[i].iov_len <= SA_DATAGRAM_MAX);
        memcpy(flat + length, header->msg_iov[i].iov_base, header->msg_iov[i].iov_len);
        length += (uint32_t)header->msg_iov[i].iov_len;
    }
    if (!segment) segment = length;
    CHECK(length % segment == 0 && length / segment <= 64);
    CHECK(((struct sockaddr_in *)header->msg_name)->sin_port == htons(4242));
    for (uint32_t at = 0; at < length; at += segment) {
        CHECK(left_count < ROWS);
        memcpy(&left_rows[left_count++], flat + at, 4);
        if (has_trailers) CHECK(!memcmp(flat + at, flat + at + segment - SA_UDP_TRAILER_BYTES, 4));
    }
    return length;
}

static int fail(int error) {
    errno = error;
    return -1;
}

static int random_refusal(void) {
    static const int errors[] = {EAGAIN, ENOBUFS, EINTR, ECONNREFUSED, EPERM, EINVAL, EIO, EMSGSIZE};
    int error = errors[below(below(8) ? 5 : 8)]; /* refusals that may be about segmentation come seldom */
    full_count += error == EAGAIN || error == ENOBUFS;
    return error;
}

int fake_sendmmsg(int descriptor, struct mmsghdr *messages, unsigned count, int flags) {
    CHECK(descriptor >= 0 && count > 0 && (flags & MSG_DONTWAIT));
    if (below(4) == 0) return fail(random_refusal());
    unsigned taken = 1 + below(count);
    for (unsigned i = 0; i < taken; i++) {
        if (gso_broken && segment_of(&messages[i].msg_hdr)) {
            gso_sends_after_fallback += refused_gso;
            if (i) return (int)i;
            return fail(EIO);
        }
        messages[i].msg_len = leave(&messages[i].msg_hdr);
    }
    return (int)taken;
}

ssize_t fake_sendmsg(int descriptor, const struct msghdr *header, int flags) {
    CHECK(descriptor >= 0 && (flags & MSG_DONTWAIT) && !segment_of(header));
    if (below(3) == 0) return fail(random_refusal());
    refused_gso = true;
    return leave(header);
}

static void test_sending(int descriptor) {
    static uint8_t memory[ROWS * 64];
    static uint8_t trailers[ROWS * SA_UDP_TRAILER_BYTES]; /* each begins with its row's number, as the row does */
    static const uint8_t *frames[ROWS];
    says_priority = below(2);
    struct sa_udp_options options = {descriptor, 1, 1, 1 + below(64), 4, 2048, says_priority, 0, 1ll << 60};
    struct sa_udp *udp = sa_udp_new(&options);
    struct sa_address to = {.family = AF_INET, .port = 4242, .host = {127, 0, 0, 1}};
    CHECK(udp);
    gso_broken = below(2);
    has_trailers = below(2);
    expected_tos = below(2) ? 256 : below(256);
    uint32_t size = 4 + 4 * below(16);
    for (uint32_t row = 0; row < ROWS; row++) {
        memcpy(memory + (size_t)row * size, &row, 4);
        memcpy(trailers + (size_t)row * SA_UDP_TRAILER_BYTES, &row, 4);
        frames[row] = memory + (size_t)row * size;
    }
    const uint64_t *counters = sa_udp_counters(udp);
    uint32_t datagram = size + (has_trailers ? SA_UDP_TRAILER_BYTES : 0);
    for (uint32_t row = 0; row < ROWS;) {
        struct sa_udp_message messages[3];
        uint32_t from = row, used = 1 + below(3), asked = 0;
        for (uint32_t i = 0; i < used; i++) {
            uint32_t rows = below(200);
            if (rows > ROWS - from) rows = ROWS - from;
            bool scattered = below(2);
            messages[i] = (struct sa_udp_message){scattered ? NULL : memory + (size_t)from * size,
                                                  scattered ? frames + from : NULL,
                                                  has_trailers ? trailers + (size_t)from * SA_UDP_TRAILER_BYTES : NULL,
                                                  rows, size, &to,
                                                  expected_tos == 256 ? SA_TOS_OF_SOCKET : (int32_t)expected_tos, 9};
            from += rows;
            asked += rows;
        }
        CHECK(sa_udp_send(udp, messages, used) == 0);
        uint32_t accepted = 0;
        bool full = false;
        for (uint32_t i = 0; i < used; i++) {
            CHECK(messages[i].accepted <= messages[i].rows && (!full || !messages[i].accepted));
            full = full || messages[i].accepted < messages[i].rows;
            accepted += messages[i].accepted;
        }
        row += accepted;
        CHECK(left_count + counters[SA_UDP_SEND_ERRORS] == row);
    }
    for (uint32_t i = 1; i < left_count; i++) CHECK(left_rows[i - 1] < left_rows[i]);
    CHECK(counters[SA_UDP_SENT_DATAGRAMS] == left_count && counters[SA_UDP_SENT_BYTES] == (uint64_t)left_count * datagram);
    CHECK(counters[SA_UDP_GSO_FALLBACKS] == refused_gso && sa_udp_state(udp)->gso == !refused_gso);
    CHECK(!gso_sends_after_fallback && counters[SA_UDP_SEND_WOULD_BLOCK] == full_count);
    sa_udp_free(udp);
}

/* What the fake kernel put into the newest messages. */
static struct sa_udp_arrival due[64];
static uint8_t due_first[64];
static int due_count;

static size_t put(uint8_t *at, int level, int type, const void *data, size_t size) {
    struct cmsghdr *header = (struct cmsghdr *)at;
    *header = (struct cmsghdr){.cmsg_level = level, .cmsg_type = type, .cmsg_len = CMSG_LEN(size)};
    memcpy(CMSG_DATA(header), data, size);
    return CMSG_SPACE(size);
}

static void arrive(struct mmsghdr *message) {
    struct msghdr *header = &message->msg_hdr;
    CHECK(header->msg_namelen >= sizeof(struct sockaddr_in) && header->msg_controllen >= 3 * CMSG_SPACE(sizeof(int)));
    uint8_t tos = (uint8_t)below(256), *control = header->msg_control, *bytes = header->msg_iov[0].iov_base;
    uint32_t size = below(1500), length = size, rest = 0, rows = 1;
    size_t used = 0;
    if (size && below(2)) {
        int segment = (int)size;
        rows = 1 + below(40);
        rest = below(2) ? below(size) : 0;
        length = rows * size + rest;
        used += put(control + used, SOL_UDP, UDP_GRO, &segment, sizeof segment);
    }
    if (below(2)) {
        overflow += below(5);
        used += put(control + used, SOL_SOCKET, SO_RXQ_OVFL, &overflow, sizeof overflow);
    }
    used += put(control + used, IPPROTO_IP, IP_TOS, &tos, 1);
    header->msg_controllen = used;
    for (uint32_t i = 0; i < length; i++) bytes[i] = (uint8_t)below(256);
    *(struct sockaddr_in *)header->msg_name = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons(7)};
    header->msg_namelen = sizeof(struct sockaddr_in);
    message->msg_len = length;
    due_first[due_count] = length ? bytes[0] : 0;
    due[due_count++] = (struct sa_udp_arrival){bytes, rows, size, NULL, tos, 0};
    if (rest) {
        due_first[due_count] = bytes[length - rest];
        due[due_count++] = (struct sa_udp_arrival){bytes + length - rest, 1, rest, NULL, tos, 0};
    }
}

int fake_recvmmsg(int descriptor, struct mmsghdr *messages, unsigned count, int flags, struct timespec *timeout) {
    CHECK(descriptor >= 0 && (flags & MSG_DONTWAIT) && !timeout);
    uint32_t what = below(6);
    if (what == 0) return fail(ECONNREFUSED);
    if (what == 1) return fail(EAGAIN);
    unsigned taken = 1 + below(count);
    for (unsigned i = 0; i < taken; i++) arrive(&messages[i]);
    return (int)taken;
}

static void test_receiving(int descriptor) {
    struct sa_udp_options options = {descriptor, 1, 1, 16, 1 + below(16), 2048, 0, 0, 1ll << 60};
    struct sa_udp *udp = sa_udp_new(&options);
    CHECK(udp);
    const uint64_t *counters = sa_udp_counters(udp);
    uint64_t datagrams = 0;
    for (int turn = 0; turn < 300; turn++) {
        const struct sa_udp_arrival *arrivals;
        due_count = 0;
        CHECK(sa_udp_receive(udp, &arrivals) == due_count);
        for (int i = 0; i < due_count; i++) {
            CHECK(arrivals[i].bytes == due[i].bytes && arrivals[i].rows == due[i].rows && arrivals[i].size == due[i].size);
            CHECK(arrivals[i].tos == due[i].tos && (!due[i].size || *arrivals[i].bytes == due_first[i]));
            CHECK(arrivals[i].sender->port == 7 && arrivals[i].sender->family == AF_INET);
            datagrams += arrivals[i].rows;
        }
    }
    CHECK(counters[SA_UDP_RECEIVED_DATAGRAMS] == datagrams && counters[SA_UDP_RECEIVE_ERRORS] > 0);
    CHECK(counters[SA_UDP_RECEIVE_OVERFLOW] <= overflow && counters[SA_UDP_RECEIVE_OVERFLOW] + 5 > overflow);
    sa_udp_free(udp);
}

int main(int count, char **arguments) {
    chance = count > 1 ? strtoull(arguments[1], NULL, 10) * 2 + 1 : 1;
    for (int i = 0; i < 8; i++) below(2);
    int descriptor = socket(AF_INET, SOCK_DGRAM, 0);
    CHECK(descriptor >= 0);
    test_sending(descriptor);
    test_receiving(descriptor);
    close(descriptor);
    printf("left %u lost %u fallback %d\n", left_count, ROWS - left_count, refused_gso);
    return 0;
}
