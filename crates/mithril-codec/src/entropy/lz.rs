//! General compressors for data with repeats: zstd, lz4 and brotli through their own libraries.
//!
//! Each can be left out of a build by its feature; a file that needs it is then refused as unsupported.

use crate::CodecError;
use crate::forever::stream;

/// A general compressor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compressor {
    /// zstd at a level from 1 to 22; with long-distance matching unless the input is short.
    Zstd {
        /// zstd's own level.
        level: i32,
    },
    /// zstd with the dictionary of metadata: for headers, indexes and other short texts about tensors.
    ZstdMetadata,
    /// lz4, its fast block format.
    Lz4,
    /// brotli at a quality from 0 to 11.
    Brotli {
        /// brotli's own quality.
        quality: u32,
    },
}

/// Bytes up to which the dictionary of metadata is worth its time: what is longer hardly gains.
pub const SHORT_METADATA: usize = 32 << 10;

/// Fewer bytes hold no match that zstd would not find without its search for long ones, which takes time to start.
#[cfg(feature = "zstd")]
const MIN_LONG_DISTANCE: usize = 64 << 10;

/// Largest window, as a power of two, that a zstd frame may ask for.
#[cfg(any(feature = "zstd", feature = "brotli"))]
const MAX_WINDOW_LOG: u32 = 27;

impl Compressor {
    /// Its number in files.
    pub(crate) fn id(self) -> u8 {
        match self {
            Self::Zstd { .. } => stream::ZSTD,
            Self::ZstdMetadata => stream::ZSTD_METADATA,
            Self::Lz4 => stream::LZ4,
            Self::Brotli { .. } => stream::BROTLI,
        }
    }

    /// The compressed bytes, or nothing when this build or the compressor cannot.
    #[cfg_attr(
        not(any(feature = "zstd", feature = "lz4", feature = "brotli")),
        expect(unused_variables, reason = "this build has no compressor")
    )]
    pub(crate) fn compress(self, bytes: &[u8]) -> Option<Vec<u8>> {
        match self {
            #[cfg(feature = "zstd")]
            Self::Zstd { level } => {
                use zstd::zstd_safe::CParameter;
                let mut compressor = zstd::bulk::Compressor::new(level).ok()?;
                let is_long = bytes.len() >= MIN_LONG_DISTANCE;
                compressor.set_parameter(CParameter::EnableLongDistanceMatching(is_long)).ok()?;
                compressor.set_parameter(CParameter::WindowLog(window_log(bytes.len()))).ok()?;
                compressor.set_parameter(CParameter::ChecksumFlag(false)).ok()?;
                compressor.compress(bytes).ok()
            }
            #[cfg(feature = "zstd")]
            Self::ZstdMetadata => super::metadata::compress(bytes),
            #[cfg(feature = "lz4")]
            Self::Lz4 => Some(lz4_flex::block::compress(bytes)),
            #[cfg(feature = "brotli")]
            Self::Brotli { quality } => {
                let parameters = brotli::enc::BrotliEncoderParams {
                    quality: i32::try_from(quality.min(11)).unwrap_or(11),
                    // A window that is larger than the input costs both sides memory and time; 16 bytes of it are lost.
                    lgwin: i32::try_from(window_log(bytes.len() + 16)).unwrap_or(24).min(24),
                    size_hint: bytes.len(),
                    ..Default::default()
                };
                let mut out = Vec::new();
                brotli::BrotliCompress(&mut &bytes[..], &mut out, &parameters).ok()?;
                Some(out)
            }
            #[allow(unreachable_patterns, reason = "reached in builds without every compressor")]
            _ => None,
        }
    }
}

/// Decompresses into exactly `out`.
#[cfg_attr(
    not(any(feature = "zstd", feature = "lz4", feature = "brotli")),
    expect(unused_variables, reason = "this build has no compressor")
)]
pub(crate) fn decompress_into(id: u8, coded: &[u8], out: &mut [u8]) -> Result<(), CodecError> {
    match id {
        #[cfg(feature = "zstd")]
        stream::ZSTD => {
            check_zstd(coded, out.len())?;
            let mut decompressor = zstd::bulk::Decompressor::new()
                .map_err(|_| CodecError::corrupt("zstd decoder did not start"))?;
            match decompressor.decompress_to_buffer(coded, out) {
                Ok(len) if len == out.len() => Ok(()),
                _ => Err(CodecError::corrupt("zstd frame")),
            }
        }
        #[cfg(feature = "zstd")]
        stream::ZSTD_METADATA => {
            check_zstd(coded, out.len())?;
            super::metadata::decompress_into(coded, out)
        }
        #[cfg(feature = "lz4")]
        stream::LZ4 => match lz4_flex::block::decompress_into(coded, out) {
            Ok(len) if len == out.len() => Ok(()),
            _ => Err(CodecError::corrupt("lz4 block")),
        },
        #[cfg(feature = "brotli")]
        stream::BROTLI => decompress_brotli(coded, out),
        _ => Err(CodecError::Unsupported { what: "stream coder", id: u32::from(id) }),
    }
}

/// Refuses what is not exactly one zstd frame of so many bytes, before anything is unpacked.
#[cfg(feature = "zstd")]
fn check_zstd(coded: &[u8], len: usize) -> Result<(), CodecError> {
    use zstd::zstd_safe::{find_frame_compressed_size, get_frame_content_size};
    // The size must be stated and right, so that a bomb is refused before it is unpacked.
    if !matches!(get_frame_content_size(coded), Ok(Some(stated)) if stated == len as u64) {
        return Err(CodecError::corrupt("zstd frame of another size"));
    }
    // The decoder takes several frames, and skippable ones: only one may be there.
    if find_frame_compressed_size(coded) != Ok(coded.len()) {
        return Err(CodecError::corrupt("bytes behind a zstd frame"));
    }
    // libzstd limits the window of streams only, not of whole frames.
    if zstd_window(coded).is_none_or(|window| window > 1 << MAX_WINDOW_LOG) {
        return Err(CodecError::corrupt("zstd frame with too large a window, or a skippable one"));
    }
    Ok(())
}

/// In one call instead of through a reader, which does not tell how much of its input it has used.
#[cfg(feature = "brotli")]
fn decompress_brotli(coded: &[u8], out: &mut [u8]) -> Result<(), CodecError> {
    use brotli::enc::StandardAlloc;
    let allocator = StandardAlloc::default;
    // Strict: without the larger windows that RFC 7932 does not have.
    let mut state = brotli::BrotliState::new_strict(allocator(), allocator(), allocator());
    let (mut left_in, mut left_out) = (coded.len(), out.len());
    let (mut used_in, mut used_out, mut total_out) = (0, 0, 0);
    let result = brotli::BrotliDecompressStream(
        &mut left_in,
        &mut used_in,
        coded,
        &mut left_out,
        &mut used_out,
        out,
        &mut total_out,
        &mut state,
    );
    match result {
        brotli::BrotliResult::ResultSuccess if left_out > 0 => {
            Err(CodecError::corrupt("brotli stream is shorter than its block"))
        }
        brotli::BrotliResult::ResultSuccess if left_in > 0 => {
            Err(CodecError::corrupt("bytes behind a brotli stream"))
        }
        brotli::BrotliResult::ResultSuccess => Ok(()),
        brotli::BrotliResult::NeedsMoreOutput => {
            Err(CodecError::corrupt("brotli stream is longer than its block"))
        }
        _ => Err(CodecError::corrupt("brotli stream")),
    }
}

/// The window that a zstd frame asks for: that of its header, or none for a frame of one segment, whose window is its
/// content. Nothing when it is no frame with data.
#[cfg(feature = "zstd")]
fn zstd_window(frame: &[u8]) -> Option<u64> {
    let [0x28, 0xb5, 0x2f, 0xfd, descriptor, window, ..] = *frame else { return None };
    if descriptor >> 5 & 1 == 1 {
        return Some(0);
    }
    let base = 1u64 << (10 + (window >> 3));
    Some(base + base / 8 * u64::from(window & 7))
}

/// The smallest window that covers the input, within what readers allow.
#[cfg(any(feature = "zstd", feature = "brotli"))]
fn window_log(len: usize) -> u32 {
    len.max(1).next_power_of_two().trailing_zeros().clamp(10, MAX_WINDOW_LOG)
}

#[cfg(test)]
mod tests {
    #[cfg(feature = "zstd")]
    #[test]
    fn zstd_with_a_window_above_the_limit_is_refused() {
        // A frame of one raw block of four bytes, not of one segment, with its content size in four bytes.
        let frame = |window_log: u8| {
            let mut frame = vec![0x28, 0xb5, 0x2f, 0xfd, 0x80, (window_log - 10) << 3];
            frame.extend([4, 0, 0, 0, 4 << 3 | 1, 0, 0, 1, 2, 3, 4]);
            frame
        };
        let decode =
            |coded: &[u8], len: usize| super::decompress_into(super::stream::ZSTD, coded, &mut vec![0; len]);
        assert_eq!(decode(&frame(27), 4), Ok(()));
        assert!(decode(&frame(28), 4).is_err());
        let skippable = [0x50, 0x2a, 0x4d, 0x18, 0, 0, 0, 0];
        assert!(decode(&skippable, 0).is_err());
    }

    #[cfg(feature = "brotli")]
    #[test]
    fn brotli_with_a_window_beyond_its_format_is_refused() {
        let bytes: Vec<u8> = (0..2000).map(|i| u8::try_from(i % 83).unwrap()).collect();
        for large_window in [false, true] {
            let parameters =
                brotli::enc::BrotliEncoderParams { large_window, lgwin: 20, ..Default::default() };
            let mut coded = Vec::new();
            brotli::BrotliCompress(&mut &bytes[..], &mut coded, &parameters).unwrap();
            let mut out = vec![0; bytes.len()];
            let decoded = super::decompress_into(super::stream::BROTLI, &coded, &mut out);
            assert_eq!(decoded.is_err(), large_window);
            assert!(large_window || out == bytes);
        }
    }
}
