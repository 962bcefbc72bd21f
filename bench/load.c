// A load generator for Gearman servers: one thread, epoll, raw sockets. It prints one line of JSON.
//
//   echo    clients send ECHO_REQ
//   submit  clients submit background jobs
//   drain   workers grab and complete jobs that are already queued
//   e2e     clients submit background jobs while workers complete them
//   fg      clients submit foreground jobs and wait for each result
//
// The payload of job k is k itself in decimal, and its result is the payload reversed. So every result can be checked,
// and a job that is assigned twice, or was never submitted, is detected. Exit 1: the server answered wrongly. Exit 2:
// wrong usage, no connection, or no progress for STALL_SECONDS.
#define _GNU_SOURCE
#include "wire.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <netinet/tcp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { STALL_SECONDS = 20, MAX_PIDS = 64, MAX_PORTS = 16, NUMBER_WIDTH = 12, MAX_PAYLOAD = 1 << 20, MAX_EVENTS = 256 };
enum mode { ECHO, SUBMIT, DRAIN, E2E, FG };
static const char *const MODE_NAMES[] = {"echo", "submit", "drain", "e2e", "fg"};
enum uniques { UNIQUE_NONE, UNIQUE_SEQ, UNIQUE_RANDOM };
static const char *const UNIQUE_NAMES[] = {"none", "seq", "random"};

static struct {
    int mode, unique, conns, workers, sleepers, window, payload;
    uint64_t jobs, first;
    const char *function;
    int pids[MAX_PIDS], pid_count, ports[MAX_PORTS], port_count;
} options = {.mode = -1, .conns = 1, .window = 1, .payload = NUMBER_WIDTH, .jobs = 100000, .function = "bench"};

struct connection {
    int fd, index;
    bool is_worker, asleep, grabbing, waits_to_send;
    uint64_t submitted, answered;  // by this client
    struct buffer in, out;
};

// Outside RUN the answer to an ECHO_REQ is a fence: the server has processed all earlier packets.
static enum { SETUP, RUN, SETTLE } phase = SETUP;
static int poller, connection_count, client_count, fences_due;
static struct connection *connections;
static uint64_t tick;  // nanoseconds, read once for each batch of packets: precise enough, and cheap at a million a second
static uint64_t answered, results, completed;
static uint64_t *submitted_at;       // by job
static uint8_t *assigned, *answered_for;  // by job: was it handed to a worker, did its result arrive

static void fail(int status, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    fputs("load: ", stderr);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    exit(status);
}

static uint64_t monotonic_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

// ---- latencies: a histogram with 32 steps to the power of two, so within 3 % and small whatever the number of jobs

enum { STEP_BITS = 5, STEPS = 1 << STEP_BITS, BUCKETS = 64 * STEPS };
static uint64_t histogram[BUCKETS], latency_count, latency_max;

static void record_latency(uint64_t ns) {
    int magnitude = 63 - __builtin_clzll(ns | STEPS);
    int shift = magnitude - STEP_BITS;
    histogram[(shift << STEP_BITS) + (int)(ns >> shift)]++;
    latency_count++;
    if (ns > latency_max) latency_max = ns;
}

static double latency_us(double share) {
    uint64_t wanted = (uint64_t)(share * (double)latency_count), seen = 0;
    for (int bucket = 0; bucket < BUCKETS; bucket++) {
        seen += histogram[bucket];
        if (seen <= wanted) continue;
        int shift = bucket < 2 * STEPS ? 0 : (bucket >> STEP_BITS) - 1;
        return (double)((uint64_t)(bucket - (shift << STEP_BITS)) << shift) / 1e3;
    }
    return (double)latency_max / 1e3;
}

// ---- sending

static uint8_t *append(struct connection *c, uint32_t type, size_t length) {
    return append_packet(&c->out, "\0REQ", type, (uint32_t)length);
}

static void watch(struct connection *c, int operation) {
    struct epoll_event event = {.events = EPOLLIN | (c->waits_to_send ? EPOLLOUT : 0), .data.ptr = c};
    epoll_ctl(poller, operation, c->fd, &event);
}

static void flush(struct connection *c) {
    struct buffer *out = &c->out;
    while (out->start < out->end) {
        ssize_t sent = send(c->fd, out->bytes + out->start, out->end - out->start, MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR) continue;
        if (sent < 0 && errno != EAGAIN) fail(2, "send: %s", strerror(errno));
        if (sent < 0) break;
        out->start += (size_t)sent;
    }
    bool must_wait = out->start < out->end;
    if (!must_wait) out->start = out->end = 0;
    if (must_wait == c->waits_to_send) return;
    c->waits_to_send = must_wait;
    watch(c, EPOLL_CTL_MOD);
}

static void append_fence(struct connection *c) {
    memcpy(append(c, ECHO_REQ, 5), "fence", 5);
    fences_due++;
}

// ---- jobs: payloads, uniques, checks

static void put_payload(uint8_t *at, uint64_t job) {
    put_digits(at, job, NUMBER_WIDTH);
    memset(at + NUMBER_WIDTH, 'x', (size_t)options.payload - NUMBER_WIDTH);
}

static void reverse(uint8_t *to, const uint8_t *from, size_t length) {
    for (size_t i = 0; i < length; i++) to[i] = from[length - 1 - i];
}

// Returns the job's index among those of this run; an unknown payload is the server's error.
static uint64_t job_of_payload(const uint8_t *payload, size_t length) {
    uint64_t job = 0;
    if (length != (size_t)options.payload) fail(1, "a payload of %zu bytes where %d were sent", length, options.payload);
    for (int i = 0; i < NUMBER_WIDTH; i++) {
        if (payload[i] < '0' || payload[i] > '9') fail(1, "a payload or result that was never sent");
        job = job * 10 + (uint64_t)(payload[i] - '0');
    }
    for (int i = NUMBER_WIDTH; i < options.payload; i++)
        if (payload[i] != 'x') fail(1, "the payload of job %llu is damaged", (unsigned long long)job);
    if (job < options.first || job >= options.first + options.jobs)
        fail(1, "job %llu is none of this run", (unsigned long long)job);
    return job - options.first;
}

static uint64_t scramble(uint64_t x) {  // splitmix64: neighbours become unrelated, and no two numbers become one
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

// Writes the job's unique and returns its length.
static size_t put_unique(uint8_t *at, uint64_t job) {
    if (options.unique == UNIQUE_NONE) return 0;
    if (options.unique == UNIQUE_SEQ) {
        memcpy(at, "order-", 6);
        put_digits(at + 6, job, NUMBER_WIDTH);
        return 6 + NUMBER_WIDTH;
    }
    uint64_t halves[2] = {scramble(job), scramble(~job)};
    size_t length = 0;
    for (int digit = 0; digit < 32; digit++) {
        if (digit == 8 || digit == 12 || digit == 16 || digit == 20) at[length++] = '-';
        at[length++] = "0123456789abcdef"[halves[digit / 16] >> (60 - 4 * (digit % 16)) & 15];
    }
    return length;
}

// ---- clients: connection i of n sends the jobs i, i + n, i + 2n …, so that the nth answer belongs to the nth of them

static uint64_t job_number(const struct connection *c, uint64_t nth) {
    return (uint64_t)c->index + nth * (uint64_t)options.conns;
}

static void submit_next(struct connection *c) {
    uint64_t job = job_number(c, c->submitted);
    if (job >= options.jobs) return;
    c->submitted++;
    submitted_at[job] = tick;
    job += options.first;
    size_t payload = (size_t)options.payload;
    if (options.mode == ECHO) {
        put_payload(append(c, ECHO_REQ, payload), job);
        return;
    }
    uint8_t unique[40];
    size_t unique_length = put_unique(unique, job), function_length = strlen(options.function);
    uint32_t type = options.mode == FG ? SUBMIT_JOB : SUBMIT_JOB_BG;
    uint8_t *at = append(c, type, function_length + 1 + unique_length + 1 + payload);
    at = put_argument(at, options.function, function_length);
    at = put_argument(at, unique, unique_length);
    put_payload(at, job);
}

// An ECHO_RES or JOB_CREATED: answers come in the order of the requests.
static void on_answer(struct connection *c) {
    uint64_t job = job_number(c, c->answered++);
    if (c->answered > c->submitted) fail(1, "an answer that nobody asked for");
    answered++;
    if (options.mode == FG) return;  // the next job follows the result
    if (options.mode != E2E) record_latency(tick - submitted_at[job]);
    submit_next(c);
}

static void on_result(struct connection *c, const uint8_t *body, size_t length) {
    static uint8_t payload[MAX_PAYLOAD];
    const uint8_t *end_of_handle = memchr(body, 0, length);
    if (!end_of_handle) fail(1, "a result without data");
    size_t result_length = (size_t)(body + length - end_of_handle - 1);
    if (result_length != (size_t)options.payload) fail(1, "a result of %zu bytes", result_length);
    reverse(payload, end_of_handle + 1, result_length);
    uint64_t job = job_of_payload(payload, result_length);
    if (job % (uint64_t)options.conns != (uint64_t)c->index) fail(1, "a result went to the wrong client");
    if (answered_for[job]++) fail(1, "two results for job %llu", (unsigned long long)job);
    record_latency(tick - submitted_at[job]);
    results++;
    submit_next(c);
}

// ---- workers

static void grab(struct connection *c) {
    if (c->grabbing) return;
    append(c, GRAB_JOB, 0);
    c->grabbing = true;
    c->asleep = false;
}

static void on_assigned(struct connection *c, const uint8_t *body, size_t length) {
    const uint8_t *end = body + length, *end_of_handle = memchr(body, 0, length);
    const uint8_t *function = end_of_handle ? end_of_handle + 1 : end;
    const uint8_t *end_of_function = memchr(function, 0, (size_t)(end - function));
    if (!end_of_function) fail(1, "a JOB_ASSIGN without its three arguments");
    const uint8_t *payload = end_of_function + 1;
    size_t handle_length = (size_t)(end_of_handle - body), payload_length = (size_t)(end - payload);
    uint64_t job = job_of_payload(payload, payload_length);
    if (assigned[job]++) fail(1, "job %llu was handed out twice", (unsigned long long)job);
    if (options.mode == E2E) record_latency(tick - submitted_at[job]);
    uint8_t *at = append(c, WORK_COMPLETE, handle_length + 1 + payload_length);
    reverse(put_argument(at, body, handle_length), payload, payload_length);
    completed++;
    c->grabbing = false;
    grab(c);
}

static void on_no_job(struct connection *c) {
    c->grabbing = false;
    c->asleep = true;
    append(c, PRE_SLEEP, 0);
}

// ---- receiving

static void on_error(uint8_t *body, size_t length) {
    for (size_t i = 0; i < length; i++)
        if (body[i] < ' ') body[i] = ' ';
    fail(1, "the server sent ERROR: %.*s", (int)length, body);
}

static void on_packet(struct connection *c, uint32_t type, uint8_t *body, size_t length) {
    if (type == ECHO_RES && phase != RUN) fences_due--;
    else if (type == ERROR_PACKET) on_error(body, length);
    else if (type == WORK_FAIL) fail(1, "the server sent WORK_FAIL");
    else if (!c->is_worker && (type == JOB_CREATED || type == ECHO_RES)) on_answer(c);
    else if (!c->is_worker && type == WORK_COMPLETE) on_result(c, body, length);
    else if (c->is_worker && type == JOB_ASSIGN) on_assigned(c, body, length);
    else if (c->is_worker && type == NO_JOB) on_no_job(c);
    else if (c->is_worker && type == NOOP && phase == SETUP) c->asleep = false;
    else if (c->is_worker && type == NOOP) grab(c);
    else fail(1, "an unexpected packet of type %u", type);
}

static void receive(struct connection *c) {
    struct buffer *in = &c->in;
    buffer_reserve(in, c->is_worker ? 2048 : 65536);  // a thousand sleeping workers must stay small
    ssize_t received = recv(c->fd, in->bytes + in->end, in->size - in->end, 0);
    if (received < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (received < 0) fail(2, "recv: %s", strerror(errno));
    if (received == 0) fail(2, "the server closed the connection");
    in->end += (size_t)received;
    tick = monotonic_ns();
    while (in->end - in->start >= HEADER) {
        uint8_t *packet = in->bytes + in->start;
        size_t length = get_u32(packet + 8);
        if (memcmp(packet, "\0RES", 4)) fail(1, "an answer without the magic \\0RES");
        if (in->end - in->start < HEADER + length) break;
        in->start += HEADER + length;
        on_packet(c, get_u32(packet + 4), packet + HEADER, length);
    }
    if (in->start == in->end) in->start = in->end = 0;
    flush(c);
}

// ---- phases

static bool fences_answered(void) { return fences_due == 0; }

static bool all_done(void) {
    switch (options.mode) {
    case FG: return results == options.jobs;
    case DRAIN: return completed == options.jobs;
    case E2E: return completed == options.jobs && answered == options.jobs;
    default: return answered == options.jobs;
    }
}

static void run_until(bool (*done)(void)) {
    struct epoll_event events[MAX_EVENTS];
    uint64_t progress = 0, moved_at = monotonic_ns();
    while (!done()) {
        int count = epoll_wait(poller, events, MAX_EVENTS, 1000);
        for (int i = 0; i < count; i++) {
            struct connection *c = events[i].data.ptr;
            if (events[i].events & EPOLLOUT) flush(c);
            if (events[i].events & ~(uint32_t)EPOLLOUT) receive(c);
        }
        uint64_t now = monotonic_ns();
        if (answered + results + completed != progress) progress = answered + results + completed, moved_at = now;
        if (now - moved_at > STALL_SECONDS * 1000000000ull)
            fail(2, "no progress for %d s: of %llu jobs %llu are answered, %llu completed, %llu have their result; %d fences due",
                 STALL_SECONDS, (unsigned long long)options.jobs, (unsigned long long)answered,
                 (unsigned long long)completed, (unsigned long long)results, fences_due);
    }
}

// Clients, and separately workers, are assigned to the servers in rotation: each server gets its share of both.
static void open_connection(struct connection *c) {
    int port = options.ports[(c->is_worker ? c->index - client_count : c->index) % options.port_count];
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    c->fd = socket(AF_INET, SOCK_STREAM, 0);
    if (c->fd < 0) fail(2, "socket: %s", strerror(errno));
    if (connect(c->fd, (struct sockaddr *)&address, sizeof address)) fail(2, "connect: %s", strerror(errno));
    int on = 1;
    setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    fcntl(c->fd, F_SETFL, O_NONBLOCK);
    watch(c, EPOLL_CTL_ADD);
}

static void set_up(void) {
    poller = epoll_create1(0);
    submitted_at = calloc(options.jobs, sizeof *submitted_at);
    assigned = calloc(options.jobs, 1);
    answered_for = calloc(options.jobs, 1);
    connections = calloc((size_t)connection_count, sizeof *connections);
    if (!submitted_at || !assigned || !answered_for || !connections) fail(2, "out of memory");
    for (int i = 0; i < connection_count; i++) {
        struct connection *c = &connections[i];
        c->index = i;
        c->is_worker = i >= client_count;
        open_connection(c);
        if (c->is_worker) {
            memcpy(append(c, CAN_DO, strlen(options.function)), options.function, strlen(options.function));
            c->asleep = options.mode != DRAIN || i - client_count >= options.workers;
            if (c->asleep) append(c, PRE_SLEEP, 0);
        }
        append_fence(c);
        flush(c);
        if (i % 16 == 15) run_until(fences_answered);  // gearmand's listen queue is short
    }
    run_until(fences_answered);
}

// Returns the duration in seconds. Workers' completions count when the answer to a later echo has arrived: a
// server may answer GRAB_JOB before it has stored the WORK_COMPLETE that came before it.
static double run(void) {
    phase = RUN;
    uint64_t started_at = tick = monotonic_ns();
    for (int i = 0; i < connection_count; i++) {
        struct connection *c = &connections[i];
        if (c->is_worker && !c->asleep) grab(c);
        for (int place = 0; !c->is_worker && place < options.window; place++) submit_next(c);
        flush(c);
    }
    run_until(all_done);
    phase = SETTLE;
    for (int i = client_count; i < client_count + options.workers; i++) {
        append_fence(&connections[i]);
        flush(&connections[i]);
    }
    run_until(fences_answered);
    return (double)(monotonic_ns() - started_at) / 1e9;
}

// ---- resource usage of the processes

static double own_cpu_seconds(void) {
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
           (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6;
}

static double server_cpu_seconds(void) {
    unsigned long total = 0, user, kernel;
    for (int i = 0; i < options.pid_count; i++) {
        char path[64], text[1024] = "";
        snprintf(path, sizeof path, "/proc/%d/stat", options.pids[i]);
        FILE *file = fopen(path, "r");
        if (!file) continue;
        if (!fgets(text, sizeof text, file)) text[0] = 0;
        fclose(file);
        const char *after_name = strrchr(text, ')');  // the name may hold spaces
        if (after_name && sscanf(after_name + 1, " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu", &user, &kernel) == 2)
            total += user + kernel;
    }
    return (double)total / (double)sysconf(_SC_CLK_TCK);
}

static long server_rss_kib(void) {
    long total = 0, pages;
    for (int i = 0; i < options.pid_count; i++) {
        char path[64];
        snprintf(path, sizeof path, "/proc/%d/statm", options.pids[i]);
        FILE *file = fopen(path, "r");
        if (!file) continue;
        if (fscanf(file, "%*d %ld", &pages) == 1) total += pages * (sysconf(_SC_PAGESIZE) / 1024);
        fclose(file);
    }
    return total;
}

// ---- the command line

static int index_of(const char *name, const char *const names[], int count) {
    for (int i = 0; i < count; i++)
        if (!strcmp(name, names[i])) return i;
    fail(2, "unknown value '%s'", name);
    return -1;
}

static void parse_options(int argc, char **argv) {
    static const struct option known[] = {
        {"mode", 1, 0, 'm'}, {"port", 1, 0, 'p'}, {"jobs", 1, 0, 'n'}, {"first", 1, 0, 'f'}, {"conns", 1, 0, 'c'},
        {"window", 1, 0, 'w'}, {"workers", 1, 0, 'k'}, {"sleepers", 1, 0, 's'}, {"unique", 1, 0, 'u'},
        {"payload", 1, 0, 'b'}, {"function", 1, 0, 'F'}, {"pid", 1, 0, 'P'}, {0}};
    for (int option; (option = getopt_long(argc, argv, "", known, 0)) != -1;) switch (option) {
        case 'm': options.mode = index_of(optarg, MODE_NAMES, 5); break;
        case 'p': if (options.port_count < MAX_PORTS) options.ports[options.port_count++] = atoi(optarg); break;
        case 'n': options.jobs = strtoull(optarg, 0, 10); break;
        case 'f': options.first = strtoull(optarg, 0, 10); break;
        case 'c': options.conns = atoi(optarg); break;
        case 'w': options.window = atoi(optarg); break;
        case 'k': options.workers = atoi(optarg); break;
        case 's': options.sleepers = atoi(optarg); break;
        case 'u': options.unique = index_of(optarg, UNIQUE_NAMES, 3); break;
        case 'b': options.payload = atoi(optarg); break;
        case 'F': options.function = optarg; break;
        case 'P': if (options.pid_count < MAX_PIDS) options.pids[options.pid_count++] = atoi(optarg); break;
        default: options.mode = -1; optind = argc; break;
    }
    if (!options.port_count) options.ports[options.port_count++] = 4730;
    bool needs_workers = options.mode >= DRAIN;
    if (options.mode < 0 || !options.jobs || options.conns < 1 || options.window < 1 || options.workers < needs_workers ||
        options.payload < NUMBER_WIDTH || options.payload > MAX_PAYLOAD)
        fail(2, "usage: load --mode echo|submit|drain|e2e|fg --port N… --jobs N [--first N] [--conns N] [--window N]\n"
                "  [--workers N] [--sleepers N] [--unique none|seq|random] [--payload BYTES, 12 or more] [--function NAME]\n"
                "  [--pid N]…    (drain, e2e and fg need workers)");
    if (!needs_workers) options.workers = 0;
    client_count = options.mode == DRAIN ? 0 : options.conns;
    connection_count = client_count + options.workers + options.sleepers;
}

int main(int argc, char **argv) {
    parse_options(argc, argv);
    set_up();
    long rss_before = server_rss_kib();
    double cpu_before = server_cpu_seconds(), own_before = own_cpu_seconds();
    double seconds = run();
    double own_cpu = own_cpu_seconds() - own_before, cpu = server_cpu_seconds() - cpu_before;
    printf("{\"mode\": \"%s\", \"jobs\": %llu, \"conns\": %d, \"window\": %d, \"workers\": %d, \"sleepers\": %d, "
           "\"unique\": \"%s\", \"payload\": %d, \"seconds\": %.4f, \"rate\": %.1f, "
           "\"latency_us\": {\"count\": %llu, \"p50\": %.1f, \"p99\": %.1f, \"max\": %.1f}, "
           "\"generator_cpu_s\": %.3f, \"server_cpu_s\": %.2f, \"rss_kib_before\": %ld, \"rss_kib_after\": %ld}\n",
           MODE_NAMES[options.mode], (unsigned long long)options.jobs, client_count, options.window, options.workers,
           options.sleepers, UNIQUE_NAMES[options.unique], options.payload, seconds, (double)options.jobs / seconds,
           (unsigned long long)latency_count, latency_us(0.5), latency_us(0.99), (double)latency_max / 1e3,
           own_cpu, cpu, rss_before, server_rss_kib());
    return 0;
}
