// DFloat11: exponents of bf16 weights, decoded in two phases.
//
// CPU twin, and the definition: `mithril_codec::df11::two_phase`.
//
// One workgroup decodes one workgroup of the format. Its threads own chunks of coded bits; here 256 invocations share
// them, so that devices with small workgroups can run files made for 512 or 1024 threads. Phase one counts the codes
// that start in each chunk, a prefix sum gives each chunk the place of its first element, phase two decodes again and
// writes. Nothing is read or written out of bounds, whatever the bytes are; what a CPU would refuse is reported in
// `fault`.

struct Params {
    // Of the format: threads of a workgroup, coded bits of a thread.
    n_threads: u32,
    chunk_bits: u32,
    // Tables with the row of code lengths.
    n_rows: u32,
    // Elements that this batch ends with, from its first element on.
    n_elements: u32,
    // Coded bytes from the start of the batch to the end of the run; only the last batch reaches it.
    encoded_len: u32,
    // 1 if the run's last element is in this batch.
    is_last: u32,
    n_workgroups: u32,
}

@group(0) @binding(0) var<storage, read> params: Params;
@group(0) @binding(1) var<storage, read> luts: array<u32>;
@group(0) @binding(2) var<storage, read> encoded: array<u32>;
@group(0) @binding(3) var<storage, read> signs_mantissas: array<u32>;
// First element of each workgroup, from the first of the batch on, and the end of the last.
@group(0) @binding(4) var<storage, read> positions: array<u32>;
@group(0) @binding(5) var<storage, read> gaps: array<u32>;
// Two elements in a word. Neighbouring chunks share words, hence the atomics.
@group(0) @binding(6) var<storage, read_write> elements: array<atomic<u32>>;
// Number of the first workgroup with a fault.
@group(0) @binding(7) var<storage, read_write> fault: array<atomic<u32>>;

const INVOCATIONS = 256u;
const MAX_CHUNKS = 4u;
const FIRST_TAG = 240u;
const LONGEST_CODE = 32u;
const GAP_BITS = 5u;

var<workgroup> sums: array<u32, 256>;

fn table_byte(at: u32) -> u32 {
    return (luts[min(at / 4u, arrayLength(&luts) - 1u)] >> (8u * (at % 4u))) & 255u;
}

// Word `at` of the coded bits, first bit highest; zeros behind the end.
fn coded_word(at: u32) -> u32 {
    if at >= arrayLength(&encoded) {
        return 0u;
    }
    let word = encoded[at];
    return (word << 24u) | ((word & 0xff00u) << 8u) | ((word >> 8u) & 0xff00u) | (word >> 24u);
}

fn bits_at(bit: u32) -> u32 {
    let shift = bit % 32u;
    let first = coded_word(bit / 32u) << shift;
    if shift == 0u {
        return first;
    }
    return first | (coded_word(bit / 32u + 1u) >> (32u - shift));
}

// The first symbol of 32 bits, and the length of its code from bit 8 on; zero if there is none.
fn find(bits: u32) -> u32 {
    var row = 0u;
    for (var step = 0u; step < 4u; step++) {
        let value = table_byte(256u * row + ((bits >> (24u - 8u * step)) & 255u));
        if value < FIRST_TAG {
            let length = table_byte(256u * (params.n_rows - 1u) + value);
            return select(0u, value | (length << 8u), length >= 1u && length <= LONGEST_CODE);
        }
        row = 256u - value;
    }
    return 0u;
}

fn gap_byte(at: u32) -> u32 {
    let word = at / 4u;
    if word >= arrayLength(&gaps) {
        return 0u;
    }
    return (gaps[word] >> (8u * (at % 4u))) & 255u;
}

fn first_bit(thread: u32) -> u32 {
    let bit = thread * GAP_BITS;
    let two = (gap_byte(bit / 8u) << 8u) | gap_byte(bit / 8u + 1u);
    return thread * params.chunk_bits + ((two >> (16u - GAP_BITS - bit % 8u)) & 31u);
}

fn count(thread: u32) -> u32 {
    let end = (thread + 1u) * params.chunk_bits;
    var bit = first_bit(thread);
    var n_codes = 0u;
    while bit < end {
        let found = find(bits_at(bit));
        if found == 0u {
            break;
        }
        bit += found >> 8u;
        n_codes += 1u;
    }
    return n_codes;
}

// Writes the elements of a chunk; whether its codes end where they must.
fn write_chunk(thread: u32, first_place: u32) -> bool {
    let end = (thread + 1u) * params.chunk_bits;
    var bit = first_bit(thread);
    var place = first_place;
    while bit < end && place < params.n_elements {
        let found = find(bits_at(bit));
        if found == 0u {
            return false;
        }
        let kept = (signs_mantissas[place / 4u] >> (8u * (place % 4u))) & 255u;
        let element = ((kept & 0x80u) << 8u) | ((found & 255u) << 7u) | (kept & 0x7fu);
        atomicOr(&elements[place / 2u], element << (16u * (place % 2u)));
        bit += found >> 8u;
        place += 1u;
    }
    if place < params.n_elements || params.is_last == 0u {
        return bit == first_bit(thread + 1u);
    }
    // Chunks behind the one with the last element hold nothing.
    return first_place >= params.n_elements || (bit + 7u) / 8u == params.encoded_len;
}

@compute @workgroup_size(256)
fn main(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) grid: vec3<u32>,
    @builtin(local_invocation_index) invocation: u32,
) {
    let number = workgroup.y * grid.x + workgroup.x;
    let is_there = number < params.n_workgroups;
    let n_chunks = clamp(params.n_threads / INVOCATIONS, 1u, MAX_CHUNKS);
    let first_thread = invocation * n_chunks;
    let has_chunks = is_there && first_thread < params.n_threads;
    var counts: array<u32, 4>;
    var own = 0u;
    if has_chunks {
        for (var chunk = 0u; chunk < n_chunks; chunk++) {
            counts[chunk] = count(number * params.n_threads + first_thread + chunk);
            own += counts[chunk];
        }
    }
    sums[invocation] = own;
    workgroupBarrier();
    for (var step = 1u; step < INVOCATIONS; step *= 2u) {
        var before = 0u;
        if invocation >= step {
            before = sums[invocation - step];
        }
        workgroupBarrier();
        sums[invocation] += before;
        workgroupBarrier();
    }
    if !has_chunks {
        return;
    }
    var place = positions[number] + sums[invocation] - own;
    var is_right = true;
    for (var chunk = 0u; chunk < n_chunks; chunk++) {
        is_right = write_chunk(number * params.n_threads + first_thread + chunk, place) && is_right;
        place += counts[chunk];
    }
    if first_thread + n_chunks == params.n_threads {
        is_right = min(place, params.n_elements) == positions[number + 1u] && is_right;
    }
    if !is_right {
        atomicMin(&fault[0], number);
    }
}
