//! Where bytes come from: a file, or stdin, which is kept in a temporary file when it must be read at random.

use crate::failure::Failure;
use mithril::ReadAt;
use std::fs::{self, File, Metadata};
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
    content: Content,
}

enum Content {
    /// Can be read at any place.
    File { file: File, before: Box<Metadata> },
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
        let metadata = file.metadata().map_err(failed)?;
        if metadata.is_dir() {
            return Err(failed(io::ErrorKind::IsADirectory.into()));
        }
        let name = path.display().to_string();
        if !metadata.is_file() {
            return Ok(Self { name, len: None, path: None, content: Content::Stream(Box::new(file)) });
        }
        let len = Some(metadata.len());
        let content = Content::File { file, before: Box::new(metadata) };
        Ok(Self { name, len, path: Some(path.to_owned()), content })
    }

    fn stdin() -> io::Result<Self> {
        let source = |len, content| Self { name: "stdin".to_owned(), len, path: None, content };
        let mut file = File::from(io::stdin().as_fd().try_clone_to_owned()?);
        let metadata = file.metadata()?;
        if metadata.is_file() && file.stream_position()? == 0 {
            return Ok(source(Some(metadata.len()), Content::File { file, before: Box::new(metadata) }));
        }
        let mut start = Vec::new();
        let mut stdin = io::stdin().lock();
        stdin.by_ref().take(START_LEN).read_to_end(&mut start)?;
        let stream = io::Cursor::new(start.clone()).chain(stdin);
        if !needs_random_access(&start) {
            return Ok(source(None, Content::Stream(Box::new(stream))));
        }
        let file = keep(stream)?;
        let metadata = file.metadata()?;
        Ok(source(Some(metadata.len()), Content::File { file, before: Box::new(metadata) }))
    }

    /// Whether it is a model file of a known kind.
    pub(crate) fn is_model(&self) -> bool {
        matches!(&self.content, Content::File { file, .. } if mithril::source::detect(file).is_some())
    }

    /// Whether it is a safetensors file whose tensors are frames.
    pub(crate) fn is_framed(&self) -> bool {
        matches!(&self.content, Content::File { file, .. } if mithril::pack::is_framed(file))
    }

    /// Whether it is a container.
    pub(crate) fn is_container(&self) -> bool {
        self.starts_with(b"MCKP")
    }

    /// Whether it is a frame.
    pub(crate) fn is_frame(&self) -> bool {
        self.starts_with(b"MTHF")
    }

    fn starts_with(&self, magic: &[u8; 4]) -> bool {
        let Content::File { file, .. } = &self.content else { return false };
        let mut start = [0; 4];
        ReadAt::read_exact_at(file, 0, &mut start).is_ok() && start == *magic
    }

    /// The name of the file without directories; nothing for stdin.
    pub(crate) fn file_name(&self) -> String {
        let name = self.path.as_ref().and_then(|path| path.file_name());
        name.map_or_else(String::new, |name| name.display().to_string())
    }

    /// The file, to be read at any place.
    pub(crate) fn random_access(&self) -> Result<File, Failure> {
        match &self.content {
            Content::File { file, .. } => file.try_clone().map_err(|error| Failure::read(&self.name, &error)),
            Content::Stream(_) => {
                let message = format!("`{}` is no model file, or cannot be read at any place", self.name);
                Err(Failure::input(message).with_hint("save it to a file first"))
            }
        }
    }

    /// All bytes, front to back.
    pub(crate) fn reader(self) -> Result<Box<dyn Read>, Failure> {
        Ok(match self.content {
            Content::File { file, .. } => Box::new(BufReader::with_capacity(BUFFER_LEN, file)),
            Content::Stream(stream) => stream,
        })
    }

    /// A file that changed while it was read may have been read as a mixture of old and new.
    pub(crate) fn check_unchanged(&self, file: &File) -> Result<(), Failure> {
        let Content::File { before, .. } = &self.content else { return Ok(()) };
        let now = file.metadata().map_err(|error| Failure::read(&self.name, &error))?;
        if now.len() != before.len() || now.modified().ok() != before.modified().ok() {
            return Err(Failure::read(&self.name, &io::Error::other("it changed while it was read")));
        }
        Ok(())
    }
}

/// Whether these first bytes are those of a file whose tensors are found by an index.
fn needs_random_access(start: &[u8]) -> bool {
    let is_safetensors = || {
        let len = start.first_chunk().map(|len| u64::from_le_bytes(*len));
        len.is_some_and(|len| (2..=100_000_000).contains(&len)) && start.get(8) == Some(&b'{')
    };
    let magics: [&[u8]; 4] = [b"MCKP", b"PK\x03\x04", b"GGUF", b"\x93NUMPY"];
    magics.iter().any(|magic| start.starts_with(magic)) || is_safetensors()
}

/// Copies a stream to a file that has no name any more, so that it is gone when the program ends.
fn keep(mut stream: impl Read) -> io::Result<File> {
    let mut file = temporary_file()?;
    io::copy(&mut stream, &mut file)?;
    Ok(file)
}

/// A file without a name.
pub(crate) fn temporary_file() -> io::Result<File> {
    let path = std::env::temp_dir().join(format!(".mithril-{}.tmp", std::process::id()));
    let file = fs::OpenOptions::new().read(true).write(true).create_new(true).open(&path)?;
    fs::remove_file(&path)?;
    Ok(file)
}
