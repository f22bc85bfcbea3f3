//! One coded run of weights, read from untrusted bytes.

use super::tables::Tables;
use super::{GAP_BITS, Geometry};
use crate::CodecError;
use std::ops::Range;

/// The bytes of a coded run, as they stand in a file.
#[derive(Debug, Clone, Copy)]
pub struct Parts<'a> {
    /// Tables and code lengths.
    pub luts: &'a [u8],
    /// Coded exponents.
    pub encoded_exponent: &'a [u8],
    /// One byte of sign and mantissa per element.
    pub sign_mantissa: &'a [u8],
    /// First elements of workgroups, little-endian `u32`.
    pub output_positions: &'a [u8],
    /// Where the chunks' first codes start, five bits each.
    pub gaps: &'a [u8],
}

/// A coded run whose parts fit together. Whether the codes are intact shows when they are decoded.
#[derive(Debug, Clone, Copy)]
pub struct Coded<'a> {
    pub(super) tables: Tables<'a>,
    pub(super) encoded: &'a [u8],
    pub(super) signs_mantissas: &'a [u8],
    positions: &'a [[u8; 4]],
    gaps: &'a [u8],
    pub(super) geometry: Geometry,
}

impl<'a> Coded<'a> {
    /// Checks that the parts fit together.
    ///
    /// # Errors
    /// `Truncated` or `Corrupt` when they do not.
    pub fn new(parts: Parts<'a>, geometry: Geometry) -> Result<Self, CodecError> {
        let tables = Tables::read(parts.luts)?;
        let n_elements = parts.sign_mantissa.len();
        if n_elements == 0 || parts.encoded_exponent.is_empty() {
            return Err(CodecError::corrupt("DF11 run without elements"));
        }
        if u32::try_from(n_elements).is_err() || i32::try_from(parts.encoded_exponent.len()).is_err() {
            return Err(CodecError::corrupt("DF11 run of more elements than a kernel can count"));
        }
        let n_workgroups = geometry.n_workgroups(parts.encoded_exponent.len());
        if parts.gaps.len() != geometry.gaps_len(n_workgroups) {
            return Err(CodecError::corrupt("DF11 gaps that are not one per thread"));
        }
        let (positions, rest) = parts.output_positions.as_chunks();
        // One less when no code starts in the last workgroup.
        let fits = positions.len() == n_workgroups + 1 || positions.len() == n_workgroups && n_workgroups > 1;
        if !rest.is_empty() || !fits {
            return Err(CodecError::corrupt("DF11 output positions that are not one per workgroup"));
        }
        let coded = Self {
            tables,
            encoded: parts.encoded_exponent,
            signs_mantissas: parts.sign_mantissa,
            positions,
            gaps: parts.gaps,
            geometry,
        };
        coded.check_starts()?;
        Ok(coded)
    }

    /// Positions must rise from 0 to the number of elements, by no more than a workgroup has bits. A workgroup is longer
    /// than any code, so one starts in it unless all elements came before.
    fn check_starts(&self) -> Result<(), CodecError> {
        let most = self.geometry.workgroup_bits();
        let rises = |workgroup: usize| {
            let (this, next) = (self.position(workgroup), self.position(workgroup + 1));
            let least = usize::from(this != self.n_elements());
            next.checked_sub(this).is_some_and(|rise| (least..=most).contains(&rise))
        };
        if self.gap(0) != 0 {
            return Err(CodecError::corrupt("DF11 gap before the first code"));
        }
        if self.position(0) != 0 || !(0..self.n_workgroups()).all(rises) {
            return Err(CodecError::corrupt("DF11 output positions that do not rise as codes can"));
        }
        let last = self.positions.last().map_or(0, |&position| u32::from_le_bytes(position) as usize);
        if last != self.n_elements() {
            return Err(CodecError::corrupt("DF11 output positions that do not end with the last element"));
        }
        Ok(())
    }

    /// Elements.
    #[must_use]
    pub fn n_elements(&self) -> usize {
        self.signs_mantissas.len()
    }

    /// Workgroups, each of which can be decoded alone.
    #[must_use]
    pub fn n_workgroups(&self) -> usize {
        self.geometry.n_workgroups(self.encoded.len())
    }

    /// The elements of some workgroups.
    ///
    /// # Panics
    /// If there are not so many workgroups.
    #[must_use]
    pub fn elements(&self, workgroups: Range<usize>) -> Range<usize> {
        assert!(workgroups.end <= self.n_workgroups(), "not so many workgroups");
        self.position(workgroups.start)..self.position(workgroups.end)
    }

    /// The most elements of a workgroup.
    #[must_use]
    pub fn largest_workgroup(&self) -> u64 {
        let pairs = self.positions.windows(2);
        let size = |pair: &[[u8; 4]]| u32::from_le_bytes(pair[1]) - u32::from_le_bytes(pair[0]);
        pairs.map(|pair| u64::from(size(pair))).max().unwrap_or(0)
    }

    /// Shared memory in bytes that a kernel asks for.
    #[must_use]
    pub fn shared_memory_len(&self) -> u64 {
        self.geometry.shared_memory_len(self.largest_workgroup())
    }

    /// The first element of a workgroup; the number of elements for the one behind the last.
    pub(super) fn position(&self, workgroup: usize) -> usize {
        self.positions
            .get(workgroup)
            .map_or(self.n_elements(), |&position| u32::from_le_bytes(position) as usize)
    }

    /// Bits between the start of a thread's chunk and its first code.
    pub(super) fn gap(&self, thread: usize) -> usize {
        let bit = thread * GAP_BITS;
        let byte = |at: usize| u16::from(self.gaps.get(at).copied().unwrap_or(0));
        let two = byte(bit / 8) << 8 | byte(bit / 8 + 1);
        usize::from(two >> (16 - GAP_BITS - bit % 8) & 0x1f)
    }

    /// The bit where the first code of a workgroup starts.
    pub(super) fn start_bit(&self, workgroup: usize) -> usize {
        workgroup * self.geometry.workgroup_bits() + self.gap(workgroup * self.geometry.n_threads())
    }

    /// The 32 bits from a bit on; zeros behind the end.
    #[inline]
    pub(super) fn bits_at(&self, bit: usize) -> u32 {
        let rest = self.encoded.get(bit / 8..).unwrap_or_default();
        let bytes = match rest.first_chunk() {
            Some(&bytes) => bytes,
            None => std::array::from_fn(|at| rest.get(at).copied().unwrap_or(0)),
        };
        let bits = u64::from_be_bytes(bytes) << (bit % 8) >> 32;
        u32::try_from(bits).expect("the upper half of 64 bits")
    }

    /// Checks that the last code of the elements before this workgroup ends where the next one starts, or where the
    /// bytes end.
    pub(super) fn check_end(&self, next_workgroup: usize, end_bit: usize) -> Result<(), CodecError> {
        let is_right = if self.position(next_workgroup) == self.n_elements() {
            end_bit.div_ceil(8) == self.encoded.len()
        } else {
            end_bit == self.start_bit(next_workgroup)
        };
        is_right.then_some(()).ok_or(CodecError::corrupt("DF11 codes that end where no workgroup starts"))
    }
}
