//! One buffer to a frame, and back, as streams.

use super::{Done, Facts};
use crate::arguments::{CompressArguments, DecompressArguments};
use crate::failure::Failure;
use crate::output::{Output, Target, too_large};
use crate::progress::Metered;
use crate::source::Source;
use mithril::{DecodeOptions, Decoder, Dtype, Encoder, Error, FormatError, FrameOptions};
use std::io::{self, Read, Write};
use std::time::Instant;

/// Bytes read at a time.
const BUFFER_LEN: usize = 1 << 20;

/// Compresses a buffer.
pub(super) fn compress(
    mut source: Source,
    target: &Target,
    arguments: &CompressArguments,
) -> Result<Done, Failure> {
    let output = Output::create(target, arguments.force, source.attributes())?;
    let dtype = arguments.dtype.unwrap_or(Dtype::Bytes);
    let options = FrameOptions::default().with_dtype(dtype).with_coding(arguments.coding.coding());

    let started = Instant::now();
    let source_name = source.name.clone();
    let output_name = output.name().to_owned();
    let total_len = source.len;
    let mut reader = Metered::new(source.reader(), total_len);
    let refused = |error: &Error| match error {
        Error::Io { what, .. } if what == "cannot read" => Failure::model(&source_name, error),
        Error::Io { source, .. } => Failure::write(&output_name, source),
        _ => Failure::library(&source_name, error),
    };
    let mut encoder = Encoder::new(output, &options).map_err(|error| refused(&error))?;
    let mut buffer = vec![0; BUFFER_LEN];
    loop {
        let len = read_some(&mut reader, &mut buffer).map_err(|error| Failure::read(&source_name, &error))?;
        if len == 0 {
            break;
        }
        encoder.write_all(&buffer[..len]).map_err(|error| match library_error(&error) {
            Some(error) => refused(error),
            None => Failure::write(&output_name, &error),
        })?;
    }
    let raw_len = reader.finish();
    // What was coded is all that the file has, or all that came through the pipe.
    let output = encoder.finish_whole(total_len.unwrap_or(raw_len)).map_err(|error| refused(&error))?;
    source.check_unchanged()?;
    let stored_len = output.commit()?;
    Ok(Done {
        source: source_name,
        output: output_name,
        raw_len,
        stored_len,
        seconds: started.elapsed().as_secs_f64(),
        detail: format!("as {}", dtype.name()),
        facts: Facts::Frame(Some(dtype)),
    })
}

/// Restores a buffer.
pub(super) fn decompress(
    mut source: Source,
    target: &Target,
    arguments: &DecompressArguments,
) -> Result<Done, Failure> {
    let started = Instant::now();
    let source_name = source.name.clone();
    let mut options = DecodeOptions::default().with_threads(arguments.threads);
    options.max_output_len = arguments.max_output;
    let total_len = source.len;
    let attributes = source.attributes();
    let claimed_len = claimed_len(&source);
    let reader = Metered::new(source.reader(), total_len);
    let mut decoder =
        Decoder::with_options(reader, &options).map_err(|error| refused(&source_name, &error))?;
    // Only now: a file that is no frame at all must not cost the user an existing output, nor a hint about it.
    let claimed_len = claimed_len.or(decoder.header().raw_len).unwrap_or(0);
    target.check_room(claimed_len, arguments.max_output)?;
    let mut output = Output::create(target, arguments.force, attributes)?;
    let output_name = output.name().to_owned();
    let mut buffer = vec![0; BUFFER_LEN];
    let mut raw_len = 0;
    loop {
        let len = read_some(&mut decoder, &mut buffer).map_err(|error| match library_error(&error) {
            Some(error @ Error::TooLarge { .. }) => too_large(error),
            Some(error) => refused(&source_name, error),
            None => Failure::read(&source_name, &error),
        })?;
        if len == 0 {
            break;
        }
        output.write_all(&buffer[..len]).map_err(|error| Failure::write(&output_name, &error))?;
        raw_len += len as u64;
    }
    let stored_len = decoder.into_inner().finish();
    source.check_unchanged()?;
    output.commit()?;
    Ok(Done {
        source: source_name,
        output: output_name,
        raw_len,
        stored_len,
        seconds: started.elapsed().as_secs_f64(),
        detail: String::new(),
        facts: Facts::Frame(None),
    })
}

/// How many bytes a frame in a file says that it holds. One that is damaged is refused when it is decoded.
fn claimed_len(source: &Source) -> Option<u64> {
    let file = source.random_access().ok()?;
    mithril::raw_len_at(&file, 0..source.len?).ok()
}

/// A file that is no intact frame, with the cure for the likely mistakes.
pub(crate) fn refused(name: &str, error: &Error) -> Failure {
    match error {
        Error::Format(FormatError::NotAFrame { .. }) => {
            Failure::input(format!("`{name}` is neither packed nor a model file of a known kind"))
                .with_hint("only files made by `mithril compress`, and safetensors, npy, npz, pt, gguf and onnx, can be read")
        }
        Error::Io { .. } => Failure::model(name, error),
        _ => Failure::library(name, error),
    }
}

/// Reads until the buffer is full or the data ends.
fn read_some(reader: &mut impl Read, buffer: &mut [u8]) -> io::Result<usize> {
    let mut len = 0;
    while len < buffer.len() {
        match reader.read(&mut buffer[len..]) {
            Ok(0) => break,
            Ok(n) => len += n,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(len)
}

/// The library's own error, where an `io::Error` carries one.
fn library_error(error: &io::Error) -> Option<&Error> {
    error.get_ref().and_then(|inner| inner.downcast_ref())
}
