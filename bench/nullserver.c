// A minimal Gearman server: it answers everything at once, checks nothing and stores only a ring of payloads.
// The load generator's rate against it is the generator's own ceiling on this machine. Listens on a free port of
// the loopback interface and prints "listening gearman 127.0.0.1:PORT".
#define _GNU_SOURCE
#include "wire.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <stdbool.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

enum { RING = 1 << 22, MAX_PAYLOAD = 24, MAX_FD = 4096, HANDLE = 19 };  // a handle is H:null: and 12 digits
struct job { int client; uint8_t length, payload[MAX_PAYLOAD]; };
struct connection { int fd; bool asleep; struct buffer in, out; };

static struct job *ring;
static uint64_t submitted, taken;
static struct connection *by_fd[MAX_FD];
static int sleepers[MAX_FD], sleeper_count, poller;

static void flush(struct connection *c) {
    struct buffer *out = &c->out;
    while (out->start < out->end) {  // a full socket is tried again at once: the peer is on this machine, and reading
        ssize_t sent = send(c->fd, out->bytes + out->start, out->end - out->start, MSG_NOSIGNAL);
        if (sent < 0 && errno != EAGAIN) break;
        if (sent > 0) out->start += (size_t)sent;
    }
    out->start = out->end = 0;
}

static uint8_t *append(struct connection *c, uint32_t type, size_t length) {
    return append_packet(&c->out, "\0RES", type, (uint32_t)length);
}

static void put_handle(uint8_t *at, uint64_t job) {
    memcpy(at, "H:null:", 7);
    put_digits(at + 7, job, 12);
}

static void wake_one(void) {
    while (sleeper_count) {
        struct connection *worker = by_fd[sleepers[--sleeper_count]];
        if (!worker || !worker->asleep) continue;
        worker->asleep = false;
        append(worker, NOOP, 0);
        flush(worker);
        return;
    }
}

static void on_submit(struct connection *c, bool foreground, const uint8_t *body, size_t length) {
    const uint8_t *unique = (const uint8_t *)memchr(body, 0, length) + 1;
    const uint8_t *payload = (const uint8_t *)memchr(unique, 0, (size_t)(body + length - unique)) + 1;
    struct job *job = &ring[submitted % RING];
    job->client = foreground ? c->fd : -1;
    job->length = (uint8_t)(body + length - payload);
    memcpy(job->payload, payload, job->length);
    put_handle(append(c, JOB_CREATED, HANDLE), submitted++);
    wake_one();
}

static void on_grab(struct connection *c) {
    if (taken == submitted) {
        append(c, NO_JOB, 0);
        return;
    }
    const struct job *job = &ring[taken % RING];
    uint8_t *at = append(c, JOB_ASSIGN, HANDLE + 1 + 6 + job->length);
    put_handle(at, taken++);
    at[HANDLE] = 0;
    memcpy(put_argument(at + HANDLE + 1, "bench", 5), job->payload, job->length);
}

static void on_pre_sleep(struct connection *c) {
    if (taken < submitted) {
        append(c, NOOP, 0);
        return;
    }
    c->asleep = true;
    sleepers[sleeper_count++] = c->fd;
}

static void on_complete(const uint8_t *body, size_t length) {
    int client = ring[strtoull((const char *)body + 7, 0, 10) % RING].client;
    if (client < 0 || !by_fd[client]) return;
    memcpy(append(by_fd[client], WORK_COMPLETE, length), body, length);
    flush(by_fd[client]);
}

static void on_packet(struct connection *c, uint32_t type, const uint8_t *body, size_t length) {
    switch (type) {
    case ECHO_REQ: memcpy(append(c, ECHO_RES, length), body, length); break;
    case SUBMIT_JOB: case SUBMIT_JOB_BG: on_submit(c, type == SUBMIT_JOB, body, length); break;
    case GRAB_JOB: on_grab(c); break;
    case PRE_SLEEP: on_pre_sleep(c); break;
    case WORK_COMPLETE: on_complete(body, length); break;
    }
}

static void forget(struct connection *c) {
    by_fd[c->fd] = 0;
    close(c->fd);
    free(c->in.bytes);
    free(c->out.bytes);
    free(c);
}

static void receive(struct connection *c) {
    struct buffer *in = &c->in;
    buffer_reserve(in, 16384);
    ssize_t received = recv(c->fd, in->bytes + in->end, in->size - in->end, 0);
    if (received < 0 && errno == EAGAIN) return;
    if (received <= 0) {
        forget(c);
        return;
    }
    in->end += (size_t)received;
    while (in->end - in->start >= HEADER) {
        const uint8_t *packet = in->bytes + in->start;
        size_t length = get_u32(packet + 8);
        if (in->end - in->start < HEADER + length) break;
        in->start += HEADER + length;
        on_packet(c, get_u32(packet + 4), packet + HEADER, length);
    }
    flush(c);
}

static void watch(int fd) {
    struct epoll_event event = {.events = EPOLLIN, .data.fd = fd};
    epoll_ctl(poller, EPOLL_CTL_ADD, fd, &event);
}

static void take_connection(int listener) {
    int fd = accept4(listener, 0, 0, SOCK_NONBLOCK), on = 1;
    if (fd < 0 || fd >= MAX_FD) exit(1);
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    by_fd[fd] = calloc(1, sizeof *by_fd[fd]);
    by_fd[fd]->fd = fd;
    watch(fd);
}

static int listen_on_loopback(void) {
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof address;
    if (bind(listener, (struct sockaddr *)&address, size) || listen(listener, 1024)) {
        perror("listen");
        exit(1);
    }
    getsockname(listener, (struct sockaddr *)&address, &size);
    printf("listening gearman 127.0.0.1:%d\n", ntohs(address.sin_port));
    fflush(stdout);
    return listener;
}

int main(void) {
    struct epoll_event events[256];
    ring = calloc(RING, sizeof *ring);
    poller = epoll_create1(0);
    int listener = listen_on_loopback();
    watch(listener);
    for (;;) {
        int count = epoll_wait(poller, events, 256, -1);
        for (int i = 0; i < count; i++) {
            int fd = events[i].data.fd;
            if (fd == listener) take_connection(fd);
            else if (by_fd[fd]) receive(by_fd[fd]);
        }
    }
}
