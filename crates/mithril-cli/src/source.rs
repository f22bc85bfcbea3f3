//! Where bytes come from: a file, or stdin, which is kept in a temporary file when it must be read at random.

use crate::failure::Failure;
use mithril::{Attributes, anonymous_file, pack};
use std::fs::File;
use std::io::{self, BufReader, Read, Seek};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

/// Bytes read at a time.
const BUFFER_LEN: usize = 1 << 20;

/// Bytes that tell what comes on stdin.
const START_LEN: u64 = 16;

/// Where bytes come from.
pub(crate) struct Source {
    /// How messages call it.
    pub(crate) name: String,
    /// How many bytes there are, if that is known.
    pub(crate) len: Option<u64>,
    /// The file, unless it is stdin.
    pub(crate) path: Option<PathBuf>,
    /// Its first bytes.
    start: Vec<u8>,
    content: Content,
}

enum Content {
    /// Can be read at any place.
    File(pack::Source),
    /// Can be read once, front to back.
    Stream(Box<dyn Read>),
}

/// Whether a path means stdin or stdout.
pub(crate) fn is_stdio(path: &Path) -> bool {
    path.as_os_str() == "-"
}

impl Source {
    /// Opens a file, or stdin for `-`.
    pub(crate) fn open(path: &Path) -> Result<Self, Failure> {
        if is_stdio(path) {
            return Self::stdin().map_err(|error| Failure::read("stdin", &error));
        }
        let failed = |error: io::Error| Failure::read(path.display(), &error);
        let file = File::open(path).map_err(failed)?;
        let source = match file.metadata().map_err(failed)?.is_file() || path.is_dir() {
            true => Self::of_file(file),
            false => Self::of_stream(file),
        };
        let path = path.to_owned();
        source
            .map(|source| Self { name: path.display().to_string(), path: Some(path), ..source })
            .map_err(failed)
    }

    fn stdin() -> io::Result<Self> {
        let mut file = File::from(io::stdin().as_fd().try_clone_to_owned()?);
        if file.metadata()?.is_file() && file.stream_position()? == 0 {
            return Self::of_file(file);
        }
        let source = Self::of_stream(io::stdin().lock())?;
        match source.content {
            Content::Stream(stream) if needs_random_access(&source.start) => Self::of_file(keep(stream)?),
            _ => Ok(source),
        }
    }

    fn of_file(file: File) -> io::Result<Self> {
        let file = pack::Source::of(file)?;
        let mut start = Vec::new();
        file.reader().take(START_LEN).read_to_end(&mut start)?;
        let (name, len) = ("stdin".to_owned(), Some(file.len()));
        Ok(Self { name, len, path: None, start, content: Content::File(file) })
    }

    fn of_stream(mut stream: impl Read + 'static) -> io::Result<Self> {
        let mut start = Vec::new();
        stream.by_ref().take(START_LEN).read_to_end(&mut start)?;
        let content = Content::Stream(Box::new(io::Cursor::new(start.clone()).chain(stream)));
        Ok(Self { name: "stdin".to_owned(), len: None, path: None, start, content })
    }

    /// Whether it is a model file of a known kind.
    pub(crate) fn is_model(&self) -> bool {
        matches!(&self.content, Content::File(file) if mithril::source::detect(file.file()).is_some())
    }

    /// Whether it is a safetensors file whose tensors are frames.
    pub(crate) fn is_framed(&self) -> bool {
        matches!(&self.content, Content::File(file) if pack::is_framed(file.file()))
    }

    /// Whether it is a container.
    pub(crate) fn is_container(&self) -> bool {
        self.start.starts_with(&mithril::CONTAINER_MAGIC)
    }

    /// Whether it is a frame.
    pub(crate) fn is_frame(&self) -> bool {
        self.start.starts_with(&mithril::FRAME_MAGIC)
    }

    /// Whether it is too short to say what it is.
    pub(crate) fn is_short(&self) -> bool {
        self.start.len() < mithril::FRAME_MAGIC.len()
    }

    /// The name of the file without directories; nothing for stdin.
    pub(crate) fn file_name(&self) -> String {
        let name = self.path.as_ref().and_then(|path| path.file_name());
        name.map_or_else(String::new, |name| name.display().to_string())
    }

    /// The file, to be read at any place.
    pub(crate) fn random_access(&self) -> Result<File, Failure> {
        match &self.content {
            Content::File(file) => file.file().try_clone().map_err(|error| Failure::read(&self.name, &error)),
            Content::Stream(_) => {
                let message = format!("`{}` is no model file, or cannot be read at any place", self.name);
                Err(Failure::input(message).with_hint("save it to a file first"))
            }
        }
    }

    /// All bytes, front to back.
    pub(crate) fn reader(&mut self) -> Box<dyn Read + '_> {
        match &mut self.content {
            Content::File(file) => Box::new(BufReader::with_capacity(BUFFER_LEN, file.reader())),
            Content::Stream(stream) => Box::new(stream),
        }
    }

    /// Mode and time for a file that takes its place: compressed or restored.
    pub(crate) fn attributes(&self) -> Attributes {
        match (&self.content, &self.path) {
            (Content::File(file), Some(_)) => file.attributes(),
            _ => self.narrow_attributes(),
        }
    }

    /// Mode for a file that holds a part of it, or another form.
    pub(crate) fn narrow_attributes(&self) -> Attributes {
        match &self.content {
            // What comes through a pipe has no mode, nor has the file that it was kept in.
            Content::File(file) if self.path.is_some() || !is_unlinked(file) => {
                Attributes::no_wider_than(file.metadata())
            }
            _ => Attributes::default(),
        }
    }

    /// A file that changed while it was read may have been read as a mixture of old and new.
    pub(crate) fn check_unchanged(&self) -> Result<(), Failure> {
        let Content::File(file) = &self.content else { return Ok(()) };
        file.check_unchanged(Path::new(&self.name)).map_err(|error| Failure::model(&self.name, &error))
    }
}

/// As [`Source::narrow_attributes`], for a file that is open elsewhere.
pub(crate) fn narrow_attributes(path: &Path) -> Result<Attributes, Failure> {
    let metadata = std::fs::metadata(path).map_err(|error| Failure::read(path.display(), &error))?;
    Ok(Attributes::no_wider_than(&metadata))
}

fn is_unlinked(file: &pack::Source) -> bool {
    use std::os::unix::fs::MetadataExt;
    file.metadata().nlink() == 0
}

/// Whether these first bytes are those of a file whose tensors are found by an index.
fn needs_random_access(start: &[u8]) -> bool {
    let is_safetensors = || {
        let len = start.first_chunk().map(|len| u64::from_le_bytes(*len));
        len.is_some_and(|len| (2..=100_000_000).contains(&len)) && start.get(8) == Some(&b'{')
    };
    // The last is the pickled number that files of PyTorch before 1.6 start with.
    let magics: [&[u8]; 5] = [
        &mithril::CONTAINER_MAGIC,
        b"PK\x03\x04",
        b"GGUF",
        b"\x93NUMPY",
        b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19.",
    ];
    magics.iter().any(|magic| start.starts_with(magic)) || is_safetensors()
}

/// Copies a stream to a file that has no name, so that it is gone when the program ends.
fn keep(mut stream: impl Read) -> io::Result<File> {
    let mut file = temporary_file()?;
    let len = io::copy(&mut stream, &mut file)?;
    match file.metadata()?.len() {
        kept if kept == len => Ok(file),
        kept => Err(io::Error::other(format!("{len} bytes came, and {kept} were kept"))),
    }
}

/// A file without a name, where the system keeps temporary files.
pub(crate) fn temporary_file() -> io::Result<File> {
    let directory = std::env::temp_dir();
    anonymous_file(&directory).map_err(|error| {
        io::Error::other(format!("no temporary file can be made in `{}`: {error}", directory.display()))
    })
}
