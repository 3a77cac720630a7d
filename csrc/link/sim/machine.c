/*
 * Reads the text of a machine's description (machine.h).
 *
 * A description is read once, when a process joins a world (world.c), so this file is about clear errors, not speed.
 * Steps of sim_machine_parse:
 *
 *    defaults of SIM_NUMBERS --> each line: set_line --> required keys seen? --> settle, take_bip --> bounds --> *m
 *
 * Keys that this file does not have are skipped, because the link needs only some of a machine's.
 */
#include "link/sim/machine.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/explain.h"

#define LONGEST 65536 /* bytes of a description */

/* Units of the text. In memory all times are picoseconds, and all rates picoseconds per byte, so that a cost is a
 * product and a sum. */
enum unit { NUMBER, TIME, RATE, BITS, NS };

/* The table of all numbers, made from SIM_NUMBERS. A negative value means that the text must have the key. */
static const struct entry {
    const char *key;
    size_t offset;
    enum unit unit;
    double value;
} entries[] = {
#define SIM_X(field, key, unit, value) {key, offsetof(struct sim_machine, field), unit, value},
    SIM_NUMBERS(SIM_X)
#undef SIM_X
};
#define N_ENTRIES (sizeof entries / sizeof *entries)

/* Converts to picoseconds, or picoseconds per byte. TIME is given in microseconds, RATE in megabytes per second, BITS
 * in megabits per second, NS in nanoseconds. */
static double converted(enum unit unit, double value)
{
    switch (unit) {
    case TIME:
        return value * 1e6;
    case RATE:
        return 1e6 / value;
    case BITS:
        return 8e6 / value;
    case NS:
        return value * 1e3;
    case NUMBER:
        break;
    }
    return value;
}

/* All numbers of a machine are doubles, so an offset is enough to find one. */
static double *field(struct sim_machine *m, size_t i)
{
    return (double *)(void *)((char *)m + entries[i].offset);
}

/* Keys whose value is a word. A key that is in neither table is skipped. An unknown word means the default, because the
 * loader of machine files has checked all words. Always returns 0. */
static int set_word(struct sim_machine *m, const char *key, const char *word)
{
    if (strcmp(key, "machine.name") == 0)
        snprintf(m->name, sizeof m->name, "%s", word);
    else if (strcmp(key, "switch.topology") == 0)
        m->topology = strcmp(word, "star") == 0       ? SIM_STAR
                      : strcmp(word, "fat-tree") == 0 ? SIM_FAT_TREE
                                                      : SIM_NO_SWITCH;
    else if (strcmp(key, "switch.forwarding") == 0)
        m->stores = strcmp(word, "store") == 0;
    else if (strcmp(key, "via.local") == 0)
        m->local_by_card = strcmp(word, "card") == 0;
    else if (strcmp(key, "card.duplex") == 0)
        m->half_duplex = strcmp(word, "half") == 0;
    else if (strcmp(key, "tcp.account") == 0)
        m->counts_slabs = strcmp(word, "slabs") == 0;
    return 0;
}

/* One line, "key value". `line` is cut at its first blank. Sets a field of m and marks it in `seen`. Returns 0, also
 * for a line without a value or with an unknown key; or -EINVAL with an explanation that has the key and the given
 * value. */
static int set_line(struct sim_machine *m, char *line, char seen[N_ENTRIES])
{
    char *value = strchr(line, ' ');
    if (value == NULL)
        return 0;
    *value++ = 0;
    /* A machine has a protocol if any line of its section is there, even one that only names a default. */
    m->has_via |= strncmp(line, "via.", 4) == 0;
    m->has_tcp |= strncmp(line, "tcp.", 4) == 0;
    m->has_bip |= strncmp(line, "bip.", 4) == 0;
    for (size_t i = 0; i < N_ENTRIES; i++)
        if (strcmp(line, entries[i].key) == 0) {
            char *end;
            double number = strtod(value, &end);
            int divides = entries[i].unit == RATE || entries[i].unit == BITS;
            /* !(number >= 0) also refuses NaN. A rate of 0 would make infinite times. */
            if (end == value || !(number >= 0) || number > 1e15 || (divides && number < 1e-6)) {
                vk_explain("machine: %s is '%.40s': give a number%s", line, value,
                           divides ? " above 0" : ", 0 or more");
                return -EINVAL;
            }
            *field(m, i) = converted(entries[i].unit, number);
            seen[i] = 1;
            return 0;
        }
    return set_word(m, line, value);
}

/* On a machine with BIP and without VIA, every message costs what [bip] has: the frames are BIP's packets. Posting and
 * registering cost nothing, except the pinning of each page. */
static void take_bip(struct sim_machine *m)
{
    m->via_send = m->via_write = m->bip_send;
    m->via_receive = m->via_notice = m->bip_receive;
    m->card_frame += m->bip_packet;
    m->via_post = m->via_register = 0;
    m->via_register_page = m->bip_pin;
}

/* Defaults that are another key's value (docs/machines.md). They cannot stand in SIM_NUMBERS, because the other key's
 * value is known only after the whole text. A key that the text has stays as it is, even if its value is 0. */
static void settle(struct sim_machine *m, const char seen[N_ENTRIES])
{
    for (size_t i = 0; i < N_ENTRIES; i++) {
        if (seen[i])
            continue;
        if (field(m, i) == &m->via_write)
            m->via_write = m->via_send;
        else if (field(m, i) == &m->via_interrupt)
            m->via_interrupt = m->wakeup;
        else if (field(m, i) == &m->tcp_ack)
            m->tcp_ack = m->tcp_segment;
    }
}

/* The result is set only when the whole text is valid. */
int sim_machine_parse(const char *text, size_t len, struct sim_machine *m)
{
    /* A line of 256 bytes or more is cut. The text has one number or word in each, so none is that long. */
    char seen[N_ENTRIES] = {0}, line[256];
    struct sim_machine out = {.counts_slabs = 1};
    for (size_t i = 0; i < N_ENTRIES; i++)
        if (entries[i].value >= 0)
            *field(&out, i) = converted(entries[i].unit, entries[i].value);
    for (const char *end = text + len; text < end;) {
        const char *next = memchr(text, '\n', (size_t)(end - text));
        size_t n = (size_t)((next ? next : end) - text);
        snprintf(line, sizeof line, "%.*s", (int)(n < sizeof line ? n : sizeof line - 1), text);
        int error = set_line(&out, line, seen);
        if (error)
            return error;
        text += n + 1;
    }
    /* A missing number is an error: a default would be the cost of another machine. */
    for (size_t i = 0; i < N_ENTRIES; i++)
        if (entries[i].value < 0 && !seen[i]) {
            vk_explain("machine: no line '%s': the text is that of `viakit machines NAME --text`", entries[i].key);
            return -EINVAL;
        }
    /* take_bip() is last, because it also replaces costs that settle() has derived. */
    settle(&out, seen);
    if (out.has_bip && !out.has_via)
        take_bip(&out);
    /* A segment needs room for data beside its headers (stream.c), and ranks are divided by cpus to find their host
     * (clock.c). */
    if (out.mtu < 64 || out.cpus < 1 || out.tcp_ack_every < 1) {
        vk_explain("machine: wire.mtu must be 64 or more, machine.cpus and tcp.ack_every 1 or more");
        return -EINVAL;
    }
    *m = out;
    return 0;
}

/* Runs before the process has a NIC. A text longer than LONGEST is cut, and then lacks keys. */
int sim_machine_read(const char *path, struct sim_machine *m)
{
    FILE *f = fopen(path, "re");
    if (f == NULL) {
        int error = errno;
        vk_explain("machine: cannot read %.200s: %s; VIAKIT_MACHINE must name the file of a machine's numbers", path,
                   strerror(error));
        return -error;
    }
    char *text = malloc(LONGEST);
    size_t len = text ? fread(text, 1, LONGEST, f) : 0;
    int error = text ? sim_machine_parse(text, len, m) : -ENOMEM;
    fclose(f);
    free(text);
    return error;
}
