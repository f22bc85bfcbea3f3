//! A directory of its own for a test, removed afterwards.

use std::fs;
use std::path::{Path, PathBuf};

/// A fresh directory below the system's temporary one.
pub(crate) struct Folder(PathBuf);

impl Folder {
    pub(crate) fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("mithril-it-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    pub(crate) fn join(&self, place: &str) -> PathBuf {
        self.0.join(place)
    }

    /// Writes a file, with the directories above it.
    pub(crate) fn write(&self, place: &str, bytes: &[u8]) -> PathBuf {
        let path = self.join(place);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, bytes).unwrap();
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Everything below a directory: place, mode, and bytes or link target.
pub(crate) fn contents(root: &Path) -> Vec<(String, u32, Vec<u8>)> {
    use std::os::unix::fs::PermissionsExt;
    let mut found = Vec::new();
    let mut open = vec![root.to_owned()];
    while let Some(directory) = open.pop() {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            let metadata = fs::symlink_metadata(&path).unwrap();
            let place = path.strip_prefix(root).unwrap().to_str().unwrap().to_owned();
            if metadata.is_dir() {
                open.push(path);
            } else if metadata.is_symlink() {
                let target = fs::read_link(&path).unwrap();
                found.push((place, 0, target.to_str().unwrap().as_bytes().to_vec()));
            } else {
                found.push((place, metadata.permissions().mode() & 0o777, fs::read(&path).unwrap()));
            }
        }
    }
    found.sort();
    found
}
