/* The compiled receive path: what its three files share. docs/receive.md explains it. */
#ifndef KNEE_RECEIVE_H
#define KNEE_RECEIVE_H

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030b0000 /* one build for CPython 3.11 and later */
#include <Python.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

enum {
    READ = 65536,      /* bytes of one read at most, as the Python path reads */
    LONGEST_LINE = 20, /* bytes of a chunk's length that are read here; a longer line is unusual */
    BATCH = 512,       /* chunks of a stream after which they go to its decoder */
};

/* What an event said, as far as the usual one goes. Lengths are bytes of UTF-8; -1: null or absent. */
typedef struct {
    unsigned seen; /* fields that came: a second one of the same name is unusual */
    int delta, usage;
    long content, text, reasoning, reasoning_content;
    long prompt_tokens, completion_tokens;
} Event;

/* Read the JSON of an event; return whether it is a usual one, which OpenAI's chunk with one choice is. */
int read_event(const char *at, const char *end, Event *event);

/* What the decoder of a response knows, as far as usual events change it. -1: it is None there. */
typedef struct {
    int64_t counted, input_tokens, output_tokens;
    int answered, reasoned; /* the answer has begun; there was a reasoning */
    int64_t merged;         /* chunks that shared a read since the last batch */
    int64_t left;           /* chunks that its decoder takes yet */
    int size, all_one;      /* chunks of the batch; each of them has one token */
} Account;

struct Poller;

/* One response, from where its head was read. */
typedef struct {
    PyObject_HEAD
    PyObject *poller, *exchange, *extend; /* `extend` of its decoder; NULL: that has decoded nothing usual */
    int framing, quick;                   /* chunks are framed here; usual events are decoded here */
    int pending;                          /* pieces that are queued for Python, which come before any decoded here */
    uint64_t left;                        /* bytes of the begun chunk that are to come, its line end included */
    char line[LONGEST_LINE];              /* the begun line of a chunk's length */
    int line_size;
    char *tail; /* the begun event */
    size_t tail_size, longest;
    Account account;
    int64_t *stamps; /* the batch, one each a chunk */
    uint16_t *lengths;
    int32_t *counts;
    int room;
    int64_t bytes, merged_late;
} Stream;

enum { UNUSUAL, TAKEN, OVER, FAILED = -1 };

/* Decode a piece of the body, or queue it; -1 with an exception. `apart`: its events may have been sent apart. */
int stream_put(Stream *stream, const char *body, size_t size, int64_t stamp, int apart);

/* Take one read: UNUSUAL and nothing is taken, TAKEN, OVER where the response ends with it, FAILED with an exception. */
int stream_feed(Stream *stream, const char *data, size_t size, int64_t stamp, int late);

/* One worker's sockets. */
typedef struct Poller {
    PyObject_HEAD
    int epoll_fd;
    PyObject *selector, *append, *late_read; /* append: of the decode queue; late_read: of what is queued for one */
    struct Entry *entries;        /* by descriptor */
    int room;
    int64_t offset, offset_until; /* CLOCK_REALTIME - CLOCK_MONOTONIC, and until when it is believed */
    int64_t next_tick, polled, span;
    int64_t tick_ns;
    int called; /* Python has been called in this turn, so that it has something to do */
    int64_t reads, unstamped, queued_bytes, events;
    uint32_t *late;
    struct epoll_event *ready;
    char *buffer; /* the reads that are not taken yet */
    size_t filled;
    struct Read *untaken;
    int untaken_count;
} Poller;

extern PyTypeObject *stream_type;
int make_stream_type(PyObject *module);
PyObject *make_stream(Poller *poller, PyObject *exchange);

#endif
