//! Bit fields: the top bits of every element, which are worth coding, apart from the rest, which is not.
//!
//! An element is `[sign] [top] [rest] [dead]`. For a float, `top` is the exponent and `joint` more bits of the
//! mantissa; for an integer it is the high bits. `dead` low bits are zero in the whole block and cost nothing.
//!
//! * The **plane** has one byte per element: `top - base`, or 255 where that does not fit.
//! * The **rest** is grouped by the byte of the element that its bits stand in, lowest byte first; the sign joins
//!   the last group. A group of eight bits is a byte; a smaller one is cut into pieces of 4, 2 and 1 bits. Both are
//!   packed by tiles of 256 elements, so that vectors of 32 elements pack and unpack by shifts within bytes.
//!
//! Exact layout: `docs/format/frame.md`, "Bit fields".

mod finish;
mod signs;
mod tiles;

pub(crate) use finish::Finish;
pub(crate) use signs::{set_signs, take_signs_portable};
pub(crate) use tiles::{Joiner, join_tiles, split_tiles};
#[cfg(all(any(target_arch = "x86_64", target_arch = "aarch64"), not(feature = "scalar-only")))]
pub(crate) use {finish::FINISHED_LEN, tiles::split_tiles_portable};
#[cfg(all(target_arch = "x86_64", not(feature = "scalar-only")))]
pub(crate) use {signs::set_signs_portable, tiles::join_tiles_portable};

use crate::CodecError;
use crate::arch::kernels;

/// Elements of one tile.
pub(crate) const TILE: usize = 256;

/// Elements of one vector within a tile.
pub(crate) const VECTOR: usize = 32;

/// How the bits of an element are laid out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    /// Bytes of an element: 1, 2, 4 or 8.
    pub width: u8,
    /// Bits below the coded field.
    pub mantissa: u8,
    /// Whether the highest bit is a sign.
    pub sign: bool,
    /// Whether the highest bit is inverted first, which puts signed integers in order.
    pub flip: bool,
}

impl Layout {
    /// A floating-point layout: sign, exponent, mantissa.
    pub const fn float(width: u8, mantissa: u8) -> Self {
        Self { width, mantissa, sign: true, flip: false }
    }
}

/// In which order the elements of a vector stand in plane and rest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// As in memory.
    Natural,
    /// As AVX2's pack instructions leave them, which spares the fast path every cross-lane permutation.
    Packed,
}

/// What is split from what: everything that joining needs, and what the file records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FieldSplit {
    /// Layout of the element.
    pub layout: Layout,
    /// Mantissa bits that belong to the coded field.
    pub joint: u8,
    /// Low bits that are zero in every element.
    pub dead: u8,
    /// Order of elements within a vector.
    pub order: Order,
    /// Whether the sign is part of the rest; otherwise it is coded apart.
    pub raw_sign: bool,
    /// Smallest coded field that the plane can hold.
    pub base: u16,
}

impl FieldSplit {
    /// The plain split of a layout: nothing joint, nothing dead.
    pub const fn plain(layout: Layout, order: Order) -> Self {
        Self { layout, joint: 0, dead: 0, order, raw_sign: layout.sign, base: 0 }
    }

    /// Refuses combinations that no encoder writes; all others are safe to join.
    pub(crate) fn validate(&self) -> Result<(), CodecError> {
        let bits = self.width() * 8;
        let (mantissa, joint, dead) =
            (u32::from(self.layout.mantissa), u32::from(self.joint), u32::from(self.dead));
        let sign = u32::from(self.layout.sign);
        if mantissa + sign >= bits || joint + dead > mantissa || (self.raw_sign && !self.layout.sign) {
            return Err(CodecError::corrupt("bit fields do not fit the element"));
        }
        if self.layout.flip && self.layout.sign {
            return Err(CodecError::corrupt("bit fields with a sign that is flipped"));
        }
        // Escapes have two bytes.
        if self.top_bits() > 16 {
            return Err(CodecError::corrupt("top field of more than 16 bits"));
        }
        // A plane byte holds every field of eight bits, so that only wider ones need a base.
        if self.base > 0 && (self.top_bits() <= 8 || u32::from(self.base) >> self.top_bits() != 0) {
            return Err(CodecError::corrupt("base of the top fields"));
        }
        if self.order == Order::Packed && !self.is_fusable() {
            return Err(CodecError::corrupt("packed order is not defined for these bit fields"));
        }
        Ok(())
    }

    /// Whether the packed order is defined: the plain splits that the fused kernels know.
    pub(crate) fn is_fusable(&self) -> bool {
        let Layout { width, mantissa, sign, flip } = self.layout;
        let dead = if width == 4 { 16 } else { 0 };
        let known = match (width, mantissa) {
            (2, 7) | (4, 23) => sign,
            // Without a sign it is part of the coded field.
            (2, 10) => true,
            _ => false,
        };
        known && !flip && self.joint == 0 && self.dead <= dead && self.raw_sign == sign
    }

    pub(crate) fn width(&self) -> u32 {
        u32::from(self.layout.width)
    }

    /// Bits below the coded field.
    pub(crate) fn top_shift(&self) -> u32 {
        u32::from(self.layout.mantissa - self.joint)
    }

    /// Mantissa bits in the rest.
    pub(crate) fn kept_bits(&self) -> u32 {
        self.top_shift() - u32::from(self.dead)
    }

    /// Bits of the rest per element.
    pub(crate) fn rest_bits(&self) -> u32 {
        self.kept_bits() + u32::from(self.raw_sign)
    }

    /// Bits of the coded field.
    pub fn top_bits(&self) -> u32 {
        self.width() * 8 - u32::from(self.layout.sign) - self.top_shift()
    }

    /// Bytes of the rest of `n` elements.
    pub(crate) fn rest_len(&self, n: usize) -> usize {
        let (full, last) = (n / TILE, n % TILE);
        full * self.tile_len(TILE / VECTOR) + self.tile_len(last.div_ceil(VECTOR))
    }

    /// Bytes that `n_vectors` vectors of a tile take.
    fn tile_len(&self, n_vectors: usize) -> usize {
        self.groups()
            .flat_map(|group| pieces(group.width()))
            .map(|(_, width)| piece_len(width, n_vectors))
            .sum()
    }

    /// The groups of the rest, in the order of the file.
    pub(crate) fn groups(&self) -> impl Iterator<Item = Group> + use<> {
        let (dead, top, raw_sign) = (u32::from(self.dead), self.top_shift(), self.raw_sign);
        let last_byte = if top > dead { (top - 1) / 8 } else { 0 };
        let sign_apart = raw_sign && (top <= dead || top.is_multiple_of(8) && top - dead >= 8);
        let groups = (dead / 8..=last_byte).filter(move |_| top > dead).map(move |byte| {
            let (low, high) = (dead.max(8 * byte), top.min(8 * byte + 8));
            Group { low, n_bits: high - low, sign: raw_sign && !sign_apart && byte == last_byte }
        });
        groups.chain(sign_apart.then_some(Group { low: 0, n_bits: 0, sign: true }))
    }

    /// The coded field of one element.
    pub fn top(&self, element: u64) -> u64 {
        let magnitude_bits = self.width() * 8 - u32::from(self.layout.sign);
        let flip = if self.layout.flip { 1 << (self.width() * 8 - 1) } else { 0 };
        ((element ^ flip) & low_mask(magnitude_bits)) >> self.top_shift()
    }

    /// The element with its coded field replaced.
    pub(crate) fn with_top(&self, element: u64, top: u64) -> u64 {
        let flip = if self.layout.flip { 1 << (self.width() * 8 - 1) } else { 0 };
        let mask = low_mask(self.top_bits()) << self.top_shift();
        ((element ^ flip) & !mask | (top << self.top_shift()) & mask) ^ flip
    }

    /// The element whose plane byte stands at `position`.
    pub(crate) fn element_at(&self, position: usize) -> usize {
        match self.order {
            Order::Natural => position,
            Order::Packed => {
                position / VECTOR * VECTOR + packed_element(self.layout.width, position % VECTOR)
            }
        }
    }
}

/// The plane alone: for every element its coded field less the base, or 255 where that does not fit. In natural
/// order; planners take histograms of it. `rest` is a buffer to reuse between calls.
///
/// # Panics
/// When the plane has not one byte per element, or the order is packed.
pub fn top_plane(split: &FieldSplit, source: &[u8], plane: &mut [u8], rest: &mut Vec<u8>) {
    const CHUNK: usize = 16 * TILE;
    let width = usize::from(split.layout.width);
    assert!(plane.len() == source.len() / width && split.order == Order::Natural);
    rest.resize(split.rest_len(CHUNK), 0);
    for (source, plane) in source.chunks(CHUNK * width).zip(plane.chunks_mut(CHUNK)) {
        split_tiles(split, source, plane, &mut rest[..split.rest_len(plane.len())]);
    }
}

/// The signs alone: for every element of `width` bytes its highest bit, in a byte each.
pub fn sign_plane(width: usize, source: &[u8], signs: &mut [u8]) {
    if !kernels().take_signs(width, source, signs) {
        take_signs_portable(width, source, signs);
    }
}

/// Bits of the rest that stand in one byte of the element.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Group {
    /// Lowest bit of the element in this group.
    pub(crate) low: u32,
    /// Bits from there on.
    pub(crate) n_bits: u32,
    /// Whether the sign stands above them.
    pub(crate) sign: bool,
}

impl Group {
    /// Bits of the group, at most eight.
    pub(crate) fn width(self) -> u32 {
        self.n_bits + u32::from(self.sign)
    }
}

/// Pieces of a group from its low end: (shift, width), widths 8, 4, 2, 1.
pub(crate) fn pieces(group_width: u32) -> impl Iterator<Item = (u32, u32)> {
    let mut shift = 0;
    std::iter::from_fn(move || {
        let left = group_width - shift;
        let width = [8, 4, 2, 1].into_iter().find(|&width| width <= left)?;
        shift += width;
        Some((shift - width, width))
    })
}

/// Bytes of one piece: vectors share bytes where the piece is narrower than one.
pub(crate) fn piece_len(width: u32, n_vectors: usize) -> usize {
    VECTOR * n_vectors.div_ceil(8 / width as usize)
}

pub(crate) fn low_mask(bits: u32) -> u64 {
    if bits >= 64 { u64::MAX } else { (1 << bits) - 1 }
}

/// Element of each place of a packed vector: what packing two or four registers leaves where.
pub(crate) fn byte_order(width: u8) -> [usize; VECTOR] {
    std::array::from_fn(|place| packed_element(width, place))
}

/// Element of one place of a packed vector.
fn packed_element(width: u8, place: usize) -> usize {
    match width {
        2 => place & 7 | (place & 8) << 1 | (place & 16) >> 1,
        4 => 8 * ((place & 15) >> 2) + (place & 3) + 4 * (place >> 4),
        _ => place,
    }
}
