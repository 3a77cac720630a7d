/*
 * config.h - aliases that a user may define for devices and hosts (config.c).
 *
 * Devices come from the environment variable VIAKIT_DEVICES ("NAME=DEVICE;NAME=DEVICE"), then from the user's file,
 * then from a table of names that early VIA programs have built in. Hosts come from a file that the caller names, then
 * from VIAKIT_HOSTS (such a list, or the path of a file), then from the user's file, then from /etc/vip_hosts.
 *
 * The user's file is $VIAKIT_CONFIG, or viakit/viakit.conf in $XDG_CONFIG_HOME or ~/.config. Its lines:
 *
 *     # a comment
 *     device nic0 = eth:eth0
 *     host   anna = 02:56:49:41:00:01
 *
 * Files of hosts contain such lines or M-VIA's: a name, an address, and anything after it. Nothing is cached: a changed
 * file takes effect at the next call.
 */
#ifndef VIAKIT_CONFIG_H
#define VIAKIT_CONFIG_H

#include <stddef.h>
#include <stdint.h>

enum config_kind { CONFIG_DEVICE, CONFIG_HOST };

/* Visitor of one entry. where is "FILE:LINE" or the variable's name. A non-zero result ends the search. */
typedef int config_visit(void *context, const char *name, const char *value, const char *where);

/* Visit all entries in order of precedence. hosts_file (may be NULL) is used only for hosts. With in_files_only the
 * list in VIAKIT_HOSTS is skipped. Return 1 if visit ended the search, 0 if all entries were visited, and -1,
 * explained, if a source is invalid or a file cannot be read. */
int config_each(enum config_kind kind, const char *hosts_file, int in_files_only, config_visit *visit, void *context);

/* Resolve a device name through the sources above; a name without an entry is copied unchanged. Return 0, or -1
 * explained. where receives the source of the entry, "" if there is no entry. */
int config_device(const char *name, char *device, size_t size, char *where, size_t where_size);

/* Parse six hexadecimal bytes with colons, and nothing after them. Return 1 on success. */
int config_parse_address(const char *text, uint8_t address[6]);

#endif
