// Rows of bf16 weights in 12 bits, an exponent of four beside sign and mantissa, times a vector of singles.
//
// CPU twin, and the definition: `Coded::dot_bf16` in `mithril_codec::ecq::gemv` over blocks that are packed or constant;
// bytes in docs/format/ecq.md. Escapes count as zero: the host adds them, as the CPU does.
//
// Arithmetic: column `c` is multiplied, rounded, and added to the partial sum `4 (c mod 64 div 16) + c mod 8 div 2`, columns
// ascending, and the sixteen sums are joined in the order of the CPU. Results are its very bits where a driver neither fuses
// a product with the sum behind it nor flushes denormals; WGSL allows both. lavapipe, which tests run on, does neither.
//
// A workgroup takes 8 rows, with 16 partial sums each.

struct Params {
    padded: u32,
    n_rows: u32,
    rows_per_block: u32,
    // The exponent of symbol 0.
    first_exponent: u32,
    // Workgroups along the first dimension of the grid.
    width: u32,
}

@group(0) @binding(0) var<storage, read> params: Params;
// For each block the byte of `data` where its packed symbols start; or, with the highest bit set, its symbol.
@group(0) @binding(1) var<storage, read> blocks: array<u32>;
@group(0) @binding(2) var<storage, read> data: array<u32>;
@group(0) @binding(3) var<storage, read> low: array<u32>;
@group(0) @binding(4) var<storage, read> x: array<f32>;
@group(0) @binding(5) var<storage, read_write> products: array<f32>;
// Part of every kernel; nothing here can be at fault.
@group(0) @binding(6) var<storage, read_write> fault: array<atomic<u32>>;

const ESCAPE = 15u;
const CONSTANT = 0x80000000u;

var<workgroup> parts: array<f32, 128>;

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

fn weight(block: u32, position: u32, low_at: u32) -> f32 {
    var symbol = block & 15u;
    if (block & CONSTANT) == 0u {
        let within = position % 64u;
        let byte = data_byte(block + 32u * (position / 64u) + within % 32u);
        symbol = (byte >> (4u * (within / 32u))) & 15u;
    }
    let rest = low_byte(low_at);
    var exponent = (params.first_exponent + symbol) & 255u;
    if symbol == ESCAPE {
        exponent = 0u;
    }
    return bitcast<f32>(((rest & 0x80u) << 24u) | (exponent << 23u) | ((rest & 0x7fu) << 16u));
}

fn pair(at: u32) -> f32 {
    return parts[at] + parts[at + 8u];
}

@compute @workgroup_size(128)
fn main(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) invocation: u32) {
    let row = 8u * (workgroup.y * params.width + workgroup.x) + invocation / 16u;
    let part = invocation % 16u;
    let first_column = 16u * (part / 4u) + 2u * (part % 4u);
    var sum = 0.0;
    if row < params.n_rows {
        let block_idx = row / params.rows_per_block;
        let block = blocks[min(block_idx, arrayLength(&blocks) - 1u)];
        let row_within = row - block_idx * params.rows_per_block;
        let n_pieces = params.padded / 64u;
        for (var piece = 0u; piece < n_pieces; piece++) {
            for (var addition = 0u; addition < 4u; addition++) {
                let column = 64u * piece + first_column + 8u * (addition / 2u) + addition % 2u;
                let position = row_within * params.padded + column;
                let factor = x[min(column, arrayLength(&x) - 1u)];
                let product = weight(block, position, row * params.padded + column) * factor;
                sum = sum + product;
            }
        }
    }
    parts[invocation] = sum;
    workgroupBarrier();
    if part == 0u && row < params.n_rows && row < arrayLength(&products) {
        let even = (pair(invocation) + pair(invocation + 4u)) + (pair(invocation + 2u) + pair(invocation + 6u));
        let odd = (pair(invocation + 1u) + pair(invocation + 5u)) + (pair(invocation + 3u) + pair(invocation + 7u));
        products[row] = even + odd;
    }
    if row == 0xffffffffu {
        atomicMin(&fault[0], 0u);
    }
}
