// Codes of an entropy-coded matrix, a byte each: the body of a kernel for `mx.fast.metal_kernel`.
//
// CPU twin, and the definition: `Coded::decode_rows` in `mithril_codec::ecq`; bytes in docs/format/ecq.md. Sums of blocks are
// for who reads a matrix to check, once. `_metal.py` makes the inputs.
//
// A SIMD group of 32 lanes takes one block, row after row; a threadgroup is one SIMD group. Nothing is read or written out
// of bounds, whatever the bytes are; a block that a CPU would refuse sets its fault.

const uint lane = thread_index_in_simdgroup;
const uint block = threadgroup_position_in_grid.x;
const uint padded = params[0];
const uint low_bits = params[1];
const uint n_rows_in_all = params[2];
const uint data_len = params[3];
const uint low_len = params[4];
const uint slots_len = params[5];
const uint n_columns = params[6];

const uint kind = blocks[8 * block];
const uint argument = blocks[8 * block + 1];
const uint first = blocks[8 * block + 2];
const uint end = min(uint(blocks[8 * block + 4]), data_len);
const uint first_row = blocks[8 * block + 5];
const uint n_rows = blocks[8 * block + 6];
const uint low_row_len = padded / 8 * low_bits;
uint at = blocks[8 * block + 3];
uint state = 256;
if (kind == 2) {
    const uint high_at = min(first + lane, data_len - 1);
    const uint low_at = min(first + 32 + lane, data_len - 1);
    state = uint(data[high_at]) << 8 | uint(data[low_at]);
}
bool is_short = false;
for (uint row = 0; row < n_rows; ++row) {
    for (uint column = lane; column < padded; column += 32) {
        uint symbol = argument & 15;
        if (kind == 0) {
            const uint position = row * padded + column;
            const uint byte_at = first + 32 * (position / 64) + position % 32;
            symbol = uint(data[min(byte_at, data_len - 1)]) >> (4 * (position % 64 / 32)) & 15;
        }
        if (kind == 2) {
            const uint slot = slots[min(256 * argument + (state & 255), slots_len - 1)];
            symbol = slot & 15;
            state = (slot >> 16) * (state >> 8) + (slot >> 8 & 255);
        }
        uint code = symbol << low_bits;
        if (low_bits > 0) {
            const uint piece = 8 * low_bits;
            const uint within = column % 64;
            const uint byte_at = (first_row + row) * low_row_len + piece * (column / 64) + within % piece;
            code |= uint(low[min(byte_at, low_len - 1)]) >> (low_bits * (within / piece)) & ((1u << low_bits) - 1);
        }
        // Padding has a symbol, too, which is decoded and dropped.
        if (column < n_columns && first_row + row < n_rows_in_all) {
            codes[(first_row + row) * n_columns + column] = code;
        }
        // Lanes that need a byte take the next ones, in the order of lanes.
        const uint needs = state < 256 ? 1 : 0;
        const uint byte_at = at + simd_prefix_exclusive_sum(needs);
        if (needs == 1) {
            is_short = is_short || byte_at >= end;
            state = state << 8 | uint(data[min(byte_at, data_len - 1)]);
        }
        at += simd_sum(needs);
    }
}
uint is_fault = 0;
if (kind == 2) {
    // Padding is what is left, at most three bytes of zero.
    is_fault = is_short || state != 256 || at > end || end - at > 3 ? 1 : 0;
    for (uint byte_at = at; byte_at < min(end, at + 3); ++byte_at) {
        is_fault |= data[byte_at] != 0 ? 1 : 0;
    }
}
const uint n_faults = simd_sum(is_fault);
if (lane == 0) {
    faults[block] = n_faults;
}
