/*
 * The filter of a packet socket, in classic BPF. eth_open.c sets it, and the helper csrc/raw/viakit_raw.c sets it for
 * users without privilege, and locks it.
 */
#include <errno.h>
#include <linux/filter.h>
#include <net/ethernet.h>
#include <stddef.h>
#include <sys/socket.h>

#include "link/eth.h"
#include "link/eth_filter.h"

/* The kernel filters before it copies anything. The port is little-endian in the frame. LD loads from an offset into
 * the frame, in network order, or the frame's length. JEQ, JGT and JGE skip their first number of instructions if the
 * condition holds, else their second. RET returns how many bytes to keep, 0 for none.
 *
 *   0-2    the length
 *   3-6    type 0x88B5: the port behind the Ethernet header, and on to 15
 *   7-11   IPv4, UDP, both ports WIRE_UDP_PORT
 *   12-14  the mark in IP's identification; then the port behind IP's and UDP's headers
 *   15-18  this NIC's port or 0: keep the frame; any other: drop it */
int eth_filter_set(int fd, uint16_t port, uint32_t least, uint32_t most, enum eth_marks marks)
{
    uint32_t swapped = (uint32_t)(port >> 8 | (port & 0xFF) << 8);
    /* Skips after the test of the mark: 4 drops the frame. */
    uint8_t if_marked = marks == ETH_UNMARKED ? 4 : 0, if_not = marks == ETH_MARKED ? 4 : 0;
    struct sock_filter code[] = {
        /*  0 */ BPF_STMT(BPF_LD | BPF_W | BPF_LEN, 0),
        /*  1 */ BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, least, 0, 16),
        /*  2 */ BPF_JUMP(BPF_JMP | BPF_JGT | BPF_K, most, 15, 0),
        /*  3 */ BPF_STMT(BPF_LD | BPF_H | BPF_ABS, 12),
        /*  4 */ BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, WIRE_ETHERTYPE, 0, 2),
        /*  5 */ BPF_STMT(BPF_LD | BPF_H | BPF_ABS, 14 + offsetof(struct wire_header, dst_port)),
        /*  6 */ BPF_STMT(BPF_JMP | BPF_JA, 8), /* to 15 */
        /*  7 */ BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, ETHERTYPE_IP, 0, 10),
        /*  8 */ BPF_STMT(BPF_LD | BPF_B | BPF_ABS, 14 + 9),
        /*  9 */ BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 17, 0, 8),
        /* 10 */ BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 14 + IP_LEN),
        /* 11 */ BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)WIRE_UDP_PORT << 16 | WIRE_UDP_PORT, 0, 6),
        /* 12 */ BPF_STMT(BPF_LD | BPF_H | BPF_ABS, 14 + 4),
        /* 13 */ BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, ETH_MARK, if_marked, if_not),
        /* 14 */ BPF_STMT(BPF_LD | BPF_H | BPF_ABS, 14 + IP_UDP_LEN + offsetof(struct wire_header, dst_port)),
        /* 15 */ BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, swapped, 1, 0),
        /* 16 */ BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 0, 0, 1),
        /* 17 */ BPF_STMT(BPF_RET | BPF_K, 0x40000), /* the whole frame */
        /* 18 */ BPF_STMT(BPF_RET | BPF_K, 0),
    };
    struct sock_fprog program = {sizeof code / sizeof *code, code};
    return setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program) == 0 ? 0 : -errno;
}
