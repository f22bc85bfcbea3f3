//! Small records to zstd frames with a dictionary, and back.

use super::header::Header;
use crate::CodecError;
use std::io::Read;
use std::sync::{Mutex, MutexGuard, PoisonError};
use zstd::dict::{DecoderDictionary, EncoderDictionary};
use zstd::stream::read::Decoder;
use zstd::zstd_safe::{
    CCtx, DCtx, compress_bound, find_frame_compressed_size, get_dict_id_from_frame, get_frame_content_size,
};

/// A dictionary whose tables are ready for a level, to be shared by threads.
pub struct Prepared {
    encoder: EncoderDictionary<'static>,
    decoder: DecoderDictionary<'static>,
    header: Header,
    /// Contexts that nobody uses now: making one costs more than a record of 1 KB.
    idle_encoders: Mutex<Vec<CCtx<'static>>>,
    idle_decoders: Mutex<Vec<DCtx<'static>>>,
}

impl std::fmt::Debug for Prepared {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Prepared").field("header", &self.header).finish_non_exhaustive()
    }
}

impl Prepared {
    /// Prepares a dictionary, with or without a header.
    ///
    /// # Errors
    /// When its header is damaged.
    pub fn new(dictionary: &[u8], level: i32) -> Result<Self, CodecError> {
        let header = Header::parse(dictionary)?;
        let refused = |_| CodecError::corrupt("dictionary that zstd does not load");
        Ok(Self {
            encoder: EncoderDictionary::try_copy(dictionary, level).map_err(refused)?,
            decoder: DecoderDictionary::try_copy(dictionary).map_err(refused)?,
            header,
            idle_encoders: Mutex::default(),
            idle_decoders: Mutex::default(),
        })
    }

    /// What the dictionary says about itself.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// Compresses records on one thread.
    ///
    /// # Errors
    /// When libzstd has no memory.
    pub fn compressor(&self) -> Result<RecordCompressor<'_>, CodecError> {
        let idle = locked(&self.idle_encoders).pop();
        let context = idle.or_else(CCtx::try_create).ok_or(CodecError::corrupt("zstd did not start"))?;
        Ok(RecordCompressor { prepared: self, context: Some(context) })
    }

    /// Decompresses records on one thread.
    ///
    /// # Errors
    /// When libzstd has no memory.
    pub fn decompressor(&self) -> Result<RecordDecompressor<'_>, CodecError> {
        let idle = locked(&self.idle_decoders).pop();
        let context = idle.or_else(DCtx::try_create).ok_or(CodecError::corrupt("zstd did not start"))?;
        Ok(RecordDecompressor { prepared: self, context: Some(context) })
    }
}

fn locked<T>(idle: &Mutex<Vec<T>>) -> MutexGuard<'_, Vec<T>> {
    idle.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Makes frames of records. See [`Prepared::compressor`].
pub struct RecordCompressor<'a> {
    prepared: &'a Prepared,
    /// There until it is dropped, which gives it back.
    context: Option<CCtx<'static>>,
}

impl Drop for RecordCompressor<'_> {
    fn drop(&mut self) {
        locked(&self.prepared.idle_encoders).extend(self.context.take());
    }
}

impl std::fmt::Debug for RecordCompressor<'_> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("RecordCompressor").finish_non_exhaustive()
    }
}

impl RecordCompressor<'_> {
    /// Adds the frame of a record to `out`; returns its length.
    ///
    /// # Errors
    /// When libzstd has no memory.
    pub fn append(&mut self, record: &[u8], out: &mut Vec<u8>) -> Result<usize, CodecError> {
        let start = out.len();
        out.resize(start + compress_bound(record.len()), 0);
        let context = self.context.as_mut().expect("there until drop");
        let compressed =
            context.compress_using_cdict(&mut out[start..], record, self.prepared.encoder.as_cdict());
        out.truncate(start + compressed.unwrap_or(0));
        compressed.map_err(|_| CodecError::corrupt("zstd did not compress a record"))
    }
}

/// Makes records of frames. See [`Prepared::decompressor`].
pub struct RecordDecompressor<'a> {
    prepared: &'a Prepared,
    /// There until it is dropped, which gives it back.
    context: Option<DCtx<'static>>,
}

impl Drop for RecordDecompressor<'_> {
    fn drop(&mut self) {
        locked(&self.prepared.idle_decoders).extend(self.context.take());
    }
}

impl std::fmt::Debug for RecordDecompressor<'_> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("RecordDecompressor").finish_non_exhaustive()
    }
}

/// No zstd frame grows by more when it is decoded: a block of 128 KiB takes at least four bytes.
const MAX_RATIO: u64 = 1 << 15;

const DAMAGED: &str = "zstd frame, or it needs another dictionary";
const TOO_LONG: &str = "zstd frame that holds more than is allowed";

impl RecordDecompressor<'_> {
    /// Adds the record of a frame to `out`, if it has at most `max_len` bytes; returns its length. Of several frames, among
    /// which skippable ones may be, it is all that they hold.
    ///
    /// # Errors
    /// When a frame is damaged, needs another dictionary, or they hold more.
    pub fn append(&mut self, frames: &[u8], max_len: usize, out: &mut Vec<u8>) -> Result<usize, CodecError> {
        let start = out.len();
        let appended = match record_len(frames, max_len)? {
            Some(len) => {
                out.resize(start + len, 0);
                self.fill(frames, &mut out[start..])
            }
            None => self.stream(frames, max_len, out),
        };
        if appended.is_err() {
            out.truncate(start);
        }
        appended.map(|()| out.len() - start)
    }

    /// Adds what frames hold, and takes memory only for what was decoded: one of them does not state its size.
    fn stream(&self, frames: &[u8], max_len: usize, out: &mut Vec<u8>) -> Result<(), CodecError> {
        let damaged = |_| CodecError::corrupt(DAMAGED);
        let decoder = Decoder::with_prepared_dictionary(frames, &self.prepared.decoder).map_err(damaged)?;
        let len = decoder.take(max_len as u64 + 1).read_to_end(out).map_err(damaged)?;
        if len > max_len { Err(CodecError::corrupt(TOO_LONG)) } else { Ok(()) }
    }

    /// Decodes the record of a frame into exactly `out`.
    ///
    /// # Errors
    /// When the frame is damaged, needs another dictionary, or holds another number of bytes.
    pub fn fill(&mut self, frame: &[u8], out: &mut [u8]) -> Result<(), CodecError> {
        let context = self.context.as_mut().expect("there until drop");
        match context.decompress_using_ddict(out, frame, self.prepared.decoder.as_ddict()) {
            Ok(decoded_len) if decoded_len == out.len() => Ok(()),
            _ => Err(CodecError::corrupt(DAMAGED)),
        }
    }
}

/// Bytes of the record that one or more frames state to hold together: none of them more than it can hold, and all at most
/// `max_len`; nothing when one does not state its size.
///
/// # Errors
/// When they state more, or are no frames.
pub fn record_len(frames: &[u8], max_len: usize) -> Result<Option<usize>, CodecError> {
    let (mut rest, mut total) = (frames, Some(0u64));
    // No bytes are no frame.
    while !rest.is_empty() || frames.is_empty() {
        let len = frame_len(rest).ok_or(CodecError::corrupt("zstd frame that is cut off or damaged"))?;
        let (frame, later) = rest.split_at(len);
        // A skippable frame holds nothing, and says so.
        let stated = get_frame_content_size(frame);
        let stated = stated.map_err(|_| CodecError::corrupt("zstd frame header"))?;
        if stated.is_some_and(|stated| stated > len as u64 * MAX_RATIO) {
            return Err(CodecError::corrupt("zstd frame that states more than it can hold"));
        }
        total = total.zip(stated).map(|(total, stated)| total.saturating_add(stated));
        rest = later;
    }
    let fitting = |total| usize::try_from(total).ok().filter(|&len| len <= max_len);
    total.map(|total| fitting(total).ok_or(CodecError::corrupt(TOO_LONG))).transpose()
}

/// Bytes of the frame that some bytes start with, also of a skippable one; nothing when they do not start with a whole one.
pub fn frame_len(bytes: &[u8]) -> Option<usize> {
    find_frame_compressed_size(bytes).ok()
}

/// Whether some bytes are frames side by side, all of them whole.
pub fn are_frames(bytes: &[u8]) -> bool {
    let mut rest = bytes;
    while let Some(len) = frame_len(rest) {
        rest = &rest[len..];
    }
    rest.is_empty() && !bytes.is_empty()
}

/// The id of the dictionary that a frame needs, of several the first that is not skippable; nothing when it names none.
pub fn dictionary_id_of_frame(frames: &[u8]) -> Option<u32> {
    let mut rest = frames;
    while is_skippable(rest) {
        rest = &rest[frame_len(rest)?..];
    }
    get_dict_id_from_frame(rest).map(std::num::NonZero::get)
}

/// Whether some bytes start with a frame that zstd skips: sixteen magic numbers mean that.
fn is_skippable(frames: &[u8]) -> bool {
    frames.first_chunk().is_some_and(|&magic| u32::from_le_bytes(magic) & !0xF == 0x184D_2A50)
}
