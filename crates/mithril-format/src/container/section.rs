//! Header and index, and manifests of stores: bytes that are small, compressed as a whole, and checked before they are
//! parsed.

use crate::FormatError;
use crate::limits::{MAX_SECTION_LEN, MAX_SECTION_RATIO, SMALL_SECTION_LEN};
use mithril_codec::entropy::lz::{Compressor, SHORT_METADATA};
use mithril_codec::entropy::stream;

/// The level of sections that are too long for the dictionary of metadata. Level 19 makes them a quarter smaller, but
/// takes as long as a hundred megabytes of tensors.
const LONG_LEVEL: i32 = 3;

/// The coded bytes of a section.
pub fn encode(raw: &[u8]) -> Vec<u8> {
    let compressor = if raw.len() <= SHORT_METADATA {
        Compressor::ZstdMetadata
    } else {
        Compressor::Zstd { level: LONG_LEVEL }
    };
    let coded = stream::encode(raw, &[compressor]);
    // What readers would take for a bomb is written as it is.
    if raw.len() as u64 <= max_raw_len(&coded) { coded } else { stream::store(raw) }
}

/// The most raw bytes that a section of these coded bytes may have: one that claims more than honest bytes hold is
/// refused before memory is taken for it.
fn max_raw_len(coded: &[u8]) -> u64 {
    let by_ratio = (coded.len() as u64).saturating_mul(MAX_SECTION_RATIO);
    by_ratio.max(SMALL_SECTION_LEN).min(u64::from(MAX_SECTION_LEN))
}

/// The raw bytes of a section that starts at `offset`.
///
/// # Errors
/// When it claims more bytes than it may, or does not decode to as many.
pub fn decode(coded: &[u8], raw_len: u32, what: &'static str, offset: u64) -> Result<Vec<u8>, FormatError> {
    let limit = max_raw_len(coded);
    if u64::from(raw_len) > limit {
        return Err(FormatError::Limit { what, found: u64::from(raw_len), limit, offset });
    }
    let mut raw = vec![0; raw_len as usize];
    stream::decode(coded, &mut raw).map_err(|source| FormatError::Section { what, offset, source })?;
    Ok(raw)
}
