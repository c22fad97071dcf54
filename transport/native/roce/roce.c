#include "transport/native/roce/roce.h"

#include <string.h>
#include <sys/socket.h>

#include "switchagg/native/abi.h"
#include "transport/native/roce/roce_crc.h"
#include "switchagg/native/rule/wire.h"

#define DONT_FRAGMENT 0x4000u
#define IDENT_SMALL 64u
#define V4_HEADERS (8u + 20u + 8u)
#define V6_HEADERS (8u + 40u + 8u)
#define UDP_BYTES 8u

/* ---- fields */

static uint16_t get16(const uint8_t *at) {
    uint16_t value;
    memcpy(&value, at, sizeof value);
    return SA_BE16(value);
}

static uint32_t get32(const uint8_t *at) {
    uint32_t value;
    memcpy(&value, at, sizeof value);
    return SA_BE32(value);
}

static void put16(uint8_t *at, uint32_t value) {
    uint16_t wire = SA_BE16((uint16_t)value);
    memcpy(at, &wire, sizeof wire);
}

static void put32(uint8_t *at, uint32_t value) {
    uint32_t wire = SA_BE32(value);
    memcpy(at, &wire, sizeof wire);
}

static uint32_t little32(const uint8_t *at) {
    return at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}

/* ---- packets */

#define SENDS SA_ROCE_KNOWN
#define WRITES (SA_ROCE_KNOWN | SA_ROCE_WRITES)
#define REFUSED (SA_ROCE_KNOWN | SA_ROCE_UNSUPPORTED)

static const uint16_t shapes[] = {
    [SA_ROCE_SEND_FIRST] = SENDS | SA_ROCE_STARTS,
    [SA_ROCE_SEND_MIDDLE] = SENDS,
    [SA_ROCE_SEND_LAST] = SENDS | SA_ROCE_ENDS,
    [SA_ROCE_SEND_LAST_IMMEDIATE] = SENDS | SA_ROCE_ENDS | SA_ROCE_IMMEDIATE,
    [SA_ROCE_SEND_ONLY] = SENDS | SA_ROCE_STARTS | SA_ROCE_ENDS,
    [SA_ROCE_SEND_ONLY_IMMEDIATE] = SENDS | SA_ROCE_STARTS | SA_ROCE_ENDS | SA_ROCE_IMMEDIATE,
    [SA_ROCE_WRITE_FIRST] = WRITES | SA_ROCE_STARTS | SA_ROCE_RETH,
    [SA_ROCE_WRITE_MIDDLE] = WRITES,
    [SA_ROCE_WRITE_LAST] = WRITES | SA_ROCE_ENDS,
    [SA_ROCE_WRITE_LAST_IMMEDIATE] = WRITES | SA_ROCE_ENDS | SA_ROCE_IMMEDIATE,
    [SA_ROCE_WRITE_ONLY] = WRITES | SA_ROCE_STARTS | SA_ROCE_ENDS | SA_ROCE_RETH,
    [SA_ROCE_WRITE_ONLY_IMMEDIATE] = WRITES | SA_ROCE_STARTS | SA_ROCE_ENDS | SA_ROCE_RETH | SA_ROCE_IMMEDIATE,
    [SA_ROCE_READ] = REFUSED,
    [SA_ROCE_ACKNOWLEDGE] = SA_ROCE_KNOWN | SA_ROCE_AETH,
    [SA_ROCE_COMPARE_SWAP] = REFUSED,
    [SA_ROCE_FETCH_ADD] = REFUSED,
    [SA_ROCE_SEND_LAST_INVALIDATE] = REFUSED,
    [SA_ROCE_SEND_ONLY_INVALIDATE] = REFUSED,
    [SA_ROCE_FLUSH] = REFUSED,
    [SA_ROCE_ATOMIC_WRITE] = REFUSED,
};

uint32_t sa_roce_shape(uint32_t opcode) {
    uint32_t transport = opcode & SA_ROCE_TRANSPORT, operation = opcode & ~SA_ROCE_TRANSPORT;
    if (opcode == SA_ROCE_CNP) return SA_ROCE_KNOWN | SA_ROCE_NOTIFIES;
    if (transport != SA_ROCE_RC && (transport != SA_ROCE_UC || operation > SA_ROCE_WRITE_ONLY_IMMEDIATE)) return 0;
    return operation < sizeof shapes / sizeof *shapes ? shapes[operation] : 0;
}

static uint32_t headers_of(uint32_t shape) {
    uint32_t bytes = SA_ROCE_BTH_BYTES;
    if (shape & SA_ROCE_RETH) bytes += SA_ROCE_RETH_BYTES;
    if (shape & SA_ROCE_IMMEDIATE) bytes += SA_ROCE_IMMEDIATE_BYTES;
    if (shape & SA_ROCE_AETH) bytes += SA_ROCE_AETH_BYTES;
    if (shape & SA_ROCE_NOTIFIES) bytes += SA_ROCE_CNP_BYTES;
    return bytes;
}

SA_EXPORT enum sa_roce_fault sa_roce_parse(const uint8_t *bytes, uint32_t size, struct sa_roce_packet *packet) {
    if (size < SA_ROCE_BTH_BYTES + SA_ROCE_ICRC_BYTES) return SA_ROCE_SHORT;
    if (bytes[1] & 15u) return SA_ROCE_VERSION;
    uint32_t shape = sa_roce_shape(bytes[0]), headers = headers_of(shape);
    if (!shape) return SA_ROCE_OPCODE;
    if (size < headers + SA_ROCE_ICRC_BYTES) return SA_ROCE_SHORT;
    uint32_t payload = size - headers - SA_ROCE_ICRC_BYTES, pad = bytes[1] >> 4 & 3u;
    if (size % 4 || (payload > SA_ROCE_MTU_MAX && !(shape & SA_ROCE_UNSUPPORTED))) return SA_ROCE_LENGTH;
    if (payload && shape & (SA_ROCE_AETH | SA_ROCE_NOTIFIES)) return SA_ROCE_LENGTH;
    if (pad > payload) return SA_ROCE_PAD;
    *packet = (struct sa_roce_packet){
        .opcode = bytes[0],
        .shape = (uint16_t)shape,
        .solicited = bytes[1] >> 7,
        .migration = bytes[1] >> 6 & 1,
        .pad = (uint8_t)pad,
        .partition = get16(bytes + 2),
        .fecn = bytes[4] >> 7,
        .becn = bytes[4] >> 6 & 1,
        .queue_pair = get32(bytes + 4) & SA_ROCE_BITS24,
        .ack_request = bytes[8] >> 7,
        .psn = get32(bytes + 8) & SA_ROCE_BITS24,
        .payload = bytes + headers,
        .payload_bytes = payload - pad,
    };
    const uint8_t *at = bytes + SA_ROCE_BTH_BYTES;
    if (shape & SA_ROCE_RETH) {
        packet->address = (uint64_t)get32(at) << 32 | get32(at + 4);
        packet->rkey = get32(at + 8);
        packet->length = get32(at + 12);
        at += SA_ROCE_RETH_BYTES;
    }
    if (shape & SA_ROCE_IMMEDIATE) packet->immediate = get32(at);
    if (shape & SA_ROCE_AETH) {
        packet->syndrome = at[0];
        packet->msn = get32(at) & SA_ROCE_BITS24;
    }
    return SA_ROCE_GOOD;
}

SA_EXPORT uint32_t sa_roce_build(const struct sa_roce_packet *packet, uint8_t *headers) {
    uint32_t shape = sa_roce_shape(packet->opcode);
    headers[0] = packet->opcode;
    headers[1] = (uint8_t)(packet->solicited << 7 | packet->migration << 6 | packet->pad << 4);
    put16(headers + 2, packet->partition);
    put32(headers + 4, (uint32_t)packet->fecn << 31 | (uint32_t)packet->becn << 30 | (packet->queue_pair & SA_ROCE_BITS24));
    put32(headers + 8, (uint32_t)packet->ack_request << 31 | (packet->psn & SA_ROCE_BITS24));
    uint8_t *at = headers + SA_ROCE_BTH_BYTES;
    if (shape & SA_ROCE_RETH) {
        put32(at, (uint32_t)(packet->address >> 32));
        put32(at + 4, (uint32_t)packet->address);
        put32(at + 8, packet->rkey);
        put32(at + 12, packet->length);
        at += SA_ROCE_RETH_BYTES;
    }
    if (shape & SA_ROCE_IMMEDIATE) {
        put32(at, packet->immediate);
        at += SA_ROCE_IMMEDIATE_BYTES;
    }
    if (shape & SA_ROCE_AETH) {
        put32(at, (uint32_t)packet->syndrome << 24 | (packet->msn & SA_ROCE_BITS24));
        at += SA_ROCE_AETH_BYTES;
    }
    if (shape & SA_ROCE_NOTIFIES) {
        memset(at, 0, SA_ROCE_CNP_BYTES);
        at += SA_ROCE_CNP_BYTES;
    }
    return (uint32_t)(at - headers);
}

/* ---- ICRC */

SA_EXPORT void sa_roce_path_init(struct sa_roce_path *path, int family, const uint8_t *from, const uint8_t *to,
                                 uint16_t from_port, uint16_t to_port) {
    uint8_t *ip = path->masked + 8;
    memset(path, 0, sizeof *path);
    memset(path->masked, 0xff, 8);
    path->v6 = family == AF_INET6;
    if (path->v6) {
        ip[0] = 0x6f; /* version; traffic class, flow label and hop limit are masked */
        ip[1] = ip[2] = ip[3] = ip[7] = 0xff;
        ip[6] = 17;
        memcpy(ip + 8, from, 16);
        memcpy(ip + 24, to, 16);
        ip += 40;
    } else {
        ip[0] = 0x45;
        ip[1] = ip[8] = ip[10] = ip[11] = 0xff; /* TOS, TTL, checksum */
        put16(ip + 6, DONT_FRAGMENT);
        ip[9] = 17;
        memcpy(ip + 12, from, 4);
        memcpy(ip + 16, to, 4);
        ip += 20;
    }
    put16(ip, from_port);
    put16(ip + 2, to_port);
    ip[6] = ip[7] = 0xff;
}

SA_EXPORT uint32_t sa_roce_icrc_padded(const struct sa_roce_path *path, uint16_t identification, const uint8_t *headers,
                                       uint32_t headers_bytes, const uint8_t *payload, uint32_t payload_bytes,
                                       uint32_t pad) {
    static const uint8_t zeros[3];
    uint8_t first[V6_HEADERS + SA_ROCE_HEADERS_MAX];
    uint32_t fixed = path->v6 ? V6_HEADERS : V4_HEADERS;
    uint32_t udp_bytes = UDP_BYTES + headers_bytes + payload_bytes + pad + SA_ROCE_ICRC_BYTES;
    memcpy(first, path->masked, fixed);
    if (path->v6) {
        put16(first + 8 + 4, udp_bytes);
    } else {
        put16(first + 8 + 2, 20 + udp_bytes);
        put16(first + 8 + 4, identification);
    }
    put16(first + fixed - 4, udp_bytes);
    /* With a separate payload the headers are short; without one, all bytes are in one piece. */
    uint32_t joined = payload_bytes && headers_bytes <= SA_ROCE_HEADERS_MAX ? headers_bytes : SA_ROCE_BTH_BYTES;
    memcpy(first + fixed, headers, joined);
    first[fixed + 4] = 0xff; /* FECN, BECN and reserved bits */
    uint32_t crc;
    if (joined == headers_bytes) {
        crc = sa_crc32_joined(first, fixed + joined, payload, payload_bytes);
    } else {
        crc = sa_crc32_joined(first, fixed + joined, headers + joined, headers_bytes - joined);
        if (payload_bytes) crc = sa_crc32(crc, payload, payload_bytes);
    }
    return pad ? sa_crc32(crc, zeros, pad) : crc;
}

SA_EXPORT uint32_t sa_roce_icrc(const struct sa_roce_path *path, uint16_t identification, const uint8_t *headers,
                                uint32_t headers_bytes, const uint8_t *payload, uint32_t payload_bytes) {
    return sa_roce_icrc_padded(path, identification, headers, headers_bytes, payload, payload_bytes, 0);
}

void sa_roce_put_icrc(uint8_t *at, uint32_t icrc) {
    for (int i = 0; i < 4; i++) at[i] = (uint8_t)(icrc >> 8 * i);
}

SA_EXPORT void sa_roce_seal(const struct sa_roce_path *path, uint16_t identification, uint8_t *bytes, uint32_t size) {
    uint32_t covered = size - SA_ROCE_ICRC_BYTES;
    sa_roce_put_icrc(bytes + covered, sa_roce_icrc(path, identification, bytes, covered, NULL, 0));
}

SA_EXPORT bool sa_roce_check(const struct sa_roce_path *path, const uint8_t *bytes, uint32_t size, uint16_t expected,
                             enum sa_roce_ident believed, uint16_t *identification_out) {
    uint32_t covered = size - SA_ROCE_ICRC_BYTES;
    uint32_t difference = sa_roce_icrc(path, expected, bytes, covered, NULL, 0) ^ little32(bytes + covered);
    if (identification_out) *identification_out = expected;
    if (!difference) return true;
    if (path->v6) return false;
    /* Identification and flags are 4 bytes, then come 12 bytes of IP and 8 of UDP. A difference in 4 bytes, read as the
       CRC reads them, is the register before the shift by those bytes and all that follow. */
    difference = sa_crc32_multiply(difference, sa_crc32_unshift(4 + 12 + UDP_BYTES + covered));
    uint8_t wrong[4] = {(uint8_t)difference, (uint8_t)(difference >> 8), (uint8_t)(difference >> 16),
                        (uint8_t)(difference >> 24)};
    uint16_t identification = expected ^ get16(wrong);
    if (identification_out) *identification_out = identification;
    if (believed == SA_IDENT_SMALL) return !get16(wrong + 2) && identification < IDENT_SMALL;
    return !(get16(wrong + 2) & ~DONT_FRAGMENT);
}
