/* See station.h. */
#include "station.h"

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

socklen_t station_name(const char *prefix, uint16_t port, struct sockaddr_un *a)
{
    memset(a, 0, sizeof *a);
    a->sun_family = AF_UNIX;
    int n = snprintf(a->sun_path + 1, sizeof a->sun_path - 1, "%s/%u", prefix, port);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n);
}

int station_claim(int socket, const char *prefix, uint16_t *port)
{
    uint16_t start = 1;
    ssize_t got = getrandom(&start, sizeof start, GRND_NONBLOCK);
    (void)got; /* without luck we begin at 1 */
    for (uint32_t i = 0; i < 65536; i++) {
        struct sockaddr_un a;
        *port = (uint16_t)(start + i);
        if (*port == 0)
            continue;
        socklen_t len = station_name(prefix, *port, &a);
        if (bind(socket, (struct sockaddr *)&a, len) == 0)
            return 0;
        if (errno != EADDRINUSE)
            return -errno;
    }
    return -EADDRINUSE;
}

/* Accepted sockets carry their listener's name, so a port may stand there many times. */
static int known(const uint16_t *ports, int n, unsigned port)
{
    for (int i = 0; i < n; i++)
        if (ports[i] == port)
            return 1;
    return 0;
}

int station_ports(const char *prefix, uint16_t *ports, int max)
{
    char line[512];
    size_t len = strlen(prefix);
    int n = 0;
    FILE *f = fopen("/proc/net/unix", "re");
    if (f == NULL)
        return 0;
    while (n < max && fgets(line, sizeof line, f)) {
        unsigned port;
        const char *name = strchr(line, '@');
        if (name && strncmp(name + 1, prefix, len) == 0 && name[1 + len] == '/' &&
            sscanf(name + len + 2, "%u", &port) == 1 && port <= 65535 && !known(ports, n, port))
            ports[n++] = (uint16_t)port;
    }
    fclose(f);
    return n;
}
