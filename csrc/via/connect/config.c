/*
 * The search behind config.h: it visits the entries of the environment and the files one at a time.
 *
 *    config_each(kind, visitor)
 *      devices   VIAKIT_DEVICES --> the user's file
 *      hosts     VipNSInit's file --> VIAKIT_HOSTS --> the user's file --> /etc/vip_hosts
 *                   each entry: visitor(name, value, where) --> 1: found, the search ends; 0: the next one
 *
 * The search returns 1 if found, 0 if not found, and -1 for invalid input, explained with file and line. It keeps no
 * state, so any thread may run it. It reads files and may block, so no caller owns a NIC meanwhile.
 *
 *    line of a file      device NAME = LINK:X | host NAME = ADDRESS | NAME ADDRESS ... (hosts only)        # comment
 *    entry of a list     NAME=VALUE, with ";" between entries
 *
 * Files are read anew for each search. A program opens few NICs and resolves few names, and a user who corrects a file
 * need not restart it.
 */
#include "via/connect/config.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/explain.h"
#include "link/link.h"

#define LINE 512  /* bytes of a line or an entry, with its end: a name of the Internet has 253 at most (RFC 1035) */
#define PATH 1024 /* bytes of the user's file name; a longer one is cut, and then not found */

/* The kind of entry that is searched, and the visitor of each such entry. A visitor ends the search by returning
 * non-zero. */
struct walk {
    enum config_kind kind;
    config_visit *visit;
    void *context;
};

/* Remove white space from both ends. Changes the text in place. Returns its first character that is no white space. */
static char *trim(char *text)
{
    while (isspace((unsigned char)*text))
        text++;
    size_t n = strlen(text);
    while (n && isspace((unsigned char)text[n - 1]))
        text[--n] = 0;
    return text;
}

/* ---------------------------------------------------------------- "NAME=VALUE;NAME=VALUE" */

/* Parse one entry in place. Return 1 with name and value, or 0 if one of them is missing. */
static int parse_entry(char *entry, char **name, char **value)
{
    char *equals = strchr(entry, '=');
    if (equals == NULL)
        return 0;
    *equals = 0;
    *name = trim(entry);
    *value = trim(equals + 1);
    return **name && **value;
}

/* Visit the entries of a variable. White space around names and values is removed, and empty entries are skipped.
 * Return 1 if the visitor ended the search, 0 if not. Return -1, explained, for an entry without name, "=" or value, or
 * one that is longer than a line may be. */
static int walk_list(const struct walk *w, const char *variable, const char *list)
{
    char entry[LINE], *name, *value;
    for (size_t n; *list; list += n + (list[n] == ';')) {
        n = strcspn(list, ";");
        if (strspn(list, " \t\r\n") >= n)
            continue;
        snprintf(entry, sizeof entry, "%.*s", (int)(n < LINE ? n : LINE), list);
        if (n >= sizeof entry || !parse_entry(entry, &name, &value)) {
            vk_explain("%s: '%.*s' is not NAME=VALUE, of %d bytes at most", variable, (int)(n < 80 ? n : 80), list,
                       LINE - 1);
            return -1;
        }
        if (w->visit(w->context, name, value, variable))
            return 1;
    }
    return 0;
}

/* ---------------------------------------------------------------- files */

/* Parse "device NAME = VALUE" or "host NAME = VALUE". Return 1 with kind, name and value, or 0 if the line is neither.
 */
static int parse_statement(char *line, enum config_kind *kind, char **name, char **value)
{
    char *rest = line + strcspn(line, " \t"), *equals = strchr(line, '=');
    size_t n = (size_t)(rest - line);
    if (equals == NULL || equals < rest)
        return 0;
    if (n == 6 && strncmp(line, "device", 6) == 0)
        *kind = CONFIG_DEVICE;
    else if (n == 4 && strncmp(line, "host", 4) == 0)
        *kind = CONFIG_HOST;
    else
        return 0;
    *equals = 0;
    *name = trim(rest);
    *value = trim(equals + 1);
    return **name && **value;
}

/* Parse a line in M-VIA's form: a name, an address, and possibly more. Changes the line in place, as parse_entry does.
 * Returns 1, or 0 if there is no second word. */
static int parse_host_line(char *line, char **name, char **value)
{
    *name = line;
    char *end = line + strcspn(line, " \t");
    if (*end == 0)
        return 0;
    *end = 0;
    *value = trim(end + 1);
    (*value)[strcspn(*value, " \t")] = 0;
    return 1;
}

/* Read the next line, without its comment, which extends to the end of the line. Return 0 at the end of the file, or on
 * a read error (ferror). Also return 0, with *too_long set, if the line is too long. A comment may have any length. */
static int next_line(FILE *f, char line[LINE], int *too_long)
{
    if (fgets(line, LINE, f) == NULL)
        return 0;
    size_t n = strcspn(line, "#\n");
    int comment = line[n] == '#', whole = strchr(line, '\n') != NULL;
    for (int c = 0; !whole; whole = c == '\n' || c == EOF) {
        c = getc(f);
        *too_long |= c != '\n' && c != EOF && !comment;
    }
    line[n] = 0;
    return !*too_long;
}

/* Visit the entries of a file. A missing file is empty, unless the user has named it. Return 1 if the visitor ended the
 * search, 0 if not. Return -1, explained, if the file is unreadable or a line is invalid. An invalid line is an error,
 * not skipped, so that the user can correct it. */
static int walk_file(const struct walk *w, const char *path, int named, int hosts_form)
{
    char line[LINE], where[PATH + 16];
    int result = 0, number = 0, too_long = 0;
    FILE *f = fopen(path, "re");
    if (f == NULL) {
        if (!named && (errno == ENOENT || errno == ENOTDIR || errno == EACCES))
            return 0;
        vk_explain("cannot read %s: %s", path, strerror(errno));
        return -1;
    }
    while (result == 0 && next_line(f, line, &too_long)) {
        enum config_kind kind = CONFIG_HOST;
        char *name, *value;
        number++;
        char *text = trim(line);
        if (*text == 0)
            continue;
        /* For explanations: FILE:LINE, as compilers print it. */
        snprintf(where, sizeof where, "%s:%d", path, number);
        if (!parse_statement(text, &kind, &name, &value) && !(hosts_form && parse_host_line(text, &name, &value))) {
            vk_explain("%s: '%.80s' is not understood: write 'device NAME = LINK:X' or 'host NAME = ADDRESS'%s", where,
                       text, hosts_form ? ", or 'NAME ADDRESS'" : "");
            result = -1;
        } else if (kind == w->kind)
            result = w->visit(w->context, name, value, where) ? 1 : 0;
    }
    if (result == 0 && (too_long || ferror(f))) { /* a folder can be opened like a file, but not read */
        if (too_long)
            vk_explain("%s:%d: a line of more than %d bytes", path, number + 1, LINE - 2);
        else
            vk_explain("cannot read %s: %s", path, strerror(errno));
        result = -1;
    }
    fclose(f);
    return result;
}

/* Visit the user's own file. If VIAKIT_CONFIG names it, it must exist. secure_getenv: a program with more rights than
 * its caller must not read files of the caller's choice. */
static int walk_config(const struct walk *w)
{
    const char *path = secure_getenv("VIAKIT_CONFIG"), *base = secure_getenv("XDG_CONFIG_HOME");
    char usual[PATH];
    if (path && *path)
        return walk_file(w, path, 1, 0);
    if (base && *base)
        snprintf(usual, sizeof usual, "%s/viakit/viakit.conf", base);
    else if ((base = secure_getenv("HOME")) && *base)
        snprintf(usual, sizeof usual, "%s/.config/viakit/viakit.conf", base);
    else
        return 0;
    return walk_file(w, usual, 0, 0);
}

/* Visit the hosts; the first entry with the name wins. The order is: the file named to VipNSInit, VIAKIT_HOSTS (a file,
 * or a list NAME=ADDRESS;...), the user's own file, and M-VIA's /etc/vip_hosts. Returns as config_each. */
static int walk_hosts(const struct walk *w, const char *hosts_file, int in_files_only)
{
    const char *hosts = secure_getenv("VIAKIT_HOSTS");
    int result = hosts_file ? walk_file(w, hosts_file, 1, 1) : 0;
    if (result == 0 && hosts && *hosts) {
        int is_list = strchr(hosts, '=') != NULL;
        if (!is_list)
            result = walk_file(w, hosts, 1, 1);
        else if (!in_files_only)
            result = walk_list(w, "VIAKIT_HOSTS", hosts);
    }
    if (result == 0)
        result = walk_config(w);
    return result ? result : walk_file(w, "/etc/vip_hosts", 0, 1);
}

/* Devices: VIAKIT_DEVICES, then the user's own file. */
int config_each(enum config_kind kind, const char *hosts_file, int in_files_only, config_visit *visit, void *context)
{
    struct walk w = {kind, visit, context};
    const char *devices = secure_getenv("VIAKIT_DEVICES");
    if (kind == CONFIG_HOST)
        return walk_hosts(&w, hosts_file, in_files_only);
    int result = devices ? walk_list(&w, "VIAKIT_DEVICES", devices) : 0;
    return result ? result : walk_config(&w);
}

/* ---------------------------------------------------------------- devices */

/* The search for one device: its name, and the caller's buffers for the device and for the source of the entry. A
 * longer value is cut, and no device has such a name. */
struct wanted {
    const char *name;
    char *device, *where;
    size_t size, where_size;
};

/* The first entry of that name wins. */
static int is_wanted(void *context, const char *name, const char *value, const char *where)
{
    struct wanted *w = context;
    if (strcmp(name, w->name) != 0)
        return 0;
    snprintf(w->device, w->size, "%s", value);
    snprintf(w->where, w->where_size, "%s", where);
    return 1;
}

/* Device names that programs have built in. % matches a number, which is the same on both sides. One machine then
 * replaces a cluster: the card becomes shared memory, where NICs reach each other as programs on one machine do. */
static const struct {
    const char *name, *device;
} table[] = {
    {"/dev/clanvi%", "shm:%"},                                /* Giganet cLAN */
    {"nic%", "shm:%"},         {"VINIC", "shm:0"},            /* Myricom VI-GM */
    {"VINIC%", "shm:%"},       {"/dev/via_lo", "shm:lo"},     /* M-VIA, loopback */
    {"/etc/via_lo", "shm:lo"}, {"/dev/via_eth%", "eth:eth%"}, /* M-VIA, Ethernet */
    {"shm%", "shm:%"},                                        /* without the colon */
    {"loop%", "loop:%"},
};

/* Return whether the name matches the pattern, with the digits that % matches. */
static int matches(const char *pattern, const char *name, const char **digits, size_t *n_digits)
{
    size_t n = strcspn(pattern, "%");
    if (strncmp(pattern, name, n) != 0)
        return 0;
    *digits = name + n;
    *n_digits = strspn(*digits, "0123456789");
    return pattern[n] == 0 ? name[n] == 0 : *n_digits > 0 && (*digits)[*n_digits] == 0;
}

/* Resolve a device name: the user's entries first, then the historical names. Any other name is a link's own. */
int config_device(const char *name, char *device, size_t size, char *where, size_t where_size)
{
    struct wanted w = {name, device, where, size, where_size};
    *where = 0;
    int found = config_each(CONFIG_DEVICE, NULL, 0, is_wanted, &w);
    if (found)
        return found < 0 ? -1 : 0;
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        const char *digits, *to = table[i].device;
        size_t n;
        if (!matches(table[i].name, name, &digits, &n))
            continue;
        /* The table's device up to its %, followed by the digits. */
        snprintf(device, size, "%.*s%.*s", (int)strcspn(to, "%"), to, strchr(to, '%') ? (int)n : 0, digits);
        snprintf(where, where_size, "the table of historical names");
        return 0;
    }
    snprintf(device, size, "%s", name);
    return 0;
}

/* Six bytes in hexadecimal, as tools print MAC addresses. %c must not match: nothing may follow. */
int config_parse_address(const char *text, uint8_t address[6])
{
    unsigned b[6];
    char rest;
    if (sscanf(text, "%2x:%2x:%2x:%2x:%2x:%2x%c", &b[0], &b[1], &b[2], &b[3], &b[4], &b[5], &rest) != 6)
        return 0;
    for (int i = 0; i < 6; i++)
        address[i] = (uint8_t)b[i];
    return 1;
}
