"""The part of rtnetlink that builds a small network: veth pairs, a bridge, addresses, neighbours, a rate limit.

rtnetlink is the socket protocol by which ``ip`` and ``tc`` configure the kernel. A request is a header, a fixed
structure for the family of the message, and attributes. Each attribute is a length, a type and a value, padded to four
bytes; attributes can be nested::

    | nlmsghdr: length type flags sequence port | ifinfomsg, ifaddrmsg, ndmsg or tcmsg | rtattr | rtattr | ...

The reply is an acknowledgement with an errno (0: success), or, for a query, one message per object and an end mark. A
socket belongs to the network namespace in which it was opened. A process that has opened a socket in each of several
namespaces can therefore configure all of them. (pyroute2 offers all of this and more, but takes 0.3 s to import, which
is longer than the start of a testbed.)

References: rtnetlink(7), netlink(7), linux/rtnetlink.h, linux/if_link.h, linux/pkt_sched.h. This module imports nothing
of viakit; :mod:`viakit.testbed.namespaces` gives the reason.
"""

from __future__ import annotations

import array
import errno
import fcntl
import os
import socket
import struct
from typing import Any

NLM_F_REQUEST, NLM_F_ACK, NLM_F_DUMP, NLM_F_REPLACE, NLM_F_EXCL, NLM_F_CREATE = 1, 4, 0x300, 0x100, 0x200, 0x400
NLMSG_ERROR, NLMSG_DONE = 2, 3
RTM_NEWLINK, RTM_GETLINK, RTM_NEWADDR, RTM_NEWNEIGH, RTM_NEWQDISC, RTM_GETQDISC = 16, 18, 20, 28, 36, 38
IFF_UP = 1
IFLA_ADDRESS, IFLA_IFNAME, IFLA_MTU, IFLA_MASTER, IFLA_LINKINFO, IFLA_NET_NS_FD = 1, 3, 4, 10, 18, 28
IFLA_INFO_KIND, IFLA_INFO_DATA, VETH_INFO_PEER, IFLA_BR_MCAST_SNOOPING = 1, 2, 1, 23
IFA_ADDRESS, IFA_LOCAL = 1, 2
NDA_DST, NDA_LLADDR, NUD_PERMANENT = 1, 2, 0x80
TC_H_ROOT, TCA_KIND, TCA_OPTIONS, TCA_STATS = 0xFFFFFFFF, 1, 2, 3
TCA_TBF_PARMS, TCA_TBF_RATE64, TCA_TBF_BURST, TC_LINKLAYER_ETHERNET = 1, 4, 6, 1
SOL_NETLINK, NETLINK_EXT_ACK, NLMSGERR_ATTR_MSG, NLM_F_CAPPED, NLM_F_ACK_TLVS = 270, 11, 1, 0x100, 0x200

_SIOCETHTOOL, _ETH_SS_FEATURES, _ETH_GSTRING_LEN = 0x8946, 4, 32
_ETHTOOL_GSTRINGS, _ETHTOOL_GSSET_INFO, _ETHTOOL_GFEATURES, _ETHTOOL_SFEATURES = 0x1B, 0x37, 0x3A, 0x3B
_HEADER = struct.Struct("=IHHII")
_ATTRIBUTE = struct.Struct("=HH")
_ANSWER_DEADLINE_S = 30.0


def attribute(kind: int, value: bytes | str | int) -> bytes:
    """Encode one attribute. A string gets a terminating zero byte; an int is unsigned, with 32 bits in host order."""
    if isinstance(value, str):
        value = value.encode() + b"\0"
    elif isinstance(value, int):
        value = struct.pack("=I", value)
    length = _ATTRIBUTE.size + len(value)
    return _ATTRIBUTE.pack(length, kind) + value + bytes(-length % 4)


def attributes(data: bytes) -> dict[int, bytes]:
    """Decode a sequence of attributes into {type: value}, without the type's flag bits (nested, byte order)."""
    found = {}
    while len(data) >= _ATTRIBUTE.size:
        length, kind = _ATTRIBUTE.unpack_from(data)
        if length < _ATTRIBUTE.size:
            break
        found[kind & 0x3FFF] = data[_ATTRIBUTE.size : length]
        data = data[(length + 3) & ~3 :]
    return found


def _link_message(index: int = 0, flags: int = 0, change: int = 0) -> bytes:
    return struct.pack("=BxHiII", socket.AF_UNSPEC, 0, index, flags, change)


class RouteSocket:
    """Connection to the kernel for the network namespace in which the socket is opened."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE)
        self._socket.settimeout(_ANSWER_DEADLINE_S)
        self._socket.bind((0, 0))
        self._sequence = 0
        self._ioctl = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)  # for ethtool, which has no rtnetlink messages
        try:  # With this option the kernel adds the reason of an error as text.
            self._socket.setsockopt(SOL_NETLINK, NETLINK_EXT_ACK, 1)
        except OSError:
            pass

    def close(self) -> None:
        """Close the sockets."""
        self._socket.close()
        self._ioctl.close()

    def request(self, kind: int, flags: int, body: bytes) -> list[bytes]:
        """Send one request and return its reply.

        Returns
        -------
        list of bytes
            Bodies of the reply's messages; empty for a request that only changes the configuration.

        Raises
        ------
        OSError
            With the kernel's errno, and its text if it gives one.
        """
        self._sequence += 1
        flags |= NLM_F_REQUEST | (0 if flags & NLM_F_DUMP == NLM_F_DUMP else NLM_F_ACK)
        self._socket.send(_HEADER.pack(_HEADER.size + len(body), kind, flags, self._sequence, 0) + body)
        replies: list[bytes] = []
        while True:
            data = self._socket.recv(1 << 18)
            while len(data) >= _HEADER.size:
                length, answer, answer_flags, sequence, _ = _HEADER.unpack_from(data)
                message, data = data[_HEADER.size : length], data[(length + 3) & ~3 :]
                if sequence != self._sequence:
                    continue
                if answer == NLMSG_ERROR:
                    _raise_refusal(message, answer_flags)
                    return replies
                if answer == NLMSG_DONE:
                    return replies
                replies.append(message)

    def index(self, name: str) -> int:
        """Return the number of interface `name`. Raises OSError (ENODEV) if it does not exist."""
        reply = self.request(RTM_GETLINK, 0, _link_message() + attribute(IFLA_IFNAME, name))
        return int(struct.unpack_from("=i", reply[0], 4)[0])

    def add_veth(self, ends: list[tuple[str, bytes, int]], mtu: int) -> None:
        """Create a pair of Ethernet interfaces that are connected by a wire.

        Parameters
        ----------
        ends : list of (str, bytes, int)
            Name, MAC address (6 bytes) and file descriptor of the network namespace of each end.
        mtu : int
            Largest packet in bytes, without the Ethernet header.
        """
        near, far = (
            attribute(IFLA_IFNAME, name) + attribute(IFLA_ADDRESS, mac) + attribute(IFLA_MTU, mtu)
            + attribute(IFLA_NET_NS_FD, fd) for name, mac, fd in ends
        )  # fmt: skip
        peer = attribute(VETH_INFO_PEER, _link_message() + far)
        info = attribute(IFLA_INFO_KIND, b"veth") + attribute(IFLA_INFO_DATA, peer)
        body = _link_message() + near + attribute(IFLA_LINKINFO, info)
        self.request(RTM_NEWLINK, NLM_F_CREATE | NLM_F_EXCL, body)

    def add_bridge(self, name: str, mac: bytes, mtu: int) -> None:
        """Create a software switch that sends no frames of its own (no spanning tree, no group queries)."""
        data = attribute(IFLA_BR_MCAST_SNOOPING, b"\0")
        info = attribute(IFLA_INFO_KIND, b"bridge") + attribute(IFLA_INFO_DATA, data)
        body = _link_message() + attribute(IFLA_IFNAME, name) + attribute(IFLA_ADDRESS, mac) + attribute(IFLA_MTU, mtu)
        self.request(RTM_NEWLINK, NLM_F_CREATE | NLM_F_EXCL, body + attribute(IFLA_LINKINFO, info))

    def set_link(self, name: str, *, mtu: int | None = None, bridge: str | None = None, up: bool = True) -> None:
        """Set the MTU of an interface, attach it to a bridge, and activate it."""
        body = _link_message(self.index(name), IFF_UP if up else 0, IFF_UP)
        if mtu is not None:
            body += attribute(IFLA_MTU, mtu)
        if bridge is not None:
            body += attribute(IFLA_MASTER, self.index(bridge))
        self.request(RTM_NEWLINK, 0, body)

    def add_address(self, name: str, address: str, prefix: int) -> None:
        """Add an IPv4 address with a network prefix of `prefix` bits to interface `name`."""
        packed = socket.inet_aton(address)
        body = struct.pack("=BBBBi", socket.AF_INET, prefix, 0, 0, self.index(name))
        body += attribute(IFA_LOCAL, packed) + attribute(IFA_ADDRESS, packed)
        self.request(RTM_NEWADDR, NLM_F_CREATE | NLM_F_EXCL, body)

    def add_neighbours(self, name: str, neighbours: list[tuple[str, bytes]]) -> None:
        """Add permanent neighbour entries (IPv4 address to MAC address), so that no ARP frame is sent."""
        index = self.index(name)
        for address, mac in neighbours:
            body = struct.pack("=BxxxiHBB", socket.AF_INET, index, NUD_PERMANENT, 0, 0)
            body += attribute(NDA_DST, socket.inet_aton(address)) + attribute(NDA_LLADDR, mac)
            self.request(RTM_NEWNEIGH, NLM_F_CREATE | NLM_F_REPLACE, body)

    def add_tbf(self, name: str, rate_Bps: int, burst: int, limit: int) -> None:
        """Limit the output of interface `name` to `rate_Bps` bytes per second by a token bucket of `burst` bytes.

        Packets without tokens wait in a queue of at most `limit` bytes. If the queue is full, packets are dropped.
        """
        # tc_ratespec is cell_log, linklayer, overhead, cell_align, mpu, rate; then come the peak rate (unused), limit,
        # buffer and mtu. The kernel takes the bucket's size from TCA_TBF_BURST and computes its time in ticks itself.
        ratespec = struct.pack("=BBHhHI", 0, TC_LINKLAYER_ETHERNET, 0, 0, 0, min(rate_Bps, 0xFFFFFFFF))
        options = attribute(TCA_TBF_PARMS, ratespec + bytes(12) + struct.pack("=III", limit, 0, 0))
        options += attribute(TCA_TBF_BURST, burst)
        if rate_Bps > 0xFFFFFFFF:
            options += attribute(TCA_TBF_RATE64, struct.pack("=Q", rate_Bps))
        body = struct.pack("=BxxxiIII", socket.AF_UNSPEC, self.index(name), 0x10000, TC_H_ROOT, 0)
        body += attribute(TCA_KIND, "tbf") + attribute(TCA_OPTIONS, options)
        self.request(RTM_NEWQDISC, NLM_F_CREATE | NLM_F_REPLACE, body)

    def _ethtool(self, name: str, command: array.array[int]) -> None:
        """Run an ethtool request on interface `name`; the kernel writes its reply over *command*."""
        fcntl.ioctl(self._ioctl, _SIOCETHTOOL, struct.pack("16sP16x", name.encode(), command.buffer_info()[0]))

    def _feature_names(self, name: str) -> list[str]:
        """Return the names of an interface's features, in the order of the bits that stand for them."""
        info = array.array("I", [_ETHTOOL_GSSET_INFO, 0, 1 << _ETH_SS_FEATURES, 0, 0])
        self._ethtool(name, info)
        n = info[4]
        strings = array.array("I", [_ETHTOOL_GSTRINGS, _ETH_SS_FEATURES, n, *[0] * (n * _ETH_GSTRING_LEN // 4)])
        self._ethtool(name, strings)
        data = strings.tobytes()[12:]
        parts = (data[i : i + _ETH_GSTRING_LEN] for i in range(0, n * _ETH_GSTRING_LEN, _ETH_GSTRING_LEN))
        return [part.partition(b"\0")[0].decode() for part in parts]

    def offloads(self, name: str) -> list[str]:
        """Return the active features of interface `name` that cut or merge frames: segmentation and GRO."""
        names = self._feature_names(name)
        n_blocks = -(-len(names) // 32)
        state = array.array("I", [_ETHTOOL_GFEATURES, n_blocks, *[0] * (4 * n_blocks)])
        self._ethtool(name, state)
        # Each block is: available, requested, active, never changed.
        return [
            feature
            for i, feature in enumerate(names)
            if _is_offload(feature) and state[2 + 4 * (i // 32) + 2] >> i % 32 & 1
        ]

    def disable_offloads(self, name: str) -> None:
        """Switch off everything that cuts or merges frames on interface `name`. Raises OSError if the kernel refuses.

        ETHTOOL_SFEATURES is used, because the older single requests cannot switch off the segmentation of UDP.
        """
        names = self._feature_names(name)
        n_blocks = -(-len(names) // 32)
        request = array.array("I", [_ETHTOOL_SFEATURES, n_blocks, *[0] * (2 * n_blocks)])
        for feature in self.offloads(name):
            i = names.index(feature)
            request[2 + 2 * (i // 32)] |= 1 << i % 32  # valid; "requested" stays 0
        self._ethtool(name, request)

    def links(self) -> list[dict[str, Any]]:
        """Return the interfaces: name, index, mtu, mac ("aa:bb:..."), up."""
        found = []
        for message in self.request(RTM_GETLINK, NLM_F_DUMP, _link_message()):
            _, index, flags = struct.unpack_from("=HiI", message, 2)
            a = attributes(message[16:])
            name = a[IFLA_IFNAME].rstrip(b"\0").decode()
            mtu = struct.unpack("=I", a[IFLA_MTU])[0]
            mac = a.get(IFLA_ADDRESS, b"").hex(":")
            found.append({"name": name, "index": index, "mtu": mtu, "mac": mac, "up": bool(flags & IFF_UP)})
        return found

    def qdiscs(self) -> list[dict[str, Any]]:
        """Return the queueing disciplines: kind, interface, and the numbers of bytes, packets and drops so far.

        A tbf also has rate_bps and limit.
        """
        names = {link["index"]: link["name"] for link in self.links()}
        found = []
        for message in self.request(RTM_GETQDISC, NLM_F_DUMP, struct.pack("=BxxxiIII", 0, 0, 0, 0, 0)):
            index = struct.unpack_from("=i", message, 4)[0]
            a = attributes(message[20:])
            kind = a[TCA_KIND].rstrip(b"\0").decode()
            entry: dict[str, Any] = {"kind": kind, "interface": names.get(index, str(index))}
            if TCA_STATS in a:
                n_bytes, packets, drops = struct.unpack_from("=QII", a[TCA_STATS])
                entry.update(bytes=n_bytes, packets=packets, drops=drops)
            if kind == "tbf":
                options = attributes(a[TCA_OPTIONS])
                parms = options[TCA_TBF_PARMS]
                rate = struct.unpack_from("=I", parms, 8)[0]
                if TCA_TBF_RATE64 in options:
                    rate = struct.unpack("=Q", options[TCA_TBF_RATE64])[0]
                entry.update(rate_bps=8 * rate, limit=struct.unpack_from("=I", parms, 24)[0])
            found.append(entry)
        return found


def _is_offload(feature: str) -> bool:
    return "segmentation" in feature or feature.startswith(("rx-gro", "rx-udp-gro", "rx-lro", "tx-gso"))


def _raise_refusal(message: bytes, flags: int) -> None:
    """Raise the error that an acknowledgement reports, unless it reports success."""
    number = -struct.unpack_from("=i", message)[0]
    if number == 0:
        return
    text = os.strerror(number)
    if flags & NLM_F_ACK_TLVS:
        # The errno is followed by the request, complete or (capped) only its header, and then by the kernel's text.
        offset = 4 + (_HEADER.size if flags & NLM_F_CAPPED else struct.unpack_from("=I", message, 4)[0])
        remark = attributes(message[(offset + 3) & ~3 :]).get(NLMSGERR_ATTR_MSG)
        if remark:
            text += ": " + remark.rstrip(b"\0").decode(errors="replace")
    raise OSError(number or errno.EIO, text)
