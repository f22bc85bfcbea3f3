//! zstd with a dictionary for what mithril writes about tensors: names, shapes, headers, indexes.
//!
//! Such texts are too short to be compressed alone, and much alike from model to model. The dictionary is part of the
//! format: `tools/metadata_dictionary.py` trained it once, and it never changes.

use crate::CodecError;
use crate::forever::dictionary::METADATA;
use std::sync::OnceLock;
use zstd::dict::{DecoderDictionary, EncoderDictionary};
use zstd::zstd_safe::get_dict_id_from_frame;

/// The dictionary, as zstd has them.
static DICTIONARY: &[u8] = include_bytes!("metadata.dict");

/// Texts up to this length are compressed at the higher level. It makes headers of safetensors files a seventh smaller than
/// the other one, to a percent as small as level 19, at 8 MB/s: a text of 34 KB takes 4.3 ms, longer than the data of a small
/// checkpoint, and 0.3 ms at the lower level.
const SHORT_LEN: usize = 8 << 10;
const SHORT_LEVEL: i32 = 15;
const LEVEL: i32 = 9;

/// One frame that names the dictionary; nothing when zstd cannot.
pub(super) fn compress(bytes: &[u8]) -> Option<Vec<u8>> {
    static SHORT: OnceLock<Option<EncoderDictionary<'static>>> = OnceLock::new();
    static LONG: OnceLock<Option<EncoderDictionary<'static>>> = OnceLock::new();
    let (prepared, level) = if bytes.len() <= SHORT_LEN { (&SHORT, SHORT_LEVEL) } else { (&LONG, LEVEL) };
    let prepared = prepared.get_or_init(|| EncoderDictionary::try_copy(DICTIONARY, level).ok()).as_ref()?;
    let mut compressor = zstd::bulk::Compressor::with_prepared_dictionary(prepared).ok()?;
    compressor.compress(bytes).ok()
}

/// Decompresses one frame, whose size was checked, into exactly `out`.
pub(super) fn decompress_into(coded: &[u8], out: &mut [u8]) -> Result<(), CodecError> {
    static PREPARED: OnceLock<Option<DecoderDictionary<'static>>> = OnceLock::new();
    let id = get_dict_id_from_frame(coded).ok_or(CodecError::corrupt("zstd frame without a dictionary"))?;
    if id.get() != METADATA {
        return Err(CodecError::Unsupported { what: "dictionary of a stream", id: id.get() });
    }
    let failed = || CodecError::corrupt("zstd decoder did not start");
    let prepared = PREPARED.get_or_init(|| DecoderDictionary::try_copy(DICTIONARY).ok()).as_ref();
    let mut decompressor = zstd::bulk::Decompressor::with_prepared_dictionary(prepared.ok_or_else(failed)?)
        .map_err(|_| failed())?;
    match decompressor.decompress_to_buffer(coded, out) {
        Ok(len) if len == out.len() => Ok(()),
        _ => Err(CodecError::corrupt("zstd frame")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entropy::lz::Compressor;
    use crate::entropy::stream;
    use crate::forever::dictionary::METADATA_SUM;

    const HEADER: &[u8] = br#"{"model.layers.0.self_attn.q_proj.weight":{"dtype":"BF16","shape":[4096,4096],"data_offsets":[0,33554432]}}"#;

    #[test]
    fn the_dictionary_never_changes() {
        let id = u32::from_le_bytes(DICTIONARY[4..8].try_into().unwrap());
        assert_eq!((id, crate::checksum(DICTIONARY)), (METADATA, METADATA_SUM));
    }

    #[test]
    fn metadata_shrinks_and_comes_back() {
        for raw in [HEADER, b"", b"{", b"no metadata at all, and short", &[0; 5000]] {
            let coded = compress(raw).unwrap();
            let mut out = vec![0; raw.len()];
            decompress_into(&coded, &mut out).unwrap();
            assert_eq!(out, raw);
        }
        let plain = stream::encode(HEADER, &[Compressor::Zstd { level: 19 }]);
        let coded = stream::encode(HEADER, &[Compressor::Zstd { level: 19 }, Compressor::ZstdMetadata]);
        assert!(2 * coded.len() < plain.len(), "{} and {} bytes", coded.len(), plain.len());
        let mut out = vec![0; HEADER.len()];
        stream::decode(&coded, &mut out).unwrap();
        assert_eq!(out, HEADER);
    }

    #[test]
    fn damage_and_other_dictionaries_are_refused() {
        let coded = stream::encode(HEADER, &[Compressor::ZstdMetadata]);
        let decode = |coded: &[u8]| stream::decode(coded, &mut vec![0; HEADER.len()]);
        for len in 0..coded.len() {
            assert!(decode(&coded[..len]).is_err(), "{len} bytes");
        }
        // Coder, length of four bytes, magic number of four, descriptor, then the id.
        let mut other = coded.clone();
        other[10] ^= 1;
        assert!(matches!(decode(&other), Err(CodecError::Unsupported { .. })));
        // A plain frame where one with a dictionary should be, and the other way round.
        let long = HEADER.repeat(8);
        let mut plain = stream::encode(&long, &[Compressor::Zstd { level: 19 }]);
        assert_eq!(plain[0], crate::forever::stream::ZSTD);
        plain[0] = crate::forever::stream::ZSTD_METADATA;
        assert!(stream::decode(&plain, &mut vec![0; long.len()]).is_err());
        let mut named = coded;
        named[0] = crate::forever::stream::ZSTD;
        assert!(decode(&named).is_err());
    }
}
