-- Packets of switchagg (switchagg/PROTOCOL.md, P1 to P6) for Wireshark and tshark.
--
--   tshark -X lua_script:tools/wireshark/switchagg.lua -r capture.pcap -Y switchagg
--
-- Wireshark loads it from its personal plugins folder (Help, About, Folders). UDP port 5556 is taken for ours, and on any
-- other port what begins as our packets do; Decode As gives a port to it for good.

local PORT = 5556
local MAGIC = 0x5341
local HEADER_BYTES = 20
local ELEMENTS_MOST = 16000

local switchagg = Proto("switchagg", "In-network gradient aggregation")

local OPS = { [0] = "SUM", [1] = "MAX" }

local fields = {
    magic = ProtoField.uint16("switchagg.magic", "Magic", base.HEX),
    wire_version = ProtoField.uint8("switchagg.wire_version", "Wire version", base.DEC, nil, 0xf0),
    op = ProtoField.uint8("switchagg.op", "Op", base.DEC, OPS, 0x0f),
    flags = ProtoField.uint8("switchagg.flags", "Flags", base.HEX),
    retransmission = ProtoField.bool("switchagg.flags.retransmission", "RETRANSMISSION", 8, nil, 0x04),
    version = ProtoField.bool("switchagg.flags.version", "VERSION (the slot's version is 1)", 8, nil, 0x02),
    result = ProtoField.bool("switchagg.flags.result", "RESULT (from the switch)", 8, nil, 0x01),
    spare = ProtoField.uint8("switchagg.flags.spare", "Spare, must be zero", base.HEX, nil, 0xf8),
    job = ProtoField.uint16("switchagg.job", "Job"),
    slot = ProtoField.uint16("switchagg.slot", "Slot"),
    generation = ProtoField.uint32("switchagg.generation", "Generation"),
    stream = ProtoField.uint8("switchagg.stream", "Stream"),
    rank = ProtoField.uint8("switchagg.rank", "Rank"),
    elements = ProtoField.uint16("switchagg.elements", "Elements"),
    chunk = ProtoField.uint32("switchagg.chunk", "Chunk"),
    values = ProtoField.bytes("switchagg.values", "Values"),
    value = ProtoField.int32("switchagg.value", "Value"),
    hint = ProtoField.string("switchagg.hint", "What it is"),
}
switchagg.fields = fields

local function malformed(name, text)
    return ProtoExpert.new("switchagg." .. name, text, expert.group.MALFORMED, expert.severity.ERROR)
end

-- The reasons of P6, in their order: the first that applies is shown.
local experts = {
    short = malformed("short", "Shorter than a header (P6 short)"),
    magic = malformed("bad_magic", "Does not begin with 0x5341 (P6 magic)"),
    wire_version = malformed("bad_wire_version", "Wire version is not 1 (P6 wire_version)"),
    op = malformed("bad_op", "No such op (P6 op)"),
    flags = malformed("bad_flags", "Spare flags are set (P6 flags)"),
    length = malformed("bad_length", "Elements and length disagree, or elements are not 1 to 16000 (P6 length)"),
}
local again = ProtoExpert.new(
    "switchagg.retransmitted", "Sent again (W7, W8)", expert.group.SEQUENCE, expert.severity.NOTE)
switchagg.experts = {
    experts.short, experts.magic, experts.wire_version, experts.op, experts.flags, experts.length, again,
}

-- Why the datagram is no packet, or nil.
local function fault(buffer)
    if buffer:len() < HEADER_BYTES then return "short" end
    if buffer(0, 2):uint() ~= MAGIC then return "magic" end
    if buffer(2, 1):bitfield(0, 4) ~= 1 then return "wire_version" end
    if OPS[buffer(2, 1):bitfield(4, 4)] == nil then return "op" end
    if buffer(3, 1):bitfield(0, 5) ~= 0 then return "flags" end
    local elements = buffer(14, 2):uint()
    if elements < 1 or elements > ELEMENTS_MOST or buffer:reported_len() ~= HEADER_BYTES + 4 * elements then
        return "length"
    end
    return nil
end

-- Who sends as which rank, learned from contributions as they pass: "job address port" -> rank.
local ranks = {}
-- What a result was when it was first seen, by frame number; packets may be shown in any order later.
local hints = {}

function switchagg.init()
    ranks, hints = {}, {}
end

local function endpoint(job, address, port)
    return job .. " " .. tostring(address) .. " " .. port
end

-- S5 as far as it shows: a result carries the rank whose packet caused it, and a REPLY goes to that rank alone.
local function verdict(buffer, pinfo)
    local job, rank = buffer(4, 2):uint(), buffer(13, 1):uint()
    if buffer(3, 1):bitfield(7, 1) == 0 then
        if not pinfo.visited then ranks[endpoint(job, pinfo.src, pinfo.src_port)] = rank end
        return buffer(3, 1):bitfield(5, 1) == 1 and "contribution, sent again" or "contribution"
    end
    if not hints[pinfo.number] then
        local receiver = ranks[endpoint(job, pinfo.dst, pinfo.dst_port)]
        if receiver == nil then
            hints[pinfo.number] = "result, caused by rank " .. rank
        elseif receiver ~= rank then
            hints[pinfo.number] = "result to rank " .. receiver .. ", caused by rank " .. rank .. ": BROADCAST"
        else
            hints[pinfo.number] = "result to rank " .. receiver .. ", which caused it: BROADCAST or REPLY"
        end
    end
    return hints[pinfo.number]
end

local function add_header(buffer, tree)
    tree:add(fields.magic, buffer(0, 2))
    tree:add(fields.wire_version, buffer(2, 1))
    tree:add(fields.op, buffer(2, 1))
    local flags = tree:add(fields.flags, buffer(3, 1))
    flags:add(fields.spare, buffer(3, 1))
    flags:add(fields.retransmission, buffer(3, 1))
    flags:add(fields.version, buffer(3, 1))
    flags:add(fields.result, buffer(3, 1))
    tree:add(fields.job, buffer(4, 2))
    tree:add(fields.slot, buffer(6, 2))
    tree:add(fields.generation, buffer(8, 4))
    tree:add(fields.stream, buffer(12, 1))
    tree:add(fields.rank, buffer(13, 1))
    tree:add(fields.elements, buffer(14, 2))
    tree:add(fields.chunk, buffer(16, 4))
end

-- As many whole values as were captured.
local function add_values(buffer, tree)
    local count = math.min(buffer(14, 2):uint(), math.floor((buffer:len() - HEADER_BYTES) / 4))
    if count < 1 then return end
    local values = tree:add(fields.values, buffer(HEADER_BYTES, 4 * count))
    values:set_text("Values: " .. count)
    for index = 0, count - 1 do
        values:add(fields.value, buffer(HEADER_BYTES + 4 * index, 4)):prepend_text("[" .. index .. "] ")
    end
end

function switchagg.dissector(buffer, pinfo, root)
    local tree = root:add(switchagg, buffer())
    pinfo.cols.protocol = "switchagg"
    local wrong = fault(buffer)
    if wrong == "short" or wrong == "magic" then
        tree:add_proto_expert_info(experts[wrong])
        pinfo.cols.info = "no packet: " .. wrong
        return buffer:len()
    end
    add_header(buffer, tree)
    add_values(buffer, tree)
    if wrong then
        tree:add_proto_expert_info(experts[wrong])
        pinfo.cols.info = "no packet: " .. wrong
        return buffer:len()
    end
    local hint = verdict(buffer, pinfo)
    tree:add(fields.hint, buffer(0, 0), hint):set_generated()
    if buffer(3, 1):bitfield(5, 1) == 1 then tree:add_proto_expert_info(again) end
    local summary = string.format(
        "%s job %d rank %d stream %d chunk %d slot %d.%d %s", OPS[buffer(2, 1):bitfield(4, 4)], buffer(4, 2):uint(),
        buffer(13, 1):uint(), buffer(12, 1):uint(), buffer(16, 4):uint(), buffer(6, 2):uint(),
        buffer(3, 1):bitfield(6, 1), hint)
    pinfo.cols.info = summary
    tree:append_text(", " .. summary)
    return buffer:len()
end

-- On other ports: magic, wire version and a whole header.
local function looks_like_ours(buffer, pinfo, root)
    if buffer:len() < HEADER_BYTES or buffer(0, 2):uint() ~= MAGIC or buffer(2, 1):bitfield(0, 4) ~= 1 then
        return false
    end
    switchagg.dissector(buffer, pinfo, root)
    return true
end

DissectorTable.get("udp.port"):add(PORT, switchagg) -- also what offers it in Decode As
switchagg:register_heuristic("udp", looks_like_ours)
