/* A worker's sockets: sleep to the tick, poll, read with the kernel's stamps; as loop.HotSelector.select does.
 *
 * One call of `wait` goes on from tick to tick until Python has something to do: a descriptor of asyncio's, a response
 * that is over, a piece that is queued, a timer. Only then are objects made.
 */
#include "receive.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>

#ifndef SCM_TIMESTAMPNS
#define SCM_TIMESTAMPNS 35 /* asm-generic/socket.h */
#endif

enum { MOST_READY = 8192, LATE_BINS = 1024, LATE_SHIFT = 17, PROMPT_TICKS = 4 }; /* as in loop.py */
enum { READS_SIZE = 4 * READ };
enum { SECOND = 1000000000, CLOCK_SET = 1000000 };

struct Entry {
    PyObject *hot, *decrypt; /* decrypt: NULL where nothing is encrypted */
    Stream *stream;          /* of the response that its bytes belong to */
};

/* What one socket had. */
struct Read {
    int fd, error;
    ssize_t size;
    const char *at;
    int64_t stamp;
};

static int64_t clock_ns(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return (int64_t)t.tv_sec * SECOND + t.tv_nsec;
}

static int64_t now(void) { return clock_ns(CLOCK_MONOTONIC); }

/* Return CLOCK_REALTIME - CLOCK_MONOTONIC: the tightest of three readings. */
static int64_t clock_offset(void) {
    int64_t best = INT64_MAX, offset = 0;
    for (int i = 0; i < 3; i++) {
        int64_t before = now(), real = clock_ns(CLOCK_REALTIME), after = now();
        if (after - before < best) {
            best = after - before;
            offset = real - (before + after) / 2;
        }
    }
    return offset;
}

/* Return the offset for the stamps of this poll. */
static int64_t believed_offset(Poller *p, int64_t t) {
    int64_t offset = p->offset, off = clock_ns(CLOCK_REALTIME) - t - offset;
    if (t <= p->offset_until && off <= CLOCK_SET && off >= -CLOCK_SET) return offset;
    p->offset = clock_offset();
    p->offset_until = now() + SECOND;
    off = p->offset - offset;
    /* Which of the two a stamp needs is unknown this once: put into the future, where ours replaces it. */
    return offset && (off > CLOCK_SET || off < -CLOCK_SET) ? -((int64_t)1 << 62) : p->offset;
}

/* Call a method of a hot socket. */
static int call(Poller *p, PyObject *hot, const char *name, PyObject *arguments) {
    PyObject *method = NULL, *done = NULL;
    p->called = 1;
    if (arguments && (method = PyObject_GetAttrString(hot, name))) done = PyObject_CallObject(method, arguments);
    Py_XDECREF(method);
    Py_XDECREF(arguments);
    Py_XDECREF(done);
    return done ? 0 : -1;
}

static int lost(Poller *p, PyObject *hot, int error) {
    PyObject *why = Py_None;
    if (error) why = PyObject_CallFunction(PyExc_OSError, "is", error, strerror(error));
    else Py_INCREF(why);
    return call(p, hot, "lost", Py_BuildValue("(NL)", why, (long long)now()));
}

/* Return when the kernel had the read, by our clock; what came without a stamp is counted. */
static int64_t stamp_of(Poller *p, struct msghdr *message, int64_t t, int64_t since, int64_t offset) {
    struct cmsghdr *about = CMSG_FIRSTHDR(message);
    int64_t stamp = t, late;
    if (about) {
        struct timespec kernel = {0, 0};
        if (about->cmsg_level == SOL_SOCKET && about->cmsg_type == SCM_TIMESTAMPNS)
            memcpy(&kernel, CMSG_DATA(about), sizeof kernel);
        int64_t real = (int64_t)kernel.tv_sec * SECOND + kernel.tv_nsec;
        if (real - t <= offset) stamp = real - offset; /* else the wall clock was set: then ours */
        late = t - stamp;
    } else { /* no earlier than the previous poll, which did not find it */
        p->unstamped++;
        late = t - since;
    }
    late >>= LATE_SHIFT;
    p->late[late < 0 ? 0 : late < LATE_BINS ? late : LATE_BINS - 1]++;
    p->reads++;
    return stamp;
}

static struct Entry *entry_of(Poller *p, int fd) {
    return fd >= 0 && fd < p->room && p->entries[fd].hot ? &p->entries[fd] : NULL;
}

/* Read what a socket has, behind the reads that are not taken yet. */
static void read_socket(Poller *p, int fd, int64_t since, int64_t offset) {
    char ancillary[64];
    struct iovec into = {p->buffer + p->filled, READ};
    struct msghdr message = {.msg_iov = &into, .msg_iovlen = 1, .msg_control = ancillary, .msg_controllen = 64};
    ssize_t size = recvmsg(fd, &message, 0);
    struct Read *read = &p->untaken[p->untaken_count];
    *read = (struct Read){.fd = fd, .error = size < 0 ? errno : 0, .size = size, .at = p->buffer + p->filled};
    if (read->error == EAGAIN || read->error == EINTR) return;
    if (size > 0) {
        read->stamp = stamp_of(p, &message, now(), since, offset);
        p->filled += (size_t)size;
    }
    p->untaken_count++;
}

/* Take what came in plain text, or hand it on. */
static int take_plain(Poller *p, struct Entry of, const char *at, size_t size, int64_t stamp) {
    int found = UNUSUAL, late = p->span > PROMPT_TICKS * p->tick_ns;
    if (of.stream) found = stream_feed(of.stream, at, size, stamp, late);
    if (found == OVER) return call(p, of.hot, "over", Py_BuildValue("(L)", (long long)stamp));
    if (found != UNUSUAL) return found == FAILED;
    p->queued_bytes += (int64_t)size;
    return call(p, of.hot, "arrived", Py_BuildValue("(y#L)", at, (Py_ssize_t)size, (long long)stamp));
}

/* Take what came encrypted. */
static int take_encrypted(Poller *p, struct Entry of, const struct Read *read) {
    PyObject *plain = PyObject_CallFunction(of.decrypt, "y#L", read->at, (Py_ssize_t)read->size, (long long)read->stamp);
    int failed = !plain;
    if (plain == Py_None) p->called = 1; /* it is taken, and was the last */
    else if (plain && PyBytes_Size(plain))
        failed = take_plain(p, of, PyBytes_AsString(plain), (size_t)PyBytes_Size(plain), read->stamp);
    Py_XDECREF(plain);
    return failed;
}

/* Take one read; none of a connection that has been closed meanwhile. */
static int take_read(Poller *p, const struct Read *read) {
    struct Entry *entry = entry_of(p, read->fd), of;
    int failed;
    if (!entry) return 0;
    of = *entry; /* its connection may be closed meanwhile */
    Py_INCREF(of.hot);
    Py_XINCREF(of.decrypt);
    Py_XINCREF((PyObject *)of.stream);
    if (read->size <= 0) failed = lost(p, of.hot, read->error);
    else if (of.decrypt) failed = take_encrypted(p, of, read);
    else failed = take_plain(p, of, read->at, (size_t)read->size, read->stamp);
    Py_DECREF(of.hot);
    Py_XDECREF(of.decrypt);
    Py_XDECREF((PyObject *)of.stream);
    return failed;
}

/* Take all that is read. Some sixty reads in a row, then as many events, cost less than each of them in turn: the
 * kernel's instructions and ours do not fit into the processor's cache together. */
static int take_reads(Poller *p) {
    int failed = 0;
    for (int i = 0; i < p->untaken_count && !failed; i++) failed = take_read(p, &p->untaken[i]);
    p->untaken_count = 0;
    p->filled = 0;
    return failed;
}

/* Take what the poll has found; descriptors that are not hot come into `foreign`. */
static int take_ready(Poller *p, int found, int64_t since, int64_t offset, PyObject *foreign) {
    for (int i = 0; i < found; i++) {
        int fd = p->ready[i].data.fd;
        unsigned events = p->ready[i].events;
        struct Entry *entry = entry_of(p, fd);
        if (!entry) {
            PyObject *pair = Py_BuildValue("(iI)", fd, events);
            int failed = !pair || PyList_Append(foreign, pair);
            Py_XDECREF(pair);
            if (failed) return -1;
            continue;
        }
        if (events & EPOLLOUT) {
            PyObject *hot = entry->hot;
            Py_INCREF(hot);
            int failed = call(p, hot, "writable", PyTuple_New(0));
            Py_DECREF(hot);
            if (failed) return -1;
            if (events == EPOLLOUT || !entry_of(p, fd)) continue;
        }
        read_socket(p, fd, since, offset);
        if ((p->filled > READS_SIZE - READ || p->untaken_count == MOST_READY) && take_reads(p)) return -1;
    }
    return take_reads(p);
}

static int poll_once(Poller *p, int busy, int64_t until, PyObject *foreign) {
    int found;
    int64_t wake = !busy ? 0 : until < p->next_tick ? until : p->next_tick;
    Py_BEGIN_ALLOW_THREADS
    if (wake > now()) {
        struct timespec at = {wake / SECOND, wake % SECOND};
        clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL); /* cut short by a signal: then it polls early */
    }
    found = epoll_wait(p->epoll_fd, p->ready, MOST_READY, 0);
    Py_END_ALLOW_THREADS
    int64_t t = now(), since = p->polled;
    if (busy && t >= p->next_tick) p->next_tick = t + p->tick_ns;
    p->span = t - since;
    p->polled = t;
    PyObject *span = PyLong_FromLongLong(p->span); /* what is read late shows in it */
    int failed = !span || PyObject_SetAttrString(p->selector, "span", span);
    Py_XDECREF(span);
    if (failed) return -1;
    return take_ready(p, found < 0 ? 0 : found, since, believed_offset(p, t), foreign);
}

/* wait(until, tick_ns, busy, once, polled, offset): see _receive.pyi. */
static PyObject *wait(PyObject *self, PyObject *arguments) {
    Poller *p = (Poller *)self;
    long long until, tick_ns, polled, offset;
    int busy, once;
    if (!PyArg_ParseTuple(arguments, "LLppLL", &until, &tick_ns, &busy, &once, &polled, &offset)) return NULL;
    PyObject *foreign = PyList_New(0);
    if (!foreign) return NULL;
    p->tick_ns = tick_ns;
    p->offset = offset;
    p->called = 0;
    if (polled > p->polled) p->polled = polled;
    int failed;
    do {
        failed = poll_once(p, busy, until, foreign) || PyErr_CheckSignals();
    } while (!failed && busy && !once && !p->called && !PyList_Size(foreign) && now() < until);
    if (failed) {
        Py_DECREF(foreign);
        return NULL;
    }
    PyObject *found = Py_BuildValue("(NLLLLLLLL)", foreign, (long long)p->reads, (long long)p->unstamped,
                                    (long long)p->queued_bytes, (long long)p->events, (long long)p->span,
                                    (long long)p->polled, (long long)p->next_tick, (long long)p->offset);
    p->reads = p->unstamped = p->queued_bytes = p->events = 0;
    return found;
}

static PyObject *take_late(PyObject *self, PyObject *none) {
    Poller *p = (Poller *)self;
    Py_ssize_t size = LATE_BINS;
    (void)none;
    while (size && !p->late[size - 1]) size--;
    PyObject *taken = PyTuple_New(size);
    for (Py_ssize_t i = 0; taken && i < size; i++) {
        PyObject *count = PyLong_FromUnsignedLong(p->late[i]);
        if (!count || PyTuple_SetItem(taken, i, count)) {
            Py_DECREF(taken);
            return NULL;
        }
    }
    if (taken) memset(p->late, 0, LATE_BINS * sizeof *p->late);
    return taken;
}

static int make_room(Poller *p, int fd) {
    if (fd < p->room) return 0;
    int room = p->room ? p->room : 64;
    while (room <= fd) room *= 2;
    struct Entry *entries = realloc(p->entries, (size_t)room * sizeof *entries);
    if (!entries) return -1;
    memset(entries + p->room, 0, (size_t)(room - p->room) * sizeof *entries);
    p->entries = entries;
    p->room = room;
    return 0;
}

static void clear(Poller *p, int fd) {
    struct Entry old = p->entries[fd];
    p->entries[fd] = (struct Entry){NULL, NULL, NULL};
    Py_XDECREF(old.hot);
    Py_XDECREF(old.decrypt);
    Py_XDECREF((PyObject *)old.stream);
}

static PyObject *add(PyObject *self, PyObject *arguments) {
    Poller *p = (Poller *)self;
    int fd;
    PyObject *hot;
    if (!PyArg_ParseTuple(arguments, "iO", &fd, &hot)) return NULL;
    if (fd < 0) return PyErr_Format(PyExc_ValueError, "no descriptor: %d", fd);
    if (make_room(p, fd)) return PyErr_NoMemory();
    clear(p, fd);
    PyObject *decrypt = PyObject_GetAttrString(hot, "decrypt");
    if (!decrypt) return NULL;
    if (decrypt == Py_None) Py_CLEAR(decrypt);
    Py_INCREF(hot);
    p->entries[fd] = (struct Entry){hot, decrypt, NULL};
    Py_RETURN_NONE;
}

static PyObject *drop(PyObject *self, PyObject *argument) {
    Poller *p = (Poller *)self;
    long fd = PyLong_AsLong(argument);
    if (fd == -1 && PyErr_Occurred()) return NULL;
    if (fd >= 0 && fd < p->room) clear(p, (int)fd);
    Py_RETURN_NONE;
}

static PyObject *stream(PyObject *self, PyObject *arguments) {
    Poller *p = (Poller *)self;
    int fd;
    PyObject *exchange;
    if (!PyArg_ParseTuple(arguments, "iO", &fd, &exchange)) return NULL;
    PyObject *made = make_stream(p, exchange);
    struct Entry *entry = entry_of(p, fd);
    if (made && entry) {
        Stream *old = entry->stream;
        Py_INCREF(made);
        entry->stream = (Stream *)made;
        Py_XDECREF((PyObject *)old);
    }
    return made;
}

static int poller_init(PyObject *self, PyObject *arguments, PyObject *keywords) {
    Poller *p = (Poller *)self;
    PyObject *selector, *append, *late_read;
    (void)keywords;
    if (p->buffer || !PyArg_ParseTuple(arguments, "iOOO", &p->epoll_fd, &selector, &append, &late_read)) return -1;
    p->buffer = malloc(READS_SIZE);
    p->untaken = malloc(MOST_READY * sizeof *p->untaken);
    p->ready = malloc(MOST_READY * sizeof *p->ready);
    p->late = calloc(LATE_BINS, sizeof *p->late);
    if (!p->buffer || !p->untaken || !p->ready || !p->late) {
        PyErr_NoMemory();
        return -1;
    }
    p->selector = selector; /* which has this */
    Py_INCREF(append);
    p->append = append;
    Py_INCREF(late_read);
    p->late_read = late_read;
    p->polled = now();
    return 0;
}

static void poller_dealloc(PyObject *self) {
    Poller *p = (Poller *)self;
    PyTypeObject *type = Py_TYPE(self);
    for (int fd = 0; fd < p->room; fd++) clear(p, fd);
    Py_XDECREF(p->append);
    Py_XDECREF(p->late_read);
    free(p->entries);
    free(p->buffer);
    free(p->ready);
    free(p->untaken);
    free(p->late);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release(self);
    Py_DECREF(type);
}

static PyMethodDef methods[] = {
    {"wait", wait, METH_VARARGS, NULL}, {"take_late", take_late, METH_NOARGS, NULL}, {"add", add, METH_VARARGS, NULL},
    {"drop", drop, METH_O, NULL},       {"stream", stream, METH_VARARGS, NULL},      {NULL, NULL, 0, NULL},
};
static PyType_Slot slots[] = {{Py_tp_new, PyType_GenericNew}, {Py_tp_init, poller_init}, {Py_tp_dealloc, poller_dealloc},
                              {Py_tp_methods, methods},       {0, NULL}};
static PyType_Spec spec = {"harness.load._receive.Poller", sizeof(Poller), 0, Py_TPFLAGS_DEFAULT, slots};

/* Return the int64 of a buffer, each plus a number, as bytes: the stamps of a record. */
static PyObject *shifted(PyObject *self, PyObject *arguments) {
    Py_buffer from;
    long long by;
    (void)self;
    if (!PyArg_ParseTuple(arguments, "y*L", &from, &by)) return NULL;
    PyObject *made = PyBytes_FromStringAndSize(NULL, from.len);
    char *to = made ? PyBytes_AsString(made) : NULL;
    for (Py_ssize_t at = 0; to && at + 8 <= from.len; at += 8) {
        int64_t value;
        memcpy(&value, (const char *)from.buf + at, 8);
        value += by;
        memcpy(to + at, &value, 8);
    }
    PyBuffer_Release(&from);
    return made;
}

static PyMethodDef functions[] = {{"shifted", shifted, METH_VARARGS, NULL}, {NULL, NULL, 0, NULL}};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_receive", NULL, -1, functions, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__receive(void) {
    PyObject *made = PyModule_Create(&module), *type = PyType_FromSpec(&spec);
    if (!made || !type || PyModule_AddObjectRef(made, "Poller", type) || make_stream_type(made)) {
        Py_XDECREF(made);
        made = NULL;
    }
    Py_XDECREF(type);
    return made;
}
