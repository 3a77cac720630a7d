"""The Wireshark dissector names every field of every kind of frame: tshark decodes frames made by the test."""

from __future__ import annotations

import os
import re
import struct
import subprocess
from pathlib import Path

import needs
import pytest

from viakit import trace

WIRE_H = Path(__file__).parents[2] / "csrc" / "link" / "frame_format.h"
KINDS = {name: int(value) for name, value in re.findall(r"^\s+X\((\w+), (\d+), ", WIRE_H.read_text(), re.MULTILINE)}
FLAGS = {
    "FIRST": 0x01, "LAST": 0x02, "IMMEDIATE": 0x04, "ACK_NOW": 0x08, "REFERENCE": 0x10, "PLACED": 0x20, "CRC": 0x40,
    "MUST_ACK": 0x80,
}  # fmt: skip
A, B = bytes.fromhex("020000000001"), bytes.fromhex("020000000002")
ETHERTYPE, UDP_PORT = 0x88B5, 34997


def crc32c(data: bytes) -> int:
    value = 0xFFFFFFFF
    for byte in data:
        value ^= byte
        for _ in range(8):
            value = (value >> 1) ^ (0x82F63B78 if value & 1 else 0)
    return value ^ 0xFFFFFFFF


def frame(kind: str, body: bytes = b"", flags: int = 0, *, checksum: bool = True, **fields: int) -> bytes:
    """A frame as frame_format.h has it, with fields that differ from each other."""
    f = {"dst_port": 17, "dst_vi": 3, "src_port": 29, "src_vi": 5, "key": 0xC0FFEE01, "psn": 4_000_000_000, "ack": 77}
    f |= {"immediate": 0xDEAD0000 + KINDS[kind]} | fields
    flags |= FLAGS["CRC"] if checksum else 0
    head = struct.pack(
        "<BBHHHHHIIII", 0x10 | KINDS[kind], flags, len(body), f["dst_port"], f["dst_vi"], f["src_port"], f["src_vi"],
        f["key"], f["psn"], f["ack"], f["immediate"],
    )  # fmt: skip
    crc = crc32c(head + bytes(4) + body) if checksum else 0
    return head + struct.pack("<I", crc) + body


def connect(wanted: bytes = b"", own: bytes = b"", mode: int = 0) -> bytes:
    return (
        struct.pack(
            "<IIIIQIHHBBBBBBBB", 0x1234, 0xABCD, 99, 1 << 26, 0x55, 7, 2, 1460, 1, 0, 1, 6, len(wanted), len(own), mode,
            0,
        )
        + wanted
        + own
    )  # fmt: skip


def plain(data: bytes, source: bytes = A, to: bytes = B) -> bytes:
    return to + source + struct.pack(">H", ETHERTYPE) + data


def dressed(data: bytes, port: int = UDP_PORT) -> bytes:
    length = 8 + len(data)
    ip = struct.pack(">BBHHHBBH", 0x45, 0, 20 + length, 0, 0x4000, 64, 17, 0) + bytes([10, 0, 0, 1, 10, 0, 0, 2])
    return B + A + struct.pack(">H", 0x0800) + ip + struct.pack(">HHHH", port, port, length, 0) + data


def write_pcap(path: Path, packets: list[bytes], snap: int = 65535) -> Path:
    """Write the old and simple format, without viakit's own code."""
    with open(path, "wb") as file:
        file.write(struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65535, 1))
        for i, packet in enumerate(packets):
            file.write(struct.pack("<IIII", i, 0, min(len(packet), snap), len(packet)) + packet[:snap])
    return path


def tshark(path: Path, fields: str, *more: str) -> list[dict[str, str]]:
    """The fields of each packet as tshark names them; several values of one field are joined by commas."""
    program = needs.tool("tshark")
    names = fields.split()
    command = [program, "-r", str(path), "-X", f"lua_script:{trace.dissector()}", "-n", *more]
    command += ["-T", "fields", "-E", "separator=/t", *(word for name in names for word in ("-e", name))]
    home = path.parent / "home"
    home.mkdir(exist_ok=True)
    environment = {**os.environ, "HOME": str(home), "XDG_CONFIG_HOME": str(home)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    assert "Lua:" not in done.stderr, done.stderr
    lines = done.stdout.split("\n")[:-1]
    return [dict(zip(names, line.split("\t"), strict=True)) for line in lines]


HEADER = (
    "viakit.version viakit.kind viakit.flags viakit.len viakit.dst_port viakit.dst_vi viakit.src_port viakit.src_vi "
    "viakit.key viakit.ack viakit.crc viakit.crc.status"
)


def test_it_knows_each_kind_of_frame(tmp_path):
    assert len(KINDS) == 16
    path = write_pcap(tmp_path / "kinds.pcap", [plain(frame(kind, connect())) for kind in KINDS])
    rows = tshark(path, HEADER + " _ws.col.Info _ws.malformed")
    for row, (kind, value) in zip(rows, KINDS.items(), strict=True):
        assert int(row["viakit.kind"]) == value
        assert row["_ws.col.Info"].split()[0] == kind
        assert row["viakit.version"] == "1"
        assert row["viakit.flags"] == "0x40"
        assert row["viakit.len"] == "40"
        assert [row[f"viakit.{name}"] for name in ("dst_port", "dst_vi", "src_port", "src_vi")] == [
            "17",
            "3",
            "29",
            "5",
        ]
        assert row["viakit.key"] == "0xc0ffee01"
        assert row["viakit.ack"] == "77"
        assert row["viakit.crc.status"] == "1"  # right
        assert row["_ws.malformed"] == ""


def test_each_kind_of_frame_says_what_its_last_word_means(tmp_path):
    path = write_pcap(tmp_path / "words.pcap", [plain(frame(kind, connect())) for kind in KINDS])
    names = {"ERROR": "status", "RESET": "tried_key", "NOMATCH": "neighbours", "READ": "read.serial"}
    names |= {"SEND": "piece", "WRITE": "piece"}
    rows = tshark(path, " ".join(f"viakit.{name}" for name in dict.fromkeys(("immediate", *names.values()))))
    for row, (kind, value) in zip(rows, KINDS.items(), strict=True):
        name = f"viakit.{names.get(kind, 'immediate')}"
        assert int(row.pop(name), 0) == 0xDEAD0000 + value
        assert not any(row.values())


def test_a_frame_with_immediate_data_shows_it_instead_of_its_piece(tmp_path):
    path = write_pcap(tmp_path / "immediate.pcap", [plain(frame("SEND", b"x", FLAGS["IMMEDIATE"]))])
    (row,) = tshark(path, "viakit.immediate viakit.piece")
    assert int(row["viakit.immediate"], 0) == 0xDEAD0001
    assert row["viakit.piece"] == ""


def test_every_flag_has_a_name(tmp_path):
    path = write_pcap(tmp_path / "flags.pcap", [plain(frame("SEND", b"x", f, checksum=False)) for f in FLAGS.values()])
    rows = tshark(path, " ".join(f"viakit.flags.{name.lower()}" for name in FLAGS))
    for row, flag in zip(rows, FLAGS, strict=True):
        assert {name for name, value in row.items() if value in ("1", "True")} == {f"viakit.flags.{flag.lower()}"}


def test_blocks_of_data_frames(tmp_path):
    first, reference = FLAGS["FIRST"], FLAGS["REFERENCE"]
    write = struct.pack("<QII", 0x7F00_1234_5678, 0x0042_0007, 5000)
    packets = [
        frame("SEND", b"hello", first),
        frame("WRITE", write + b"payload", first),
        frame("WRITE", b"more"),
        frame("SEND", struct.pack("<QQQQ", 0x1000, 10, 0x2000, 20), first | reference),
        frame("READ", struct.pack("<QQIIII", 0x7F00_0000_1000, 0b1011, 0x0042_0008, 6000, 77, 1448), first, psn=8),
        frame("READ", struct.pack("<II", 4096, 6000) + b"piece", psn=8),
        frame("NAK", struct.pack("<HHHH", 2, 3, 1, 9)),
        frame("READ", b"", FLAGS["LAST"], psn=8),
    ]
    rows = tshark(
        write_pcap(tmp_path / "blocks.pcap", [plain(one) for one in packets]),
        "viakit.payload viakit.write.address viakit.write.handle viakit.write.len viakit.reference.address "
        "viakit.reference.len viakit.read.address viakit.read.wanted viakit.read.handle viakit.read.len "
        "viakit.read.offset viakit.read.next viakit.read.piece viakit.read.ask viakit.nak.missing viakit.nak.held "
        "viakit.psn",
    )
    found = [{name[7:]: value for name, value in row.items() if value} for row in rows]
    psn = {"psn": "4000000000"}
    assert found[0] == {"payload": b"hello".hex(), **psn}
    there = {"write.address": "0x00007f0012345678", "write.handle": "0x00420007", "write.len": "5000"}
    assert found[1] == {"payload": b"payload".hex(), **there, **psn}
    assert found[2] == {"payload": b"more".hex(), **psn}
    pieces = {"reference.address": "0x0000000000001000,0x0000000000002000", "reference.len": "10,20"}
    assert found[3] == {**pieces, **psn}
    asked = {"read.address": "0x00007f0000001000", "read.wanted": "0x000000000000000b", "read.len": "6000"}
    asked |= {"read.handle": "0x00420008", "read.next": "77", "read.piece": "1448", "read.ask": "8"}
    assert found[4] == asked
    assert found[5] == {"read.offset": "4096", "read.len": "6000", "read.ask": "8", "payload": b"piece".hex()}
    assert found[6] == {"nak.missing": "2,1", "nak.held": "3,9", **psn}
    assert found[7] == {"read.ask": "8"}


@pytest.mark.parametrize("kind", ["REQUEST", "PENDING", "ACCEPT", "CONFIRM", "REJECT", "NOMATCH", "CANCEL"])
def test_the_block_of_connections(tmp_path, kind):
    path = write_pcap(tmp_path / "connect.pcap", [plain(frame(kind, connect(b"table 1", b"\x01\x02", 1)))])
    [row] = tshark(
        path,
        "viakit.connect.request viakit.connect.key viakit.connect.first_psn viakit.connect.max_transfer "
        "viakit.connect.qos viakit.connect.ptag viakit.connect.reliability viakit.connect.max_payload "
        "viakit.connect.rdma_write viakit.connect.rdma_read viakit.connect.lossless viakit.connect.mode "
        "viakit.connect.wanted viakit.connect.own",
    )
    values = [value if not value.startswith("0x") else str(int(value, 0)) for value in row.values()]
    assert values == [
        str(0x1234), str(0xABCD), "99", str(1 << 26), str(0x55), "7", "2", "1460", "1", "0", "1", "1", "table 1",
        "0102",
    ]  # fmt: skip


def test_several_frames_in_one_datagram(tmp_path):
    pieces = [frame("SEND", bytes([i]) * 100, psn=10 + i) for i in range(5)]
    for name, port in (("ours", UDP_PORT), ("theirs", 40_000)):  # a NIC of udp has any port: found by its looks
        path = write_pcap(tmp_path / f"{name}.pcap", [dressed(b"".join(pieces), port)])
        [row] = tshark(path, "viakit.psn viakit.segment viakit.crc.status _ws.col.Info")
        assert row["viakit.psn"] == "10,11,12,13,14"
        assert row["viakit.segment"] == "1,2,3,4,5"
        assert row["viakit.crc.status"] == "1,1,1,1,1"
        assert row["_ws.col.Info"].startswith("5 frames: SEND psn=10")


def test_what_nics_of_udp_say_among_themselves(tmp_path):
    here = struct.pack("<BBHHHQQQHH", 0xF0, 2, 4, 34997, 2, 0x1122, 0, 0, 4001, 4002)
    challenge = struct.pack("<BBHHHQQQ", 0xF0, 3, 0, 0, 0, 5, 0x3344, 0)
    request = frame("REQUEST", connect(b"name")) + struct.pack("<HHQ", 34997, 0, 0x3344)
    path = write_pcap(tmp_path / "calls.pcap", [dressed(one, 40_000) for one in (here, challenge, request)])
    rows = tshark(
        path,
        "viakit.call.what viakit.call.port viakit.call.station viakit.call.cookie viakit.kind viakit.connect.wanted",
    )
    assert rows[0]["viakit.call.what"] == "2"
    assert rows[0]["viakit.call.port"] == "4001,4002"
    assert rows[1]["viakit.call.what"] == "3"
    assert int(rows[1]["viakit.call.cookie"], 0) == 0x3344
    assert rows[2]["viakit.kind"] == "9"
    assert rows[2]["viakit.connect.wanted"] == "name"
    assert rows[2]["viakit.call.station"] == "34997"


def test_damage_is_seen_and_other_protocols_are_left_alone(tmp_path):
    good = frame("SEND", b"hello")
    bad = bytearray(good)
    bad[-1] ^= 1
    other = plain(b"\x77" * 60)  # another protocol's experiment
    far = dressed(b"\x17" * 40, 40_001)
    short = plain(frame("WRITE", b"xx", FLAGS["FIRST"]))
    path = write_pcap(tmp_path / "damage.pcap", [plain(good), plain(bytes(bad)), other, far, short, plain(good[:-2])])
    rows = tshark(path, "viakit.crc.status viakit.crc.bad viakit.block.bad viakit.len.bad frame.protocols")
    assert [row["viakit.crc.status"] for row in rows] == ["1", "0", "", "", "1", "2"]
    assert [bool(row["viakit.crc.bad"]) for row in rows] == [False, True, False, False, False, False]
    assert bool(rows[4]["viakit.block.bad"])
    assert bool(rows[5]["viakit.len.bad"])
    assert "viakit" not in rows[2]["frame.protocols"] + rows[3]["frame.protocols"]


def test_frames_that_belong_together_are_linked(tmp_path):
    there = {"dst_port": 1, "dst_vi": 2, "src_port": 3, "src_vi": 4}
    back = {"dst_port": 3, "dst_vi": 4, "src_port": 1, "src_vi": 2}
    packets = [
        frame("REQUEST", connect(b"x"), dst_port=0, src_port=3),
        frame("ACCEPT", connect(), dst_port=3, src_port=1),
        frame("SEND", b"1", psn=0xFFFFFFFF, **there),
        frame("SEND", b"2", psn=0, **there),
        frame("SEND", b"2", psn=0, **there),
        frame("ACK", psn=0, ack=1, **back),
    ]
    path = write_pcap(tmp_path / "links.pcap", [plain(one) for one in packets])
    rows = tshark(path, "viakit.answer_in viakit.answer_to viakit.acked_in viakit.acks viakit.again", "-2")
    assert [list(row.values()) for row in rows] == [
        ["2", "", "", "", ""],
        ["", "1", "", "", ""],
        ["", "", "6", "", ""],  # numbers wrap
        ["", "", "6", "", ""],
        ["", "", "", "", "4"],
        ["", "", "", "4", ""],
    ]


def test_a_snapped_capture_is_still_read(tmp_path):
    body = struct.pack("<QII", 0x1000, 7, 3000) + bytes(1000)
    path = write_pcap(tmp_path / "snap.pcap", [plain(frame("WRITE", body, FLAGS["FIRST"]))], snap=100)
    [row] = tshark(path, "viakit.write.len viakit.crc.status viakit.len viakit.len.bad")
    assert list(row.values()) == ["3000", "2", "1016", ""]  # the checksum was not computed


def test_the_dissector_has_the_meanings_of_the_header():
    lua = (Path(__file__).parents[2] / "viakit" / "wireshark" / "viakit.lua").read_text()
    meanings = re.findall(
        r'^    \[(\d+)\] = "(.*)",$', lua.partition("local MEANING")[2].partition("\n}")[0], re.MULTILINE
    )
    assert meanings == re.findall(r'^\s+X\(\w+, (\d+), "(.*)"\)', WIRE_H.read_text(), re.MULTILINE)
