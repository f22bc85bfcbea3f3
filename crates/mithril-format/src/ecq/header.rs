//! The 64 bytes in front of the blocks of a matrix.

use super::damaged;
use crate::FormatError;
use mithril_codec::ecq::{Coded, Encoded, HEADER_LEN, Parts, Shape};
use mithril_codec::quantised::{Layout, zero_codes};
use mithril_codec::{Checksummer, Dtype};

/// First bytes of the header.
const MAGIC: [u8; 4] = *b"MECQ";

/// The version that this build writes, and the only one it knows.
const VERSION: u8 = 1;

/// What a matrix is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MatrixHeader {
    /// What its codes mean.
    pub layout: Layout,
    /// Bits of a code.
    pub bits: u8,
    /// Codes that share a scale; 0 where the layout says, or where rows do.
    pub group_size: u32,
    /// Type of the scales of groups, where biases are predicted from them.
    pub scale_dtype: Option<Dtype>,
    /// How it is cut.
    pub shape: Shape,
    /// The sum of the values beside it that have none of their own; 0 without any.
    pub side_sum: SideSum,
}

/// The checksum of levels, row scales and column scales, one behind the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SideSum(pub u64);

impl SideSum {
    /// The sum of these.
    pub fn of(sides: &[&[u8]]) -> Self {
        let mut sum = Checksummer::default();
        sides.iter().for_each(|side| sum.update(side));
        Self(sum.finish())
    }
}

impl MatrixHeader {
    /// Writes the header into its place in front of the blocks.
    ///
    /// # Panics
    /// When there is no room for it.
    pub fn write(&self, encoded: &mut Encoded) {
        let mut header = [0; HEADER_LEN];
        let n_tables = u8::try_from(encoded.freq.len() / 16).unwrap_or(0);
        header[..4].copy_from_slice(&MAGIC);
        header[4..8].copy_from_slice(&[VERSION, self.layout.id(), self.bits, n_tables]);
        header[8..16].copy_from_slice(&(self.shape.rows() as u64).to_le_bytes());
        header[16..24].copy_from_slice(&(self.shape.columns() as u64).to_le_bytes());
        header[24..28]
            .copy_from_slice(&u32::try_from(self.shape.rows_per_block()).unwrap_or(u32::MAX).to_le_bytes());
        header[28..32].copy_from_slice(&self.group_size.to_le_bytes());
        header[32..40].copy_from_slice(&(encoded.compressed.len() as u64).to_le_bytes());
        header[40..48].copy_from_slice(&self.side_sum.0.to_le_bytes());
        header[48] = self.shape.low_bits();
        header[49] = self.scale_dtype.map_or(0, Dtype::id);
        let sum = sum(&header, &encoded.stream_offsets, &encoded.freq);
        header[56..].copy_from_slice(&sum.to_le_bytes());
        encoded.compressed[..HEADER_LEN].copy_from_slice(&header);
    }

    /// Reads the header of a matrix and checks that its parts fit.
    ///
    /// # Errors
    /// When it is damaged, or of a later version; `name` says which matrix.
    pub fn read<'a>(name: &str, parts: Parts<'a>) -> Result<(Self, Coded<'a>), FormatError> {
        let header: &[u8; HEADER_LEN] =
            parts.compressed.first_chunk().ok_or_else(|| damaged(name, "its header is cut off"))?;
        let len = parts.compressed.len() as u64;
        let parsed = Self::parse(name, header, len, parts.stream_offsets, parts.freq)?;
        let coded = Coded::new(parsed.shape, parts).map_err(|error| damaged(name, error))?;
        Ok((parsed, coded))
    }

    /// Reads the header alone, with the offsets and frequencies that its sum covers. `compressed_len` is the length of
    /// header and blocks.
    ///
    /// # Errors
    /// As [`MatrixHeader::read`].
    pub fn parse(
        name: &str,
        header: &[u8; HEADER_LEN],
        compressed_len: u64,
        stream_offsets: &[u8],
        freq: &[u8],
    ) -> Result<Self, FormatError> {
        if header[..4] != MAGIC {
            return Err(damaged(name, "its blocks do not start with `MECQ`"));
        }
        if header[4] != VERSION {
            return Err(FormatError::UnsupportedVersion { found: header[4], supported: VERSION });
        }
        if u64_at(header, 56) != sum(header, stream_offsets, freq) {
            return Err(damaged(name, "checksum of header, offsets and frequencies"));
        }
        let layout = Layout::from_id(header[5]).ok_or(FormatError::Unknown {
            what: "layout",
            id: header[5].into(),
            offset: 5,
        })?;
        let (bits, low_bits) = (header[6], header[48]);
        let scale_dtype = Dtype::from_id(header[49]).filter(|dtype| zero_codes::supports(*dtype));
        let scale_fits = header[49] == 0 || scale_dtype.is_some();
        let fits = match layout {
            Layout::Bf16 => bits == 12 && low_bits == 8,
            _ => {
                (1..=8).contains(&bits)
                    && low_bits == Layout::low_bits(bits)
                    && layout.bits().is_none_or(|own| own == bits)
            }
        };
        if !fits || header[50..56] != [0; 6] || !scale_fits || usize::from(header[7]) * 16 != freq.len() {
            return Err(damaged(name, "fields of its header contradict each other"));
        }
        if u64_at(header, 32) != compressed_len {
            return Err(damaged(name, "its blocks have another length than its header says"));
        }
        let size = |at: usize| usize::try_from(u64_at(header, at)).unwrap_or(usize::MAX);
        let field =
            |at: usize| u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
        let rows_per_block = usize::try_from(field(24)).unwrap_or(usize::MAX);
        let shape = Shape::of_blocks(size(8), size(16), rows_per_block, low_bits)
            .map_err(|error| damaged(name, error))?;
        let side_sum = SideSum(u64_at(header, 40));
        Ok(Self { layout, bits, group_size: field(28), scale_dtype, shape, side_sum })
    }
}

fn u64_at(header: &[u8; HEADER_LEN], at: usize) -> u64 {
    header[at..].first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

/// Of all fields in front of the sum, the offsets and the frequencies.
fn sum(header: &[u8; HEADER_LEN], offsets: &[u8], freq: &[u8]) -> u64 {
    let mut sum = Checksummer::default();
    sum.update(&header[..56]);
    sum.update(offsets);
    sum.update(freq);
    sum.finish()
}
