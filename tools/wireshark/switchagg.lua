-- Packets of switchagg (switchagg/PROTOCOL.md, P1 to P6) for Wireshark and tshark.
--
--   tshark -X lua_script:tools/wireshark/switchagg.lua -r capture.pcap -Y switchagg
--
-- Wireshark loads it from its personal plugins folder (Help, About, Folders). UDP port 5556 is taken for ours, and on any
-- other port what begins as our packets do; Decode As gives a port to it for good.
--
-- On the hosts at its ends a datagram of a capture holds up to 64 packets: captures are taken before the kernel cuts what one
-- call sent (GSO), and after it joined what arrived (GRO). Each packet says its length, so each is shown by itself.

local PORT = 5556
local MAGIC = 0x5341
local HEADER_BYTES = 20
local ELEMENTS_MOST = 16000

local switchagg = Proto("switchagg", "In-network gradient aggregation")

local OPS = { [0] = "SUM", [1] = "MAX" }
local ROUTES = { [0] = "ALL", [1] = "TO_OWNER", [2] = "FROM_OWNER" }

local fields = {
    magic = ProtoField.uint16("switchagg.magic", "Magic", base.HEX),
    wire_version = ProtoField.uint8("switchagg.wire_version", "Wire version", base.DEC, nil, 0xf0),
    op = ProtoField.uint8("switchagg.op", "Op", base.DEC, OPS, 0x08),
    route = ProtoField.uint8("switchagg.route", "Route", base.DEC, ROUTES, 0x06),
    owner = ProtoField.uint16("switchagg.owner", "Owner", base.DEC, nil, 0x01f8),
    flags = ProtoField.uint8("switchagg.flags", "Flags", base.HEX, nil, 0x07),
    retransmission = ProtoField.bool("switchagg.flags.retransmission", "RETRANSMISSION", 8, nil, 0x04),
    version = ProtoField.bool("switchagg.flags.version", "VERSION (the slot's version is 1)", 8, nil, 0x02),
    result = ProtoField.bool("switchagg.flags.result", "RESULT (from the switch)", 8, nil, 0x01),
    job = ProtoField.uint16("switchagg.job", "Job"),
    slot = ProtoField.uint16("switchagg.slot", "Slot"),
    generation = ProtoField.uint32("switchagg.generation", "Generation"),
    stream = ProtoField.uint8("switchagg.stream", "Stream"),
    marked = ProtoField.bool("switchagg.marked", "MARKED (met congestion)", 8, nil, 0x80),
    close = ProtoField.bool("switchagg.close", "CLOSE", 8, nil, 0x40),
    rank = ProtoField.uint8("switchagg.rank", "Rank", base.DEC, nil, 0x3f),
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
    wire_version = malformed("bad_wire_version", "Wire version is not 2 (P6 wire_version)"),
    op = malformed("bad_op", "No such route (P6 op)"),
    flags = malformed("bad_flags", "An owner with route ALL (P6 flags)"),
    length = malformed("bad_length", "Elements and length disagree, or elements are not 1 to 16000 (P6 length)"),
}
local again = ProtoExpert.new(
    "switchagg.retransmitted", "Sent again (W7, W8)", expert.group.SEQUENCE, expert.severity.NOTE)
switchagg.experts = {
    experts.short, experts.magic, experts.wire_version, experts.op, experts.flags, experts.length, again,
}

-- Why no packet begins at `at`, or nil.
local function fault(buffer, at)
    local rest = buffer:reported_len() - at
    if rest < HEADER_BYTES then return "short" end
    if buffer(at, 2):uint() ~= MAGIC then return "magic" end
    if buffer(at + 2, 1):bitfield(0, 4) ~= 2 then return "wire_version" end
    local route = buffer(at + 2, 1):bitfield(5, 2)
    if ROUTES[route] == nil then return "op" end
    if route == 0 and buffer(at + 2, 2):bitfield(7, 6) ~= 0 then return "flags" end
    local elements = buffer(at + 14, 2):uint()
    if elements < (route == 0 and 1 or 0) or elements > ELEMENTS_MOST or rest < HEADER_BYTES + 4 * elements then return "length" end
    return nil
end

-- Where the packet at `at` ends: nil if what follows it is no packet, so that its length is wrong (P2).
local function end_of(buffer, at)
    local after = at + HEADER_BYTES + 4 * buffer(at + 14, 2):uint()
    if after + HEADER_BYTES > buffer:reported_len() then return after == buffer:reported_len() and after or nil end
    if after + 2 > buffer:len() or buffer(after, 2):uint() == MAGIC then return after end
    return nil
end

-- Who sends as which rank, learned from contributions as they pass: "job address port" -> rank.
local ranks = {}
-- What a result was when it was first seen, by frame number and place; packets may be shown in any order later.
local hints = {}

function switchagg.init()
    ranks, hints = {}, {}
end

local function endpoint(job, address, port)
    return job .. " " .. tostring(address) .. " " .. port
end

-- S5 as far as it shows: a result carries the rank whose packet caused it, and a REPLY goes to that rank alone. Bare: it
-- has no values, for its rank gives none, or got none (P2, S6).
local function verdict(buffer, at, pinfo)
    local job, rank = buffer(at + 4, 2):uint(), buffer(at + 13, 1):bitfield(2, 6)
    local header_only = buffer(at + 14, 2):uint() == 0 and ", header-only" or ""
    if buffer(at + 3, 1):bitfield(7, 1) == 0 then
        if not pinfo.visited then ranks[endpoint(job, pinfo.src, pinfo.src_port)] = rank end
        return "contribution" .. header_only .. (buffer(at + 3, 1):bitfield(5, 1) == 1 and ", sent again" or "")
    end
    local place = pinfo.number .. " " .. at
    if not hints[place] then
        local receiver = ranks[endpoint(job, pinfo.dst, pinfo.dst_port)]
        if receiver == nil then
            hints[place] = "result, caused by rank " .. rank
        elseif receiver ~= rank then
            hints[place] = "result to rank " .. receiver .. ", caused by rank " .. rank .. ": BROADCAST"
        else
            hints[place] = "result to rank " .. receiver .. ", which caused it: BROADCAST or REPLY"
        end
    end
    return hints[place] .. header_only
end

local function add_header(buffer, at, tree)
    tree:add(fields.magic, buffer(at, 2))
    tree:add(fields.wire_version, buffer(at + 2, 1))
    tree:add(fields.op, buffer(at + 2, 1))
    tree:add(fields.route, buffer(at + 2, 1))
    tree:add(fields.owner, buffer(at + 2, 2))
    local flags = tree:add(fields.flags, buffer(at + 3, 1))
    flags:add(fields.retransmission, buffer(at + 3, 1))
    flags:add(fields.version, buffer(at + 3, 1))
    flags:add(fields.result, buffer(at + 3, 1))
    tree:add(fields.job, buffer(at + 4, 2))
    tree:add(fields.slot, buffer(at + 6, 2))
    tree:add(fields.generation, buffer(at + 8, 4))
    tree:add(fields.stream, buffer(at + 12, 1))
    tree:add(fields.marked, buffer(at + 13, 1))
    tree:add(fields.close, buffer(at + 13, 1))
    tree:add(fields.rank, buffer(at + 13, 1))
    tree:add(fields.elements, buffer(at + 14, 2))
    tree:add(fields.chunk, buffer(at + 16, 4))
end

-- As many whole values as were captured; nothing if nobody looks at them: thousands of items for each datagram.
local function add_values(buffer, at, tree)
    if not (tree.visible or tree:referenced(fields.values) or tree:referenced(fields.value)) then return end
    local first = at + HEADER_BYTES
    local count = math.min(buffer(at + 14, 2):uint(), math.floor((buffer:len() - first) / 4))
    if count < 1 then return end
    local values = tree:add(fields.values, buffer(first, 4 * count))
    values:set_text("Values: " .. count)
    for index = 0, count - 1 do
        values:add(fields.value, buffer(first + 4 * index, 4)):prepend_text("[" .. index .. "] ")
    end
end

-- Consecutive chunks of one kind are one piece of the info column: "chunks 5-20 slots 5.0-20.0".
local function add_piece(pieces, before, slot, chunk, after)
    local last = pieces[#pieces]
    if last and last.before == before and last.after == after and chunk == last.chunk + 1 then
        last.chunk, last.slot = chunk, slot
    else
        table.insert(pieces, {
            before = before, after = after, first_chunk = chunk, chunk = chunk, first_slot = slot, slot = slot })
    end
end

local function text_of(piece)
    if not piece.chunk then return piece.before end
    if piece.chunk == piece.first_chunk then
        return string.format("%s chunk %d slot %s %s", piece.before, piece.chunk, piece.slot, piece.after)
    end
    return string.format(
        "%s chunks %d-%d slots %s-%s %s", piece.before, piece.first_chunk, piece.chunk, piece.first_slot, piece.slot,
        piece.after)
end

-- Shows the packet at `at`; returns where the next one begins, or nil after the last.
local function dissect(buffer, at, pinfo, root, pieces)
    local wrong = fault(buffer, at)
    local after = not wrong and end_of(buffer, at) or nil
    if not wrong and not after then wrong = "length" end
    local tree = root:add(switchagg, buffer(at, math.min(after or buffer:len(), buffer:len()) - at))
    if wrong ~= "short" and wrong ~= "magic" then
        add_header(buffer, at, tree)
        add_values(buffer, at, tree)
    end
    if wrong then
        tree:add_proto_expert_info(experts[wrong])
        table.insert(pieces, { before = "no packet: " .. wrong })
        return nil
    end
    local hint = verdict(buffer, at, pinfo)
    tree:add(fields.hint, buffer(at, 0), hint):set_generated()
    if buffer(at + 3, 1):bitfield(5, 1) == 1 then tree:add_proto_expert_info(again) end
    local route = buffer(at + 2, 1):bitfield(5, 2)
    local before = string.format(
        "%s%s job %d rank %d stream %d", OPS[buffer(at + 2, 1):bitfield(4, 1)],
        route > 0 and " " .. ROUTES[route] .. " " .. buffer(at + 2, 2):bitfield(7, 6) or "", buffer(at + 4, 2):uint(),
        buffer(at + 13, 1):uint(), buffer(at + 12, 1):uint())
    local slot = buffer(at + 6, 2):uint() .. "." .. buffer(at + 3, 1):bitfield(6, 1)
    local chunk = buffer(at + 16, 4):uint()
    add_piece(pieces, before, slot, chunk, hint)
    tree:append_text(string.format(", %s chunk %d slot %s %s", before, chunk, slot, hint))
    return after
end

function switchagg.dissector(buffer, pinfo, root)
    pinfo.cols.protocol = "switchagg"
    local pieces, packets, at = {}, 0, 0
    repeat
        -- of a packet whose header was not captured nothing is shown
        if at + HEADER_BYTES > buffer:len() and buffer:len() < buffer:reported_len() then break end
        packets = packets + 1
        at = dissect(buffer, at, pinfo, root, pieces)
    until at == nil or at >= buffer:reported_len()
    local texts = {}
    for index, piece in ipairs(pieces) do texts[index] = text_of(piece) end
    pinfo.cols.info = (packets > 1 and packets .. " packets: " or "") .. table.concat(texts, "; ")
    return buffer:len()
end

-- On other ports: magic, wire version and a whole header.
local function looks_like_ours(buffer, pinfo, root)
    if buffer:len() < HEADER_BYTES or buffer(0, 2):uint() ~= MAGIC or buffer(2, 1):bitfield(0, 4) ~= 2 then
        return false
    end
    switchagg.dissector(buffer, pinfo, root)
    return true
end

DissectorTable.get("udp.port"):add(PORT, switchagg) -- also what offers it in Decode As
switchagg:register_heuristic("udp", looks_like_ours)
