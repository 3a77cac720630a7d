/*
 * A machine's description, as the simulated link uses it. The text is what `viakit machines --text NAME` prints: one
 * line per number or word, "via.send_us 1.5". docs/machines.md explains the keys.
 *
 * Times are kept in picoseconds and rates in picoseconds per byte. A cost is rounded once, when it is charged, so sums
 * of costs are sums of integers and the same in every run.
 */
#ifndef VIAKIT_SIM_MACHINE_H
#define VIAKIT_SIM_MACHINE_H

#include <stddef.h>
#include <stdint.h>

/* field, key, unit of the text, default in that unit. A negative default means that the key is required. */
#define SIM_NUMBERS(X)                                      \
    X(hosts, "machine.hosts", NUMBER, 2)                    \
    X(cpus, "machine.cpus", NUMBER, 1)                      \
    X(copy, "host.copy_mb_s", RATE, -1)                     \
    X(copy_start, "host.copy_us", TIME, 0)                  \
    X(flag, "host.flag_us", TIME, 0.3)                      \
    X(wakeup, "host.wakeup_us", TIME, 20)                   \
    X(wire, "wire.rate_mbit_s", BITS, -1)                   \
    X(mtu, "wire.mtu", NUMBER, 1500)                        \
    X(frame_bytes, "wire.frame_bytes", NUMBER, 38)          \
    X(wire_delay, "wire.delay_us", TIME, 0)                 \
    X(switch_latency, "switch.latency_us", TIME, 0)         \
    X(switch_ports, "switch.ports", NUMBER, 0)              \
    X(card_start, "card.start_us", TIME, 0)                 \
    X(card_frame, "card.frame_us", TIME, 0)                 \
    X(bus, "card.bus_mb_s", RATE, -1)                       \
    X(via_send, "via.send_us", TIME, 0)                     \
    X(via_receive, "via.receive_us", TIME, 0)               \
    X(via_write, "via.write_us", TIME, 0)                   \
    X(via_notice, "via.notice_us", TIME, 0.2)               \
    X(via_post, "via.post_us", TIME, 0.3)                   \
    X(via_frame, "via.frame_us", TIME, 0)                   \
    X(via_copies, "via.copies", NUMBER, 0)                  \
    X(via_register, "via.register_us", TIME, 5)             \
    X(via_register_page, "via.register_page_us", TIME, 0.5) \
    X(via_interrupt, "via.interrupt_us", TIME, 20)          \
    X(via_max_transfer, "via.max_transfer", NUMBER, 65536)  \
    X(tcp_send, "tcp.send_us", TIME, 0)                     \
    X(tcp_receive, "tcp.receive_us", TIME, 0)               \
    X(tcp_coalesce, "tcp.coalesce_us", TIME, 0)             \
    X(tcp_segment, "tcp.segment_us", TIME, 0)               \
    X(tcp_byte, "tcp.byte_ns", NS, 0)                       \
    X(tcp_ack, "tcp.ack_us", TIME, 0)                       \
    X(tcp_ack_every, "tcp.ack_every", NUMBER, 2)            \
    X(tcp_sockbuf, "tcp.sockbuf", NUMBER, 65536)            \
    X(tcp_sockbuf_max, "tcp.sockbuf_max", NUMBER, 524288)   \
    X(tcp_delayed_ack, "tcp.delayed_ack_us", TIME, 0)       \
    X(tcp_grant, "tcp.grant", NUMBER, 1)                    \
    X(tcp_slab, "tcp.slab", NUMBER, 0)                      \
    X(bip_send, "bip.send_us", TIME, 0)                     \
    X(bip_receive, "bip.receive_us", TIME, 0)               \
    X(bip_packet, "bip.packet_us", TIME, 0)                 \
    X(bip_pin, "bip.pin_us", TIME, 0)                       \
    X(message, "message.overhead_us", TIME, 0)

/* Hosts are joined by one line, by one switch, or by a tree of switches with switch.ports ports each (hops() in
 * path.c). */
enum sim_topology { SIM_NO_SWITCH, SIM_STAR, SIM_FAT_TREE };

/* A machine with its costs, after sim_machine_parse. TIME and NS fields are picoseconds, RATE and BITS fields
 * picoseconds per byte, NUMBER fields as in the text. All are doubles, so that one loop can read them. The simulator
 * copies the struct into the shared world and never changes it there. */
struct sim_machine {
    char name[64]; /* the line "machine.name", or empty */
#define SIM_X(field, key, unit, value) double field;
    SIM_NUMBERS(SIM_X)
#undef SIM_X
    enum sim_topology topology;
    int stores;        /* the switch receives a whole frame before it sends it on */
    int counts_slabs;  /* a socket buffer counts, for each segment, the power of two that holds it */
    int local_by_card; /* ranks of one host exchange frames by the card, not by memory */
    int half_duplex;   /* both directions of a host share its bus */
    int has_via, has_tcp, has_bip;
};

/* Reads a description: `len` bytes of text. Returns 0, or -EINVAL with an explanation. Keys that the link does not use
 * are skipped; the loader of machine files has checked them. A later line with the same key replaces an earlier one. *m
 * is set only on success. */
int sim_machine_parse(const char *text, size_t len, struct sim_machine *m);

/* Reads the description from the file, usually the one that the environment variable VIAKIT_MACHINE names. Returns 0 or
 * -errno with an explanation. It reads the whole file each time and keeps nothing open. */
int sim_machine_read(const char *path, struct sim_machine *m);

#endif
