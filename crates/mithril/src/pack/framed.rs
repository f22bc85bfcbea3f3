//! The second packaging: a valid safetensors file whose tensors are frames.

use super::file::{Source, create};
use super::layout::Layout;
use super::raw::Raw;
use super::{PackOptions, PackSummary, PackedTensor, Progress, UnpackSummary};
use crate::container::{EntryKind, Model};
use crate::{Encoder, Error, room};
use mithril_format::source::Kind;
use mithril_format::{ReadAt, TensorInfo, framed_safetensors};
use std::fs::File;
use std::io::{self, Seek, Write};
use std::path::Path;

/// Packs a safetensors file to another whose tensors are frames. A file that is there is replaced only if `replace`.
///
/// # Errors
/// When the input is no safetensors file, has bytes that belong to no tensor, or holds frames already; when reading or
/// writing fails.
pub fn pack_framed(
    input: &Path,
    output: &Path,
    options: &PackOptions,
    replace: bool,
    progress: Progress<'_>,
) -> Result<PackSummary, Error> {
    let source = Source::open(input)?;
    let layout = Layout::of(&source.file).map_err(|error| error.about(input, output))?;
    let refused = |reason: &str| Error::invalid(format!("`{}` {reason}", input.display()));
    if layout.kind != Kind::Safetensors {
        return Err(refused("is no safetensors file, so it cannot become one with frames"));
    }
    let has_holes = || refused("has bytes that belong to no tensor, which only a container can keep");
    let head = match layout.glue.as_slice() {
        [head] if head.start == 0 => Raw::new(&source.file, head.clone(), None),
        _ => return Err(has_holes()),
    };
    let head = head.read(0..head.len()).map_err(|error| error.about(input, output))?;
    // A hole before the first tensor is one run of bytes with the header.
    let header_end = head.first_chunk().and_then(|&len| u64::from_le_bytes(len).checked_add(8));
    if header_end != Some(head.len() as u64) {
        return Err(has_holes());
    }

    // The header comes first and says how long everything is, so the frames wait in a file of their own.
    let mut target = create(output, replace, source.attributes())?;
    let beside = output.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut frames = crate::anonymous_file(beside).map_err(|error| Error::cannot_write(output, error))?;
    let mut stored = Vec::with_capacity(layout.tensors.len());
    for tensor in &layout.tensors {
        let written = write_tensor(&source.file, tensor, options, &mut frames);
        let (len, is_frame) = written.map_err(|error| error.about(input, output).in_tensor(&tensor.name))?;
        stored.push((tensor, len, is_frame));
        progress(tensor.bytes.end - tensor.bytes.start);
    }
    let head = framed_safetensors::head(&head, &stored)?;
    let mut joined = frames.rewind().and_then(|()| {
        target.write_all(&head)?;
        io::copy(&mut frames, &mut target)
    });
    drop(frames);
    source.check_unchanged(input)?;
    joined = joined.and_then(|len| target.commit().map(|()| len));
    let frames_len = joined.map_err(|error| Error::cannot_write(output, error))?;
    let tensors = stored.into_iter().map(|(tensor, stored_len, _)| PackedTensor {
        name: tensor.name.clone(),
        dtype: tensor.dtype,
        shape: tensor.shape.clone(),
        kind: EntryKind::Full,
        raw_len: tensor.bytes.end - tensor.bytes.start,
        stored_len,
    });
    Ok(PackSummary {
        format: layout.kind.name(),
        raw_len: layout.file_len,
        packed_len: head.len() as u64 + frames_len,
        digest: None,
        tensors: tensors.collect(),
    })
}

/// Writes a tensor as a frame, or as it is when that is no larger; returns its length and whether it is a frame.
fn write_tensor(
    source: &File,
    tensor: &TensorInfo,
    options: &PackOptions,
    out: &mut impl Write,
) -> Result<(u64, bool), Error> {
    let raw = Raw::new(source, tensor.bytes.clone(), None);
    let is_large = raw.len() > options.in_memory_len;
    let options = options.frame_options(tensor.dtype, &tensor.shape);
    if is_large {
        let mut counted = Counted { writer: out, len: 0 };
        let mut encoder = Encoder::new(&mut counted, &options)?;
        raw.all_pieces(|_, piece| encoder.write_all(piece).map(|()| true).map_err(Error::writing))?;
        encoder.finish()?;
        return Ok((counted.len, true));
    }
    let bytes = raw.read(0..raw.len())?;
    let frame = crate::compress(&bytes, &options)?;
    let is_frame = frame.len() < bytes.len();
    let stored = if is_frame { &frame } else { &bytes };
    out.write_all(stored).map_err(Error::writing)?;
    Ok((stored.len() as u64, is_frame))
}

struct Counted<W> {
    writer: W,
    len: u64,
}

impl<W: Write> Write for Counted<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let len = self.writer.write(bytes)?;
        self.len += len as u64;
        Ok(len)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.writer.flush()
    }
}

/// Whether a file is a safetensors file with frames in it.
pub fn is_framed(source: &dyn ReadAt) -> bool {
    matches!(framed_safetensors::read(source), Ok(Some(_)))
}

/// How long the original of a safetensors file with frames is, as the file says.
///
/// # Errors
/// When the input holds no frames or damaged ones, or cannot be read.
pub fn framed_len(input: &Path) -> Result<u64, Error> {
    let source = Source::open(input)?;
    let framed =
        framed_safetensors::read(source.file()).map_err(|error| Error::from(error).about(input, input))?;
    let framed = framed.ok_or_else(|| Error::invalid(format!("`{}` holds no frames", input.display())))?;
    let model = Model::open_path(input)?;
    let lens = model.tensors().iter().map(|tensor| tensor.raw_len);
    Ok(lens.fold(framed.head.len() as u64, u64::saturating_add))
}

/// Restores the original of a safetensors file with frames. A file that is there is replaced only if `replace`.
///
/// # Errors
/// When the input holds no frames or damaged ones, or when reading or writing fails.
pub fn unpack_framed(
    input: &Path,
    output: &Path,
    threads: usize,
    replace: bool,
    progress: Progress<'_>,
) -> Result<UnpackSummary, Error> {
    let source = Source::open(input)?;
    let framed =
        framed_safetensors::read(&source.file).map_err(|error| Error::from(error).about(input, output))?;
    let framed = framed.ok_or_else(|| Error::invalid(format!("`{}` holds no frames", input.display())))?;
    let model = Model::open_path(input)?;
    let raw_len = framed_len(input)?;
    room::check(output, raw_len).map_err(|error| Error::cannot_write(output, error))?;
    let mut target = create(output, replace, source.attributes())?;
    target.write_all(&framed.head).map_err(|error| Error::cannot_write(output, error))?;
    for tensor_idx in 0..model.tensors().len() {
        let name = &model.tensors()[tensor_idx].name;
        model
            .open_tensor(tensor_idx)
            .and_then(|tensor| {
                tensor.for_each_piece(threads, |piece| {
                    progress(piece.len() as u64);
                    target.write_all(piece).map_err(Error::writing)
                })
            })
            .map_err(|error| error.about(input, output).in_tensor(name))?;
    }
    source.check_unchanged(input)?;
    target.commit().map_err(|error| Error::cannot_write(output, error))?;
    let name = output.file_name().map_or_else(String::new, |name| name.display().to_string());
    Ok(UnpackSummary { name, format: Kind::Safetensors.name().to_owned(), raw_len, packed_len: source.len() })
}
