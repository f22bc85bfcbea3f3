//! Which layout a file has, found from its bytes, and the tensors in it.
//!
//! The one door to the readers of foreign files. A file is a list of tensors at byte ranges that do not overlap; what
//! lies between them belongs to none. So a file comes back byte for byte whatever its layout: a reader that finds fewer
//! tensors costs size, never data.

use crate::checked_reader::CheckedReader;
use crate::tensor_info::TensorInfo;
use crate::{ReadAt, ReadError, gguf, npy, npz, onnx, pt, safetensors, zip};

/// The layout of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Kind {
    /// A safetensors file.
    Safetensors,
    /// One numpy array.
    Npy,
    /// A zip archive of numpy arrays.
    Npz,
    /// A PyTorch checkpoint in a zip archive.
    Torch,
    /// A PyTorch checkpoint of the layout before version 1.6.
    TorchLegacy,
    /// A GGUF file.
    Gguf,
    /// An ONNX model.
    Onnx,
}

impl Kind {
    /// Its name, as users know it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Safetensors => "safetensors",
            Self::Npy => "npy",
            Self::Npz => "npz",
            Self::Torch => "PyTorch",
            Self::TorchLegacy => "PyTorch before 1.6",
            Self::Gguf => "GGUF",
            Self::Onnx => "ONNX",
        }
    }
}

/// Bytes that tell most layouts apart.
const START_LEN: u64 = 512;

/// The layout of a file, or none when it is of no kind that is known, or cannot be read.
///
/// Names and suffixes do not count. That a file looks like a kind does not mean that it is whole: [`tensors`] says.
pub fn detect(source: &dyn ReadAt) -> Option<Kind> {
    try_detect(source).ok().flatten()
}

/// As [`detect`], and tells a file of no known kind from one that cannot be read.
///
/// # Errors
/// When the start of the file cannot be read.
pub fn try_detect(source: &dyn ReadAt) -> Result<Option<Kind>, ReadError> {
    let reader = CheckedReader::new(source, "model")?;
    let start = reader.start(START_LEN)?;
    Ok(if start.starts_with(npy::MAGIC) {
        Some(Kind::Npy)
    } else if start.starts_with(gguf::MAGIC) {
        Some(Kind::Gguf)
    } else if start.starts_with(pt::LEGACY_MAGIC) {
        Some(Kind::TorchLegacy)
    } else if start.starts_with(zip::MAGIC) {
        archive_kind(&reader, &start)
    } else if safetensors::is_plausible(&start, reader.len()) {
        Some(Kind::Safetensors)
    } else {
        // No bytes mark it: it is one if all of it can be read.
        onnx::read(source).is_ok().then_some(Kind::Onnx)
    })
}

/// What a zip archive holds: its first entry says so, or else its directory.
fn archive_kind(reader: &CheckedReader<'_>, start: &[u8]) -> Option<Kind> {
    let kind = |name: &str| match name {
        name if pt::is_pickle(name) => Some(Kind::Torch),
        name if name.ends_with(".npy") => Some(Kind::Npz),
        _ => None,
    };
    let first = zip::first_name(start).and_then(|name| std::str::from_utf8(name).ok());
    first.and_then(kind).or_else(|| {
        let entries = zip::entries(reader).ok()?;
        entries.iter().find_map(|entry| kind(&entry.name))
    })
}

/// The tensors of a file of this kind: in the order of their bytes, no two with a byte or a name in common.
///
/// # Errors
/// When the file breaks the rules of its kind, or cannot be read.
pub fn tensors(kind: Kind, source: &dyn ReadAt) -> Result<Vec<TensorInfo>, ReadError> {
    match kind {
        Kind::Safetensors => safetensors::read(source),
        Kind::Npy => npy::read(source),
        Kind::Npz => npz::read(source),
        Kind::Torch | Kind::TorchLegacy => Ok(pt::read(source)?.storages),
        Kind::Gguf => gguf::read(source),
        Kind::Onnx => onnx::read(source),
    }
}

/// The tensors that packing a file of this kind tells apart. As [`tensors`], and also of some files that break the rules
/// of their kind: what is packed comes back byte for byte, whatever it is.
///
/// # Errors
/// When the file cannot be read, or its tensors cannot be told apart.
pub fn tensors_to_pack(kind: Kind, source: &dyn ReadAt) -> Result<Vec<TensorInfo>, ReadError> {
    match kind {
        Kind::Safetensors => safetensors::read_to_pack(source),
        _ => tensors(kind, source),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::zip::tests::archive;

    #[test]
    fn kinds_are_found_by_content() {
        let kind = |bytes: &[u8]| detect(&bytes.to_vec());
        assert_eq!(kind(b"\x93NUMPY\x01\x00"), Some(Kind::Npy));
        assert_eq!(kind(b"GGUF"), Some(Kind::Gguf));
        assert_eq!(kind(&[pt::LEGACY_MAGIC, b"more"].concat()), Some(Kind::TorchLegacy));
        assert_eq!(kind(b"\x02\0\0\0\0\0\0\0{}"), Some(Kind::Safetensors));
        assert_eq!(kind(b"\x03\0\0\0\0\0\0\0{}"), None);
        assert_eq!(kind(&archive(&[("model/data.pkl", b""), ("model/data/0", b"")])), Some(Kind::Torch));
        assert_eq!(kind(&archive(&[("readme", b""), ("data.pkl", b"")])), Some(Kind::Torch));
        assert_eq!(kind(&archive(&[("x.npy", b"")])), Some(Kind::Npz));
        assert_eq!(kind(&archive(&[("x.txt", b"")])), None);
        // Cut off: the first entry still tells, and reading says what is wrong.
        let cut = archive(&[("m/data.pkl", b"123456")])[..50].to_vec();
        assert_eq!(kind(&cut), Some(Kind::Torch));
        assert!(tensors(Kind::Torch, &cut).unwrap_err().to_string().contains("cut off"));
        let legacy = tensors(Kind::TorchLegacy, &pt::LEGACY_MAGIC.to_vec()).unwrap_err().to_string();
        assert!(legacy.contains("cut off"), "{legacy}");
        // A version, and a graph with one tensor of 64 bytes.
        let tensor = [&[0x08, 16, 0x10, 1, 0x4a, 64][..], &[5; 64]].concat();
        let onnx = [&[0x08, 8, 0x3a, 72, 0x2a, 70][..], &tensor].concat();
        assert_eq!(kind(&onnx), Some(Kind::Onnx));
        assert_eq!(kind(&onnx[..75]), None);
        for other in [&b""[..], b"PK", b"MTHF", b"MCKP\x01", b"{\"a\": 1}", &[0; 100]] {
            assert_eq!(kind(other), None, "{other:?}");
        }
    }
}
