// Symbols of entropy-coded matrices, one byte each, with the padding of their rows.
//
// CPU twin, and the definition: `Coded::decode_symbols` in `mithril_codec::ecq`; bytes in docs/format/ecq.md. Low bits and
// escapes are stored as they are, so there is nothing of them to decode; the host compares the sums of blocks.
//
// One workgroup of 32 lanes takes one block. In each step every lane has one symbol; lanes that need a byte take the next
// ones in the order of lanes, which a lane learns by `vote`, from `lanes_workgroup.wgsl` or `lanes_subgroup.wgsl`, one of
// which stands behind this file. Nothing is read or written out of bounds, whatever the bytes are; what a CPU would refuse
// is reported in `fault`.

struct Params {
    n_blocks: u32,
    // Blocks along the first dimension of the grid.
    width: u32,
}

struct Block {
    // 0 packed, 1 constant, 2 rANS8.
    kind: u32,
    // The symbol of a constant block, or the table of a coded one.
    argument: u32,
    // Bytes of `data`: packed symbols or states, and the stream.
    at: u32,
    stream_at: u32,
    stream_end: u32,
    // Its symbols, and the first of them among all: multiples of 64.
    n_symbols: u32,
    out_at: u32,
    unused: u32,
}

@group(0) @binding(0) var<storage, read> params: Params;
@group(0) @binding(1) var<storage, read> blocks: array<Block>;
@group(0) @binding(2) var<storage, read> data: array<u32>;
// For each table and slot: symbol, rank from bit 8 on, frequency from bit 16 on.
@group(0) @binding(3) var<storage, read> slots: array<u32>;
@group(0) @binding(4) var<storage, read_write> symbols: array<atomic<u32>>;
// Number of the first block with a fault.
@group(0) @binding(5) var<storage, read_write> fault: array<atomic<u32>>;

const LANES = 32u;
const REST = 256u;
const SLOTS = 256u;
const INVOCATIONS = 32u;

fn data_byte(at: u32) -> u32 {
    let word = at / 4u;
    if word >= arrayLength(&data) {
        return 0u;
    }
    return (data[word] >> (8u * (at % 4u))) & 255u;
}

// A symbol of a packed block: of 64 neighbours the first half are the low nibbles of 32 bytes, the others the high ones.
fn packed_symbol(at: u32, position: u32) -> u32 {
    let within = position % 64u;
    let byte = data_byte(at + 32u * (position / 64u) + within % 32u);
    return (byte >> (4u * (within / 32u))) & 15u;
}

fn run(workgroup: vec3<u32>, lane: u32) {
    let index = workgroup.y * params.width + workgroup.x;
    let is_block = index < params.n_blocks;
    let block = min(index, params.n_blocks - 1u);
    let kind = blocks[block].kind;
    let argument = blocks[block].argument;
    let at_first = blocks[block].at;
    let end = blocks[block].stream_end;
    let out_at = blocks[block].out_at;
    let n_steps = blocks[block].n_symbols / LANES;
    var at = blocks[block].stream_at;
    var state = REST;
    if kind == 2u {
        state = (data_byte(at_first + lane) << 8u) | data_byte(at_first + LANES + lane);
    }
    var is_short = false;
    for (var step = 0u; step < n_steps; step++) {
        let position = step * LANES + lane;
        var symbol = argument & 15u;
        if kind == 0u {
            symbol = packed_symbol(at_first, position);
        }
        if kind == 2u {
            let slot_at = SLOTS * argument + (state & 255u);
            var slot = 0u;
            if slot_at < arrayLength(&slots) {
                slot = slots[slot_at];
            }
            symbol = slot & 15u;
            state = (slot >> 16u) * (state >> 8u) + ((slot >> 8u) & 255u);
        }
        let word = (out_at + position) / 4u;
        if is_block && word < arrayLength(&symbols) {
            atomicOr(&symbols[word], symbol << (8u * (position % 4u)));
        }
        let mask = vote(step, 0u, lane, state < REST);
        if state < REST {
            let byte_at = at + countOneBits(mask & ((1u << lane) - 1u));
            is_short = is_short || byte_at >= end;
            state = (state << 8u) | data_byte(min(byte_at, end));
        }
        at += countOneBits(mask);
    }
    if kind == 2u {
        // Padding is what is left, at most three bytes of zero.
        var is_fault = is_short || state != REST || at > end || end - at > 3u;
        for (var byte = at; byte < min(end, at + 3u); byte++) {
            is_fault = is_fault || data_byte(byte) != 0u;
        }
        if is_fault && is_block {
            atomicMin(&fault[0], block);
        }
    }
}
