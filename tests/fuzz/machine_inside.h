/* Declarations shared by machine.c (calls, connections, checks), machine_memory.c and machine_frames.c (arriving
 * frames). */
#ifndef MACHINE_INSIDE_H
#define MACHINE_INSIDE_H

#include <stdint.h>

#include "hollow.h"
#include "machine.h"
#include "via/vi.h"

#define N_SLOTS 8       /* receives, and sends, that can be posted at a time */
#define RECV_BYTES 512  /* room of a receive's buffer */
#define SEND_BYTES 2048 /* longest message we send: eight frames */
#define MAX_TRANSFER 2000
#define CHUNK 256 /* the peer takes frames of so many bytes */
#define GUARD 192
#define MAX_OPS 24
#define FILL 0x3C
#define PEER_KEY 0x11223344u
#define PEER_PSN 0xFFFFFFF8u /* sequence numbers wrap soon */
#define PEER_PORT 9
#define PEER_VI 3

/* Targets of peers. All memory between and behind them is guard. */
enum { AREA_WRITE, AREA_READ, AREA_OTHER_TAG, AREA_STALE, AREA_RECV, AREA_SEND, AREA_DESC, N_AREAS };

struct memory {
    uint8_t guard0[GUARD];
    uint8_t granted[1024]; /* AREA_WRITE: grants writes */
    uint8_t guard1[GUARD];
    uint8_t read_only[1024];
    uint8_t guard2[GUARD];
    uint8_t other_tag[1024]; /* grants writes, but to another tag */
    uint8_t guard3[GUARD];
    uint8_t stale[1024]; /* was registered, with the right to write */
    uint8_t guard4[GUARD];
    struct {
        uint8_t bytes[RECV_BYTES], guard[GUARD];
    } recv[N_SLOTS]; /* registered as a whole; only posted bytes may change */
    uint8_t send[SEND_BYTES];
    uint8_t guard5[GUARD];
    struct {
        VIP_DESCRIPTOR d;
        VIP_DATA_SEGMENT more[2];
        uint8_t guard[32];
    } __attribute__((aligned(64))) recv_desc[N_SLOTS], send_desc[N_SLOTS];
    VIP_DESCRIPTOR bystander;
    uint8_t bystander_bytes[256];
    uint8_t guard6[GUARD];
};

struct slot {
    int posted;
    uint32_t len;
    VIP_DESCRIPTOR copy; /* as posted: the segments must not change */
};

/* One NIC with all that an input needs; made once. */
struct world {
    struct hollow h;
    struct memory *m;
    VIP_PROTECTION_HANDLE tag, second_tag;
    VIP_MEM_HANDLE handles[N_AREAS];
    VIP_CQ_HANDLE cq;
    struct via_vi *vis[3][2]; /* by level, by right to write */
    struct via_vi *bystander;
};

/* The present input. */
struct machine {
    const uint8_t *p, *end;
    struct world *w;
    struct via_vi *vi, *other; /* the one under attack, and one that may get connected as well */
    int depth, n_ops;
    int may_write;     /* some VI with the right was connected */
    int bystander_hit; /* a frame knew the bystander's key */
    int reregister;
    VIP_CONN_HANDLE held; /* a request that ConnectWait gave us */
    struct slot recv[N_SLOTS], send[N_SLOTS];
};

/* The next one or two bytes of the input; 0 behind its end. */
static inline uint32_t u8(struct machine *m)
{
    return m->p < m->end ? *m->p++ : 0;
}

static inline uint32_t u16(struct machine *m)
{
    uint32_t low = u8(m);
    return low | u8(m) << 8;
}

/* Return the beginning of an area, and store its length. */
uint8_t *machine_area(struct world *w, int which, size_t *len);
/* Register an area with the rights that its name states. AREA_STALE is deregistered when the world is complete. */
VIP_MEM_HANDLE machine_register_area(struct world *w, int which);
/* Check that the input has changed only bytes that were granted or posted. */
void machine_check_memory(const struct machine *x);

/* An address somewhere in, before or behind an area of the input's choice, and a handle that may belong to it. */
uint64_t machine_aim(struct machine *x, VIP_MEM_HANDLE *handle);
/* Puts the right checksum into a frame. */
void machine_seal(uint8_t *frame, size_t len);

/* Operations: a frame that is right but for what the input says, and bytes as they come. */
void machine_op_frame(struct machine *x);
void machine_op_raw(struct machine *x);

#endif
