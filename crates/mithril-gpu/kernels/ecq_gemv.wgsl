// Rows of entropy-coded levels times a vector of 8-bit activations: decoded and multiplied, never written to memory.
//
// CPU twin, and the definition: `Coded::dot_levels` in `mithril_codec::ecq::gemv`; bytes in docs/format/ecq.md. Sums are
// whole numbers, so they are equal bit for bit in any order.
//
// One workgroup of 32 lanes takes one block, row after row. In each step every lane has one symbol; lanes that need a byte
// take the next ones in the order of lanes, which a lane learns by `vote`, from `lanes_workgroup.wgsl` or
// `lanes_subgroup.wgsl`, one of which stands behind this file. Nothing is read or written out of bounds, whatever the bytes
// are; what a CPU would refuse is reported in `fault`.

struct Params {
    // Symbols of a row with its padding, and bits below each of them.
    padded: u32,
    low_bits: u32,
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
    first_row: u32,
    n_rows: u32,
    unused: u32,
}

@group(0) @binding(0) var<storage, read> params: Params;
@group(0) @binding(1) var<storage, read> blocks: array<Block>;
@group(0) @binding(2) var<storage, read> data: array<u32>;
@group(0) @binding(3) var<storage, read> low: array<u32>;
// For each table and slot: symbol, rank from bit 8 on, frequency from bit 16 on.
@group(0) @binding(4) var<storage, read> slots: array<u32>;
// 256 levels, then an activation for every column.
@group(0) @binding(5) var<storage, read> factors: array<i32>;
@group(0) @binding(6) var<storage, read_write> sums: array<i32>;
// Number of the first block with a fault.
@group(0) @binding(7) var<storage, read_write> fault: array<atomic<u32>>;

const LANES = 32u;
const REST = 256u;
const LEVELS = 256u;
const INVOCATIONS = 32u;

fn data_byte(at: u32) -> u32 {
    let word = at / 4u;
    if word >= arrayLength(&data) {
        return 0u;
    }
    return (data[word] >> (8u * (at % 4u))) & 255u;
}

fn low_byte(at: u32) -> u32 {
    let word = at / 4u;
    if word >= arrayLength(&low) {
        return 0u;
    }
    return (low[word] >> (8u * (at % 4u))) & 255u;
}

fn factor(at: u32) -> i32 {
    if at >= arrayLength(&factors) {
        return 0;
    }
    return factors[at];
}

// Bits of a value that stands among 64, as planes of `bits` bits are laid out, the first of which is at this byte.
fn place(bits: u32, value: u32) -> vec2<u32> {
    let piece = 8u * bits;
    let within = value % 64u;
    return vec2(piece * (value / 64u) + within % piece, bits * (within / piece));
}

fn run(workgroup: vec3<u32>, lane: u32) {
    let index = workgroup.y * params.width + workgroup.x;
    let is_block = index < params.n_blocks;
    let block = min(index, params.n_blocks - 1u);
    let kind = blocks[block].kind;
    let argument = blocks[block].argument;
    let at_first = blocks[block].at;
    let end = blocks[block].stream_end;
    let low_bits = params.low_bits;
    let low_mask = (1u << low_bits) - 1u;
    let low_row_len = params.padded / 8u * low_bits;
    let n_steps = params.padded / LANES;
    var at = blocks[block].stream_at;
    var state = REST;
    if kind == 2u {
        state = (data_byte(at_first + lane) << 8u) | data_byte(at_first + LANES + lane);
    }
    var is_short = false;
    var step = 0u;
    for (var row = 0u; row < blocks[block].n_rows; row++) {
        let row_at = blocks[block].first_row + row;
        var sum = 0;
        for (var group = 0u; group < n_steps; group++) {
            let column = group * LANES + lane;
            var symbol = argument & 15u;
            if kind == 0u {
                let bits = place(4u, row * params.padded + column);
                symbol = (data_byte(at_first + bits.x) >> bits.y) & 15u;
            }
            if kind == 2u {
                let slot_at = LEVELS * argument + (state & 255u);
                var slot = 0u;
                if slot_at < arrayLength(&slots) {
                    slot = slots[slot_at];
                }
                symbol = slot & 15u;
                state = (slot >> 16u) * (state >> 8u) + ((slot >> 8u) & 255u);
            }
            var code = symbol << low_bits;
            if low_bits > 0u {
                let bits = place(low_bits, column);
                code |= (low_byte(row_at * low_row_len + bits.x) >> bits.y) & low_mask;
            }
            sum += factor(code & 255u) * factor(LEVELS + column);
            let mask = vote(step, 0u, lane, state < REST);
            if state < REST {
                let byte_at = at + countOneBits(mask & ((1u << lane) - 1u));
                is_short = is_short || byte_at >= end;
                state = (state << 8u) | data_byte(min(byte_at, end));
            }
            at += countOneBits(mask);
            step++;
        }
        let total = sum_of_lanes(lane, sum);
        if lane == 0u && is_block && row_at < arrayLength(&sums) {
            sums[row_at] = total;
        }
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
