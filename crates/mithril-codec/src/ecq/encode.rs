//! A matrix of symbols to blocks.

use super::{Escape, HEADER_LEN, OFFSET_UNIT, Shape, block_sum, kind, low_bits};
use crate::arch::kernels;
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
    let frequencies = Frequencies::from_counts(&count(symbols));
    let mut blocks = Blocks {
        shape,
        symbols,
        low_plane,
        escapes,
        encoded: Encoded {
            compressed: Vec::with_capacity(HEADER_LEN + symbols.len() / 2),
            stream_offsets: Vec::with_capacity(4 * (shape.n_blocks() + 1)),
            freq: frequencies.bytes().to_vec(),
        },
    };
    blocks.encoded.compressed.resize(HEADER_LEN, 0);
    match coding {
        Coding::Entropy => blocks.push_coded(&EncodeTable::new(&frequencies)),
        Coding::Fixed => (0..shape.n_blocks()).for_each(|block_idx| blocks.push(block_idx, None)),
    }
    let mut encoded = blocks.encoded;
    encoded.push_offset();
    encoded.compressed.shrink_to_fit();
    encoded
}

/// How often every symbol occurs.
fn count(symbols: &[u8]) -> [u32; 16] {
    let mut counts = [0u32; 16];
    // Pieces are short enough for their counts, and a matrix may be too long for its own.
    for piece in symbols.chunks(1 << 24) {
        let mut own = [0; 16];
        let done = kernels().count_values(piece, 0, &mut own);
        for &symbol in &piece[done..] {
            own[usize::from(symbol)] += 1;
        }
        assert_eq!(own.iter().sum::<u32>() as usize, piece.len(), "symbols are below 16");
        for (count, own) in counts.iter_mut().zip(own) {
            *count = count.saturating_add(own);
        }
    }
    counts
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

/// A matrix whose blocks are appended one after the other.
struct Blocks<'a> {
    shape: &'a Shape,
    symbols: &'a [u8],
    low_plane: &'a [u8],
    /// Those of blocks to come.
    escapes: &'a [Escape],
    encoded: Encoded,
}

impl Blocks<'_> {
    /// Appends the next block in the smallest kind that holds it, and fills its last unit. `coded` is its states and
    /// its stream.
    fn push(&mut self, block_idx: usize, coded: Option<[&[u8]; 2]>) {
        let (shape, rows) = (self.shape, self.shape.rows_of(block_idx));
        let symbols = &self.symbols[rows.start * shape.padded_columns()..rows.end * shape.padded_columns()];
        let low = &self.low_plane[rows.start * shape.low_row_len()..rows.end * shape.low_row_len()];
        let n_escapes = self.escapes.partition_point(|escape| escape.row < rows.end);
        let own = self.escapes.split_off(..n_escapes).unwrap_or_default();
        let escapes = escape_bytes(shape, rows.start, own);
        self.encoded.push_offset();
        let out = &mut self.encoded.compressed;
        let packed_len = symbols.len() / 2;
        let first = symbols[0];
        let is_constant = symbols.iter().all(|&symbol| symbol == first);
        let coded = coded.filter(|[states, stream]| states.len() + stream.len() < packed_len);
        let (kind, argument) = match coded {
            _ if is_constant => (kind::CONSTANT, first),
            Some(_) => (kind::RANS8, 0),
            None => (kind::PACKED, 0),
        };
        let n_escapes = u16::try_from(escapes.len() / 8).expect("a block has at most 65535 escapes");
        out.extend([kind, argument]);
        out.extend(n_escapes.to_le_bytes());
        out.extend(block_sum(symbols, low, &escapes).to_le_bytes());
        out.extend_from_slice(&escapes);
        match coded {
            _ if is_constant => {}
            Some([states, stream]) => {
                out.extend_from_slice(states);
                out.extend_from_slice(stream);
            }
            None => {
                let at = out.len();
                out.resize(at + packed_len, 0);
                low_bits::pack(4, symbols, &mut out[at..]);
            }
        }
        out.resize(out.len().next_multiple_of(OFFSET_UNIT), 0);
    }

    /// Appends all blocks, entropy-coded where that is smaller. Four blocks at a time hide the latency of one another,
    /// as four streams of one block do.
    fn push_coded(&mut self, table: &EncodeTable) {
        let block_len = self.shape.n_symbols(0);
        let symbols = self.symbols;
        let mut room = vec![0; EncodeState::<4>::room_len(4 * block_len)];
        let mut woven = Vec::new();
        let fours = symbols.chunks_exact(4 * block_len);
        let rest = fours.remainder();
        let mut block_idx = 0;
        for four in fours {
            let mut state = EncodeState::<4>::new(&mut room, 4 * block_len);
            encode_four(&mut state, table, four, &mut woven);
            for stream in 0..4 {
                self.push(block_idx, Some(state.states_and_stream(stream)));
                block_idx += 1;
            }
        }
        for block in rest.chunks(block_len) {
            let mut state = EncodeState::<1>::new(&mut room, block.len());
            encode_groups(&mut state, table, block, &[]);
            self.push(block_idx, Some(state.states_and_stream(0)));
            block_idx += 1;
        }
    }
}

/// Encodes four blocks, which stand one behind the other, as four streams. `woven` is scratch.
fn encode_four(
    state: &mut EncodeState<'_, 4>,
    table: &EncodeTable,
    four: &[u8],
    woven: &mut Vec<[[u8; LANES]; 4]>,
) {
    let block_len = four.len() / 4;
    let blocks = std::array::from_fn(|stream| &four[stream * block_len..][..block_len]);
    let (streams, room) = state.streams();
    if kernels().rans8_encode_apart(streams, room, table, blocks) {
        return;
    }
    woven.resize(block_len / LANES, [[0; LANES]; 4]);
    for (stream, block) in blocks.iter().enumerate() {
        for (group, symbols) in woven.iter_mut().zip(block.as_chunks::<LANES>().0) {
            group[stream] = *symbols;
        }
    }
    encode_groups(state, table, woven.as_flattened().as_flattened(), &[]);
}
