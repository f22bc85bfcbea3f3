//! Some elements of a row at a time: their predictions, scales and contexts, and their symbols and kept bits.
//!
//! A tile and all that is made of it fit the first-level cache. The loops are over plain arrays and have no branch in
//! them, so that the compiler makes vectors of them; `arch` compiles them once more for CPUs with wider ones.

use super::low_rank::scaled;
use super::symbols::{distance_word, is_value, value_word};
use super::{Format, LOWEST, N_CONTEXTS};
use crate::arch::Kernels;

/// Elements of a tile at most.
pub(super) const TILE: usize = 512;

/// Elements of one row that stand next to each other, and what is known of them beforehand.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Tile<'a> {
    pub(super) format: Format,
    pub(super) len: usize,
    /// The same elements of the base; empty where predictions start from zero.
    pub(super) base: &'a [u8],
    pub(super) decay: Option<f32>,
    pub(super) low_rank: Option<Sums<'a>>,
    /// Scale of the row.
    pub(super) scale: i16,
    /// What each column adds to it; empty for nothing.
    pub(super) column_scales: &'a [u8],
}

/// What a matrix of low rank adds to the elements of a tile.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sums<'a> {
    pub(super) sums: &'a [i32],
    /// Power of two of the row, and what each column adds to it.
    pub(super) exponent: i32,
    pub(super) column_shifts: &'a [u8],
}

/// Where the symbols of a tile and what they keep are put: a place for each element in every list.
pub(crate) struct Coded<'a> {
    pub(super) contexts: &'a mut [u8],
    pub(super) symbols: &'a mut [u8],
    pub(super) raw_lens: &'a mut [u8],
    /// The kept bits above whole bytes.
    pub(super) raw_bits: &'a mut [u8],
    /// The whole bytes, lowest first; of numbers of two bytes only two lists are written.
    pub(super) low_bytes: [&'a mut [u8]; 4],
}

/// Where the symbols of a tile alone are put, and their contexts.
pub(crate) struct TileSymbols<'a> {
    pub(super) contexts: &'a mut [u8],
    pub(super) symbols: &'a mut [u8],
}

/// What is known of each element of a tile on the way to its symbol. Kept from tile to tile.
pub(crate) struct Lists {
    predicted: [u32; TILE],
    scales: [i16; TILE],
    elements: [u32; TILE],
    /// As `symbols` makes them, and the bits that they keep.
    words: [u32; TILE],
    kept: [u32; TILE],
}

impl Lists {
    pub(super) fn new() -> Self {
        let list = [0; TILE];
        Self { predicted: list, scales: [0; TILE], elements: list, words: list, kept: list }
    }
}

impl Tile<'_> {
    /// Sets predictions, scales and contexts.
    pub(super) fn predict(
        &self,
        kernels: &dyn Kernels,
        predicted: &mut [u32],
        scales: &mut [i16],
        contexts: &mut [u8],
    ) {
        if !kernels.predict_tile(self, predicted, scales, contexts) {
            predict(self, predicted, scales, contexts);
        }
    }

    /// Sets contexts and symbols of these elements, with so many leading bits of distances told apart.
    pub(super) fn symbols(
        &self,
        kernels: &dyn Kernels,
        detail: u8,
        source: &[u8],
        lists: &mut Lists,
        out: &mut TileSymbols<'_>,
    ) {
        if !kernels.symbols_of_tile(self, detail, source, lists, out) {
            set_symbols(self, detail, source, lists, out);
        }
    }

    /// Sets all there is to be coded of these elements.
    pub(super) fn code(
        &self,
        kernels: &dyn Kernels,
        detail: u8,
        source: &[u8],
        lists: &mut Lists,
        coded: &mut Coded<'_>,
    ) {
        if !kernels.code_tile(self, detail, source, lists, coded) {
            code(self, detail, source, lists, coded);
        }
    }
}

/// Sets predictions, scales and contexts of a tile. Inlined, so that a kernel is this function for another CPU.
#[inline(always)]
pub(crate) fn predict(tile: &Tile<'_>, predicted: &mut [u32], scales: &mut [i16], contexts: &mut [u8]) {
    let n = tile.len;
    let (predicted, scales, contexts) = (&mut predicted[..n], &mut scales[..n], &mut contexts[..n]);
    match tile.format {
        Format::Bf16 => predict_as(Format::Bf16, tile, predicted, scales, contexts),
        Format::F16 => predict_as(Format::F16, tile, predicted, scales, contexts),
        Format::F32 => predict_as(Format::F32, tile, predicted, scales, contexts),
    }
}

#[inline(always)]
fn predict_as(
    format: Format,
    tile: &Tile<'_>,
    predicted: &mut [u32],
    scales: &mut [i16],
    contexts: &mut [u8],
) {
    if tile.base.is_empty() {
        predicted.fill(0);
    } else {
        read(format, tile.base, predicted);
    }
    match (tile.decay, tile.low_rank) {
        (None, None) => {}
        (Some(decay), None) => {
            for p in &mut *predicted {
                *p = adjusted(format, *p, decay, 0.0);
            }
        }
        // A product by one changes nothing.
        (decay, Some(low_rank)) => {
            let decay = decay.unwrap_or(1.0);
            let columns = low_rank.sums.iter().zip(low_rank.column_shifts);
            for (p, (&sum, &column)) in predicted.iter_mut().zip(columns) {
                let added = scaled(sum, low_rank.exponent + i32::from(column));
                *p = adjusted(format, *p, decay, added);
            }
        }
    }
    if tile.column_scales.is_empty() {
        scales.fill(tile.scale);
    } else {
        for (scale, &column) in scales.iter_mut().zip(tile.column_scales) {
            *scale = tile.scale + i16::from(column);
        }
    }
    for (context, (&p, &scale)) in contexts.iter_mut().zip(predicted.iter().zip(&*scales)) {
        *context = context_of(format, p, scale);
    }
}

/// Elements as numbers of 32 bits.
#[inline(always)]
fn read(format: Format, elements: &[u8], out: &mut [u32]) {
    if format.width() == 2 {
        for (out, x) in out.iter_mut().zip(elements.as_chunks::<2>().0) {
            *out = u32::from(u16::from_le_bytes(*x));
        }
    } else {
        for (out, x) in out.iter_mut().zip(elements.as_chunks::<4>().0) {
            *out = u32::from_le_bytes(*x);
        }
    }
}

#[inline(always)]
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped to 0 to 52")]
fn context_of(format: Format, p: u32, scale: i16) -> u8 {
    const LAST: i32 = N_CONTEXTS as i32 - 1;
    (format.size(p) - i32::from(scale) + LOWEST).clamp(0, LAST) as u8
}

/// The base times its decay, and what a matrix of low rank adds.
#[inline(always)]
fn adjusted(format: Format, bits: u32, decay: f32, added: f32) -> u32 {
    let (shift, infinite) = match format {
        Format::Bf16 => (16, 0x7f80),
        // Predicted by its base as it is.
        Format::F16 => return bits,
        Format::F32 => (0, 0x7f80_0000),
    };
    let x = flushed(flushed(f32::from_bits(bits << shift)) * decay);
    let x = flushed(x + added);
    let sum = if shift == 0 { x.to_bits() } else { nearest_bf16(x) };
    if bits & infinite == infinite { bits } else { sum }
}

/// Zero in place of a number below the normal ones: some processors are set to do so on their own.
#[inline(always)]
fn flushed(x: f32) -> f32 {
    let bits = x.to_bits();
    f32::from_bits(if bits & 0x7f80_0000 == 0 { bits & 0x8000_0000 } else { bits })
}

/// The nearest bf16, the even one of two.
#[inline(always)]
fn nearest_bf16(x: f32) -> u32 {
    let bits = x.to_bits();
    let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16;
    if bits & 0x7f80_0000 == 0x7f80_0000 { bits >> 16 } else { rounded }
}

/// Contexts and symbols of a tile. Inlined like [`predict`].
#[inline(always)]
pub(crate) fn set_symbols(
    tile: &Tile<'_>,
    detail: u8,
    source: &[u8],
    lists: &mut Lists,
    out: &mut TileSymbols<'_>,
) {
    set_words(tile, detail, source, lists, out.contexts);
    for (symbol, &word) in out.symbols.iter_mut().zip(&lists.words[..tile.len]) {
        *symbol = low_byte(word);
    }
}

/// All there is to be coded of a tile. Inlined like [`predict`].
#[inline(always)]
pub(crate) fn code(tile: &Tile<'_>, detail: u8, source: &[u8], lists: &mut Lists, coded: &mut Coded<'_>) {
    set_words(tile, detail, source, lists, coded.contexts);
    let (words, kept) = (&lists.words[..tile.len], &lists.kept[..tile.len]);
    for (symbol, &word) in coded.symbols.iter_mut().zip(words) {
        *symbol = low_byte(word);
    }
    for (len, &word) in coded.raw_lens.iter_mut().zip(words) {
        *len = low_byte(word >> 8);
    }
    for (bits, (&word, &kept)) in coded.raw_bits.iter_mut().zip(words.iter().zip(kept)) {
        // 32 kept bits are whole bytes, and have none above them.
        *bits = low_byte(kept >> (word >> 8 & 0x18));
    }
    for (plane, bytes) in coded.low_bytes.iter_mut().enumerate().take(tile.format.width()) {
        for (byte, &kept) in bytes.iter_mut().zip(kept) {
            *byte = low_byte(kept >> (8 * plane));
        }
    }
}

#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "the low byte is what is wanted")]
fn low_byte(x: u32) -> u8 {
    x as u8
}

/// The words of all elements and the bits that they keep, and contexts.
#[inline(always)]
fn set_words(tile: &Tile<'_>, detail: u8, source: &[u8], lists: &mut Lists, contexts: &mut [u8]) {
    match tile.format {
        Format::Bf16 => set_words_as(Format::Bf16, tile, detail, source, lists, contexts),
        Format::F16 => set_words_as(Format::F16, tile, detail, source, lists, contexts),
        Format::F32 => set_words_as(Format::F32, tile, detail, source, lists, contexts),
    }
}

#[inline(always)]
fn set_words_as(
    format: Format,
    tile: &Tile<'_>,
    detail: u8,
    source: &[u8],
    lists: &mut Lists,
    contexts: &mut [u8],
) {
    let n = tile.len;
    let Lists { predicted, scales, elements, words, kept } = lists;
    let (predicted, scales, elements) = (&mut predicted[..n], &mut scales[..n], &mut elements[..n]);
    let contexts = &mut contexts[..n];
    predict_as(format, tile, predicted, scales, contexts);
    read(format, source, elements);
    let places = predicted.iter().zip(&*elements).zip(scales.iter().zip(&*contexts));
    let words = words[..n].iter_mut().zip(&mut kept[..n]);
    for ((word, kept), ((&p, &x), (&scale, &context))) in words.zip(places) {
        let of_value = value_word(format, scale, p, x);
        let of_distance = distance_word(format, detail, p, x);
        (*word, *kept) = if is_value(usize::from(context)) { of_value } else { of_distance };
    }
}
