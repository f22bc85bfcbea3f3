//! The container that lists a packed directory and holds its small files.

use super::{MANIFEST, journal};
use crate::container::{Bases, Entry, Header, PackedFile, Reader};
use crate::{AtomicFile, Attributes, Effort, Error, FrameOptions};
use mithril_codec::Dtype;
use mithril_format::FormatError;
use mithril_format::container::ContainerWriter;
use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

/// Writes the manifest; `small` is the bytes of the files that lie in it, one behind the other.
pub(super) fn write(
    directory: &Path,
    files: Vec<PackedFile>,
    small: &[u8],
    effort: Effort,
    replace: bool,
) -> Result<u64, Error> {
    let path = directory.join(MANIFEST);
    let failed = |error| Error::cannot_write(&path, error);
    // It holds bytes of small files: nobody may read it who may not read all of them.
    let inside = files.iter().filter(|file| file.packed_as.is_none() && file.link.is_none());
    let attributes = Attributes::no_wider_than_mode(inside.fold(0o666, |mode, file| mode & file.mode));
    let file = AtomicFile::create_with(&path, replace, attributes).map_err(failed)?;
    let (file, len) = write_to(file, files, small, effort)?.map_err(failed)?;
    file.commit().map_err(failed)?;
    Ok(len)
}

/// Writes the manifest; returns the writer and how many bytes it got.
pub(super) fn write_to<W: Write>(
    writer: W,
    files: Vec<PackedFile>,
    small: &[u8],
    effort: Effort,
) -> Result<io::Result<(W, u64)>, Error> {
    let entry = Entry::glue(small.len() as u64);
    // Text: what general compressors find in it is worth their time.
    let effort = effort.max(Effort::Balanced);
    let options =
        FrameOptions::default().with_dtype(Dtype::Bytes).with_shape(entry.shape.clone()).with_effort(effort);
    let bytes = if small.is_empty() { Vec::new() } else { crate::compress(small, &options)? };
    let mut header = Header::default();
    header.writer = crate::pack::writer_name();
    header.files = files;
    let write = || {
        let mut container = ContainerWriter::new(writer, &header, 6)?;
        if !small.is_empty() {
            let mut frame = container.start_frame(entry)?;
            frame.write_all(&bytes)?;
            frame.finish();
        }
        let finished = container.finish()?;
        Ok((finished.writer, finished.len))
    };
    Ok(write())
}

/// Reads a manifest: the files, and the bytes of the small ones.
pub(super) fn read(directory: &Path) -> Result<(Vec<PackedFile>, Vec<u8>), Error> {
    journal::check_complete(directory)?;
    let path = directory.join(MANIFEST);
    let file = File::open(&path).map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => Error::NotFound {
            what: format!(
                "`{}` is no packed directory: it has no `{MANIFEST}`, or packing it was interrupted",
                directory.display()
            ),
        },
        _ => Error::cannot_read(&path, error),
    })?;
    let reader = Reader::open(file)?;
    let files = reader.header()?.files;
    let small = match reader.entries() {
        [] => Vec::new(),
        [glue] if glue.glue => reader.read(0, &Bases::none())?,
        _ => return Err(corrupt("tensors in the manifest of a directory")),
    };
    let inside = files.iter().filter(|file| file.packed_as.is_none() && file.link.is_none());
    let len = inside.fold(0u64, |sum, file| sum.saturating_add(file.len));
    if len != small.len() as u64 {
        return Err(corrupt("small files of other lengths than their bytes"));
    }
    Ok((files, small))
}

fn corrupt(what: &'static str) -> Error {
    FormatError::Corrupt { what, offset: 0 }.into()
}
