/*
 * old.h - what the programs beside it share: they are written as programs of 2000 to 2005 were, in gnu89, against
 * vipl.h alone. DEVICE HOST, with "-" for HOST, is the server; with a name it is the client.
 */
#ifndef OLD_H
#define OLD_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <vipl.h>

#define ROOM 131072
#define PATIENT 20000 /* ms */

#define TRY(call)                                                                         \
    do {                                                                                  \
        VIP_RETURN try_code = (call);                                                     \
        if (try_code != VIP_SUCCESS) {                                                    \
            fprintf(stderr, "%s:%d: %s: %d\n", __FILE__, __LINE__, #call, (int)try_code); \
            exit(1);                                                                      \
        }                                                                                 \
    } while (0)

#define EXPECT(what)                                                       \
    do {                                                                   \
        if (!(what)) {                                                     \
            fprintf(stderr, "%s:%d: not %s\n", __FILE__, __LINE__, #what); \
            exit(1);                                                       \
        }                                                                  \
    } while (0)

static VIP_NIC_HANDLE nic;
static VIP_VI_HANDLE vi;
static VIP_MEM_HANDLE handle;
static char *memory; /* descriptors in the first half, data in the second */

static VIP_DESCRIPTOR *descriptor_at(int i)
{
    return (VIP_DESCRIPTOR *)(void *)(memory + i * 64);
}

static char *data_at(int i)
{
    return memory + ROOM / 2 + i;
}

/* A descriptor of one segment; the memory that it names is the region of everything. */
static VIP_DESCRIPTOR *fill(int i, char *data, VIP_ULONG len)
{
    VIP_DESCRIPTOR *d = descriptor_at(i);
    memset(d, 0, sizeof(*d));
    d->CS.SegCount = 1;
    d->CS.Length = (VIP_UINT32)len;
    d->DS[0].Local.Data.Address = data;
    d->DS[0].Local.Handle = handle;
    d->DS[0].Local.Length = (VIP_UINT32)len;
    return d;
}

static void allocate(void)
{
    void *p = NULL;
    EXPECT(posix_memalign(&p, 4096, ROOM) == 0);
    memory = (char *)p;
    memset(memory, 0, ROOM);
}

/* The default handler would print that the peer has ended its connection first. */
static void quiet(VIP_PVOID context, VIP_ERROR_DESCRIPTOR *error)
{
    (void)context;
    EXPECT(error->ErrorCode == VIP_ERROR_CONN_LOST);
}

static void open_nic(const char *device)
{
    TRY(VipOpenNic(device, &nic));
    TRY(VipErrorCallback(nic, NULL, quiet));
}

static VIP_NET_ADDRESS *address_of(const char *host)
{
    VIP_NET_ADDRESS *a = (VIP_NET_ADDRESS *)calloc(1, 64);
    TRY(VipNSGetHostByName(nic, (VIP_CHAR *)host, a, 0));
    a->DiscriminatorLen = 4;
    memcpy(a->HostAddress + a->HostAddressLen, "2001", 4);
    return a;
}

/* Clients of the time repeated a request on VIP_NO_MATCH and gave up on any other answer. */
static void connect_to(const char *host)
{
    VIP_NET_ADDRESS *local = address_of("localhost"), *remote = address_of(strcmp(host, "-") ? host : "localhost");
    VIP_VI_ATTRIBUTES remote_attributes;
    VIP_CONN_HANDLE request;
    VIP_RETURN code;
    if (strcmp(host, "-") == 0) {
        TRY(VipConnectWait(nic, local, PATIENT, remote, &remote_attributes, &request));
        TRY(VipConnectAccept(request, vi));
    } else {
        int told = 0;
        while ((code = VipConnectRequest(vi, local, remote, PATIENT, &remote_attributes)) == VIP_NO_MATCH) {
            if (!told++) {
                printf("no server waits yet\n");
                fflush(stdout);
            }
            usleep(10000);
        }
        TRY(code);
    }
    free(local);
    free(remote);
}

#endif
