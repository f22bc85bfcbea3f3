//! Tensors of a file whose sizes are known only when they are coded: kept aside, then laid out.

use super::matrix::NewPart;
use crate::Error;
use crate::convert::repository::cannot;
use crate::convert::{OutputDirectory, PIECE_LEN};
use mithril_format::safetensors_layout::Layout;
use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

/// A temporary file beside the output, and what lies in it.
pub(crate) struct Spool {
    /// The directory that it takes room of.
    path: PathBuf,
    file: File,
    entries: Mutex<Entries>,
}

#[derive(Default)]
struct Entries {
    len: u64,
    parts: Vec<(NewPart, u64)>,
}

impl Spool {
    pub(crate) fn create(output: &OutputDirectory) -> Result<Self, Error> {
        let path = output.temporary().to_owned();
        let file = crate::anonymous_file(&path).map_err(|error| cannot("write", &path, error))?;
        Ok(Self { path, file, entries: Mutex::default() })
    }

    /// Takes tensors in; their bytes go to disk.
    pub(crate) fn add(&self, parts: Vec<NewPart>) -> Result<(), Error> {
        for mut part in parts {
            let bytes = std::mem::take(&mut part.bytes);
            let at = {
                let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
                let at = entries.len;
                entries.len += bytes.len() as u64;
                entries.parts.push((part, at));
                at
            };
            self.file.write_all_at(&bytes, at).map_err(|error| cannot("write", &self.path, error))?;
        }
        Ok(())
    }

    /// Writes the safetensors file of everything taken in; returns the names of its tensors and its bytes.
    pub(crate) fn finish(
        self,
        output: &OutputDirectory,
        name: &str,
        metadata: &BTreeMap<String, String>,
    ) -> Result<(Vec<String>, u64), Error> {
        let entries = self.entries.into_inner().unwrap_or_else(PoisonError::into_inner);
        let list: Vec<_> = entries
            .parts
            .iter()
            .map(|(part, _)| (part.name.clone(), part.dtype, part.shape.clone()))
            .collect();
        let layout = Layout::new(list, metadata)
            .ok_or_else(|| Error::invalid(format!("`{name}` would be too large")))?;
        let lens: BTreeMap<&str, u64> = layout
            .tensors
            .iter()
            .map(|tensor| (tensor.name.as_str(), tensor.bytes.end - tensor.bytes.start))
            .collect();
        let file = output.safetensors(name, &layout)?;
        let mut buffer = vec![0; PIECE_LEN];
        for (part, at) in &entries.parts {
            let len = lens.get(part.name.as_str()).copied().unwrap_or(0);
            let mut offset = 0;
            while offset < len {
                let piece = &mut buffer[..usize::try_from(len - offset).unwrap_or(PIECE_LEN).min(PIECE_LEN)];
                let read = self.file.read_exact_at(piece, at + offset);
                read.map_err(|error| cannot("read", &self.path, error))?;
                file.write(&part.name, offset, piece)?;
                offset += piece.len() as u64;
            }
        }
        Ok((entries.parts.into_iter().map(|(part, _)| part.name).collect(), layout.file_len()))
    }
}
