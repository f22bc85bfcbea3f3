//! From content to a dictionary: header, entropy tables, id.

use super::Samples;
use super::header::{MAGIC, MIN_ID, repeat_offsets_at};
use crate::arch::zdict;
use crate::{CodecError, checksum};

/// A dictionary of at most `max_len` bytes: content behind a header whose entropy tables fit the samples at this level.
///
/// The end of the content is kept when not all fits: it is the best place, and libzstd itself would cut it off. The id
/// is made from tables and content, unless the caller has one.
///
/// # Errors
/// When libzstd cannot make tables, which happens for samples that are all the same or all noise.
pub fn finish(
    content: &[u8],
    samples: &Samples<'_>,
    level: i32,
    id: Option<u32>,
    max_len: usize,
) -> Result<Vec<u8>, CodecError> {
    let lens: Vec<usize> = samples.iter().map(<[u8]>::len).collect();
    let failed = || CodecError::corrupt("zstd cannot make entropy tables from these samples");
    let with_all = zdict::finalize(content, samples.bytes(), &lens, level, MIN_ID).ok_or_else(failed)?;
    let header_len = zdict::header_len(&with_all).ok_or_else(failed)?;
    let mut dictionary = with_all;
    let surplus = dictionary.len().saturating_sub(max_len.max(header_len));
    dictionary.drain(header_len..header_len + surplus);
    set_id(&mut dictionary, id);
    Ok(dictionary)
}

/// The same dictionary with these offsets to start from: a record whose first match has one of them pays nothing for
/// it. Nothing when an offset reaches beyond the content, or the dictionary has no header.
pub fn with_repeat_offsets(dictionary: &[u8], offsets: [u32; 3], id: Option<u32>) -> Option<Vec<u8>> {
    let header_len = zdict::header_len(dictionary)?;
    let content_len = u32::try_from(dictionary.len() - header_len).ok()?;
    if !dictionary.starts_with(&MAGIC) || offsets.iter().any(|&offset| offset == 0 || offset > content_len) {
        return None;
    }
    let mut changed = dictionary.to_vec();
    let bytes: Vec<u8> = offsets.iter().flat_map(|offset| offset.to_le_bytes()).collect();
    changed[repeat_offsets_at(header_len)].copy_from_slice(&bytes);
    set_id(&mut changed, id);
    Some(changed)
}

/// An id for bytes: the same for the same bytes, in the range that is free for private use, and of 16 bits, because
/// a frame names it in two bytes then and in four otherwise. That is 1 to 6 % of a record of a few hundred bytes; two
/// dictionaries share an id by chance once in 32768.
pub fn id_of(bytes: &[u8]) -> u32 {
    MIN_ID + u32::try_from(checksum(bytes) % u64::from(MIN_ID)).expect("is below 2^16")
}

fn set_id(dictionary: &mut [u8], id: Option<u32>) {
    let id = id.unwrap_or_else(|| id_of(&dictionary[8..]));
    dictionary[4..8].copy_from_slice(&id.to_le_bytes());
}
