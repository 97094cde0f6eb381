/* One response: its chunks are framed, its usual events decoded; all else is queued for Python.
 *
 * Framing is that of http1.ResponseParser while it is in a chunked body. A read that is not framed here as a whole is
 * not taken at all, and Python gets it with the state before it. Decoding is that of dialects.decoder.StreamDecoder for
 * an event that brings text and nothing else of note. What has an event of another kind is queued as a whole, and until
 * Python has decoded it, all that follows is queued too, so that the order stays.
 */
#include <string.h>

#include "receive.h"

typedef struct {
    const char *body; /* of the read: one piece where it lies, several together in `joined` */
    size_t size;
    int pieces, over;
    uint64_t left;
    char line[LONGEST_LINE];
    int line_size;
} Framed;

static char joined[READ]; /* used between two calls of Python only */

static void add_piece(Framed *f, const char *at, size_t size) {
    if (f->pieces == 1) memcpy(joined, f->body, f->size);
    if (f->pieces) {
        memcpy(joined + f->size, at, size);
        at = joined;
    }
    f->body = at;
    f->size += size;
    f->pieces++;
}

/* Read the line of a chunk's length, as far as it has come; return its end, NULL where it is unusual. */
static const char *read_line(Framed *f, const char *at, const char *end, int *whole) {
    *whole = 0;
    for (; at < end; at++) {
        int cr = f->line_size && f->line[f->line_size - 1] == '\r';
        if (cr) {
            *whole = 1;
            return *at == '\n' && f->line_size > 1 ? at + 1 : NULL;
        }
        if (!(*at >= '0' && *at <= '9') && !(*at >= 'a' && *at <= 'f') && !(*at >= 'A' && *at <= 'F') && *at != '\r')
            return NULL;
        if (f->line_size > 8) return NULL; /* eight digits and half a line end */
        f->line[f->line_size++] = *at;
    }
    return at;
}

static uint64_t length_of(const Framed *f) {
    uint64_t length = 0;
    for (int i = 0; i < f->line_size - 1; i++) {
        char d = f->line[i];
        length = length * 16 + (uint64_t)(d <= '9' ? d - '0' : (d | 32) - 'a' + 10);
    }
    return length;
}

/* Frame one read; return whether all of it is usual. */
static int frame(const Stream *s, const char *data, size_t size, Framed *f) {
    const char *at = data, *end = data + size;
    *f = (Framed){.left = s->left, .line_size = s->line_size};
    memcpy(f->line, s->line, (size_t)s->line_size);
    while (at < end) {
        if (!f->left) {
            int whole;
            if (!(at = read_line(f, at, end, &whole))) return 0;
            if (!whole) return 1;
            f->left = length_of(f);
            f->line_size = 0;
            if (!f->left) { /* the last chunk: trailers, or bytes behind it, are unusual */
                f->over = 1;
                return end - at == 2 && at[0] == '\r' && at[1] == '\n';
            }
            f->left += 2;
        }
        if (f->left > 2 && at < end) {
            uint64_t part = f->left - 2 < (uint64_t)(end - at) ? f->left - 2 : (uint64_t)(end - at);
            add_piece(f, at, (size_t)part);
            at += part;
            f->left -= part;
        }
        for (; f->left && f->left <= 2 && at < end; at++, f->left--)
            if (*at != (f->left == 2 ? '\r' : '\n')) return 0;
    }
    return 1;
}

static int push(Stream *s, int64_t stamp, long length, int64_t tokens) {
    Account *a = &s->account;
    if (a->size == s->room) {
        int room = s->room ? 2 * s->room : 32;
        void *stamps = realloc(s->stamps, (size_t)room * sizeof *s->stamps);
        if (stamps) s->stamps = stamps;
        void *lengths = realloc(s->lengths, (size_t)room * sizeof *s->lengths);
        if (lengths) s->lengths = lengths;
        void *counts = realloc(s->counts, (size_t)room * sizeof *s->counts);
        if (counts) s->counts = counts;
        if (!stamps || !lengths || !counts) return 0;
        s->room = room;
    }
    s->stamps[a->size] = stamp;
    s->lengths[a->size] = (uint16_t)length;
    s->counts[a->size] = (int32_t)tokens;
    a->size++;
    a->all_one &= tokens == 1;
    a->left--;
    return 1;
}

/* Account for one event as StreamDecoder._account does; return whether it is a usual one. */
static int take_event(Stream *s, const char *at, const char *end, int64_t stamp) {
    Event e;
    Account *a = &s->account;
    if (!read_event(at, end, &e)) return 0;
    long answer = e.delta ? e.content : e.text, reasoning = 0;
    if (answer < 0) answer = 0;
    if (e.delta) reasoning = e.reasoning_content > 0 ? e.reasoning_content : e.reasoning > 0 ? e.reasoning : 0;
    long length = answer + reasoning;
    if (!length || length > UINT16_MAX || (answer && !a->answered) || a->left <= 0) return 0;
    a->reasoned |= reasoning > 0;
    if (e.usage) {
        if (e.prompt_tokens > 0 || a->input_tokens < 0) a->input_tokens = e.prompt_tokens;
        if (e.completion_tokens > 0 || a->output_tokens < 0) a->output_tokens = e.completion_tokens;
    }
    int64_t tokens = 1, count = e.usage ? e.completion_tokens : -1;
    if (a->counted >= 0) {
        if (count >= 0) tokens = count > a->counted ? count - a->counted : 0;
        a->counted += tokens;
    }
    return push(s, stamp, length, tokens);
}

/* Decode the events of a body as far as it has come; return whether all are usual. `rest` is the begun event. */
static int decode(Stream *s, const char *at, const char *end, int64_t stamp, const char **rest) {
    while (at < end) {
        size_t size = (size_t)(end - at);
        const char *line_end = memchr(at, '\n', size);
        if (memcmp(at, "data:", size < 5 ? size : 5)) return 0;
        if (!line_end || line_end + 1 == end) {
            *rest = at;
            return size <= s->longest && !memchr(at, '\r', size);
        }
        if (line_end[1] != '\n' || (size_t)(line_end - at) > s->longest) return 0;
        if (!take_event(s, at + 5, line_end, stamp)) return 0;
        at = line_end + 2;
    }
    *rest = end;
    return 1;
}

static PyObject *optional(int64_t value) {
    if (value >= 0) return PyLong_FromLongLong(value);
    Py_INCREF(Py_None);
    return Py_None;
}

/* Bring the decoder up to date. */
static int flush(Stream *s) {
    Account *a = &s->account;
    if (!a->size || !s->extend) return 0;
    Py_ssize_t size = a->size;
    PyObject *counts = Py_None;
    if (a->all_one) Py_INCREF(counts);
    else counts = PyBytes_FromStringAndSize((const char *)s->counts, size * (Py_ssize_t)sizeof *s->counts);
    PyObject *arguments = Py_BuildValue(
        "(y#y#NNNNNL)", (const char *)s->stamps, size * (Py_ssize_t)sizeof *s->stamps, (const char *)s->lengths,
        size * (Py_ssize_t)sizeof *s->lengths, counts, optional(a->counted), optional(a->input_tokens),
        optional(a->output_tokens), PyBool_FromLong(a->reasoned), (long long)a->merged);
    if (!arguments) return -1;
    a->size = 0;
    a->all_one = 1;
    a->merged = 0;
    PyObject *done = PyObject_CallObject(s->extend, arguments);
    Py_DECREF(arguments);
    Py_XDECREF(done);
    return done ? 0 : -1;
}

/* Queue a piece for Python, behind all that was decoded before it. */
static int queue(Stream *s, PyObject *piece, int64_t stamp, int apart) {
    Poller *poller = (Poller *)s->poller;
    PyObject *to = s->exchange, *item, *done = NULL;
    s->pending++;
    poller->called = 1;
    if (flush(s)) return -1;
    if (apart) to = PyObject_CallFunctionObjArgs(poller->late_read, to, NULL);
    else Py_XINCREF(to);
    if (!to) return -1;
    if ((item = Py_BuildValue("(NLO)", to, (long long)stamp, piece))) {
        done = PyObject_CallFunctionObjArgs(poller->append, item, NULL);
        Py_DECREF(item);
    }
    Py_XDECREF(done);
    return done ? 0 : -1;
}

static int keep_tail(Stream *s, const char *rest, size_t size) {
    if (!size) {
        free(s->tail);
        s->tail = NULL;
    } else if (rest >= s->tail && s->tail && rest <= s->tail + s->tail_size) {
        memmove(s->tail, rest, size);
        char *less = realloc(s->tail, size);
        if (less) s->tail = less;
    } else {
        char *tail = realloc(s->tail, size);
        if (!tail) return -1;
        memcpy(s->tail = tail, rest, size);
    }
    s->tail_size = size;
    return 0;
}

int stream_put(Stream *s, const char *body, size_t size, int64_t stamp, int apart) {
    Poller *poller = (Poller *)s->poller;
    if (s->tail_size) { /* the tail has the rest of its event, or more of it */
        char *tail = realloc(s->tail, s->tail_size + size);
        if (!tail) {
            PyErr_NoMemory();
            return -1;
        }
        memcpy(tail + s->tail_size, body, size);
        s->tail = tail;
        size = s->tail_size += size;
        body = tail;
    }
    const Account before = s->account;
    const char *rest = body;
    if (s->quick && !s->pending && decode(s, body, body + size, stamp, &rest)) {
        int carried = s->account.size - before.size;
        poller->events += carried;
        if (carried > 1) {
            s->account.merged += carried;
            if (apart) s->merged_late += carried;
        }
        if (keep_tail(s, rest, (size_t)(body + size - rest))) {
            PyErr_NoMemory();
            return -1;
        }
        return s->account.size >= BATCH ? flush(s) : 0;
    }
    s->account = before;
    PyObject *piece = PyBytes_FromStringAndSize(body, (Py_ssize_t)size);
    if (!piece) return -1;
    keep_tail(s, NULL, 0);
    poller->queued_bytes += (int64_t)size;
    int failed = queue(s, piece, stamp, apart);
    Py_DECREF(piece);
    return failed;
}

int stream_feed(Stream *s, const char *data, size_t size, int64_t stamp, int late) {
    Framed f;
    if (!s->framing || size > READ || !frame(s, data, size, &f)) return UNUSUAL;
    s->left = f.left;
    s->line_size = f.line_size;
    memcpy(s->line, f.line, (size_t)f.line_size);
    s->bytes += (int64_t)size;
    if (f.over) s->framing = 0;
    if (f.size && stream_put(s, f.body, f.size, stamp, late && f.pieces > 1)) return FAILED;
    return f.over ? OVER : TAKEN;
}

/* What Python calls: _receive.pyi describes it. */

static PyObject *feed(PyObject *self, PyObject *arguments) {
    const char *data;
    Py_ssize_t size;
    long long stamp;
    int late;
    if (!PyArg_ParseTuple(arguments, "y#Lp", &data, &size, &stamp, &late)) return NULL;
    int found = stream_feed((Stream *)self, data, (size_t)size, stamp, late);
    return found == FAILED ? NULL : PyLong_FromLong(found);
}

static PyObject *put(PyObject *self, PyObject *arguments) {
    const char *body;
    Py_ssize_t size;
    long long stamp;
    int apart;
    if (!PyArg_ParseTuple(arguments, "y#Lp", &body, &size, &stamp, &apart)) return NULL;
    if (stream_put((Stream *)self, body, (size_t)size, stamp, apart)) return NULL;
    Py_RETURN_NONE;
}

static PyObject *frame_on(PyObject *self, PyObject *arguments) {
    Stream *s = (Stream *)self;
    unsigned long long left;
    const char *line;
    Py_ssize_t size;
    if (!PyArg_ParseTuple(arguments, "Ky#", &left, &line, &size)) return NULL;
    s->framing = size <= 9; /* what `read_line` keeps; a longer one is Python's */
    for (Py_ssize_t i = 0; i < size && s->framing; i++) {
        int hex = (line[i] >= '0' && line[i] <= '9') || ((line[i] | 32) >= 'a' && (line[i] | 32) <= 'f');
        s->framing = hex || (line[i] == '\r' && i == size - 1);
    }
    if (s->framing) {
        s->left = left;
        s->line_size = (int)size;
        memcpy(s->line, line, (size_t)size);
    }
    Py_RETURN_NONE;
}

static PyObject *leave(PyObject *self, PyObject *none) {
    Stream *s = (Stream *)self;
    (void)none;
    if (!s->framing) Py_RETURN_NONE;
    s->framing = 0;
    return Py_BuildValue("(Ky#)", (unsigned long long)s->left, s->line, (Py_ssize_t)s->line_size);
}

static PyObject *decoded(PyObject *self, PyObject *none) {
    Stream *s = (Stream *)self;
    (void)none;
    return PyBool_FromLong(--s->pending <= 0 && s->framing);
}

static int64_t number_or_none(PyObject *value) { return value == Py_None ? -1 : PyLong_AsLongLong(value); }

static PyObject *resume(PyObject *self, PyObject *usual) {
    Stream *s = (Stream *)self;
    PyObject *extend, *counted, *input_tokens, *output_tokens;
    const char *tail;
    Py_ssize_t size, longest, left;
    int answered, reasoned;
    s->quick = 0;
    if (usual == Py_None) Py_RETURN_NONE;
    if (!PyArg_ParseTuple(usual, "Ony#OOOppn", &extend, &longest, &tail, &size, &counted, &input_tokens, &output_tokens,
                          &answered, &reasoned, &left))
        return NULL;
    s->account = (Account){.counted = number_or_none(counted), .input_tokens = number_or_none(input_tokens),
                           .output_tokens = number_or_none(output_tokens), .answered = answered,
                           .reasoned = reasoned, .left = left, .all_one = 1};
    if (PyErr_Occurred()) return NULL;
    if (keep_tail(s, tail, (size_t)size)) return PyErr_NoMemory();
    Py_INCREF(extend);
    Py_XDECREF(s->extend);
    s->extend = extend;
    s->longest = longest < READ ? (size_t)longest : READ;
    s->quick = 1;
    Py_RETURN_NONE;
}

static PyObject *end(PyObject *self, PyObject *none) {
    Stream *s = (Stream *)self;
    (void)none;
    if (flush(s)) return NULL;
    s->framing = s->quick = 0;
    PyObject *found = Py_BuildValue("(LLy#)", (long long)s->bytes, (long long)s->merged_late,
                                    s->tail ? s->tail : "", (Py_ssize_t)s->tail_size);
    PyObject *exchange = s->exchange, *extend = s->extend;
    s->exchange = s->extend = NULL; /* each of them refers to this */
    Py_XDECREF(exchange);
    Py_XDECREF(extend);
    return found;
}

static void stream_dealloc(PyObject *self) {
    Stream *s = (Stream *)self;
    PyTypeObject *type = Py_TYPE(self);
    Py_XDECREF(s->poller);
    Py_XDECREF(s->exchange);
    Py_XDECREF(s->extend);
    free(s->tail);
    free(s->stamps);
    free(s->lengths);
    free(s->counts);
    PyObject_Free(self);
    Py_DECREF(type);
}

static PyMethodDef methods[] = {
    {"feed", feed, METH_VARARGS, NULL},   {"put", put, METH_VARARGS, NULL},       {"frame_on", frame_on, METH_VARARGS, NULL},
    {"leave", leave, METH_NOARGS, NULL},  {"decoded", decoded, METH_NOARGS, NULL}, {"resume", resume, METH_O, NULL},
    {"end", end, METH_NOARGS, NULL},      {NULL, NULL, 0, NULL},
};
static PyType_Slot slots[] = {{Py_tp_dealloc, stream_dealloc}, {Py_tp_methods, methods}, {0, NULL}};
static PyType_Spec spec = {"harness.load._receive.Stream", sizeof(Stream), 0,
                           Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, slots};
PyTypeObject *stream_type;

int make_stream_type(PyObject *module) {
    stream_type = (PyTypeObject *)PyType_FromSpec(&spec);
    return stream_type ? PyModule_AddObjectRef(module, "Stream", (PyObject *)stream_type) : -1;
}

PyObject *make_stream(Poller *poller, PyObject *exchange) {
    Stream *s = PyObject_New(Stream, stream_type);
    if (!s) return NULL;
    memset((char *)s + offsetof(Stream, poller), 0, sizeof *s - offsetof(Stream, poller));
    s->poller = (PyObject *)poller;
    Py_INCREF(s->poller);
    Py_INCREF(exchange);
    s->exchange = exchange;
    return (PyObject *)s;
}
