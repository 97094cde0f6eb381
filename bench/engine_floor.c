/* The machine's own floor: what receiving streams costs where nothing is made of the bytes.
 *
 *     engine_floor ADDRESS PORT STREAMS SPREAD_S SETTLE_S SECONDS TICK_NS CPU < REQUEST
 *
 * One thread that sleeps to the worker's next tick, asks epoll which sockets have something, and reads each once with
 * the kernel's receive stamp, as the worker does. No framing, no JSON, no records: where an answer has ended, by its
 * last bytes, the same request is sent again. It prints the CPU seconds of that and the tokens that the endpoint wrote
 * meanwhile, by the endpoint's own count. bench/engine_floor.py compiles and starts it.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { READ = 65536, MOST_STREAMS = 65536, LONGEST_PAGE = 1 << 20 };

static char request[READ], buffer[READ], page[LONGEST_PAGE];
static size_t request_size;
static int streams[MOST_STREAMS], count, begun, poll_fd;
static struct epoll_event ready[8192];
static uint64_t last_stamp, reads; /* the stamp is kept, so that the compiler keeps what makes it */
static struct sockaddr_in server;

static void fail(const char *what) {
    perror(what);
    exit(1);
}

static uint64_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static double cpu_s(void) {
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    return (double)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) +
           1e-6 * (double)(used.ru_utime.tv_usec + used.ru_stime.tv_usec);
}

static int connected(void) {
    int one = 1, fd = socket(AF_INET, SOCK_STREAM, 0);
    if (fd < 0 || connect(fd, (struct sockaddr *)&server, sizeof server)) fail("connect");
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    return fd;
}

/* Return the tokens that the endpoint has written since it began, by its page of metrics. */
static double written(void) {
    static const char get[] = "GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
    int fd = connected();
    size_t size = 0;
    ssize_t got;
    if (send(fd, get, sizeof get - 1, 0) < 0) fail("metrics");
    while ((got = recv(fd, page + size, sizeof page - 1 - size, 0)) > 0) size += (size_t)got;
    close(fd);
    page[size] = 0;
    char *at = strstr(page, "\nvllm:generation_tokens_total");
    if (!at || !(at = strchr(at, ' '))) {
        fprintf(stderr, "no count of tokens in the endpoint's metrics\n");
        exit(1);
    }
    return atof(at);
}

static void send_request(int fd) {
    if (send(fd, request, request_size, MSG_NOSIGNAL) != (ssize_t)request_size) fail("send");
}

static void begin(int upto) {
    for (; begun < upto && begun < count; begun++) send_request(streams[begun]);
}

/* Read what a socket has, with its stamp; send the next request where the answer has ended. */
static void receive(int fd) {
    char ancillary[64];
    struct iovec into = {buffer, sizeof buffer};
    struct msghdr message = {.msg_iov = &into, .msg_iovlen = 1, .msg_control = ancillary, .msg_controllen = 64};
    ssize_t size = recvmsg(fd, &message, 0);
    if (size <= 0) {
        if (size < 0 && errno == EAGAIN) return;
        fprintf(stderr, "the endpoint closed a connection\n");
        exit(1);
    }
    reads++;
    struct cmsghdr *about = CMSG_FIRSTHDR(&message);
    if (about && about->cmsg_level == SOL_SOCKET && about->cmsg_type == SO_TIMESTAMPNS) {
        struct timespec t;
        memcpy(&t, CMSG_DATA(about), sizeof t);
        last_stamp = (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
    }
    if (size >= 5 && !memcmp(buffer + size - 5, "0\r\n\r\n", 5)) send_request(fd);
}

/* Receive for so long; streams that wait begin one after the other, spread over `spread_s`. */
static void receive_for(double seconds, double spread_s, uint64_t tick_ns) {
    uint64_t start = now(), end = start + (uint64_t)(seconds * 1e9), t;
    while ((t = now()) < end) {
        if (begun < count) begin((int)((double)(t - start) * 1e-9 / spread_s * count) + 1);
        int found = epoll_wait(poll_fd, ready, 8192, 0);
        for (int i = 0; i < found; i++) receive(ready[i].data.fd);
        uint64_t wake = (now() / tick_ns + 1) * tick_ns;
        struct timespec until = {(time_t)(wake / 1000000000u), (long)(wake % 1000000000u)};
        clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL);
    }
}

int main(int argc, char **argv) {
    if (argc != 9) {
        fprintf(stderr, "usage: see bench/engine_floor.py\n");
        return 2;
    }
    server.sin_family = AF_INET;
    server.sin_port = htons((uint16_t)atoi(argv[2]));
    count = atoi(argv[3]);
    double spread_s = atof(argv[4]), settle_s = atof(argv[5]), seconds = atof(argv[6]);
    uint64_t tick_ns = strtoull(argv[7], NULL, 10);
    cpu_set_t cpus;
    CPU_ZERO(&cpus);
    CPU_SET(atoi(argv[8]), &cpus);
    if (inet_pton(AF_INET, argv[1], &server.sin_addr) != 1 || count < 1 || count > MOST_STREAMS || !tick_ns) {
        fprintf(stderr, "an IPv4 address, 1 to %d streams and a tick are needed\n", MOST_STREAMS);
        return 2;
    }
    if (sched_setaffinity(0, sizeof cpus, &cpus)) fail("affinity");
    prctl(PR_SET_TIMERSLACK, 1000);
    ssize_t got;
    while ((got = read(0, request + request_size, sizeof request - request_size)) > 0) request_size += (size_t)got;
    if ((poll_fd = epoll_create1(0)) < 0) fail("epoll");
    for (int i = 0, one = 1; i < count; i++) {
        struct epoll_event wanted = {.events = EPOLLIN, .data.fd = streams[i] = connected()};
        fcntl(streams[i], F_SETFL, O_NONBLOCK);
        setsockopt(streams[i], SOL_SOCKET, SO_TIMESTAMPNS, &one, sizeof one);
        if (epoll_ctl(poll_fd, EPOLL_CTL_ADD, streams[i], &wanted)) fail("epoll");
    }
    receive_for(spread_s, spread_s, tick_ns);
    begin(count);
    receive_for(settle_s, 1, tick_ns);
    double before = written(), spent = cpu_s();
    reads = 0;
    receive_for(seconds, 1, tick_ns);
    spent = cpu_s() - spent;
    printf("{\"cpu_s\": %.6f, \"tokens\": %.0f, \"reads\": %llu, \"stamped\": %s}\n", spent, written() - before,
           (unsigned long long)reads, last_stamp ? "true" : "false");
    return 0;
}
