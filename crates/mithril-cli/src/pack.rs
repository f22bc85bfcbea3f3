//! `mithril compress` and `mithril decompress`: one buffer to a frame and back, with bounded memory.

use crate::arguments::{CompressArguments, DecompressArguments};
use crate::clock::seconds;
use crate::failure::{Failure, tell};
use crate::input::has_suffix;
use crate::output::{Output, Target};
use crate::progress::Metered;
use mithril::{DecodeOptions, Decoder, Dtype, Encoder, Error, FormatError, FrameOptions, npy};
use rustix::time::ClockId;
use std::fs::File;
use std::io::{self, BufReader, IsTerminal, Read, Write};
use std::path::{Path, PathBuf};

/// Suffix of frames.
const SUFFIX: &str = "mthf";

/// Bytes read at a time.
const BUFFER_LEN: usize = 1 << 20;

/// Bytes that are looked at for the header of a `.npy` file.
const NPY_HEADER_LEN: u64 = 1 << 16;

/// Runs `mithril compress`.
pub(crate) fn compress(arguments: &CompressArguments) -> Result<(), Failure> {
    let path = &arguments.file;
    if has_suffix(path, "safetensors") {
        let message =
            format!("`{}` is a file of many tensors, and `compress` takes one buffer", path.display());
        return Err(Failure::command(message).with_hint(
            "packing whole safetensors files is not there yet; `mithril bench` shows what it would save",
        ));
    }
    let target = arguments.output.as_deref().map(Target::named).unwrap_or_else(|| match is_stdio(path) {
        true => Target::Stdout,
        false => Target::File(with_suffix(path)),
    });
    if matches!(target, Target::Stdout) && io::stdout().is_terminal() {
        let message = "compressed data is not written to a terminal";
        return Err(Failure::command(message).with_hint("name a file with `-o`, or send stdout to one"));
    }
    let source = Source::open(path)?;
    let output = Output::create(target, arguments.force)?;
    let dtype = match arguments.dtype {
        Some(dtype) => dtype,
        None => source.dtype()?,
    };
    let mut options = FrameOptions::default()
        .with_dtype(dtype)
        .with_effort(arguments.effort)
        .with_threads(arguments.threads);
    options.level = arguments.level;

    let started = seconds(ClockId::Monotonic);
    let source_name = source.name;
    let output_name = output.name();
    let mut reader = Metered::new(source.reader, source.len);
    let refused = |error: &Error| match error {
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
    let output = encoder.finish().map_err(|error| refused(&error))?;
    let raw_len = reader.finish();
    let coded_len = output.commit()?;
    let ratio = coded_len as f64 / raw_len.max(1) as f64;
    let rate = rate(raw_len, started);
    let dtype = dtype.name();
    tell(&format!(
        "{source_name} -> {output_name}: {raw_len} -> {coded_len} bytes ({ratio:.4}) as {dtype}, {rate}"
    ));
    Ok(())
}

/// Runs `mithril decompress`.
pub(crate) fn decompress(arguments: &DecompressArguments) -> Result<(), Failure> {
    let path = &arguments.file;
    let target = match &arguments.output {
        Some(output) => Target::named(output),
        None if is_stdio(path) => Target::Stdout,
        None if has_suffix(path, SUFFIX) => Target::File(path.with_extension("")),
        None => {
            let message =
                format!("`{}` does not end in `.{SUFFIX}`, so the output has no name", path.display());
            return Err(Failure::command(message).with_hint("name it with `-o`"));
        }
    };
    let source = Source::open(path)?;
    let started = seconds(ClockId::Monotonic);
    let source_name = source.name;
    let options = DecodeOptions::default().with_threads(arguments.threads);
    let reader = Metered::new(source.reader, source.len);
    let mut decoder =
        Decoder::with_options(reader, &options).map_err(|error| refused(&source_name, &error))?;
    // Only now: a file that is no frame at all must not cost the user an existing output, nor a hint about it.
    let mut output = Output::create(target, arguments.force)?;
    let output_name = output.name();
    let mut buffer = vec![0; BUFFER_LEN];
    let mut raw_len = 0;
    loop {
        let len = read_some(&mut decoder, &mut buffer).map_err(|error| match library_error(&error) {
            Some(error) => refused(&source_name, error),
            None => Failure::read(&source_name, &error),
        })?;
        if len == 0 {
            break;
        }
        output.write_all(&buffer[..len]).map_err(|error| Failure::write(&output_name, &error))?;
        raw_len += len as u64;
    }
    let coded_len = decoder.into_inner().finish();
    output.commit()?;
    let rate = rate(raw_len, started);
    tell(&format!("{source_name} -> {output_name}: {coded_len} -> {raw_len} bytes, {rate}"));
    Ok(())
}

/// Where bytes come from.
pub(crate) struct Source {
    /// How messages call it.
    pub(crate) name: String,
    /// Its bytes.
    pub(crate) reader: Box<dyn Read>,
    /// How many there are, if that is known.
    pub(crate) len: Option<u64>,
    path: Option<PathBuf>,
}

impl Source {
    /// Opens a file, or stdin for `-`.
    pub(crate) fn open(path: &Path) -> Result<Self, Failure> {
        if is_stdio(path) {
            return Ok(Self {
                name: "stdin".to_owned(),
                reader: Box::new(io::stdin().lock()),
                len: None,
                path: None,
            });
        }
        let failed = |error: io::Error| Failure::read(path.display(), &error);
        let file = File::open(path).map_err(failed)?;
        let metadata = file.metadata().map_err(failed)?;
        if metadata.is_dir() {
            return Err(failed(io::ErrorKind::IsADirectory.into()));
        }
        Ok(Self {
            name: path.display().to_string(),
            reader: Box::new(BufReader::with_capacity(BUFFER_LEN, file)),
            len: metadata.is_file().then_some(metadata.len()),
            path: Some(path.to_owned()),
        })
    }

    /// The type of its numbers, as far as the file itself says so.
    fn dtype(&self) -> Result<Dtype, Failure> {
        let Some(path) = self.path.as_deref().filter(|path| has_suffix(path, "npy")) else {
            return Ok(Dtype::Bytes);
        };
        let mut head = Vec::new();
        let file = File::open(path).map_err(|error| Failure::read(&self.name, &error))?;
        file.take(NPY_HEADER_LEN)
            .read_to_end(&mut head)
            .map_err(|error| Failure::read(&self.name, &error))?;
        // An array of a type that we do not know, or a damaged header, is still bytes.
        Ok(npy::parse(&head).map_or(Dtype::Bytes, |array| array.dtype))
    }
}

/// A file that is no intact frame, with the cure for the likely mistakes.
pub(crate) fn refused(name: &str, error: &Error) -> Failure {
    let failure = Failure::library(name, error);
    match error {
        Error::Format(FormatError::NotAFrame { .. }) => {
            failure.with_hint("only files made by `mithril compress` can be read")
        }
        _ => failure,
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

/// The name of a file's frame: its own, with our suffix behind it.
fn with_suffix(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".");
    name.push(SUFFIX);
    name.into()
}

fn is_stdio(path: &Path) -> bool {
    path.as_os_str() == "-"
}

fn rate(raw_len: u64, started: f64) -> String {
    format!("{:.2} GB/s", raw_len as f64 / 1e9 / (seconds(ClockId::Monotonic) - started).max(1e-9))
}
