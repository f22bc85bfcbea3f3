//! What a GPU needs to know of a block of bit fields with rANS8 symbols: where its parts lie, checked.
//!
//! The kernel that decodes it stands in `mithril-gpu`; [`super::decode_block`] is what it must equal.

use super::fields::read_header;
use super::symbols::read_escapes;
use crate::CodecError;
use crate::bytes::Cursor;
use crate::entropy::rans8::{DecodeState, DecodeTable, Frequencies, LANES, values_from};
use crate::forever::kind;
use crate::forever::symbols::{RANS8, RANS8_LISTED};
use crate::transform::fields::{FieldSplit, Order, VECTOR, pieces};

/// The parts of a block. Offsets are into its coded bytes.
#[derive(Debug, Clone)]
pub struct Rans8Parts<'a> {
    /// How elements part into fields.
    pub split: FieldSplit,
    /// Elements of the block.
    pub n_elements: usize,
    /// Where the packed rest starts.
    pub rest_at: usize,
    /// Pieces of the rest, in the order of the file.
    pub pieces: Vec<Piece>,
    /// Where the states of the lanes start: for each stream 32 high and 32 low bytes.
    pub states_at: usize,
    /// First byte and end of each stream, one or four.
    pub streams: Vec<(usize, usize)>,
    /// For every low byte of a state: plane byte, rank, frequency.
    pub slots: [(u8, u8, u8); 256],
    /// Elements whose top field is replaced, and by what.
    pub escapes: Vec<(u32, u16)>,
    /// Bytes behind the last whole element.
    pub tail: &'a [u8],
}

/// Some bits of the rest: see section 5.2 of `docs/format/frame.md`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece {
    /// Bits of the piece: 8, 4, 2 or 1.
    pub bits: u32,
    /// Bit of the element that its lowest bit is.
    pub low: u32,
    /// How many of its bits stand from there on; if there is one more, it is the sign.
    pub n_kept: u32,
}

impl<'a> Rans8Parts<'a> {
    /// Finds the parts of a coded block of `raw_len` bytes; nothing if it is of another kind or uses what only the CPU
    /// decodes (other coders, shared tables, coded signs or low bytes).
    ///
    /// # Errors
    /// When the block is damaged in a way that shows without decoding it.
    pub fn parse(coded: &'a [u8], raw_len: usize) -> Result<Option<Self>, CodecError> {
        if coded.first() != Some(&kind::FIELDS) {
            return Ok(None);
        }
        let mut cursor = Cursor::new(coded, "bit fields");
        let (split, n_low) = read_header(&mut cursor)?;
        let width = usize::from(split.layout.width);
        let n_elements = raw_len / width;
        if split.order == Order::Packed && !n_elements.is_multiple_of(VECTOR) {
            return Err(CodecError::corrupt("packed order of a broken vector"));
        }
        let rest_at = coded.len() - cursor.rest().len();
        cursor.take(split.rest_len(n_elements))?;
        let coder = cursor.u8()?;
        if !matches!(coder, RANS8 | RANS8_LISTED) || split.layout.sign && !split.raw_sign || n_low > 0 {
            return Ok(None);
        }
        let values = if coder == RANS8_LISTED { cursor.array()? } else { values_from(cursor.u8()?) };
        let frequencies = Frequencies::parse(cursor.array()?)?;
        let n_streams = cursor.u8()?;
        let states_at = coded.len() - cursor.rest().len();
        let (streams, used) = match n_streams {
            1 => streams::<1>(cursor.rest())?,
            4 => streams::<4>(cursor.rest())?,
            _ => return Err(CodecError::corrupt("number of rANS8 streams")),
        };
        cursor.take(used)?;
        let mut escapes = Vec::new();
        read_escapes(&mut cursor, &split, n_elements, |position| split.element_at(position), &mut escapes)?;
        let tail = cursor.rest();
        if tail.len() != raw_len - n_elements * width {
            return Err(CodecError::corrupt("bytes behind the bit fields"));
        }
        let streams = streams.into_iter().map(|(at, end)| (states_at + at, states_at + end)).collect();
        let (pieces, slots) = (pieces_of(&split), slots_of(&values, &frequencies));
        Ok(Some(Self { split, n_elements, rest_at, pieces, states_at, streams, slots, escapes, tail }))
    }
}

/// First byte and end of each stream, and the end of all.
fn streams<const N: usize>(data: &[u8]) -> Result<(Vec<(usize, usize)>, usize), CodecError> {
    const { assert!(LANES == 32, "the lanes of a kernel") };
    let (state, used) = DecodeState::<N>::read(data)?;
    Ok((state.at.into_iter().zip(state.ends).collect(), used))
}

fn pieces_of(split: &FieldSplit) -> Vec<Piece> {
    let of_group = |group: crate::transform::fields::Group| {
        pieces(group.width()).map(move |(shift, bits)| Piece {
            bits,
            low: group.low + shift,
            n_kept: group.n_bits.saturating_sub(shift).min(bits),
        })
    };
    split.groups().flat_map(of_group).collect()
}

fn slots_of(values: &[u8; 16], frequencies: &Frequencies) -> [(u8, u8, u8); 256] {
    let table = DecodeTable::new(frequencies);
    let mut slots = [(0, 0, 0); 256];
    for (low, slot) in (0..=u8::MAX).zip(&mut slots) {
        let (symbol, rank) = table.symbol_and_rank(low);
        *slot = (values[usize::from(symbol)], rank, table.freq[usize::from(symbol)]);
    }
    slots
}
