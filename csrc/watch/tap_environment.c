/*
 * The tap that the environment requests, for programs that cannot be changed:
 *
 *     VIAKIT_TAP=FILE[,events][,noframes][,snap=BYTES][,ring=BYTES][,limit=BYTES]
 *
 *     FILE       a name, in which %p stands for the process number, or a folder (tap_file.c: expand_name)
 *     the rest   fields of viakit_tap_options
 *
 * The variable is read when a NIC opens. All NICs of a process continue one file. A text that cannot be parsed is an
 * error of VipOpenNic, because a program that ran without the capture would have to run again.
 *
 * Called by the thread that opens the NIC, before any other thread knows the NIC.
 */
#include "watch/tap.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "via/error.h"

/* Parses "NAME=NUMBER" with this name, up to `most`. Returns 1 on success. */
static int parse_number(const char *word, const char *name, unsigned long most, unsigned long *value)
{
    size_t n = strlen(name);
    char *end;
    if (strncmp(word, name, n) != 0 || word[n] != '=' || word[n + 1] < '0' || word[n + 1] > '9')
        return 0;
    *value = strtoul(word + n + 1, &end, 10);
    return *end == 0 && *value <= most;
}

/* Parses one word after the file name. */
static int parse_word(const char *word, viakit_tap_options *o)
{
    unsigned long v;
    if (strcmp(word, "events") == 0)
        o->events = 1;
    else if (strcmp(word, "noframes") == 0)
        o->no_frames = 1;
    else if (parse_number(word, "snap", UINT32_MAX, &v))
        o->snap_len = (VIP_UINT32)v;
    else if (parse_number(word, "ring", UINT32_MAX, &v))
        o->ring_bytes = (VIP_UINT32)v;
    else if (parse_number(word, "limit", ULONG_MAX, &v))
        o->file_bytes = v;
    else
        return 0;
    return 1;
}

/* Opens the tap of VIAKIT_TAP=FILE[,WORD...]. Further NICs of the same process continue the same file (append). */
VIP_RETURN via_tap_from_environment(struct via_nic *nic)
{
    const char *text = secure_getenv("VIAKIT_TAP"); /* NULL in setuid programs */
    viakit_tap_options o = {.size = sizeof o};
    char words[768], *rest, *word;
    if (text == NULL || *text == 0)
        return VIP_SUCCESS;
    if (strlen(text) >= sizeof words)
        return vk_fail(VIP_INVALID_PARAMETER, "VIAKIT_TAP is too long: give at most %zu bytes", sizeof words - 1);
    strcpy(words, text);
    const char *file = strtok_r(words, ",", &rest);
    if (file == NULL)
        return vk_fail(VIP_INVALID_PARAMETER, "VIAKIT_TAP=%s: must begin with the name of a file or folder", text);
    while ((word = strtok_r(NULL, ",", &rest)) != NULL)
        if (!parse_word(word, &o))
            return vk_fail(VIP_INVALID_PARAMETER,
                           "VIAKIT_TAP: '%s' is none of events, noframes, snap=BYTES, ring=BYTES, limit=BYTES", word);
    via_tap_lock();
    VIP_RETURN code = tap_open(nic, file, &o, 1);
    via_tap_unlock();
    return code;
}
