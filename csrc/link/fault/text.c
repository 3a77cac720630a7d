/*
 * Faults as a line of text, for command lines, the environment and records.
 *
 *    faults    = "" | item { "," item }
 *    item      = "loss=" chance  | "dup=" chance | "reorder=" chance [ "/" distance ] | "corrupt=" chance [ "/" bits ]
 *              | "delay=" time   | "jitter=" time | "stall=" time "/" period
 *              | "partition=" ( time | "ever" ) [ "@" time ]  |  "partition=" frames [ "@" frames ]
 *              | "kinds=" kind   { "+" kind }
 *              | ( "drop" | "double" | "hold" | "spoil" ) "="   ( kind | [ kind ":" ] number [ "-" number ] )
 *              | "seed="   number
 *    chance    = decimal [ "%" ]         time = decimal ( "ns" | "us" | "ms" | "s" )         frames = number "f"
 *
 * Each word may occur once, except the four that select frames. A partition may occur twice, in time and in frames. Two
 * contradicting items would be ambiguous.
 *
 * Numbers have a decimal point in every locale: both calls run in the C locale (in_c_locale).
 *
 *     loss=5%,reorder=1%/8,seed=7           one frame in twenty is lost, one in a hundred overtaken by up to 8
 *     delay=200us,jitter=50us,stall=10ms/100ms
 *     drop=accept:0,partition=2s@5s         the first ACCEPT is lost; after 5 s no frame passes for 2 s
 *
 * Reading and writing are inverse: viakit_parse_faults() reads the output of viakit_format_faults() as the same faults,
 * to the last bit of each number.
 *
 *    text --take_item, for each--> faults --fault_settle--> checked --forget_idle, fault_copy_out--> program's
 *    program's --fault_settle--> checked --put_... for each field--> text
 *
 * Here the form is checked. fault_settle() checks the ranges of values, for programs that fill in the struct as well.
 *
 * Any thread may call the two functions. They do not block, and have no state: uselocale() concerns the calling thread
 * only.
 */
#include <ctype.h>
#include <errno.h>
#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/explain.h"
#include "base/plural.h"
#include "base/text.h"
#include "link/fault/fault.h"
#include "link/frame_format.h"

/* ---------------------------------------------------------------- kinds of frames */

/* From the list of frame_format.h, so a new kind of frame can be named in faults at once. */
static const char *const kind_names[] = {
#define WIRE_X(name, value, text) [value] = #name,
    WIRE_KINDS(WIRE_X)
#undef WIRE_X
};
#define N_KINDS ((int)(sizeof kind_names / sizeof *kind_names))

/* NULL for 0, READ: the program's API numbers kinds from 1 on, and 0 in a rule means any kind. */
const char *viakit_frame_kind_name(int kind)
{
    return kind > 0 && kind < N_KINDS ? kind_names[kind] : NULL;
}

/* ---------------------------------------------------------------- reading: each function moves *p behind the text that
 * it has read, or returns 0 */

/* Reads the word, case-sensitive. Unlike the functions below it leaves *p unchanged if it returns 0, so callers can try
 * several words. */
static int take(const char **p, const char *word)
{
    size_t n = strlen(word);
    if (strncmp(*p, word, n) != 0)
        return 0;
    *p += n;
    return 1;
}

/* Reads decimal digits. Fails if the number exceeds 64 bits. */
static int take_number(const char **p, uint64_t *value)
{
    char *end;
    if (!isdigit((unsigned char)**p)) /* strtoull would accept spaces and a sign */
        return 0;
    errno = 0;
    *value = strtoull(*p, &end, 10);
    *p = end;
    return errno == 0;
}

/* Reads digits [ "." digits ] [ "e" [ "-" ] digits ]. strtod would also accept spaces, a sign, words, and hexadecimal
 * digits. */
static int take_decimal(const char **p, double *value)
{
    const char *begin = *p;
    char *end;
    if ((!isdigit((unsigned char)*begin) && *begin != '.') || strncasecmp(begin, "0x", 2) == 0)
        return 0;
    *value = strtod(begin, &end);
    *p = end;
    return end != begin;
}

/* Reads a chance from 0 to 1, or in per cent. The comparison rejects infinity, to which strtod() rounds 1e400. */
static int take_chance(const char **p, double *chance)
{
    if (!take_decimal(p, chance))
        return 0;
    if (take(p, "%"))
        *chance /= 100;
    return *chance <= 1;
}

/* Reads a time with its unit into microseconds. 0 needs no unit. */
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
        return *us == 0; /* 0 without a unit */
    return 1;
}

/* Reads a kind in either case. The longest matching name counts, because a name may be the beginning of another. */
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

/* Reads kinds with "+" between them, a bit for each. */
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

/* A kind alone selects all of its frames. A number alone selects that frame of any kind. The rule is added before its
 * range is checked: an error ends the whole reading, and the struct is dropped. */
static int take_rule(const char **p, viakit_faults *f, viakit_verdict verdict)
{
    viakit_fault_rule r = {verdict, 0, 0, UINT64_MAX};
    if (f->n_rules == VIAKIT_MAX_FAULT_RULES)
        return 0;
    /* KIND, KIND:NUMBERS or NUMBERS. Without numbers the rule covers all frames of the kind: 0 to UINT64_MAX. */
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

/* Reads a partition: in frames if an "f" follows the number, else it is read again as a time. */
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

/* Reads a number behind a slash, if there is one. 0 is refused, because in the struct it means the default. */
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

/* The items. The text after the name is that of a form; `first` and `second` are the fields that it sets, as offsets
 * into viakit_faults. To add a fault, add a line here, a call in viakit_format_faults(), and its check in settle.c. */
enum form { CHANCE, TIME, PARTITION, KINDS, RULE, NUMBER };
#define AT(field) offsetof(viakit_faults, field)
#define A_RULE "a kind, a number or a range of frames: drop=accept, drop=12, drop=send:0-2"
/* No name is the beginning of another one, so the first that matches is the item. */
static const struct item {
    const char *name;
    enum form form;
    size_t first, second; /* of a rule: the verdict; second 0: none */
    const char *right;    /* a valid item */
} items[] = {
    {"loss=", CHANCE, AT(loss), 0, "loss=0.05 or loss=5%"},
    {"dup=", CHANCE, AT(duplicate), 0, "dup=0.01 or dup=1%"},
    {"reorder=", CHANCE, AT(reorder), AT(reorder_distance), "reorder=0.05, or reorder=0.05/8: overtaken by at most 8"},
    {"corrupt=", CHANCE, AT(corrupt), AT(corrupt_bits), "corrupt=0.01, or corrupt=0.01/3: three bits each"},
    {"delay=", TIME, AT(delay_us), 0, "delay=200us (ns, us, ms, s)"},
    {"jitter=", TIME, AT(jitter_us), 0, "jitter=50us (ns, us, ms, s)"},
    {"stall=", TIME, AT(stall_us), AT(stall_every_us), "stall=10ms/100ms: ten of every hundred"},
    {"partition=", PARTITION, 0, 0, "partition=2s, 2s@5s, ever, ever@5s, or in frames 100f@1000f"},
    {"kinds=", KINDS, AT(kinds), 0, "kinds=send+write+ack"},
    {"seed=", NUMBER, AT(seed), 0, "seed=7"},
    {"drop=", RULE, VIAKIT_DROP, 0, A_RULE},
    {"double=", RULE, VIAKIT_DUPLICATE, 0, A_RULE},
    {"hold=", RULE, VIAKIT_HOLD, 0, A_RULE},
    {"spoil=", RULE, VIAKIT_CORRUPT, 0, A_RULE},
};
#define N_ITEMS (sizeof items / sizeof *items)

/* Reads the text after the name of an item. Returns 0 if it is not of the item's form. Each field has the type of its
 * form: double for CHANCE and TIME, uint32_t behind a chance, double behind a time, uint64_t for NUMBER. */
static int take_value(const char **p, const struct item *i, viakit_faults *f)
{
    void *first = (char *)f + i->first, *second = (char *)f + i->second;
    switch (i->form) {
    case CHANCE:
        return take_chance(p, first) && (i->second == 0 || take_more(p, second));
    case TIME:
        return take_time(p, first) && (i->second == 0 || (take(p, "/") && take_time(p, second)));
    case PARTITION:
        return take_partition(p, f);
    case KINDS:
        return take_kinds(p, first);
    case RULE:
        return take_rule(p, f, (viakit_verdict)i->first);
    case NUMBER:
        return take_number(p, first);
    }
    return 0;
}

/* Reads one item. `seen` has a bit for each item that may occur once. Returns NULL on success, otherwise text that
 * shows a valid item. */
static const char *take_item(const char **p, viakit_faults *f, uint32_t *seen)
{
    for (size_t i = 0; i < N_ITEMS; i++) {
        if (!take(p, items[i].name))
            continue;
        if (!take_value(p, &items[i], f))
            return items[i].right;
        /* A partition in frames ends with an "f", one in time with a unit. So it has bit 31, which no item has as its
         * index, and both kinds may occur once each. */
        uint32_t bit = items[i].form == RULE ? 0 : 1u << (items[i].form == PARTITION && (*p)[-1] == 'f' ? 31 : i);
        const char *again = *seen & bit ? "each word once" : NULL;
        *seen |= bit;
        return again;
    }
    return "one of loss, dup, reorder, corrupt, delay, jitter, stall, partition, kinds, drop, double, hold, spoil, "
           "seed";
}

/* Clears the parameters (distance, bits, period, start) of faults that never happen. The writer omits them as well, so
 * without this "loss=0,reorder=0/8" would not survive writing and reading. */
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

/* Returns whether a field from byte `size` on is set, which a program with a shorter struct does not have. All default
 * values are zero bytes. */
static int uses_more(const viakit_faults *f, size_t size)
{
    const char *bytes = (const char *)f;
    for (size_t i = size; i < sizeof *f; i++)
        if (bytes[i])
            return 1;
    return 0;
}

/* Switches this thread to the C locale, an object that always exists: newlocale() allocates nothing for "C", and
 * nothing has to be freed. Returns the one before, for uselocale(). */
static locale_t in_c_locale(void)
{
    return uselocale(newlocale(LC_ALL_MASK, "C", (locale_t)0));
}

/* Item by item, into a struct of its own; *out is written last. The explanation of an error has the item and an example
 * of a valid one. An empty text means no faults. The locale is C's. */
static VIP_RETURN parse(const char *text, viakit_faults *out)
{
    viakit_faults f = {.size = sizeof f}, settled;
    const char *p = text;
    uint32_t seen = 0;
    if (text == NULL || out == NULL)
        return vk_fail(VIP_INVALID_PARAMETER, "faults: a text and a place for the result are needed (NULL)");
    VIP_RETURN code = fault_check_size("viakit_parse_faults", out);
    if (code)
        return code;
    while (*p) {
        const char *begin = p, *right = take_item(&p, &f, &seen);
        if (right == NULL && *p == ',' && p[1])
            p++;
        else if (right == NULL && *p)
            right = "items with a comma between them: loss=0.05,dup=0.01,seed=7";
        if (right)
            return vk_fail(VIP_INVALID_PARAMETER, "faults: '%.*s' is not understood; give %s", (int)strcspn(begin, ","),
                           begin, right);
    }
    if ((code = fault_settle(&f, &settled)) != VIP_SUCCESS)
        return code;
    forget_idle(&settled);
    if (out->size && uses_more(&settled, out->size))
        return vk_fail(VIP_INVALID_PARAMETER,
                       "faults: '%s' needs fields that a struct of %zu bytes does not have: recompile this program",
                       text, out->size);
    fault_copy_out(&settled, out);
    return VIP_SUCCESS;
}

/* *out is set on success only. Writing it yields an equivalent text (forget_idle). If a program's struct lacks a field
 * that the text needs, the call fails. */
VIP_RETURN viakit_parse_faults(const char *text, viakit_faults *out)
{
    locale_t before = in_c_locale();
    VIP_RETURN code = parse(text, out);
    uselocale(before);
    return code;
}

/* ---------------------------------------------------------------- writing */

/* Writes "name=" or ",name=". */
static void put_name(struct vk_text *w, const char *name)
{
    vk_put(w, "%s%s=", w->len ? "," : "", name);
}

/* Writes the fewest digits, from 6 on, that are read back as the same number. 17 digits distinguish any two doubles
 * (IEEE 754, 5.12.2). */
static void put_decimal(struct vk_text *w, double x)
{
    char digits[40];
    int precision = 6;
    do
        snprintf(digits, sizeof digits, "%.*g", precision, x);
    while (strtod(digits, NULL) != x && ++precision <= 17);
    vk_put(w, "%s", digits);
}

/* Uses the largest unit whose conversion is exact when read back: 1009us is not 1.009ms, by the last bit. Nanoseconds
 * are never written: the division that take_time() makes for them is seldom exact. */
static void put_time(struct vk_text *w, double us)
{
    int seconds = us >= 1e6 && us / 1e6 * 1e6 == us, ms = us >= 1e3 && us / 1e3 * 1e3 == us;
    put_decimal(w, seconds ? us / 1e6 : ms ? us / 1e3 : us);
    vk_put(w, "%s", seconds ? "s" : ms ? "ms" : "us");
}

/* more: the number behind the slash; 0: the default, which is omitted. */
static void put_chance(struct vk_text *w, const char *name, double chance, uint32_t more)
{
    if (chance <= 0)
        return;
    put_name(w, name);
    put_decimal(w, chance);
    if (more)
        vk_put(w, "/%u", more);
}

/* Writes the name in small letters: in ASCII they differ from capitals by 0x20. */
static void put_kind(struct vk_text *w, uint32_t kind)
{
    for (const char *c = kind_names[kind]; *c; c++)
        vk_put(w, "%c", *c | 0x20);
}

/* Writes one item for each form: both may be set. */
static void put_partition(struct vk_text *w, const viakit_faults *f)
{
    if (f->partition_us != 0) {
        put_name(w, "partition");
        if (f->partition_us < 0)
            vk_put(w, "ever");
        else
            put_time(w, f->partition_us);
        if (f->partition_after_us > 0) {
            vk_put(w, "@");
            put_time(w, f->partition_after_us);
        }
    }
    if (f->partition_frames) {
        put_name(w, "partition");
        vk_put(w, "%lluf", (unsigned long long)f->partition_frames);
        if (f->partition_after_frames)
            vk_put(w, "@%lluf", (unsigned long long)f->partition_after_frames);
    }
}

/* Writes rules as take_rule() reads them. All frames of a kind need no numbers. */
static void put_rules(struct vk_text *w, const viakit_faults *f)
{
    static const char *const names[] = {"", "drop", "double", "hold", "spoil"};
    for (uint32_t i = 0; i < f->n_rules; i++) {
        const viakit_fault_rule *r = &f->rules[i];
        put_name(w, names[r->verdict]);
        if (viakit_frame_kind_name((int)r->kind))
            put_kind(w, r->kind);
        if (r->kind && r->first == 0 && r->last == UINT64_MAX)
            continue;
        vk_put(w, "%s%llu", r->kind ? ":" : "", (unsigned long long)r->first);
        if (r->last != r->first)
            vk_put(w, "-%llu", (unsigned long long)r->last);
    }
}

/* Writes a time, and its period behind a slash if it has one. 0: nothing. */
static void put_times(struct vk_text *w, const char *name, double us, double every_us)
{
    if (us <= 0)
        return;
    put_name(w, name);
    put_time(w, us);
    if (every_us > 0) {
        vk_put(w, "/");
        put_time(w, every_us);
    }
}

/* Writes the kinds that have names, with "+" between them. Other bits select no frame. */
static void put_kinds(struct vk_text *w, uint32_t kinds)
{
    for (uint32_t k = 1, any = 0; k < 32; k++)
        if ((kinds >> k & 1) && viakit_frame_kind_name((int)k)) {
            if (any++)
                vk_put(w, "+");
            else
                put_name(w, "kinds");
            put_kind(w, k);
        }
}

/* The inverse of viakit_parse_faults(): the text is read back as the same faults. The explanation of VIP_ERROR_RESOURCE
 * has the number of bytes that are needed, the final zero included. */
VIP_RETURN viakit_format_faults(const viakit_faults *faults, char *text, size_t len)
{
    viakit_faults f;
    struct vk_text w = {text, len, 0};
    if (faults == NULL || text == NULL || len == 0)
        return vk_fail(VIP_INVALID_PARAMETER,
                       "faults: faults and a place for their text are needed (NULL, or 0 bytes)");
    VIP_RETURN code = fault_settle(faults, &f);
    if (code)
        return code;
    *text = 0;
    locale_t before = in_c_locale();
    put_chance(&w, "loss", f.loss, 0);
    put_chance(&w, "dup", f.duplicate, 0);
    put_chance(&w, "reorder", f.reorder, f.reorder_distance);
    put_chance(&w, "corrupt", f.corrupt, f.corrupt_bits);
    put_times(&w, "delay", f.delay_us, 0);
    put_times(&w, "jitter", f.jitter_us, 0);
    put_times(&w, "stall", f.stall_us, f.stall_every_us);
    put_partition(&w, &f);
    put_kinds(&w, f.kinds);
    put_rules(&w, &f);
    if (f.seed) {
        put_name(&w, "seed");
        vk_put(&w, "%llu", (unsigned long long)f.seed);
    }
    uselocale(before);
    if (w.len >= len)
        return vk_fail(VIP_ERROR_RESOURCE, "faults: their text needs %zu byte%s, not %zu", w.len + 1, vk_s(w.len + 1),
                       len);
    return VIP_SUCCESS;
}
