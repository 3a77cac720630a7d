/*
 * stream.c - many long messages one way: how much a program gets through a connection.
 *
 *     stream shm - 200 1048576                in one terminal: receives 200 messages of 1 MiB
 *     stream shm localhost 200 1048576 4      in another: sends 200 messages of 1 MiB from 4 buffers, prints MB/s
 *
 * A reliable connection breaks if a message finds no receive posted. So both sides post DEPTH receives before they
 * connect, and the receiver returns a credit, a message without data, for every second message that it has read. The
 * sender never has more than DEPTH messages without a credit under way:
 *
 *     sender      m m m m m m m m . m m . m m           8 messages, then 2 for each credit
 *     receiver          c     c     c     c
 *
 * Buffers are malloc's. The sender fills each before it sends it, and the receiver adds up what it gets. With 0 for the
 * number of buffers there is one, which neither side touches: what the connection alone could do.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <unistd.h>
#include <vipl.h>

#define TABLE "stream"
#define DEPTH 8 /* receives posted, and messages under way */
#define CHECK(call) check(call, #call)

static struct {
    VIP_DESCRIPTOR send[DEPTH], recv[DEPTH];
} d __attribute__((aligned(VIP_DESCRIPTOR_ALIGNMENT)));
static VIP_NET_ADDRESS table[16], other[16];
static VIP_NIC_HANDLE nic;
static VIP_VI_HANDLE vi;
static VIP_MEM_HANDLE descriptors, memory;
static int touched = 1;
static VIP_UINT32 nbytes, nbuffers, posted_sends, reaped_sends, posted_recvs;
static char *buffers;

static void check(VIP_RETURN code, const char *what)
{
    if (code != VIP_SUCCESS)
        exit((fprintf(stderr, "stream: %s: code %d\n", what, (int)code), 1));
}

static void on_error(VIP_PVOID context, VIP_ERROR_DESCRIPTOR *e)
{
    if (e->ErrorCode != VIP_ERROR_CONN_LOST)
        check(VIP_DESCRIPTOR_ERROR, (char *)context);
}

static VIP_DESCRIPTOR *fill(VIP_DESCRIPTOR *one, char *data, VIP_UINT32 len)
{
    memset(one, 0, sizeof *one);
    one->CS.Control = VIP_CONTROL_OP_SENDRECV;
    one->CS.SegCount = 1;
    one->CS.Length = one->DS[0].Local.Length = len;
    one->DS[0].Local.Data.Address = data;
    one->DS[0].Local.Handle = memory;
    return one;
}

static char *buffer(VIP_UINT32 i)
{
    return buffers + (size_t)(i % nbuffers) * nbytes;
}

static void post_recv(void)
{
    CHECK(VipPostRecv(vi, fill(&d.recv[posted_recvs % DEPTH], buffer(posted_recvs), nbytes), descriptors));
    posted_recvs++;
}

/* Waits for the oldest send: its buffer and its descriptor are the program's again. */
static void reap_send(void)
{
    VIP_DESCRIPTOR *done;
    VIP_RETURN code;
    while ((code = VipSendDone(vi, &done)) == VIP_NOT_DONE)
        continue;
    check(code, "VipSendDone");
    reaped_sends++;
}

static void post_send(VIP_UINT32 len)
{
    VIP_UINT32 i = posted_sends % DEPTH;
    if (posted_sends - reaped_sends == (touched ? nbuffers : DEPTH))
        reap_send();
    if (len && touched)
        memset(buffer(posted_sends), (int)posted_sends, len);
    CHECK(VipPostSend(vi, fill(&d.send[i], buffer(posted_sends), len), descriptors));
    posted_sends++;
}

static VIP_DESCRIPTOR *take_recv(void)
{
    VIP_DESCRIPTOR *done;
    VIP_RETURN code;
    while ((code = VipRecvDone(vi, &done)) == VIP_NOT_DONE)
        continue;
    check(code, "VipRecvDone");
    return done;
}

/* The sum matters, or a compiler may leave the reading out. */
static unsigned long add_up(const char *data, VIP_UINT32 len)
{
    unsigned long sum = 0, word;
    VIP_UINT32 i;
    for (i = 0; i + sizeof word <= len; i += sizeof word) {
        memcpy(&word, data + i, sizeof word);
        sum += word;
    }
    return sum;
}

static void send_all(VIP_UINT32 count)
{
    struct timeval t0, t1;
    VIP_UINT32 i, credits = DEPTH;
    double us;
    gettimeofday(&t0, NULL);
    for (i = 0; i < count; i++) {
        while (credits == 0) {
            take_recv();
            post_recv();
            credits += 2;
        }
        credits--;
        post_send(nbytes);
    }
    /* Every credit: then every message has been read. */
    while (credits < DEPTH) {
        take_recv();
        post_recv();
        credits += 2;
    }
    gettimeofday(&t1, NULL);
    us = (t1.tv_sec - t0.tv_sec) * 1e6 + t1.tv_usec - t0.tv_usec;
    printf("%.1f MB/s\n", (double)count * nbytes / us);
}

static void receive_all(VIP_UINT32 count)
{
    unsigned long sum = 0;
    VIP_UINT32 i;
    for (i = 1; i <= count; i++) {
        VIP_DESCRIPTOR *done = take_recv();
        if (touched)
            sum += add_up((char *)done->DS[0].Local.Data.Address, done->CS.Length);
        post_recv();
        if (i % 2 == 0)
            post_send(0);
    }
    while (posted_sends != reaped_sends)
        reap_send();
    printf("%u messages, sum %lx\n", (unsigned)count, sum);
}

int main(int argc, char **argv)
{
    int sends = argc > 2 && strcmp(argv[2], "-") != 0;
    VIP_UINT32 count = argc > 3 ? (VIP_UINT32)atoi(argv[3]) / 2 * 2 : 200, i; /* even: a credit for each two */
    VIP_VI_ATTRIBUTES attributes = {VIP_SERVICE_RELIABLE_DELIVERY, 0, 0, 0, 0, 0}, remote;
    VIP_CONN_HANDLE caller;
    VIP_DESCRIPTOR *done;
    VIP_RETURN code;

    nbytes = argc > 4 ? (VIP_UINT32)atoi(argv[4]) : 1048576;
    nbuffers = argc > 5 ? (VIP_UINT32)atoi(argv[5]) : DEPTH;
    if (count < 2 || nbytes < 1 || nbuffers > DEPTH)
        exit((fprintf(stderr, "usage: stream DEVICE [HOST|-] [COUNT] [NBYTES] [BUFFERS, 0 to %d]\n", DEPTH), 2));
    touched = nbuffers > 0;
    if (touched && !sends)
        nbuffers = DEPTH; /* one for each receive: a message must not be overwritten while it is read */
    nbuffers += !touched;
    buffers = (char *)malloc((size_t)nbytes * nbuffers);
    if (!buffers)
        exit((fprintf(stderr, "stream: no memory\n"), 1));
    memset(buffers, 0, (size_t)nbytes * nbuffers);
    CHECK(VipOpenNic(argc > 1 ? argv[1] : "shm", &nic));
    CHECK(VipErrorCallback(nic, (char *)"error handler", on_error));
    CHECK(VipRegisterMem(nic, &d, sizeof d, NULL, &descriptors));
    CHECK(VipRegisterMem(nic, buffers, nbytes * nbuffers, NULL, &memory));
    attributes.MaxTransferSize = nbytes;
    CHECK(VipCreateVi(nic, &attributes, NULL, NULL, &vi));
    for (i = 0; i < DEPTH; i++)
        post_recv();
    CHECK(VipNSInit(nic, NULL));
    CHECK(VipNSGetHostByName(nic, sends ? argv[2] : (char *)"localhost", table, 0));
    table->DiscriminatorLen = sizeof TABLE;
    memcpy(table->HostAddress + table->HostAddressLen, TABLE, sizeof TABLE);
    if (sends) {
        while ((code = VipConnectRequest(vi, NULL, table, 10000, &remote)) == VIP_NO_MATCH || code == VIP_NOT_REACHABLE)
            usleep(10000); /* until the receiver is there */
        check(code, "VipConnectRequest");
        send_all(count);
    } else {
        CHECK(VipConnectWait(nic, table, VIP_INFINITE, other, &remote, &caller));
        CHECK(VipConnectAccept(caller, vi));
        receive_all(count);
    }
    while (posted_sends != reaped_sends)
        reap_send();
    CHECK(VipDisconnect(vi));
    while (VipRecvDone(vi, &done) == VIP_DESCRIPTOR_ERROR && done)
        continue;
    CHECK(VipDestroyVi(vi));
    CHECK(VipDeregisterMem(nic, buffers, memory));
    CHECK(VipDeregisterMem(nic, &d, descriptors));
    CHECK(VipCloseNic(nic));
    free(buffers);
    return 0;
}
