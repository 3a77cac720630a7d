-- Wireshark's and tshark's dissector for viakit's frames, and for the events of its taps.
--
--   wireshark -X lua_script:viakit.lua capture.pcapng          once
--   viakit trace --dissector install                           for good, in the user's plugin folder
--
-- Frames come as Ethernet of type 0x88B5 (the plain form, and every capture of a tap), or behind UDP: port 34997, or any
-- other (the heuristic). One packet may hold several frames (a super-frame). All numbers are little-endian. The layout is
-- that of csrc/link/frame_format.h; a test holds the two together. Events (link type USER0) are viakit_event of viakit.h.
--
-- Where the capture shows both frames, the dissector also links them: a frame and its acknowledgement, a connection
-- request and its reply, a frame sent and the same frame received, a frame and its retransmission.

local frame = Proto("viakit", "VIA frame (viakit)")
local event = Proto("viakit_event", "VIA event (viakit)")

frame.prefs.check_crc = Pref.bool("Check CRC32C", true, "Compute the checksum of each whole frame and compare")
frame.prefs.link_frames = Pref.bool("Link frames", true, "Show which frame acknowledges, answers or retransmits which")

-- ---------------------------------------------------------------- names

local KINDS = {
    [0] = "READ", [1] = "SEND", [2] = "WRITE", [3] = "ACK", [4] = "NAK", [5] = "ERROR", [6] = "PROBE",
    [7] = "DISCONNECT", [8] = "RESET", [9] = "REQUEST", [10] = "PENDING", [11] = "ACCEPT", [12] = "CONFIRM",
    [13] = "REJECT", [14] = "NOMATCH", [15] = "CANCEL",
}
local MEANING = { -- as in WIRE_KINDS of frame_format.h
    [0] = "an RDMA read: a request for pieces of memory (FIRST), a piece, or a reply without data (LAST)",
    [1] = "a piece of a message for the receive queue",
    [2] = "a piece of an RDMA write",
    [3] = "everything before `ack` is placed",
    [4] = "frames are missing from `ack` on: those in the list, or all if it is empty",
    [5] = "processing stopped at `psn`; `immediate` holds the status bits for the descriptor",
    [6] = "is the peer alive? it replies with ACK",
    [7] = "the peer disconnected",
    [8] = "no such connection here; `immediate` is the key that was tried",
    [9] = "connection request",
    [10] = "a waiting VI has matched the request; its reply follows",
    [11] = "accepted",
    [12] = "the acceptance arrived",
    [13] = "rejected",
    [14] = "no VI waits here for that discriminator; `immediate` NICs share this address",
    [15] = "the request is withdrawn",
}
local READ, SEND, WRITE, NAK, ERROR, RESET, REQUEST, NOMATCH = 0, 1, 2, 4, 5, 8, 9, 14
local HEADER, CONNECT_LEN, WRITE_LEN, READ_LEN, READ_DATA_LEN, TRAILER_LEN = 32, 40, 16, 32, 8, 12
local VERSION = 1
local CALL = 0xF0 -- the first byte of frames between the links of udp NICs (UDP_CALL in link/udp.h)
local LEVELS = { [1] = "unreliable", [2] = "reliable delivery", [4] = "reliable reception" }
local MODES = { [0] = "client", [1] = "peer", [2] = "discover" }
local CALLS = { [1] = "WHO", [2] = "HERE", [3] = "CHALLENGE" }
local YES_NO = { [0] = "no", [1] = "yes" }
local CRC_STATES = { [0] = "wrong", [1] = "right", [2] = "not computed: the frame was cut off", [3] = "none",
    [4] = "of the header alone, right; UDP's covers the rest" }
local EVENTS = {
    [1] = "POSTED", [2] = "DOORBELL", [3] = "PLACED", [4] = "ACKNOWLEDGED", [5] = "COMPLETED", [6] = "REAPED",
}
local QUEUES = { [0] = "send", [1] = "receive" }
local WAYS = { [0] = "in frames", [1] = "by reference", [2] = "placed directly" }

-- ---------------------------------------------------------------- fields

local f = {
    version = ProtoField.uint8("viakit.version", "Version", base.DEC, nil, 0xF0),
    kind = ProtoField.uint8("viakit.kind", "Kind", base.DEC, KINDS, 0x0F),
    flags = ProtoField.uint8("viakit.flags", "Flags", base.HEX),
    first = ProtoField.bool("viakit.flags.first", "First piece of a message", 8, nil, 0x01),
    last = ProtoField.bool("viakit.flags.last", "Last piece", 8, nil, 0x02),
    has_immediate = ProtoField.bool("viakit.flags.immediate", "Immediate data", 8, nil, 0x04),
    ack_now = ProtoField.bool("viakit.flags.ack_now", "Acknowledge without delay", 8, nil, 0x08),
    is_reference = ProtoField.bool("viakit.flags.reference", "Payload is a list of references", 8, nil, 0x10),
    placed = ProtoField.bool("viakit.flags.placed", "Data was placed by the sender", 8, nil, 0x20),
    has_crc = ProtoField.bool("viakit.flags.crc", "Checksum is there", 8, nil, 0x40),
    must_ack = ProtoField.bool("viakit.flags.must_ack", "Acknowledge, on a lossless link", 8, nil, 0x80),
    len = ProtoField.uint16("viakit.len", "Bytes behind the header"),
    dst_port = ProtoField.uint16("viakit.dst_port", "Destination port"),
    dst_vi = ProtoField.uint16("viakit.dst_vi", "Destination VI"),
    src_port = ProtoField.uint16("viakit.src_port", "Source port"),
    src_vi = ProtoField.uint16("viakit.src_vi", "Source VI"),
    key = ProtoField.uint32("viakit.key", "Key of the destination VI", base.HEX),
    psn = ProtoField.uint32("viakit.psn", "Packet sequence number"),
    ack = ProtoField.uint32("viakit.ack", "Acknowledges everything before"),
    immediate = ProtoField.uint32("viakit.immediate", "Immediate data", base.HEX),
    piece = ProtoField.uint32("viakit.piece", "Piece of the message"),
    status = ProtoField.uint32("viakit.status", "Status for the sender's descriptor", base.HEX),
    tried_key = ProtoField.uint32("viakit.tried_key", "Key that was tried", base.HEX),
    neighbours = ProtoField.uint32("viakit.neighbours", "NICs that share the address"),
    crc = ProtoField.uint32("viakit.crc", "CRC32C", base.HEX),
    crc_status = ProtoField.uint8("viakit.crc.status", "Checksum", base.DEC, CRC_STATES),
    payload = ProtoField.bytes("viakit.payload", "Payload"),
    unknown = ProtoField.bytes("viakit.unknown", "Unknown block"),
    write_address = ProtoField.uint64("viakit.write.address", "Remote address", base.HEX),
    write_handle = ProtoField.uint32("viakit.write.handle", "Remote memory handle", base.HEX),
    write_len = ProtoField.uint32("viakit.write.len", "Length of the whole RDMA write"),
    read_address = ProtoField.uint64("viakit.read.address", "Remote address", base.HEX),
    read_wanted = ProtoField.uint64("viakit.read.wanted", "Pieces wanted", base.HEX),
    read_handle = ProtoField.uint32("viakit.read.handle", "Remote memory handle", base.HEX),
    read_len = ProtoField.uint32("viakit.read.len", "Length of the requested part"),
    read_next = ProtoField.uint32("viakit.read.next", "Number of the requester's next data frame"),
    read_piece = ProtoField.uint32("viakit.read.piece", "Length of a piece"),
    read_offset = ProtoField.uint32("viakit.read.offset", "Offset of the piece in the part"),
    read_ask = ProtoField.uint32("viakit.read.ask", "Number of the read request"),
    read_serial = ProtoField.uint32("viakit.read.serial", "Serial number of the request"),
    ref_address = ProtoField.uint64("viakit.reference.address", "Address in the sender", base.HEX),
    ref_len = ProtoField.uint64("viakit.reference.len", "Length"),
    missing = ProtoField.uint16("viakit.nak.missing", "Frames missing"),
    held = ProtoField.uint16("viakit.nak.held", "Frames that came after them"),
    request = ProtoField.uint32("viakit.connect.request", "Number of the request", base.HEX),
    new_key = ProtoField.uint32("viakit.connect.key", "Key for frames to the sender", base.HEX),
    first_psn = ProtoField.uint32("viakit.connect.first_psn", "First psn of the sender"),
    max_transfer = ProtoField.uint32("viakit.connect.max_transfer", "Longest message"),
    qos = ProtoField.uint64("viakit.connect.qos", "Quality of service", base.HEX),
    ptag = ProtoField.uint32("viakit.connect.ptag", "Protection tag of the sender"),
    reliability = ProtoField.uint16("viakit.connect.reliability", "Reliability level", base.DEC, LEVELS),
    max_payload = ProtoField.uint16("viakit.connect.max_payload", "Largest payload of a frame"),
    rdma_write = ProtoField.uint8("viakit.connect.rdma_write", "RDMA write allowed", base.DEC, YES_NO),
    rdma_read = ProtoField.uint8("viakit.connect.rdma_read", "RDMA read allowed", base.DEC, YES_NO),
    lossless = ProtoField.uint8("viakit.connect.lossless", "Link is lossless", base.DEC, YES_NO),
    mode = ProtoField.uint8("viakit.connect.mode", "Connects as", base.DEC, MODES),
    wanted = ProtoField.string("viakit.connect.wanted", "Discriminator wanted"),
    own = ProtoField.string("viakit.connect.own", "Own discriminator"),
    station = ProtoField.uint16("viakit.call.station", "Common port of the station"),
    cookie = ProtoField.uint64("viakit.call.cookie", "Cookie", base.HEX),
    call = ProtoField.uint8("viakit.call.what", "Call", base.DEC, CALLS),
    n_ports = ProtoField.uint16("viakit.call.n", "Number of NICs"),
    nonce = ProtoField.uint64("viakit.call.nonce", "Nonce", base.HEX),
    nic_port = ProtoField.uint16("viakit.call.port", "Port of a NIC"),
    segment = ProtoField.uint16("viakit.segment", "Frame of a super-frame"),
    acked_in = ProtoField.framenum("viakit.acked_in", "Acknowledged in", base.NONE, frametype.ACK),
    acks = ProtoField.framenum("viakit.acks", "Acknowledges", base.NONE, frametype.ACK),
    answer_in = ProtoField.framenum("viakit.answer_in", "Answered in", base.NONE, frametype.RESPONSE),
    answer_to = ProtoField.framenum("viakit.answer_to", "Answers", base.NONE, frametype.REQUEST),
    arrived_in = ProtoField.framenum("viakit.arrived_in", "Arrived as", base.NONE, frametype.NONE),
    sent_in = ProtoField.framenum("viakit.sent_in", "Was sent as", base.NONE, frametype.NONE),
    again = ProtoField.framenum("viakit.again", "Was sent before in", base.NONE, frametype.RETRANS_PREV),
}
local fields = {}
for _, field in pairs(f) do
    fields[#fields + 1] = field
end
frame.fields = fields

local bad_crc = ProtoExpert.new("viakit.crc.bad", "Checksum is wrong", expert.group.CHECKSUM, expert.severity.ERROR)
local bad_len = ProtoExpert.new("viakit.len.bad", "Shorter than its header says", expert.group.MALFORMED,
    expert.severity.ERROR)
local bad_block = ProtoExpert.new("viakit.block.bad", "A block is missing or cut short", expert.group.MALFORMED,
    expert.severity.ERROR)
local sent_again = ProtoExpert.new("viakit.again.note", "Sent again", expert.group.SEQUENCE, expert.severity.NOTE)
frame.experts = { bad_crc, bad_len, bad_block, sent_again }

local e = {
    version = ProtoField.uint8("viakit.event.version", "Version"),
    kind = ProtoField.uint8("viakit.event.kind", "Event", base.DEC, EVENTS),
    vi = ProtoField.uint16("viakit.event.vi", "VI"),
    queue = ProtoField.uint8("viakit.event.queue", "Queue", base.DEC, QUEUES),
    how = ProtoField.uint8("viakit.event.how", "How", base.DEC, WAYS),
    control = ProtoField.uint16("viakit.event.control", "Control", base.HEX),
    index = ProtoField.uint32("viakit.event.index", "Number in its queue"),
    psn = ProtoField.uint32("viakit.event.psn", "Packet sequence number"),
    n_frames = ProtoField.uint32("viakit.event.n_frames", "Frames"),
    len = ProtoField.uint32("viakit.event.len", "Bytes"),
    status = ProtoField.uint32("viakit.event.status", "Status", base.HEX),
    key = ProtoField.uint32("viakit.event.key", "Key of the VI", base.HEX),
    descriptor = ProtoField.uint64("viakit.event.descriptor", "Descriptor", base.HEX),
}
local event_fields = {}
for _, field in pairs(e) do
    event_fields[#event_fields + 1] = field
end
event.fields = event_fields

local interface_field = Field.new("frame.interface_id")
-- Which way a tap saw a packet: an option of the packet's block. Its name changed between versions of Wireshark.
local flags_ok, direction_field = pcall(Field.new, "frame.packet_flags_direction")

-- ---------------------------------------------------------------- checksum

-- Bit operations by whichever library this Lua has; results as BitOp gives them are signed.
local bits = bit32 or bit
local bxor, rshift, band
if bits then
    bxor, rshift, band = bits.bxor, bits.rshift, bits.band
else
    bxor = load("return function(a, b) return a ~ b end")()
    rshift = load("return function(a, n) return (a & 0xFFFFFFFF) >> n end")()
    band = load("return function(a, b) return a & b end")()
end

local crc_table
local function make_crc_table()
    crc_table = {}
    for i = 0, 255 do
        local c = i
        for _ = 1, 8 do
            c = band(c, 1) == 1 and bxor(rshift(c, 1), 0x82F63B78) or rshift(c, 1)
        end
        crc_table[i] = c
    end
end

local function crc32c(text)
    local c = 0xFFFFFFFF
    for i = 1, #text do
        c = bxor(rshift(c, 8), crc_table[band(bxor(c, text:byte(i)), 0xFF)])
    end
    return bxor(c, 0xFFFFFFFF) % 4294967296
end

-- Of a whole frame; its checksum field counts as zero.
local function crc_of(tvb, offset, len)
    if not crc_table then
        make_crc_table()
    end
    local header, rest = tvb:raw(offset, 28), len > HEADER and tvb:raw(offset + HEADER, len - HEADER) or ""
    return crc32c(header .. "\0\0\0\0" .. rest)
end

-- ---------------------------------------------------------------- which frame belongs to which

local waiting, acked_in, acks, again, seen, requests, answer_in, answer_to, in_flight, arrived_in, sent_in

function frame.init()
    waiting, acked_in, acks, again, seen = {}, {}, {}, {}, {}
    requests, answer_in, answer_to = {}, {}, {}
    in_flight, arrived_in, sent_in = {}, {}, {}
end

local function flag(flags, value)
    return math.floor(flags / value) % 2 == 1
end

local function before(a, b) -- sequence numbers wrap
    local d = (b - a) % 4294967296
    return d > 0 and d < 2147483648
end

-- A packet may hold many frames: what is remembered is remembered per frame, by packet number and place.
local function remember_data(h, id, number, where)
    local key = where .. h.from_to
    local list = waiting[key]
    if not list then
        list = { first = 1, last = 0 }
        waiting[key] = list
    end
    local old = seen[key .. "#" .. h.psn]
    if old then
        again[id] = old
    else
        seen[key .. "#" .. h.psn] = number
        list.last = list.last + 1
        list[list.last] = { psn = h.psn, number = number, id = id }
    end
end

local function remember_ack(h, id, number, where)
    local list = waiting[where .. h.to_from]
    if not list then
        return
    end
    while list.first <= list.last and before(list[list.first].psn, h.ack) do
        local one = list[list.first]
        acked_in[one.id] = number
        acks[id] = one.number
        list[list.first] = nil
        list.first = list.first + 1
    end
end

local function remember_journey(h, id, number, direction)
    local same = h.from_to .. "#" .. h.kind .. "#" .. h.psn .. "#" .. h.ack .. "#" .. h.len .. "#" .. h.request
    if direction == 2 then -- out
        in_flight[same] = in_flight[same] or {}
        table.insert(in_flight[same], { id = id, number = number })
    elseif direction == 1 and in_flight[same] and #in_flight[same] > 0 then
        local one = table.remove(in_flight[same], 1)
        arrived_in[one.id] = number
        sent_in[id] = one.number
    end
end

local function remember(h, id, number, direction)
    local where = tostring(interface_field() or 0) .. "/"
    if h.kind == SEND or h.kind == WRITE then
        remember_data(h, id, number, where)
    end
    if h.kind < REQUEST and h.kind ~= RESET then
        remember_ack(h, id, number, where)
    end
    local first = flag(h.flags, 0x01)
    if h.kind == REQUEST or (h.kind == READ and first) then
        local key = where .. h.kind .. "/" .. (h.kind == READ and h.from_to .. h.immediate or h.request)
        requests[key] = requests[key] or { id = id, number = number }
    elseif h.kind > REQUEST or h.kind == READ then
        local key = h.kind == READ and READ .. "/" .. h.to_from .. h.immediate or REQUEST .. "/" .. h.request
        local asked = requests[where .. key]
        if asked then
            answer_in[asked.id] = answer_in[asked.id] or number
            answer_to[id] = asked.number
        end
    end
    remember_journey(h, id, number, direction)
end

local function add_links(tree, h, id, number, pinfo)
    if not pinfo.visited then
        local direction = flags_ok and direction_field() and direction_field().value or 0
        remember(h, id, number, direction)
    end
    for _, one in ipairs({
        { f.acked_in, acked_in }, { f.acks, acks }, { f.answer_in, answer_in }, { f.answer_to, answer_to },
        { f.arrived_in, arrived_in }, { f.sent_in, sent_in }, { f.again, again },
    }) do
        local other = one[2][id]
        if other then
            tree:add(one[1], other):set_generated()
        end
    end
    if again[id] then
        tree:add_proto_expert_info(sent_again, "Sent before in packet " .. again[id])
    end
end

-- ---------------------------------------------------------------- blocks behind the header

-- Bytes that print as text, others as hexadecimal.
local function name_of(range)
    local text = range:raw()
    return text:find("[^%g ]") and range:bytes():tohex() or text
end

local function add_connect(tree, tvb, offset, len, h)
    if len < CONNECT_LEN then
        tree:add_proto_expert_info(bad_block)
        return
    end
    local b = tree:add(frame, tvb(offset, len), "Connection")
    b:add_le(f.request, tvb(offset, 4))
    b:add_le(f.new_key, tvb(offset + 4, 4))
    b:add_le(f.first_psn, tvb(offset + 8, 4))
    b:add_le(f.max_transfer, tvb(offset + 12, 4))
    b:add_le(f.qos, tvb(offset + 16, 8))
    b:add_le(f.ptag, tvb(offset + 24, 4))
    b:add_le(f.reliability, tvb(offset + 28, 2))
    b:add_le(f.max_payload, tvb(offset + 30, 2))
    b:add_le(f.rdma_write, tvb(offset + 32, 1))
    b:add_le(f.rdma_read, tvb(offset + 33, 1))
    b:add_le(f.lossless, tvb(offset + 34, 1))
    b:add_le(f.mode, tvb(offset + 38, 1))
    local wanted, own, at = tvb(offset + 36, 1):uint(), tvb(offset + 37, 1):uint(), offset + CONNECT_LEN
    if CONNECT_LEN + wanted + own > len then
        b:add_proto_expert_info(bad_block)
        return
    end
    if wanted > 0 then
        h.wanted = name_of(tvb(at, wanted))
        b:add(f.wanted, tvb(at, wanted), h.wanted)
    end
    at = at + wanted
    if own > 0 then
        b:add(f.own, tvb(at, own), name_of(tvb(at, own)))
    end
end

local function add_references(tree, tvb, offset, len)
    while len >= 16 do
        local b = tree:add(frame, tvb(offset, 16), "Reference")
        b:add_le(f.ref_address, tvb(offset, 8))
        b:add_le(f.ref_len, tvb(offset + 8, 8))
        offset, len = offset + 16, len - 16
    end
end

local function add_data(tree, tvb, offset, len, h)
    if h.kind == WRITE and flag(h.flags, 0x01) then
        if len < WRITE_LEN then
            tree:add_proto_expert_info(bad_block)
            return
        end
        local b = tree:add(frame, tvb(offset, WRITE_LEN), "RDMA write")
        b:add_le(f.write_address, tvb(offset, 8))
        b:add_le(f.write_handle, tvb(offset + 8, 4))
        b:add_le(f.write_len, tvb(offset + 12, 4))
        offset, len = offset + WRITE_LEN, len - WRITE_LEN
    end
    if flag(h.flags, 0x10) then
        add_references(tree, tvb, offset, len)
    elseif len > 0 then
        tree:add(f.payload, tvb(offset, len))
    end
end

local function add_read(tree, tvb, offset, len, h)
    local asks = flag(h.flags, 0x01)
    if not asks and flag(h.flags, 0x02) and (len == 0 or len == 4) then -- no data: repeat the request, or denied
        return
    end
    if len < (asks and READ_LEN or READ_DATA_LEN) then
        tree:add_proto_expert_info(bad_block)
        return
    end
    local b = tree:add(frame, tvb(offset, asks and READ_LEN or READ_DATA_LEN), asks and "RDMA read" or "RDMA read data")
    if asks then
        b:add_le(f.read_address, tvb(offset, 8))
        b:add_le(f.read_wanted, tvb(offset + 8, 8))
        b:add_le(f.read_handle, tvb(offset + 16, 4))
        b:add_le(f.read_len, tvb(offset + 20, 4))
        b:add_le(f.read_next, tvb(offset + 24, 4))
        b:add_le(f.read_piece, tvb(offset + 28, 4))
    else
        b:add_le(f.read_offset, tvb(offset, 4))
        b:add_le(f.read_len, tvb(offset + 4, 4))
        if len > READ_DATA_LEN then
            tree:add(f.payload, tvb(offset + READ_DATA_LEN, len - READ_DATA_LEN))
        end
    end
end

local function add_runs(tree, tvb, offset, len)
    while len >= 4 do
        tree:add_le(f.missing, tvb(offset, 2))
        tree:add_le(f.held, tvb(offset + 2, 2))
        offset, len = offset + 4, len - 4
    end
end

-- len bytes behind the header are there.
local function add_body(tree, tvb, offset, len, h)
    if h.kind >= REQUEST then
        add_connect(tree, tvb, offset, len, h)
    elseif h.kind == SEND or h.kind == WRITE then
        add_data(tree, tvb, offset, len, h)
    elseif h.kind == READ then
        add_read(tree, tvb, offset, len, h)
    elseif h.kind == NAK then
        add_runs(tree, tvb, offset, len)
    elseif len > 0 then
        tree:add(f.unknown, tvb(offset, len))
    end
end

-- ---------------------------------------------------------------- one frame

-- Between links of udp: the same 32 bytes, read differently.
local function add_call(tree, tvb, offset, len)
    local what = tvb(offset + 1, 1):uint()
    tree:add_le(f.call, tvb(offset + 1, 1))
    tree:add_le(f.len, tvb(offset + 2, 2))
    tree:add_le(f.station, tvb(offset + 4, 2))
    tree:add_le(f.n_ports, tvb(offset + 6, 2))
    tree:add_le(f.nonce, tvb(offset + 8, 8))
    tree:add_le(f.cookie, tvb(offset + 16, 8))
    local n = what == 2 and tvb(offset + 6, 2):le_uint() or 0
    for i = 0, math.min(n, math.floor((len - HEADER) / 2)) - 1 do
        tree:add_le(f.nic_port, tvb(offset + HEADER + 2 * i, 2))
    end
    tree:append_text(", CALL " .. (CALLS[what] or what))
    return "CALL " .. (CALLS[what] or what)
end

local function read_header(tvb, offset)
    local h = {
        kind = tvb(offset, 1):uint() % 16, flags = tvb(offset + 1, 1):uint(), len = tvb(offset + 2, 2):le_uint(),
        dst_port = tvb(offset + 4, 2):le_uint(), dst_vi = tvb(offset + 6, 2):le_uint(),
        src_port = tvb(offset + 8, 2):le_uint(), src_vi = tvb(offset + 10, 2):le_uint(),
        key = tvb(offset + 12, 4):le_uint(), psn = tvb(offset + 16, 4):le_uint(), ack = tvb(offset + 20, 4):le_uint(),
        immediate = tvb(offset + 24, 4):le_uint(), crc = tvb(offset + 28, 4):le_uint(), request = 0,
    }
    h.from_to = string.format("%d.%d>%d.%d", h.src_port, h.src_vi, h.dst_port, h.dst_vi)
    h.to_from = string.format("%d.%d>%d.%d", h.dst_port, h.dst_vi, h.src_port, h.src_vi)
    if h.kind >= REQUEST and tvb:len() >= offset + HEADER + 4 then
        h.request = tvb(offset + HEADER, 4):le_uint()
    end
    return h
end

local function add_header(tree, tvb, offset, h)
    tree:add_le(f.version, tvb(offset, 1))
    tree:add_le(f.kind, tvb(offset, 1)):append_text(": " .. MEANING[h.kind])
    local flags = tree:add_le(f.flags, tvb(offset + 1, 1))
    for _, field in ipairs({
        f.first, f.last, f.has_immediate, f.ack_now, f.is_reference, f.placed, f.has_crc, f.must_ack,
    }) do
        flags:add_le(field, tvb(offset + 1, 1))
    end
    tree:add_le(f.len, tvb(offset + 2, 2))
    tree:add_le(f.dst_port, tvb(offset + 4, 2))
    tree:add_le(f.dst_vi, tvb(offset + 6, 2))
    tree:add_le(f.src_port, tvb(offset + 8, 2))
    tree:add_le(f.src_vi, tvb(offset + 10, 2))
    tree:add_le(f.key, tvb(offset + 12, 4))
    tree:add_le(h.kind == READ and f.read_ask or f.psn, tvb(offset + 16, 4))
    tree:add_le(f.ack, tvb(offset + 20, 4))
    local names = { [READ] = f.read_serial, [ERROR] = f.status, [RESET] = f.tried_key, [NOMATCH] = f.neighbours }
    local fourth = names[h.kind] or ((h.kind == SEND or h.kind == WRITE) and not flag(h.flags, 0x04) and f.piece) or f.immediate
    tree:add_le(fourth, tvb(offset + 24, 4))
end

local function add_crc(tree, tvb, offset, h, is_whole)
    local item = tree:add_le(f.crc, tvb(offset + 28, 4))
    local status = 3
    if flag(h.flags, 0x40) then
        status = 2
        if is_whole and frame.prefs.check_crc then
            status = crc_of(tvb, offset, HEADER + h.len) == h.crc and 1 or 0
        end
    elseif h.crc ~= 0 and frame.prefs.check_crc and crc_of(tvb, offset, HEADER) == h.crc then
        status = 4
    end
    tree:add(f.crc_status, tvb(offset + 28, 4), status):set_generated()
    if status == 0 then
        item:add_proto_expert_info(bad_crc)
    end
end

local function words_about(h)
    local words = { KINDS[h.kind] }
    if h.kind == SEND or h.kind == WRITE then
        words[#words + 1] = "psn=" .. h.psn .. " len=" .. h.len
        words[#words + 1] = flag(h.flags, 0x01) and "FIRST" or nil
        words[#words + 1] = flag(h.flags, 0x02) and "LAST" or nil
        words[#words + 1] = flag(h.flags, 0x10) and "REFERENCE" or nil
        words[#words + 1] = flag(h.flags, 0x04) and string.format("immediate=0x%x", h.immediate) or nil
    elseif h.kind == READ then
        local nothing = flag(h.flags, 0x02) and ({ [0] = "repeat ask=", [4] = "denied ask=" })[h.len]
        words[#words + 1] = (flag(h.flags, 0x01) and "ask=" or nothing or "data for ask=") .. h.psn
        words[#words + 1] = "len=" .. h.len
    elseif h.kind >= REQUEST then
        words[#words + 1] = string.format("request=0x%x", h.request)
        words[#words + 1] = h.wanted and ('"' .. h.wanted .. '"') or nil
    end
    if h.kind < REQUEST and h.kind ~= RESET then
        words[#words + 1] = "ack=" .. h.ack
    end
    return table.concat(words, " ")
end

-- One frame at offset, of which `have` bytes at most are captured and `room` bytes were on the wire. Returns the bytes it takes and
-- its words for the Info column, or nil if it is none of ours.
local function dissect_frame(tvb, pinfo, root, offset, have, room, is_datagram, segment)
    if have < HEADER then
        return nil
    end
    local is_call = tvb(offset, 1):uint() == CALL
    if not is_call and math.floor(tvb(offset, 1):uint() / 16) ~= VERSION then
        return nil
    end
    local behind = tvb(offset + 2, 2):le_uint()
    local whole = HEADER + behind
    local shown = math.min(whole, have)
    local tree = root:add(frame, tvb(offset, shown))
    if segment then
        tree:add(f.segment, segment):set_generated()
    end
    if is_call then
        return math.min(whole, room), add_call(tree, tvb, offset, shown)
    end
    local h = read_header(tvb, offset)
    add_header(tree, tvb, offset, h)
    add_crc(tree, tvb, offset, h, shown == whole)
    if whole > room then
        tree:add_proto_expert_info(bad_len)
    elseif shown == whole or h.kind <= WRITE then
        add_body(tree, tvb, offset + HEADER, shown - HEADER, h)
    end
    if h.kind == REQUEST and is_datagram and have >= whole + TRAILER_LEN then -- of the link udp, for the link itself
        tree:add_le(f.station, tvb(offset + whole, 2))
        tree:add_le(f.cookie, tvb(offset + whole + 4, 8))
        tree:set_len(whole + TRAILER_LEN)
        whole = whole + TRAILER_LEN
    end
    if frame.prefs.link_frames then
        add_links(tree, h, pinfo.number * 64 + (segment or 0), pinfo.number, pinfo)
    end
    local words = words_about(h)
    tree:append_text(string.format(", %d.%d > %d.%d, %s", h.src_port, h.src_vi, h.dst_port, h.dst_vi, words))
    return math.min(whole, room), words
end

-- ---------------------------------------------------------------- entries

local function show(pinfo, words, n)
    pinfo.cols.protocol = "VIA"
    pinfo.cols.info = n > 1 and string.format("%d frames: %s", n, words) or words
end

-- Behind an Ethernet header: one frame; short ones are padded.
local function dissect_plain(tvb, pinfo, root)
    local taken, words = dissect_frame(tvb, pinfo, root, 0, tvb:len(), tvb:reported_len(), false, nil)
    if not taken then
        return 0
    end
    show(pinfo, words, 1)
    return tvb:len()
end

-- In a datagram: one frame or several, back to back.
local function dissect_datagram(tvb, pinfo, root)
    local offset, n, all = 0, 0, {}
    local total, reported = tvb:len(), tvb:reported_len()
    local several = total >= HEADER and HEADER + tvb(2, 2):le_uint() < reported
    while offset < total do
        local taken, words = dissect_frame(tvb, pinfo, root, offset, total - offset, reported - offset, true,
            several and n + 1 or nil)
        if not taken then
            break
        end
        n = n + 1
        if n <= 3 then
            all[n] = words
        end
        offset = offset + taken
    end
    if n == 0 then
        return 0
    end
    show(pinfo, table.concat(all, " | ") .. (n > 3 and " | ..." or ""), n)
    return tvb:len()
end

-- 0x88B5 comes with an Ethernet header; so does what a tap wrote. A datagram comes through the UDP dissector.
function frame.dissector(tvb, pinfo, root)
    if pinfo.match_uint == 34997 then
        return dissect_datagram(tvb, pinfo, root)
    end
    return dissect_plain(tvb, pinfo, root)
end

-- NICs of the link udp have ports that the kernel chose. Ours is what has our version, and lengths that add up exactly.
local function looks_like_ours(tvb)
    local offset, total = 0, tvb:reported_len()
    if tvb:len() < HEADER then
        return false
    end
    while offset + HEADER <= tvb:len() do
        local first = tvb(offset, 1):uint()
        if first ~= CALL and math.floor(first / 16) ~= VERSION then
            return false
        end
        local trailer = first == 0x10 + REQUEST and TRAILER_LEN or 0 -- behind what the header counts
        offset = offset + HEADER + tvb(offset + 2, 2):le_uint() + trailer
    end
    return offset == total or (offset >= tvb:len() and tvb:len() < total)
end

local function heuristic(tvb, pinfo, root)
    if not looks_like_ours(tvb) then
        return false
    end
    dissect_datagram(tvb, pinfo, root)
    return true
end

local EVENT_LEN = 40

function event.dissector(tvb, pinfo, root)
    if tvb:len() < EVENT_LEN or tvb(0, 1):uint() ~= 1 then
        return 0
    end
    local kind, queue = tvb(1, 1):uint(), tvb(4, 1):uint()
    local words = string.format("%s vi %d", EVENTS[kind] or kind, tvb(2, 2):le_uint())
    local tree = root:add(event, tvb(0, EVENT_LEN))
    tree:add_le(e.version, tvb(0, 1))
    tree:add_le(e.kind, tvb(1, 1))
    tree:add_le(e.vi, tvb(2, 2))
    tree:add_le(e.queue, tvb(4, 1))
    tree:add_le(e.how, tvb(5, 1))
    tree:add_le(e.control, tvb(6, 2))
    tree:add_le(e.index, tvb(8, 4))
    tree:add_le(e.psn, tvb(12, 4))
    tree:add_le(e.n_frames, tvb(16, 4))
    tree:add_le(e.len, tvb(20, 4))
    tree:add_le(e.status, tvb(24, 4))
    tree:add_le(e.key, tvb(28, 4))
    tree:add_le(e.descriptor, tvb(32, 8))
    if kind == 1 or kind == 5 or kind == 6 then
        words = string.format("%s, %s %d", words, QUEUES[queue] or queue, tvb(8, 4):le_uint())
    elseif kind == 2 or kind == 3 then
        words = string.format("%s, psn %d, %d bytes", words, tvb(12, 4):le_uint(), tvb(20, 4):le_uint())
    else
        words = string.format("%s, before psn %d", words, tvb(12, 4):le_uint())
    end
    tree:append_text(", " .. words)
    pinfo.cols.protocol = "VIA event"
    pinfo.cols.info = words
    return EVENT_LEN
end

DissectorTable.get("ethertype"):add(0x88B5, frame)
DissectorTable.get("udp.port"):add(34997, frame)
DissectorTable.get("wtap_encap"):add(wtap.USER0, event)
frame:register_heuristic("udp", heuristic)
