/*
 * config.h - names that a user may give to devices and hosts (config.c).
 *
 * Devices come from the environment variable VIAKIT_DEVICES ("NAME=DEVICE;NAME=DEVICE"), then from the file, then
 * from a table of the names that programs of the time have built in. Hosts come from a file that the caller names,
 * then from VIAKIT_HOSTS (such a list, or a file's path), then from the file, then from /etc/vip_hosts.
 *
 * The file is $VIAKIT_CONFIG, or viakit/viakit.conf in $XDG_CONFIG_HOME or ~/.config. Lines of it:
 *
 *     # a comment
 *     device nic0 = eth:eth0
 *     host   anna = 02:56:49:41:00:01
 *
 * Files of hosts have such lines too, or M-VIA's: a name, an address, and whatever follows. Nothing is kept in
 * memory: what is changed in a file is in force at the next call.
 */
#ifndef VIAKIT_CONFIG_H
#define VIAKIT_CONFIG_H

#include <stddef.h>

enum config_kind { CONFIG_DEVICE, CONFIG_HOST };

/* One entry: visit(context, name, value, where); where is "FILE:LINE" or the variable's name. Non-zero ends the
 * walk. */
typedef int config_visit(void *context, const char *name, const char *value, const char *where);

/* Walks all entries, those that come first count. hosts_file (may be NULL) is only looked at for hosts; with
 * in_files_only the list in VIAKIT_HOSTS is left out. 1: visit ended it; 0: all seen; -1: a file cannot be read,
 * explained. */
int config_each(enum config_kind kind, const char *hosts_file, int in_files_only, config_visit *visit, void *context);

/* The device behind a name: from the sources above, as it is if nothing is said about it. 0, or -1 explained; where
 * is "" if nothing is said. */
int config_device(const char *name, char *device, size_t size, char *where, size_t where_size);

#endif
