//! Unpacks a container: the caller's thread reads, others decode, one writes.

use super::Progress;
use super::restore::{Feeder, Piece};
use crate::Error;
use crate::container::{Bases, Original, Reader};
use crate::options::thread_count;
use crate::pipeline::buffers::Buffers;
use crate::pipeline::ordered;
use mithril_format::{Digester, FormatError, ReadAt};
use std::io::Write;

/// What unpacking came to.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct UnpackSummary {
    /// Name of the original file.
    pub name: String,
    /// Its format.
    pub format: String,
    /// Its length.
    pub raw_len: u64,
    /// Bytes of the container.
    pub packed_len: u64,
}

/// Unpacks a container to the bytes of the original file. Returns the writer, not flushed. `threads` as in
/// [`DecodeOptions`](crate::DecodeOptions).
///
/// Every checksum is verified on the way. When it fails, the writer may have got part of the file.
///
/// # Errors
/// When the container is damaged or is no packed file, a base is not at hand, or reading or writing fails.
pub fn unpack<S: ReadAt, W: Write + Send>(
    reader: &Reader<S>,
    writer: W,
    bases: &Bases,
    threads: usize,
    progress: Progress<'_>,
) -> Result<(W, UnpackSummary), Error> {
    let original = check(reader, bases)?;
    let threads = thread_count(threads, usize::MAX, usize::try_from(original.len).unwrap_or(usize::MAX));
    let buffers = Buffers::default();
    let (fed, written) = ordered::run(
        threads,
        |line| Feeder { reader, bases, buffers: &buffers, line }.feed_all(),
        |pieces| write_pieces(writer, pieces, progress),
    )
    .map_err(Error::starting)?;
    // When writing failed, feeding stopped because of it; what decoding found broken comes before what is read later.
    let writer = written?;
    fed?;
    let summary = UnpackSummary {
        name: original.name,
        format: original.format,
        raw_len: original.len,
        packed_len: reader.directory().file_len(),
    };
    Ok((writer, summary))
}

/// What the original file was; checks all that can be checked before the first byte of output: that the container is
/// a packed file, that its parts add up, and that every base is at hand.
///
/// # Errors
/// When one of these is not so.
pub fn check<S: ReadAt>(reader: &Reader<S>, bases: &Bases) -> Result<Original, Error> {
    let original = reader.header()?.original.ok_or_else(|| {
        Error::invalid("the container holds tensors, but is no packed file: `extract` reads them")
    })?;
    let total: u64 = reader.entries().iter().fold(0, |sum: u64, entry| sum.saturating_add(entry.raw_len()));
    if total != original.len {
        let what = "the entries are not as long together as the original file";
        return Err(FormatError::Corrupt { what, offset: reader.directory().index_offset() }.into());
    }
    let mut missing = Vec::new();
    for entry_idx in 0..reader.entries().len() {
        match reader.check_base(entry_idx, bases) {
            Err(error) if error.is_missing_base() => missing.push(error),
            checked => checked?,
        }
    }
    reader.missing_base(missing).map_or(Ok(original), Err)
}

/// Writes what was decoded, in order. What was copied from a base is digested on the way: the base may be a container
/// that records a digest which is not that of its bytes.
fn write_pieces<W: Write>(
    mut writer: W,
    pieces: &mut dyn Iterator<Item = Result<Piece<'_>, Error>>,
    progress: Progress<'_>,
) -> Result<W, Error> {
    let mut copied = Digester::default();
    for piece in pieces {
        let bytes = match &piece? {
            Piece::Decoded(bytes) => {
                writer.write_all(bytes).map_err(Error::writing)?;
                bytes.len()
            }
            Piece::Copied(bytes) => {
                copied.update(bytes);
                writer.write_all(bytes).map_err(Error::writing)?;
                bytes.len()
            }
            Piece::Glue(bytes) => {
                writer.write_all(bytes).map_err(Error::writing)?;
                bytes.len()
            }
            Piece::EndOfCopy(expected, name) => {
                let actual = std::mem::take(&mut copied).finish();
                if actual != *expected {
                    let error = Error::BaseMismatch { expected: *expected, actual: Some(actual) };
                    return Err(error.in_tensor(name));
                }
                0
            }
        };
        progress(bytes as u64);
    }
    Ok(writer)
}
