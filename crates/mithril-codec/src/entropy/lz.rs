//! General compressors for data with repeats: zstd, lz4 and brotli through their own libraries.
//!
//! Each can be left out of a build by its feature; a file that needs it is then refused as unsupported.

use crate::CodecError;
use crate::forever::stream;

/// A general compressor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compressor {
    /// zstd at a level from 1 to 22, with long-distance matching.
    Zstd {
        /// zstd's own level.
        level: i32,
    },
    /// lz4, its fast block format.
    Lz4,
    /// brotli at a quality from 0 to 11.
    Brotli {
        /// brotli's own quality.
        quality: u32,
    },
}

/// Largest window, as a power of two, that a zstd frame may ask for.
const MAX_WINDOW_LOG: u32 = 27;

impl Compressor {
    /// Its number in files.
    pub(crate) fn id(self) -> u8 {
        match self {
            Self::Zstd { .. } => stream::ZSTD,
            Self::Lz4 => stream::LZ4,
            Self::Brotli { .. } => stream::BROTLI,
        }
    }

    /// The compressed bytes, or nothing when this build or the compressor cannot.
    pub(crate) fn compress(self, bytes: &[u8]) -> Option<Vec<u8>> {
        match self {
            #[cfg(feature = "zstd")]
            Self::Zstd { level } => {
                use zstd::zstd_safe::CParameter;
                let mut compressor = zstd::bulk::Compressor::new(level).ok()?;
                compressor.set_parameter(CParameter::EnableLongDistanceMatching(true)).ok()?;
                compressor.set_parameter(CParameter::WindowLog(window_log(bytes.len()))).ok()?;
                compressor.set_parameter(CParameter::ChecksumFlag(false)).ok()?;
                compressor.compress(bytes).ok()
            }
            #[cfg(feature = "lz4")]
            Self::Lz4 => Some(lz4_flex::block::compress(bytes)),
            #[cfg(feature = "brotli")]
            Self::Brotli { quality } => {
                let parameters = brotli::enc::BrotliEncoderParams {
                    quality: i32::try_from(quality.min(11)).unwrap_or(11),
                    lgwin: 24,
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
pub(crate) fn decompress_into(id: u8, coded: &[u8], out: &mut [u8]) -> Result<(), CodecError> {
    match id {
        #[cfg(feature = "zstd")]
        stream::ZSTD => {
            use zstd::zstd_safe::{DParameter, get_frame_content_size};
            // The size must be stated and right, so that a bomb is refused before it is unpacked.
            if !matches!(get_frame_content_size(coded), Ok(Some(len)) if len == out.len() as u64) {
                return Err(CodecError::corrupt("zstd frame of another size"));
            }
            let mut decompressor =
                zstd::bulk::Decompressor::new().map_err(|_| CodecError::corrupt("zstd decoder did not start"))?;
            decompressor
                .set_parameter(DParameter::WindowLogMax(MAX_WINDOW_LOG))
                .map_err(|_| CodecError::corrupt("zstd window limit"))?;
            match decompressor.decompress_to_buffer(coded, out) {
                Ok(len) if len == out.len() => Ok(()),
                _ => Err(CodecError::corrupt("zstd frame")),
            }
        }
        #[cfg(feature = "lz4")]
        stream::LZ4 => match lz4_flex::block::decompress_into(coded, out) {
            Ok(len) if len == out.len() => Ok(()),
            _ => Err(CodecError::corrupt("lz4 block")),
        },
        #[cfg(feature = "brotli")]
        stream::BROTLI => {
            use std::io::Read;
            let mut reader = brotli::Decompressor::new(coded, 4096);
            reader.read_exact(out).map_err(|_| CodecError::corrupt("brotli stream"))?;
            match reader.read(&mut [0]) {
                Ok(0) => Ok(()),
                _ => Err(CodecError::corrupt("brotli stream is longer than its block")),
            }
        }
        _ => Err(CodecError::Unsupported { what: "stream coder", id: u32::from(id) }),
    }
}

/// The smallest window that covers the input, within what readers allow.
#[cfg(feature = "zstd")]
fn window_log(len: usize) -> u32 {
    len.max(1).next_power_of_two().trailing_zeros().clamp(10, MAX_WINDOW_LOG)
}
