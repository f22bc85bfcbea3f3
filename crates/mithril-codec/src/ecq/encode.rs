//! A matrix of symbols to blocks.

use super::{Escape, HEADER_LEN, OFFSET_UNIT, Shape, block_sum, kind, low_bits};
use crate::entropy::rans8::{EncodeState, EncodeTable, Frequencies, LANES, encode_groups};

/// What becomes of the symbols.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Coding {
    /// They are entropy-coded wherever that is smaller.
    Entropy,
    /// They keep four bits each, which a kernel reads without decoding.
    Fixed,
}

/// The parts of an encoded matrix.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Encoded {
    /// Room for the header, then the blocks.
    pub compressed: Vec<u8>,
    /// Where every block starts and the last one ends: `u32`, in units of four bytes.
    pub stream_offsets: Vec<u8>,
    /// Tables of sixteen frequencies.
    pub freq: Vec<u8>,
}

/// Encodes symbols, which stand with their padding, row by row.
///
/// `low_plane` is the plane of bits below them, and `escapes` are sorted by row and column; both only enter the
/// checksums and the lists of the blocks.
///
/// # Panics
/// When the lengths do not fit the shape, a symbol is above 15, a block has more than 65535 escapes, or the blocks take
/// more than 16 GiB.
pub fn encode(
    shape: &Shape,
    symbols: &[u8],
    low_plane: &[u8],
    escapes: &[Escape],
    coding: Coding,
) -> Encoded {
    assert_eq!(symbols.len(), shape.rows() * shape.padded_columns(), "a symbol for every place");
    assert_eq!(low_plane.len(), shape.rows() * shape.low_row_len(), "low bits for every place");
    let mut counts = [0u32; 16];
    for &symbol in symbols {
        counts[usize::from(symbol)] = counts[usize::from(symbol)].saturating_add(1);
    }
    let frequencies = Frequencies::from_counts(&counts);
    let streams = match coding {
        Coding::Entropy => rans8_blocks(shape, symbols, &frequencies),
        Coding::Fixed => vec![Vec::new(); shape.n_blocks()],
    };
    let mut encoded = Encoded {
        compressed: vec![0; HEADER_LEN],
        stream_offsets: Vec::with_capacity(4 * (shape.n_blocks() + 1)),
        freq: frequencies.bytes().to_vec(),
    };
    let mut rest = escapes;
    for (block_idx, stream) in streams.iter().enumerate() {
        let rows = shape.rows_of(block_idx);
        let symbols = &symbols[rows.start * shape.padded_columns()..rows.end * shape.padded_columns()];
        let low = &low_plane[rows.start * shape.low_row_len()..rows.end * shape.low_row_len()];
        let n_escapes = rest.partition_point(|escape| escape.row < rows.end);
        let own = rest.split_off(..n_escapes).unwrap_or_default();
        encoded.push_offset();
        let escapes = escape_bytes(shape, rows.start, own);
        push_block(&mut encoded.compressed, symbols, low, &escapes, stream);
    }
    encoded.push_offset();
    encoded
}

impl Encoded {
    fn push_offset(&mut self) {
        let units = u32::try_from(self.compressed.len() / OFFSET_UNIT).expect("blocks take less than 16 GiB");
        self.stream_offsets.extend(units.to_le_bytes());
    }
}

/// Positions in the block and values.
fn escape_bytes(shape: &Shape, first_row: usize, escapes: &[Escape]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(8 * escapes.len());
    for escape in escapes {
        let position = (escape.row - first_row) * shape.padded_columns() + escape.column;
        bytes.extend(u32::try_from(position).expect("a block has fewer than 2^24 symbols").to_le_bytes());
        bytes.extend(escape.value.to_bits().to_le_bytes());
    }
    bytes
}

/// Appends a block in the smallest kind that holds it, and fills its last unit.
fn push_block(out: &mut Vec<u8>, symbols: &[u8], low: &[u8], escapes: &[u8], stream: &[u8]) {
    let sum = block_sum(symbols, low, escapes);
    let packed_len = symbols.len() / 2;
    let first = symbols[0];
    let is_constant = symbols.iter().all(|&symbol| symbol == first);
    let (kind, argument) = if is_constant {
        (kind::CONSTANT, first)
    } else if !stream.is_empty() && stream.len() < packed_len {
        (kind::RANS8, 0)
    } else {
        (kind::PACKED, 0)
    };
    let n_escapes = u16::try_from(escapes.len() / 8).expect("a block has at most 65535 escapes");
    out.extend([kind, argument]);
    out.extend(n_escapes.to_le_bytes());
    out.extend(sum.to_le_bytes());
    out.extend(escapes);
    match kind {
        kind::CONSTANT => {}
        kind::RANS8 => out.extend(stream),
        _ => {
            let at = out.len();
            out.resize(at + packed_len, 0);
            low_bits::pack(4, symbols, &mut out[at..]);
        }
    }
    out.resize(out.len().next_multiple_of(OFFSET_UNIT), 0);
}

/// States and stream of every block. Four blocks at a time hide the latency of one another, as four streams of one
/// block do.
fn rans8_blocks(shape: &Shape, symbols: &[u8], frequencies: &Frequencies) -> Vec<Vec<u8>> {
    let table = EncodeTable::new(frequencies);
    let block_len = shape.n_symbols(0);
    let mut streams = Vec::with_capacity(shape.n_blocks());
    let (fours, rest) = symbols.split_at(symbols.len() / (4 * block_len) * (4 * block_len));
    let mut room = vec![0; EncodeState::<4>::room_len(4 * block_len)];
    let mut woven = vec![0; 4 * block_len];
    for four in fours.chunks_exact(4 * block_len) {
        for (group_idx, group) in woven.chunks_exact_mut(4 * LANES).enumerate() {
            for (block, out) in group.chunks_exact_mut(LANES).enumerate() {
                out.copy_from_slice(&four[block * block_len + group_idx * LANES..][..LANES]);
            }
        }
        let mut state = EncodeState::<4>::new(&mut room, 4 * block_len);
        encode_groups(&mut state, &table, &woven, &[]);
        streams.extend((0..4).map(|stream| state.states_and_stream(stream)));
    }
    for block in rest.chunks(block_len) {
        let mut state = EncodeState::<1>::new(&mut room, block.len());
        encode_groups(&mut state, &table, block, &[]);
        streams.push(state.states_and_stream(0));
    }
    streams
}
