/* tail.c - receives of 64 KB that lie at the end of a region and run past it, as programs posted them for
 * acknowledgements of no bytes: tail DEVICE HOST. A message that fits the registered part arrives. One that runs past
 * it is refused on arrival. */
#include "old.h"

#define REGISTERED (ROOM / 2 + 4096) /* what is behind it is the program's, and must stay as it is */
#define LEFT 64                      /* registered bytes where the receives begin */

static volatile int conn_lost;

static void handler(VIP_PVOID context, VIP_ERROR_DESCRIPTOR *error)
{
    (void)context;
    if (error->ErrorCode == VIP_ERROR_CONN_LOST)
        conn_lost = 1;
}

static void serve(void)
{
    VIP_DESCRIPTOR *d = NULL;
    char *room = memory + REGISTERED - LEFT;
    int i;
    TRY(VipRecvWait(vi, PATIENT, &d));
    EXPECT(d == descriptor_at(0) && d->CS.Length == 0);
    TRY(VipRecvWait(vi, PATIENT, &d));
    EXPECT(d == descriptor_at(1) && d->CS.Length == LEFT && room[0] == 'a' && room[LEFT - 1] == 'a');
    EXPECT(VipRecvWait(vi, PATIENT, &d) == VIP_DESCRIPTOR_ERROR);
    EXPECT(d == descriptor_at(2) &&
           d->CS.Status == (VIP_STATUS_DONE | VIP_STATUS_OP_RECEIVE | VIP_STATUS_PROTECTION_ERROR));
    for (i = LEFT; i < 4096; i++)
        EXPECT(room[i] == 'u');
}

static void ask(long too_long)
{
    VIP_DESCRIPTOR *d = NULL;
    memset(data_at(0), 'a', 4096);
    TRY(VipPostSend(vi, fill(10, data_at(0), 0), handle));
    TRY(VipSendWait(vi, PATIENT, &d));
    TRY(VipPostSend(vi, fill(11, data_at(0), LEFT), handle));
    TRY(VipSendWait(vi, PATIENT, &d));
    TRY(VipPostSend(vi, fill(12, data_at(0), (VIP_ULONG)too_long), handle));
    EXPECT(VipSendWait(vi, PATIENT, &d) == VIP_DESCRIPTOR_ERROR && d->CS.Status & VIP_STATUS_REMOTE_DESC_ERROR);
}

int main(int argc, char **argv)
{
    VIP_VI_ATTRIBUTES attributes;
    int serves, i;
    EXPECT(argc == 4);
    serves = strcmp(argv[2], "-") == 0;
    TRY(VipOpenNic(argv[1], &nic));
    TRY(VipErrorCallback(nic, NULL, handler));
    allocate();
    memset(memory + REGISTERED, 'u', ROOM - REGISTERED);
    TRY(VipRegisterMem(nic, memory, serves ? REGISTERED : ROOM, NULL, &handle));
    memset(&attributes, 0, sizeof(attributes));
    attributes.ReliabilityLevel = VIP_SERVICE_RELIABLE_RECEPTION;
    TRY(VipCreateVi(nic, &attributes, NULL, NULL, &vi));
    for (i = 0; i < 3 && serves; i++)
        TRY(VipPostRecv(vi, fill(i, memory + REGISTERED - LEFT, 65536), handle));
    connect_to(argv[2]);
    if (serves)
        serve();
    else
        ask(atol(argv[3]));
    for (i = 0; i < PATIENT && !conn_lost; i++)
        usleep(1000);
    EXPECT(conn_lost);
    printf("done\n");
    TRY(VipCloseNic(nic));
    return 0;
}
