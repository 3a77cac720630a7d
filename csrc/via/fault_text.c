/*
 * Faults as a line of text, for command lines, the environment and records.
 *
 *    faults    = "" | item { "," item }
 *    item      = "loss=" chance  | "dup=" chance | "reorder=" chance [ "/" distance ] | "corrupt=" chance [ "/" bits ]
 *              | "delay=" time   | "jitter=" time | "stall=" time "/" period
 *              | "partition=" ( time | "ever" ) [ "@" time ]  |  "partition=" frames [ "@" frames ]
 *              | "kinds=" kind { "+" kind }
 *              | ( "drop" | "double" | "hold" | "spoil" ) "=" ( kind | [ kind ":" ] number [ "-" number ] )
 *              | "seed=" number
 *    chance    = decimal [ "%" ]         time = decimal ( "ns" | "us" | "ms" | "s" )         frames = number "f"
 *
 * Each word stands once, but for the four of chosen frames, and for partitions, of which there may be one in time and
 * one in frames: of two that contradict each other neither would be what was meant.
 *
 * Numbers are written with a point whatever the locale says, so none of the C library's own readers is used.
 *
 *     loss=5%,reorder=1%/8,seed=7           one frame in twenty is lost, one in a hundred overtaken by up to 8
 *     delay=200us,jitter=50us,stall=10ms/100ms
 *     drop=accept:0,partition=2s@5s         the first ACCEPT is lost; after 5 s two seconds of nothing
 *
 * Reading and writing are inverse to each other: what viakit_format_faults() writes, viakit_parse_faults() reads as
 * the same faults, to the last bit of each number.
 */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "../base/plural.h"
#include "internal.h"

/* ---------------------------------------------------------------- kinds of frames */

static const char *const kind_names[] = {
#define WIRE_X(name, value, text) [value] = #name,
    WIRE_KINDS(WIRE_X)
#undef WIRE_X
};
#define N_KINDS ((int)(sizeof kind_names / sizeof *kind_names))

const char *viakit_frame_kind_name(int kind)
{
    return kind > 0 && kind < N_KINDS ? kind_names[kind] : NULL;
}

/* ---------------------------------------------------------------- reading: each moves *p behind what it took, or
 * returns 0 */

/* The word itself, in this case of letters. */
static int take(const char **p, const char *word)
{
    size_t n = strlen(word);
    if (strncmp(*p, word, n) != 0)
        return 0;
    *p += n;
    return 1;
}

/* Decimal digits; one digit more than 64 bits hold is no number. */
static int take_number(const char **p, uint64_t *value)
{
    const char *begin = *p;
    *value = 0;
    for (; **p >= '0' && **p <= '9'; ++*p) {
        uint64_t digit = (uint64_t)(**p - '0');
        if (*value > (UINT64_MAX - digit) / 10)
            return 0;
        *value = *value * 10 + digit;
    }
    return *p != begin;
}

/* digits [ "." digits ] [ "e" [ "-" ] digits ] The digits are gathered as one whole number, `scale` counts the
 * places that the point moved, and at the end one multiplication or division by a power of ten puts it back:
 * rounding happens once. */
static int take_decimal(const char **p, double *value)
{
    uint64_t digits = 0, exponent = 0;
    int scale = 0, any = 0, point = 0;
    for (;; ++*p) {
        if (**p == '.' && !point)
            point = 1;
        else if (**p >= '0' && **p <= '9') {
            any = 1;
            if (digits < UINT64_MAX / 10 - 1) {
                digits = digits * 10 + (uint64_t)(**p - '0');
                scale -= point;
            } else
                scale += !point; /* more than a double can tell */
        } else
            break;
    }
    if (!any)
        return 0;
    if (**p == 'e' || **p == 'E') {
        ++*p;
        int minus = take(p, "-");
        if (!minus)
            take(p, "+");
        if (!take_number(p, &exponent) || exponent > 400)
            return 0;
        scale += minus ? -(int)exponent : (int)exponent;
    }
    /* 10^n by squaring: a factor for each bit of n. */
    long double x = digits, ten = 10, power = 1;
    for (int n = scale < 0 ? -scale : scale; n; n >>= 1, ten *= ten)
        if (n & 1)
            power *= ten;
    *value = (double)(scale < 0 ? x / power : x * power);
    return 1;
}

/* 0 to 1, or per cent. */
static int take_chance(const char **p, double *chance)
{
    if (!take_decimal(p, chance))
        return 0;
    if (take(p, "%"))
        *chance /= 100;
    return *chance <= 1;
}

/* In microseconds, whatever unit it was written in. 0 needs no unit. */
static int take_time(const char **p, double *us)
{
    if (!take_decimal(p, us))
        return 0;
    if (take(p, "ns"))
        *us /= 1e3;
    else if (take(p, "ms"))
        *us *= 1e3;
    else if (take(p, "s"))
        *us *= 1e6;
    else if (!take(p, "us"))
        return *us == 0; /* 0 of whatever */
    return 1;
}

/* The longest name that fits, in either case: no name shall be taken for the beginning of another. */
static int take_kind(const char **p, uint32_t *kind)
{
    int best = 0;
    size_t best_len = 0;
    for (int k = 1; k < N_KINDS; k++) {
        size_t n = kind_names[k] ? strlen(kind_names[k]) : 0;
        if (n > best_len && strncasecmp(*p, kind_names[k], n) == 0) {
            best = k;
            best_len = n;
        }
    }
    *p += best_len;
    *kind = (uint32_t)best;
    return best != 0;
}

/* A bit for each; "+" between them. */
static int take_kinds(const char **p, uint32_t *kinds)
{
    uint32_t kind;
    do {
        if (!take_kind(p, &kind))
            return 0;
        *kinds |= 1u << kind;
    } while (take(p, "+"));
    return 1;
}

/* A kind alone means all of its frames; a number alone, that frame of any kind. */
static int take_rule(const char **p, viakit_faults *f, viakit_verdict verdict)
{
    viakit_fault_rule r = {verdict, 0, 0, UINT64_MAX};
    if (f->n_rules == VIAKIT_MAX_FAULT_RULES)
        return 0;
    /* KIND, KIND:NUMBERS or NUMBERS. Without numbers the rule is for all frames of the kind: 0 to UINT64_MAX. */
    int kind = take_kind(p, &r.kind);
    if (!kind || take(p, ":")) {
        if (!take_number(p, &r.first))
            return 0;
        r.last = r.first;
        if (take(p, "-") && !take_number(p, &r.last))
            return 0;
    }
    f->rules[f->n_rules++] = r;
    return r.first <= r.last;
}

/* In frames if an "f" follows the number, else in time: so it begins anew where it turns out to be a time. */
static int take_partition(const char **p, viakit_faults *f)
{
    const char *begin = *p;
    uint64_t frames;
    if (take_number(p, &frames) && take(p, "f")) {
        f->partition_frames = frames;
        return !take(p, "@") || (take_number(p, &f->partition_after_frames) && take(p, "f"));
    }
    *p = begin;
    if (take(p, "ever"))
        f->partition_us = VIAKIT_FOR_EVER;
    else if (!take_time(p, &f->partition_us))
        return 0;
    return !take(p, "@") || take_time(p, &f->partition_after_us);
}

/* A number behind a slash, if there is one. */
static int take_more(const char **p, uint32_t *value)
{
    uint64_t number;
    if (!take(p, "/"))
        return 1;
    if (!take_number(p, &number) || number == 0 || number > UINT32_MAX)
        return 0;
    *value = (uint32_t)number;
    return 1;
}

/* One item. NULL: taken; otherwise what would have been right. */
static const char *take_item(const char **p, viakit_faults *f)
{
    if (take(p, "loss="))
        return take_chance(p, &f->loss) ? NULL : "loss=0.05 or loss=5%";
    if (take(p, "dup="))
        return take_chance(p, &f->duplicate) ? NULL : "dup=0.01 or dup=1%";
    if (take(p, "reorder="))
        return take_chance(p, &f->reorder) && take_more(p, &f->reorder_distance)
                   ? NULL
                   : "reorder=0.05, or reorder=0.05/8: overtaken by at most 8";
    if (take(p, "corrupt="))
        return take_chance(p, &f->corrupt) && take_more(p, &f->corrupt_bits)
                   ? NULL
                   : "corrupt=0.01, or corrupt=0.01/3: three bits each";
    if (take(p, "delay="))
        return take_time(p, &f->delay_us) ? NULL : "delay=200us (ns, us, ms, s)";
    if (take(p, "jitter="))
        return take_time(p, &f->jitter_us) ? NULL : "jitter=50us (ns, us, ms, s)";
    if (take(p, "stall="))
        return take_time(p, &f->stall_us) && take(p, "/") && take_time(p, &f->stall_every_us)
                   ? NULL
                   : "stall=10ms/100ms: ten of every hundred";
    if (take(p, "partition="))
        return take_partition(p, f) ? NULL : "partition=2s, 2s@5s, ever, ever@5s, or in frames 100f@1000f";
    if (take(p, "kinds="))
        return take_kinds(p, &f->kinds) ? NULL : "kinds=send+write+ack";
    if (take(p, "seed="))
        return take_number(p, &f->seed) ? NULL : "seed=7";
    static const char *const rule = "a kind, a number or a range of frames: drop=accept, drop=12, drop=send:0-2";
    if (take(p, "drop="))
        return take_rule(p, f, VIAKIT_DROP) ? NULL : rule;
    if (take(p, "double="))
        return take_rule(p, f, VIAKIT_DUPLICATE) ? NULL : rule;
    if (take(p, "hold="))
        return take_rule(p, f, VIAKIT_HOLD) ? NULL : rule;
    if (take(p, "spoil="))
        return take_rule(p, f, VIAKIT_CORRUPT) ? NULL : rule;
    return "one of loss, dup, reorder, corrupt, delay, jitter, stall, partition, kinds, drop, double, hold, spoil, "
           "seed";
}

/* The words that stand once, a bit for each in `said`. NULL: not yet said, or may be said again; otherwise what is
 * wrong. */
static const char *say_once(const char *item, uint32_t *said)
{
    static const char *const words[] = {
        "loss=", "dup=", "reorder=", "corrupt=", "delay=", "jitter=", "stall=", "partition=", "kinds=", "seed="};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        if (strncmp(item, words[i], strlen(words[i])) != 0)
            continue;
        /* A partition in frames ends with an "f" where one in time has a unit. */
        size_t len = strcspn(item, ",");
        uint32_t bit = 1u << (words[i][0] == 'p' && item[len - 1] == 'f' ? 31 : i);
        if (*said & bit)
            return "each word once";
        *said |= bit;
    }
    return NULL;
}

/* How far, how many and how often say nothing of what never happens: left out, as they are when faults are written. */
static void forget_idle(viakit_faults *f)
{
    if (f->reorder <= 0)
        f->reorder_distance = 0;
    if (f->corrupt <= 0)
        f->corrupt_bits = 0;
    if (f->stall_us <= 0)
        f->stall_every_us = 0;
    if (f->partition_us == 0)
        f->partition_after_us = 0;
    if (f->partition_frames == 0)
        f->partition_after_frames = 0;
}

/* Is there anything in the fields from that byte on, which a program with a shorter struct does not know? */
static int says_more(const viakit_faults *f, size_t size)
{
    const char *bytes = (const char *)f;
    for (size_t i = size; i < sizeof *f; i++)
        if (bytes[i])
            return 1;
    return 0;
}

/* *out is set on success only, and holds what would be written again as the same text (forget_idle). A program that
 * knows fewer fields is refused what it would lose. */
VIP_RETURN viakit_parse_faults(const char *text, viakit_faults *out)
{
    viakit_faults f = {.size = sizeof f}, settled;
    const char *p = text;
    uint32_t said = 0;
    if (text == NULL || out == NULL)
        return via_fail(VIP_INVALID_PARAMETER, "faults: a text and a place for the result are needed (NULL)");
    VIP_RETURN code = via_check_faults_size("viakit_parse_faults", out);
    if (code)
        return code;
    while (*p) {
        const char *begin = p, *right = take_item(&p, &f);
        if (right == NULL)
            right = say_once(begin, &said);
        if (right == NULL && *p == ',' && p[1])
            p++;
        else if (right == NULL && *p)
            right = "items with a comma between them: loss=0.05,dup=0.01,seed=7";
        if (right)
            return via_fail(VIP_INVALID_PARAMETER, "faults: '%.*s' is not understood; give %s",
                            (int)strcspn(begin, ","), begin, right);
    }
    if ((code = via_settle_faults(&f, &settled)) != VIP_SUCCESS)
        return code;
    forget_idle(&settled);
    if (out->size && says_more(&settled, out->size))
        return via_fail(VIP_INVALID_PARAMETER,
                        "faults: '%s' needs fields that a struct of %zu bytes does not have: compile this program anew",
                        text, out->size);
    via_hand_out_faults(&settled, out);
    return VIP_SUCCESS;
}

/* ---------------------------------------------------------------- writing */

struct writer {
    char *text;
    size_t len, used;
};

/* Counts on when there is no room any more, so that the caller can be told how much is needed. */
__attribute__((format(printf, 2, 3))) static void put(struct writer *w, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    int n =
        vsnprintf(w->used < w->len ? w->text + w->used : NULL, w->used < w->len ? w->len - w->used : 0, format, args);
    va_end(args);
    w->used += n > 0 ? (size_t)n : 0;
}

/* "name=" or ",name=" */
static void put_name(struct writer *w, const char *name)
{
    put(w, "%s%s=", w->used ? "," : "", name);
}

/* As few digits as read back as the same number. */
static void put_decimal(struct writer *w, double x)
{
    char digits[40];
    /* 17 digits tell any two doubles apart; most that people write need no more than six. */
    for (int precision = 6; precision <= 17; precision++) {
        double back;
        snprintf(digits, sizeof digits, "%.*g", precision, x);
        char *comma = strchr(digits, ','); /* the locale's point */
        if (comma)
            *comma = '.';
        const char *p = digits;
        if (take_decimal(&p, &back) && back == x)
            break;
    }
    put(w, "%s", digits);
}

/* In the largest unit from which the reader's multiplication leads back: 1009us is not 1.009ms, by the last bit. */
static void put_time(struct writer *w, double us)
{
    int seconds = us >= 1e6 && us / 1e6 * 1e6 == us, ms = us >= 1e3 && us / 1e3 * 1e3 == us;
    put_decimal(w, seconds ? us / 1e6 : ms ? us / 1e3 : us);
    put(w, "%s", seconds ? "s" : ms ? "ms" : "us");
}

/* more: what stands behind the slash; 0: its default, and then nothing does. */
static void put_chance(struct writer *w, const char *name, double chance, uint32_t more)
{
    if (chance <= 0)
        return;
    put_name(w, name);
    put_decimal(w, chance);
    if (more)
        put(w, "/%u", more);
}

/* In small letters: 0x20 is what tells them from capitals in ASCII. */
static void put_kind(struct writer *w, uint32_t kind)
{
    for (const char *c = kind_names[kind]; *c; c++)
        put(w, "%c", *c | 0x20);
}

/* One item for each form: both may be set. */
static void put_partition(struct writer *w, const viakit_faults *f)
{
    if (f->partition_us != 0) {
        put_name(w, "partition");
        if (f->partition_us < 0)
            put(w, "ever");
        else
            put_time(w, f->partition_us);
        if (f->partition_after_us > 0) {
            put(w, "@");
            put_time(w, f->partition_after_us);
        }
    }
    if (f->partition_frames) {
        put_name(w, "partition");
        put(w, "%lluf", (unsigned long long)f->partition_frames);
        if (f->partition_after_frames)
            put(w, "@%lluf", (unsigned long long)f->partition_after_frames);
    }
}

/* As take_rule() reads them; all frames of a kind need no numbers. */
static void put_rules(struct writer *w, const viakit_faults *f)
{
    static const char *const names[] = {"", "drop", "double", "hold", "spoil"};
    for (uint32_t i = 0; i < f->n_rules; i++) {
        const viakit_fault_rule *r = &f->rules[i];
        put_name(w, names[r->verdict]);
        if (viakit_frame_kind_name((int)r->kind))
            put_kind(w, r->kind);
        if (r->kind && r->first == 0 && r->last == UINT64_MAX)
            continue;
        put(w, "%s%llu", r->kind ? ":" : "", (unsigned long long)r->first);
        if (r->last != r->first)
            put(w, "-%llu", (unsigned long long)r->last);
    }
}

/* The inverse of viakit_parse_faults(): what is written is read back as the same faults. VIP_ERROR_RESOURCE says how
 * many bytes it takes, the final zero included. */
VIP_RETURN viakit_format_faults(const viakit_faults *faults, char *text, size_t len)
{
    viakit_faults f;
    struct writer w = {text, len, 0};
    if (faults == NULL || text == NULL || len == 0)
        return via_fail(VIP_INVALID_PARAMETER,
                        "faults: faults and a place for their text are needed (NULL, or 0 bytes)");
    VIP_RETURN code = via_settle_faults(faults, &f);
    if (code)
        return code;
    *text = 0;
    put_chance(&w, "loss", f.loss, 0);
    put_chance(&w, "dup", f.duplicate, 0);
    put_chance(&w, "reorder", f.reorder, f.reorder_distance);
    put_chance(&w, "corrupt", f.corrupt, f.corrupt_bits);
    if (f.delay_us > 0) {
        put_name(&w, "delay");
        put_time(&w, f.delay_us);
    }
    if (f.jitter_us > 0) {
        put_name(&w, "jitter");
        put_time(&w, f.jitter_us);
    }
    if (f.stall_us > 0) {
        put_name(&w, "stall");
        put_time(&w, f.stall_us);
        put(&w, "/");
        put_time(&w, f.stall_every_us);
    }
    put_partition(&w, &f);
    for (uint32_t k = 1, any = 0; k < 32; k++)
        if ((f.kinds >> k & 1) && viakit_frame_kind_name((int)k)) {
            if (any++)
                put(&w, "+");
            else
                put_name(&w, "kinds");
            put_kind(&w, k);
        }
    put_rules(&w, &f);
    if (f.seed) {
        put_name(&w, "seed");
        put(&w, "%llu", (unsigned long long)f.seed);
    }
    if (w.used >= len)
        return via_fail(VIP_ERROR_RESOURCE, "faults: their text needs %zu byte%s, not %zu", w.used + 1,
                        vk_s(w.used + 1), len);
    return VIP_SUCCESS;
}
