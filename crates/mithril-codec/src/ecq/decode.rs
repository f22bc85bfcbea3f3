//! Blocks of a matrix read back from untrusted bytes.

use super::{BLOCK_HEADER_LEN, ESCAPE_LEN, Escape, HEADER_LEN, MAX_TABLES, OFFSET_UNIT, Shape};
use super::{block_sum, kind, low_bits};
use crate::CodecError;
use crate::bytes::Cursor;
use crate::entropy::rans8::{DecodeState, DecodeTable, Frequencies, LANES, decode_apart};
use std::ops::Range;

/// The bytes of an encoded matrix.
#[derive(Debug, Clone, Copy)]
pub struct Parts<'a> {
    /// The header and the blocks.
    pub compressed: &'a [u8],
    /// Where every block starts and the last one ends.
    pub stream_offsets: &'a [u8],
    /// Tables of sixteen frequencies.
    pub freq: &'a [u8],
    /// The plane of low bits; empty without them.
    pub low_bits: &'a [u8],
}

/// An encoded matrix whose parts fit together. Blocks are checked when they are decoded.
#[derive(Debug, Clone)]
pub struct Coded<'a> {
    shape: Shape,
    parts: Parts<'a>,
    tables: Vec<DecodeTable>,
}

/// A block as it lies in the file.
pub(crate) struct BlockView<'a> {
    pub(crate) content: Content<'a>,
    escapes: &'a [u8],
    sum: u32,
}

pub(crate) enum Content<'a> {
    /// Four bits each, in the order of `low_bits`.
    Packed(&'a [u8]),
    /// The same symbol everywhere.
    Constant(u8),
    /// States, and the bytes of the stream as offsets into `compressed`.
    Rans8 { table: usize, states: &'a [u8; 2 * LANES], stream: Range<usize> },
}

impl<'a> Coded<'a> {
    /// Checks that the parts fit a shape and each other.
    ///
    /// # Errors
    /// `Corrupt` when they do not.
    pub fn new(shape: Shape, parts: Parts<'a>) -> Result<Self, CodecError> {
        let corrupt = CodecError::corrupt;
        if parts.low_bits.len() != shape.rows() * shape.low_row_len() {
            return Err(corrupt("low bits of another length than their matrix"));
        }
        let (tables, rest) = parts.freq.as_chunks::<16>();
        if !rest.is_empty() || tables.is_empty() || tables.len() > MAX_TABLES {
            return Err(corrupt("number of frequencies"));
        }
        let table = |bytes: &[u8; 16]| Ok(DecodeTable::new(&Frequencies::parse(*bytes)?));
        let tables = tables.iter().map(table).collect::<Result<Vec<DecodeTable>, CodecError>>()?;
        let (offsets, rest) = parts.stream_offsets.as_chunks::<4>();
        if !rest.is_empty() || offsets.len() != shape.n_blocks() + 1 {
            return Err(corrupt("number of block offsets"));
        }
        let mut last = HEADER_LEN / OFFSET_UNIT;
        if offsets.first().is_some_and(|first| u32::from_le_bytes(*first) as usize != last) {
            return Err(corrupt("offset of the first block"));
        }
        for offset in offsets {
            let offset = u32::from_le_bytes(*offset) as usize;
            if offset < last {
                return Err(corrupt("block offsets that do not rise"));
            }
            last = offset;
        }
        if last.checked_mul(OFFSET_UNIT) != Some(parts.compressed.len()) {
            return Err(corrupt("blocks that do not end where their bytes do"));
        }
        Ok(Self { shape, parts, tables })
    }

    /// Its shape.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    pub(crate) fn low_rows(&self, rows: Range<usize>) -> &'a [u8] {
        let len = self.shape.low_row_len();
        &self.parts.low_bits[rows.start * len..rows.end * len]
    }

    pub(crate) fn tables(&self) -> &[DecodeTable] {
        &self.tables
    }

    /// The header and the blocks.
    pub fn compressed(&self) -> &'a [u8] {
        self.parts.compressed
    }

    /// Which of those bytes some blocks are.
    pub fn bytes_of(&self, blocks: Range<usize>) -> Range<usize> {
        self.offset(blocks.start)..self.offset(blocks.end)
    }

    /// Whether a block's symbols are not entropy-coded.
    pub fn is_fixed(&self, block_idx: usize) -> bool {
        self.block(block_idx).is_ok_and(|view| !matches!(view.content, Content::Rans8 { .. }))
    }

    /// Decodes the symbols of a block without comparing its sum.
    pub(crate) fn decode_unchecked(&self, block_idx: usize, out: &mut [u8]) -> Result<(), CodecError> {
        let view = self.block(block_idx)?;
        self.decode_views(std::slice::from_ref(&view), out.len(), out)
    }

    fn offset(&self, idx: usize) -> usize {
        let offset = self.parts.stream_offsets.as_chunks::<4>().0[idx];
        u32::from_le_bytes(offset) as usize * OFFSET_UNIT
    }

    pub(crate) fn block(&self, block_idx: usize) -> Result<BlockView<'a>, CodecError> {
        let bytes = self.offset(block_idx)..self.offset(block_idx + 1);
        let mut cursor = Cursor::new(&self.parts.compressed[bytes.clone()], "block of a matrix");
        let (kind, argument) = (cursor.u8()?, cursor.u8()?);
        let n_escapes = usize::from(cursor.u16()?);
        let sum = cursor.u32()?;
        let escapes = cursor.take(n_escapes * ESCAPE_LEN)?;
        let n_symbols = self.shape.n_symbols(block_idx);
        let content = match kind {
            kind::CONSTANT if argument < 16 => Content::Constant(argument),
            kind::PACKED if argument == 0 => Content::Packed(cursor.take(n_symbols / 2)?),
            kind::RANS8 if usize::from(argument) < self.tables.len() => {
                let states = cursor.array_ref::<{ 2 * LANES }>()?;
                let stream = bytes.start + BLOCK_HEADER_LEN + escapes.len() + 2 * LANES..bytes.end;
                return Ok(BlockView {
                    content: Content::Rans8 { table: usize::from(argument), states, stream },
                    escapes,
                    sum,
                });
            }
            kind::CONSTANT | kind::PACKED | kind::RANS8 => {
                return Err(CodecError::corrupt("symbol or table of a block"));
            }
            kind => return Err(CodecError::Unsupported { what: "kind of matrix block", id: kind.into() }),
        };
        if !is_padding(cursor.rest()) {
            return Err(CodecError::corrupt("bytes behind a block"));
        }
        Ok(BlockView { content, escapes, sum })
    }

    /// Decodes the symbols of some blocks, padding included, and checks everything that belongs to them.
    ///
    /// # Errors
    /// When a block is damaged.
    ///
    /// # Panics
    /// When there are no such blocks, or `out` has another length than their symbols.
    pub fn decode_symbols(&self, blocks: Range<usize>, out: &mut [u8]) -> Result<(), CodecError> {
        self.decode_fours(blocks, out, true)
    }

    /// As [`Coded::decode_symbols`], for blocks whose sums were compared before: that is not done again.
    ///
    /// # Errors
    /// When a stream does not end where its symbols do.
    ///
    /// # Panics
    /// As [`Coded::decode_symbols`].
    pub fn decode_symbols_again(&self, blocks: Range<usize>, out: &mut [u8]) -> Result<(), CodecError> {
        self.decode_fours(blocks, out, false)
    }

    fn decode_fours(&self, blocks: Range<usize>, out: &mut [u8], verify: bool) -> Result<(), CodecError> {
        let n_symbols: usize = blocks.clone().map(|idx| self.shape.n_symbols(idx)).sum();
        assert_eq!(out.len(), n_symbols, "room for every symbol");
        let block_len = self.shape.n_symbols(0);
        for (four, out) in blocks.clone().step_by(4).zip(out.chunks_mut(4 * block_len)) {
            let blocks = four..(four + 4).min(blocks.end);
            let views = blocks.clone().map(|idx| self.block(idx)).collect::<Result<Vec<_>, _>>()?;
            self.decode_views(&views, block_len, out)?;
            for ((idx, view), symbols) in blocks.zip(&views).zip(out.chunks(block_len)).filter(|_| verify) {
                self.verify_view(idx, view, symbols)?;
            }
        }
        Ok(())
    }

    fn verify_view(&self, block_idx: usize, view: &BlockView<'_>, symbols: &[u8]) -> Result<(), CodecError> {
        let low_bits = self.low_rows(self.shape.rows_of(block_idx));
        if block_sum(symbols, low_bits, view.escapes) != view.sum {
            return Err(CodecError::corrupt("checksum of a block of a matrix"));
        }
        Ok(())
    }

    /// Compares the sum of a block, whose symbols were decoded elsewhere.
    ///
    /// # Errors
    /// When it is another one.
    pub fn verify_block(&self, block_idx: usize, symbols: &[u8]) -> Result<(), CodecError> {
        self.verify_view(block_idx, &self.block(block_idx)?, symbols)
    }

    /// Up to four blocks at once where they share a table, else one after the other.
    fn decode_views(
        &self,
        views: &[BlockView<'_>],
        block_len: usize,
        out: &mut [u8],
    ) -> Result<(), CodecError> {
        let table_of = |view: &BlockView<'_>| match view.content {
            Content::Rans8 { table, .. } => Some(table),
            _ => None,
        };
        if let Some(table) = views.first().and_then(table_of)
            && views.iter().all(|view| table_of(view) == Some(table))
        {
            let outs = out.chunks_mut(block_len);
            return match views.len() {
                4 => self.decode_streams::<4>(views, table, outs),
                3 => self.decode_streams::<3>(views, table, outs),
                2 => self.decode_streams::<2>(views, table, outs),
                _ => self.decode_streams::<1>(views, table, outs),
            };
        }
        for (view, out) in views.iter().zip(out.chunks_mut(block_len)) {
            match view.content {
                Content::Constant(symbol) => out.fill(symbol),
                Content::Packed(packed) => low_bits::unpack(4, packed, out),
                Content::Rans8 { table, .. } => {
                    let outs = std::iter::once(out);
                    self.decode_streams::<1>(std::slice::from_ref(view), table, outs)?;
                }
            }
        }
        Ok(())
    }

    /// Streams with an output each, of which the last may be shorter than the others.
    fn decode_streams<'b, const N: usize>(
        &self,
        views: &[BlockView<'_>],
        table: usize,
        mut outs: impl Iterator<Item = &'b mut [u8]>,
    ) -> Result<(), CodecError> {
        let mut planes = [[0; 2 * LANES]; N];
        let (mut at, mut ends) = ([0; N], [0; N]);
        for (idx, view) in views.iter().enumerate() {
            if let Content::Rans8 { states, stream, .. } = &view.content {
                (planes[idx], at[idx], ends[idx]) = (**states, stream.start, stream.end);
            }
        }
        let mut state = DecodeState::of_streams(planes, at, ends)?;
        let mut outs: [&mut [u8]; N] = std::array::from_fn(|_| outs.next().unwrap_or_default());
        let shared = outs.iter().map(|out| out.len()).min().unwrap_or(0);
        let (table, data) = (&self.tables[table], self.parts.compressed);
        decode_apart(&mut state, table, data, outs.each_mut().map(|out| &mut out[..shared]))?;
        let rests = outs.into_iter().map(|out| &mut out[shared..]);
        match N {
            4 => decode_first::<N, 3>(&mut state, table, data, rests)?,
            3 => decode_first::<N, 2>(&mut state, table, data, rests)?,
            2 => decode_first::<N, 1>(&mut state, table, data, rests)?,
            _ => {}
        }
        self.check_ends(&state)
    }

    /// Every lane at rest, every stream read up to its padding.
    pub(crate) fn check_ends<const N: usize>(&self, state: &DecodeState<N>) -> Result<(), CodecError> {
        let data = self.parts.compressed;
        let is_read = |(&at, &end): (&usize, &usize)| at <= end && is_padding(&data[at..end]);
        if state.is_at_rest() && state.at.iter().zip(&state.ends).all(is_read) {
            Ok(())
        } else {
            Err(CodecError::corrupt("a block's stream does not end where its symbols do"))
        }
    }

    /// Decodes rows to codes of one byte: the symbol above its low bits, without padding.
    ///
    /// # Errors
    /// When a block that holds one of the rows is damaged.
    ///
    /// # Panics
    /// When there are no such rows, `out` has another length than their codes, or there are eight low bits.
    pub fn decode_rows(&self, rows: Range<usize>, out: &mut [u8]) -> Result<(), CodecError> {
        let shape = &self.shape;
        assert!(shape.low_bits() < 8, "codes of twelve bits do not fit a byte");
        assert!(
            rows.end <= shape.rows() && out.len() == rows.len() * shape.columns(),
            "a place for every code"
        );
        let (padded, low_bits) = (shape.padded_columns(), shape.low_bits());
        let mut outs = out.chunks_exact_mut(shape.columns());
        let mut low = vec![0; padded];
        let mut symbols = Vec::new();
        let blocks = shape.blocks_of(rows.clone());
        for four in blocks.clone().step_by(4) {
            let four = four..(four + 4).min(blocks.end);
            let held = shape.rows_of(four.start).start..shape.rows_of(four.end - 1).end;
            symbols.resize(held.len() * padded, 0);
            self.decode_symbols(four, &mut symbols)?;
            for row in held.start.max(rows.start)..held.end.min(rows.end) {
                let symbols = &symbols[(row - held.start) * padded..][..padded];
                let Some(out) = outs.next() else { break };
                if low_bits == 0 {
                    out.copy_from_slice(&symbols[..out.len()]);
                    continue;
                }
                low_bits::unpack(low_bits, self.low_rows(row..row + 1), &mut low);
                for ((out, symbol), low) in out.iter_mut().zip(symbols).zip(&low) {
                    *out = symbol << low_bits | low;
                }
            }
        }
        Ok(())
    }

    /// The escapes of a block, by row and column of the matrix.
    ///
    /// # Errors
    /// When one lies outside of the block, or they do not rise.
    pub fn escapes(&self, block_idx: usize) -> Result<Vec<Escape>, CodecError> {
        let (padded, first_row) = (self.shape.padded_columns(), self.shape.rows_of(block_idx).start);
        let mut escapes = Vec::new();
        let mut least = 0;
        for bytes in self.block(block_idx)?.escapes.as_chunks::<ESCAPE_LEN>().0 {
            let [a, b, c, d, value @ ..] = *bytes;
            let position = u32::from_le_bytes([a, b, c, d]) as usize;
            let column = position % padded;
            if position < least
                || position >= self.shape.n_symbols(block_idx)
                || column >= self.shape.columns()
            {
                return Err(CodecError::corrupt("place of an escape"));
            }
            least = position + 1;
            let value = f32::from_bits(u32::from_le_bytes(value));
            escapes.push(Escape { row: first_row + position / padded, column, value });
        }
        Ok(escapes)
    }
}

/// Goes on with the first `M` of `N` streams.
fn decode_first<'b, const N: usize, const M: usize>(
    state: &mut DecodeState<N>,
    table: &DecodeTable,
    data: &[u8],
    mut outs: impl Iterator<Item = &'b mut [u8]>,
) -> Result<(), CodecError> {
    let mut first = DecodeState::<M> {
        planes: std::array::from_fn(|stream| state.planes[stream]),
        at: std::array::from_fn(|stream| state.at[stream]),
        ends: std::array::from_fn(|stream| state.ends[stream]),
    };
    decode_apart(&mut first, table, data, std::array::from_fn(|_| outs.next().unwrap_or_default()))?;
    state.planes[..M].copy_from_slice(&first.planes);
    state.at[..M].copy_from_slice(&first.at);
    Ok(())
}

fn is_padding(rest: &[u8]) -> bool {
    rest.len() < OFFSET_UNIT && rest.iter().all(|&byte| byte == 0)
}
