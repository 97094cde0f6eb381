/* One event's JSON: is it the usual one, and what does it say?
 *
 * Usual is OpenAI's chunk with one choice, text, perhaps a reasoning, perhaps a running usage, and nothing that ends
 * anything. All that is read here must be what msgspec and harness/dialects make of the same bytes, so everything in
 * doubt is unusual, and Python reads it: an escape in a name, a name twice, half a character, a number that is no plain
 * count, deep nesting.
 */
#include <string.h>

#include "receive.h"

enum { DEEPEST = 24, LONGEST_COUNT = 9, LONGEST_NUMBER = 40 };
enum { CHOICES = 1, USAGE = 2, ERROR_ = 4, DELTA = 8, TEXT = 16, FINISH = 32, CONTENT = 64, REASONING = 128,
       REASONING_CONTENT = 256, REFUSAL = 512, TOOL_CALLS = 1024, PROMPT = 2048, COMPLETION = 4096, TOTAL = 8192,
       PROMPT_DETAILS = 16384, COMPLETION_DETAILS = 32768 };

typedef struct {
    const char *at, *end;
} Cursor;

typedef int (*Field)(Cursor *c, const char *name, size_t size, Event *event);

/* A byte of ASCII that stands for itself in a string, but for the quote and the backslash. */
static int is_plain(char byte) { return (signed char)byte >= ' '; }

static void blanks(Cursor *c) {
    while (c->at < c->end && *c->at == ' ') c->at++;
}

static int next_is(Cursor *c, char wanted) {
    blanks(c);
    if (c->at >= c->end || *c->at != wanted) return 0;
    c->at++;
    return 1;
}

static int word(Cursor *c, const char *wanted, size_t size) {
    if ((size_t)(c->end - c->at) < size || memcmp(c->at, wanted, size)) return 0;
    c->at += size;
    return 1;
}

static int null(Cursor *c) { return word(c, "null", 4); }

static int hex4(Cursor *c) {
    int value = 0;
    if (c->end - c->at < 4) return -1;
    for (int i = 0; i < 4; i++) {
        char d = *c->at++;
        int digit = d >= '0' && d <= '9' ? d - '0' : d >= 'a' && d <= 'f' ? d - 'a' + 10
                  : d >= 'A' && d <= 'F' ? d - 'A' + 10 : -1;
        if (digit < 0) return -1;
        value = value * 16 + digit;
    }
    return value;
}

/* Behind a backslash: return the bytes of UTF-8 that the escape becomes; -1 where it is none, or half a character. */
static int escape(Cursor *c) {
    if (c->at >= c->end) return -1;
    char kind = *c->at++;
    if (kind && strchr("\"\\/bfnrt", kind)) return 1;
    if (kind != 'u') return -1;
    int first = hex4(c);
    if (first < 0 || (first >= 0xDC00 && first < 0xE000)) return -1;
    if (first >= 0xD800 && first < 0xDC00) {
        if (!word(c, "\\u", 2)) return -1;
        int second = hex4(c);
        return second >= 0xDC00 && second < 0xE000 ? 4 : -1;
    }
    return first < 0x80 ? 1 : first < 0x800 ? 2 : 3;
}

/* At a byte above 0x7F: return the length of its character in UTF-8 (RFC 3629, section 4); 0 where it is none. */
static int character(const unsigned char *at, const char *end) {
    long left = (const unsigned char *)end - at;
    unsigned char low = 0x80, high = 0xBF;
    int size = at[0] >= 0xC2 && at[0] <= 0xDF ? 2 : (at[0] & 0xF0) == 0xE0 ? 3 : at[0] >= 0xF0 && at[0] <= 0xF4 ? 4 : 0;
    if (!size || left < size) return 0;
    if (at[0] == 0xE0) low = 0xA0;
    if (at[0] == 0xED) high = 0x9F;
    if (at[0] == 0xF0) low = 0x90;
    if (at[0] == 0xF4) high = 0x8F;
    if (at[1] < low || at[1] > high) return 0;
    for (int i = 2; i < size; i++)
        if (at[i] < 0x80 || at[i] > 0xBF) return 0;
    return size;
}

/* Read a string; return its length in bytes of UTF-8, -1 where it is none. */
static long string(Cursor *c) {
    if (c->at >= c->end || *c->at++ != '"') return -1;
    long length = 0;
    for (;;) {
        const char *begin = c->at;
        while (c->at < c->end && *c->at != '"' && *c->at != '\\' && is_plain(*c->at)) c->at++;
        length += c->at - begin;
        if (c->at >= c->end) return -1;
        if (*c->at == '"') {
            c->at++;
            return length;
        }
        int size;
        if (*c->at == '\\') {
            c->at++;
            if ((size = escape(c)) < 0) return -1;
        } else {
            if ((unsigned char)*c->at < 0x80 || !(size = character((const unsigned char *)c->at, c->end))) return -1;
            c->at += size;
        }
        length += size;
    }
}

static long digits(Cursor *c) {
    const char *begin = c->at;
    while (c->at < c->end && *c->at >= '0' && *c->at <= '9') c->at++;
    return c->at - begin;
}

static int number(Cursor *c) {
    const char *begin = c->at;
    if (*c->at == '-') c->at++;
    const char *whole = c->at;
    long count = digits(c);
    if (!count || (count > 1 && *whole == '0')) return 0;
    if (c->at < c->end && *c->at == '.') {
        c->at++;
        if (!digits(c)) return 0;
    }
    if (c->at < c->end && (*c->at == 'e' || *c->at == 'E')) {
        c->at++;
        if (c->at < c->end && (*c->at == '-' || *c->at == '+')) c->at++;
        count = digits(c);
        if (!count || count > 2) return 0;
    }
    return c->at - begin <= LONGEST_NUMBER;
}

/* Read a count, or null as -1; return whether it was one. */
static int count(Cursor *c, long *into) {
    const char *begin = c->at;
    if (null(c)) {
        *into = -1;
        return 1;
    }
    long size = digits(c), value = 0;
    if (!size || size > LONGEST_COUNT || (size > 1 && *begin == '0')) return 0;
    for (const char *d = begin; d < c->at; d++) value = value * 10 + (*d - '0');
    *into = value;
    return c->at >= c->end || (*c->at != '.' && *c->at != 'e' && *c->at != 'E');
}

static int skip(Cursor *c, int depth);

/* Read what is behind a `{`, calling `field` at each value; NULL: skip them. */
static int members(Cursor *c, Field field, Event *event, int depth) {
    if (next_is(c, '}')) return 1;
    do {
        blanks(c);
        const char *name = c->at + 1;
        if (c->at >= c->end || *c->at++ != '"') return 0;
        while (c->at < c->end && *c->at != '"' && *c->at != '\\' && is_plain(*c->at)) c->at++;
        if (c->at >= c->end || *c->at != '"') return 0;
        size_t size = (size_t)(c->at++ - name);
        if (!next_is(c, ':')) return 0;
        blanks(c);
        if (c->at >= c->end || !(field ? field(c, name, size, event) : skip(c, depth))) return 0;
    } while (next_is(c, ','));
    return next_is(c, '}');
}

/* Read any value of which nothing is wanted. */
static int skip(Cursor *c, int depth) {
    if (c->at >= c->end || depth > DEEPEST) return 0;
    switch (*c->at) {
    case '"': return string(c) >= 0;
    case '{':
        c->at++;
        return members(c, NULL, NULL, depth + 1);
    case '[':
        c->at++;
        if (next_is(c, ']')) return 1;
        do {
            blanks(c);
            if (!skip(c, depth + 1)) return 0;
        } while (next_is(c, ','));
        return next_is(c, ']');
    case 't': return word(c, "true", 4);
    case 'f': return word(c, "false", 5);
    case 'n': return null(c);
    default: return number(c);
    }
}

static int is(const char *name, size_t size, const char *wanted) {
    return size == strlen(wanted) && !memcmp(name, wanted, size);
}

static int first(Event *event, unsigned field) {
    if (event->seen & field) return 0;
    event->seen |= field;
    return 1;
}

/* Read a string, or null as -1. */
static int words(Cursor *c, long *into) {
    if (null(c)) return 1;
    return (*into = string(c)) >= 0;
}

static int delta_field(Cursor *c, const char *name, size_t size, Event *e) {
    if (is(name, size, "content")) return first(e, CONTENT) && words(c, &e->content);
    if (is(name, size, "reasoning")) return first(e, REASONING) && words(c, &e->reasoning);
    if (is(name, size, "reasoning_content")) return first(e, REASONING_CONTENT) && words(c, &e->reasoning_content);
    if (is(name, size, "refusal")) return first(e, REFUSAL) && null(c);
    if (is(name, size, "tool_calls")) return first(e, TOOL_CALLS) && null(c);
    return skip(c, 3);
}

static int choice_field(Cursor *c, const char *name, size_t size, Event *e) {
    if (is(name, size, "delta")) {
        if (!first(e, DELTA)) return 0;
        if (null(c)) return 1;
        e->delta = 1;
        return next_is(c, '{') && members(c, delta_field, e, 0);
    }
    if (is(name, size, "text")) return first(e, TEXT) && words(c, &e->text);
    if (is(name, size, "finish_reason")) return first(e, FINISH) && null(c);
    return skip(c, 2);
}

static int usage_field(Cursor *c, const char *name, size_t size, Event *e) {
    long total;
    if (is(name, size, "prompt_tokens")) return first(e, PROMPT) && count(c, &e->prompt_tokens);
    if (is(name, size, "completion_tokens")) return first(e, COMPLETION) && count(c, &e->completion_tokens);
    if (is(name, size, "total_tokens")) return first(e, TOTAL) && count(c, &total);
    if (is(name, size, "prompt_tokens_details")) return first(e, PROMPT_DETAILS) && null(c);
    if (is(name, size, "completion_tokens_details")) return first(e, COMPLETION_DETAILS) && null(c);
    return skip(c, 1);
}

static int chunk_field(Cursor *c, const char *name, size_t size, Event *e) {
    if (is(name, size, "choices"))
        return first(e, CHOICES) && next_is(c, '[') && next_is(c, '{') && members(c, choice_field, e, 0) &&
               next_is(c, ']');
    if (is(name, size, "usage")) {
        if (!first(e, USAGE)) return 0;
        if (null(c)) return 1;
        e->usage = 1;
        return next_is(c, '{') && members(c, usage_field, e, 0);
    }
    if (is(name, size, "error")) return first(e, ERROR_) && null(c);
    return !is(name, size, "timings") && skip(c, 0);
}

int read_event(const char *at, const char *end, Event *event) {
    Cursor c = {at, end};
    *event = (Event){.content = -1, .text = -1, .reasoning = -1, .reasoning_content = -1, .prompt_tokens = -1,
                     .completion_tokens = -1};
    return next_is(&c, '{') && members(&c, chunk_field, event, 0) && c.at == c.end && event->seen & CHOICES;
}
