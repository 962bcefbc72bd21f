// The parts of the Gearman protocol that the load generator and the null server share.
#ifndef BENCH_WIRE_H
#define BENCH_WIRE_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum packet_type {
    CAN_DO = 1, PRE_SLEEP = 4, NOOP = 6, SUBMIT_JOB = 7, JOB_CREATED = 8, GRAB_JOB = 9, NO_JOB = 10, JOB_ASSIGN = 11,
    WORK_COMPLETE = 13, WORK_FAIL = 14, ECHO_REQ = 16, ECHO_RES = 17, SUBMIT_JOB_BG = 18, ERROR_PACKET = 19,
};

enum { HEADER = 12 };  // 4 bytes of magic, the type and the body's length, both big-endian

// Bytes waiting to be parsed or sent: those of [start, end) are live.
struct buffer {
    uint8_t *bytes;
    size_t start, end, size;
};

static inline void put_u32(uint8_t *at, uint32_t value) {
    at[0] = value >> 24, at[1] = value >> 16, at[2] = value >> 8, at[3] = value;
}

static inline uint32_t get_u32(const uint8_t *at) {
    return (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3];
}

// Writes a number as exactly `width` decimal digits; snprintf would cost more than all the rest of a submit.
static inline void put_digits(uint8_t *at, uint64_t number, int width) {
    while (width--) at[width] = '0' + number % 10, number /= 10;
}

// Makes room for `count` more bytes behind the live ones.
static inline void buffer_reserve(struct buffer *b, size_t count) {
    if (b->end + count <= b->size) return;
    if (b->start) {
        memmove(b->bytes, b->bytes + b->start, b->end - b->start);
        b->end -= b->start, b->start = 0;
    }
    if (b->end + count <= b->size) return;
    while (b->end + count > b->size) b->size = b->size ? b->size * 2 : 1024;
    b->bytes = realloc(b->bytes, b->size);
    if (!b->bytes) {
        fputs("out of memory\n", stderr);
        exit(2);
    }
}

// Appends a packet's header and returns where its body of `length` bytes goes.
static inline uint8_t *append_packet(struct buffer *out, const char magic[4], uint32_t type, uint32_t length) {
    buffer_reserve(out, HEADER + length);
    uint8_t *at = out->bytes + out->end;
    memcpy(at, magic, 4);
    put_u32(at + 4, type);
    put_u32(at + 8, length);
    out->end += HEADER + length;
    return at + HEADER;
}

// Copies an argument and the NUL that ends it; returns where the next one goes.
static inline uint8_t *put_argument(uint8_t *at, const void *text, size_t length) {
    memcpy(at, text, length);
    at[length] = 0;
    return at + length + 1;
}

#endif
