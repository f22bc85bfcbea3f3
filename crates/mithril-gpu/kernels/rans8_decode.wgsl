// Blocks of bit fields whose top fields are rANS8 symbols: decoded and joined with their rest.
//
// CPU twin, and the definition: `decode_group` in `mithril_codec::entropy::rans8`, `join_tiles` in
// `mithril_codec::transform::fields`; bytes in docs/format/frame.md, sections 5, 6 and 9.
//
// One workgroup decodes one block: 4 streams of 32 lanes, or 1. In each step the lanes of a stream that need a byte
// take the next ones in the order of lanes; how many lanes before it need one, a lane learns by `vote`, from
// `lanes_workgroup.wgsl` or `lanes_subgroup.wgsl`, one of which stands behind this file. Nothing is read or written out of
// bounds, whatever the bytes are; what a CPU would refuse is reported in `fault`, and what only checksums find is found by
// them.

struct Block {
    // Bytes of `data`: packed rest, states of the lanes, first byte and end of each stream.
    rest_at: u32,
    states_at: u32,
    stream_at: vec4<u32>,
    stream_end: vec4<u32>,
    n_streams: u32,
    n_elements: u32,
    // First word of `elements`.
    out_at: u32,
    // Of `escapes`: first and number.
    escapes_at: u32,
    n_escapes: u32,
    // Bytes of an element, and how its bits are laid out.
    width: u32,
    top_shift: u32,
    top_bits: u32,
    base: u32,
    is_packed: u32,
    flip: u32,
    n_pieces: u32,
    // Pieces of the rest: bits; lowest bit of the element; how many of its bits go there, the next one being the sign.
    piece_bits: array<u32, 12>,
    piece_low: array<u32, 12>,
    piece_kept: array<u32, 12>,
}

@group(0) @binding(0) var<storage, read> blocks: array<Block>;
@group(0) @binding(1) var<storage, read> data: array<u32>;
// For each block and slot: plane byte, rank from bit 8 on, frequency from bit 16 on.
@group(0) @binding(2) var<storage, read> slots: array<u32>;
// Pairs of element and top field.
@group(0) @binding(3) var<storage, read> escapes: array<vec2<u32>>;
@group(0) @binding(4) var<storage, read_write> elements: array<atomic<u32>>;
// Number of the first block with a fault.
@group(0) @binding(5) var<storage, read_write> fault: array<atomic<u32>>;

const LANES = 32u;
const REST = 256u;
const INVOCATIONS = 128u;

fn data_byte(at: u32) -> u32 {
    let word = at / 4u;
    if word >= arrayLength(&data) {
        return 0u;
    }
    return (data[word] >> (8u * (at % 4u))) & 255u;
}

fn low_mask(bits: u32) -> u32 {
    return select((1u << (bits & 31u)) - 1u, 0xffffffffu, bits >= 32u);
}

// The element of a place of the plane.
fn element_at(block: u32, position: u32) -> u32 {
    if blocks[block].is_packed == 0u {
        return position;
    }
    let lane = position % LANES;
    if blocks[block].width == 2u {
        return position - lane + (lane & 7u) + 2u * (lane & 8u) + (lane & 16u) / 2u;
    }
    return position - lane + 8u * ((lane & 15u) / 4u) + (lane & 3u) + 4u * (lane / 16u);
}

// The bits of the rest at a place of the plane, where they stand in the element.
fn rest_of(block: u32, position: u32) -> u32 {
    let n_pieces = blocks[block].n_pieces;
    let tile = position / 256u;
    let vector = (position % 256u) / LANES;
    let lane = position % LANES;
    let left = blocks[block].n_elements - 256u * tile;
    let n_vectors = min((left + LANES - 1u) / LANES, 8u);
    let sign_shift = 8u * blocks[block].width - 1u;
    // Full tiles come first.
    var full_len = 0u;
    for (var piece = 0u; piece < n_pieces; piece++) {
        full_len += LANES * blocks[block].piece_bits[piece];
    }
    var at = blocks[block].rest_at + tile * full_len;
    var element = 0u;
    for (var piece = 0u; piece < n_pieces; piece++) {
        let bits = blocks[block].piece_bits[piece];
        let kept = blocks[block].piece_kept[piece];
        let sharing = 8u / bits;
        let byte = data_byte(at + LANES * (vector / sharing) + lane);
        let value = (byte >> (bits * (vector % sharing))) & low_mask(bits);
        if kept > 0u {
            element |= (value & low_mask(kept)) << blocks[block].piece_low[piece];
        }
        if kept < bits {
            element |= (value >> kept) << sign_shift;
        }
        at += LANES * ((n_vectors + sharing - 1u) / sharing);
    }
    return element;
}

// Where an element lies: its word, and its lowest bit in it.
fn place_of(block: u32, element: u32) -> vec2<u32> {
    let byte = element * blocks[block].width;
    return vec2(blocks[block].out_at + byte / 4u, 8u * (byte % 4u));
}

fn sign_bit(block: u32) -> u32 {
    return 1u << (8u * blocks[block].width - 1u);
}

fn run(workgroup: vec3<u32>, invocation: u32) {
    let block = workgroup.x;
    let n_streams = blocks[block].n_streams;
    let n_elements = blocks[block].n_elements;
    let stream = invocation / LANES;
    let lane = invocation % LANES;
    let is_lane = stream < n_streams;
    let group_len = LANES * n_streams;
    let n_groups = (n_elements + group_len - 1u) / group_len;
    let flip = select(0u, sign_bit(block), blocks[block].flip == 1u);
    var state = REST;
    var at = 0u;
    var end = 0u;
    if is_lane {
        let states = blocks[block].states_at + stream * 2u * LANES + lane;
        state = (data_byte(states) << 8u) | data_byte(states + LANES);
        at = blocks[block].stream_at[stream];
        end = blocks[block].stream_end[stream];
    }
    var is_short = false;
    for (var group = 0u; group < n_groups; group++) {
        let position = group * group_len + invocation;
        if is_lane {
            let slot = slots[256u * block + (state & 255u)];
            if position < n_elements {
                let top = ((slot & 255u) + blocks[block].base) & low_mask(blocks[block].top_bits);
                let element = (rest_of(block, position) | (top << blocks[block].top_shift)) ^ flip;
                let place = place_of(block, element_at(block, position));
                atomicOr(&elements[place.x], element << place.y);
            }
            state = (slot >> 16u) * (state >> 8u) + ((slot >> 8u) & 255u);
        }
        let mask = vote(group, stream, lane, is_lane && state < REST);
        if is_lane {
            if state < REST {
                let byte_at = at + countOneBits(mask & low_mask(lane));
                is_short = is_short || byte_at >= end;
                state = (state << 8u) | data_byte(min(byte_at, end));
            }
            at += countOneBits(mask);
        }
    }
    if is_lane && (is_short || state != REST || at != end) {
        atomicMin(&fault[0], block);
    }
    // Escapes replace top fields of this workgroup's own elements. The bit that FLIP inverts is one of theirs.
    storageBarrier();
    let top_mask = low_mask(blocks[block].top_bits) << blocks[block].top_shift;
    for (var idx = invocation; idx < blocks[block].n_escapes; idx += INVOCATIONS) {
        let escape = escapes[blocks[block].escapes_at + idx];
        let place = place_of(block, escape.x);
        atomicAnd(&elements[place.x], ~(top_mask << place.y));
        atomicOr(&elements[place.x], ((escape.y << blocks[block].top_shift) ^ flip) << place.y);
    }
}
