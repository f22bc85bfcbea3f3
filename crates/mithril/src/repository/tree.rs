//! The files below a directory, and places below one that cannot lead out of it.

use crate::Error;
use std::fs;
use std::path::{Component, Path, PathBuf};

/// A file below a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct TreeFile {
    /// Its place below the directory, with `/` between names.
    pub(super) path: String,
    pub(super) mode: u32,
    pub(super) len: u64,
    /// What it points to, if it is a link that stays inside. Links that lead out are followed: a directory of links
    /// into a cache is packed as the files that they stand for.
    pub(super) link: Option<String>,
}

/// All files below a directory, in the order of their places.
pub(super) fn files(root: &Path) -> Result<Vec<TreeFile>, Error> {
    let mut files = Vec::new();
    visit(root, "", &mut files)?;
    files.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(files)
}

fn visit(directory: &Path, prefix: &str, files: &mut Vec<TreeFile>) -> Result<(), Error> {
    let failed = |path: &Path| {
        let what = format!("cannot read `{}`", path.display());
        move |error| Error::io(what, error)
    };
    for entry in fs::read_dir(directory).map_err(failed(directory))? {
        let path = entry.map_err(failed(directory))?.path();
        let name = path
            .file_name()
            .and_then(|name| name.to_str())
            .ok_or_else(|| Error::invalid(format!("`{}` has a name that is not UTF-8", path.display())))?;
        let place = format!("{prefix}{name}");
        let own = fs::symlink_metadata(&path).map_err(failed(&path))?;
        let link = if own.is_symlink() { inner_link(&path, &place) } else { None };
        if let Some(link) = link {
            files.push(TreeFile { path: place, mode: 0o777, len: 0, link: Some(link) });
            continue;
        }
        let metadata = fs::metadata(&path).map_err(failed(&path))?;
        if metadata.is_dir() && own.is_symlink() {
            return Err(Error::invalid(format!("`{}` is a link to a directory outside", path.display())));
        } else if metadata.is_dir() {
            visit(&path, &format!("{place}/"), files)?;
        } else if metadata.is_file() {
            files.push(TreeFile { path: place, mode: mode(&metadata), len: metadata.len(), link: None });
        } else {
            return Err(Error::invalid(format!("`{}` is neither a file nor a directory", path.display())));
        }
    }
    Ok(())
}

#[cfg(unix)]
fn mode(metadata: &fs::Metadata) -> u32 {
    std::os::unix::fs::MetadataExt::mode(metadata) & 0o777
}

#[cfg(not(unix))]
fn mode(metadata: &fs::Metadata) -> u32 {
    if metadata.permissions().readonly() { 0o444 } else { 0o644 }
}

/// What a link points to, if it stays inside the directory that its place is counted from.
fn inner_link(path: &Path, place: &str) -> Option<String> {
    let target = fs::read_link(path).ok()?;
    let target = target.to_str()?;
    stays_inside(place, target).then(|| target.to_owned())
}

/// Whether a link at this place with this target leads to somewhere inside.
pub(super) fn stays_inside(place: &str, target: &str) -> bool {
    let mut depth = place.split('/').count() - 1;
    for component in Path::new(target).components() {
        match component {
            Component::Normal(_) => depth += 1,
            Component::CurDir => {}
            Component::ParentDir if depth > 0 => depth -= 1,
            _ => return false,
        }
    }
    !target.is_empty() && !target.contains('\0')
}

/// The path of a place below `root`. Places come from untrusted files: they may not lead out, nor through a link.
pub(super) fn path_below(root: &Path, place: &str) -> Result<PathBuf, Error> {
    let refused = |reason: &str| Error::invalid(format!("place `{}` {reason}", place.escape_debug()));
    if place.is_empty() || place.contains(['\0', '\\']) || place.len() > 4096 {
        return Err(refused("is no possible place of a file"));
    }
    let mut path = root.to_owned();
    for name in place.split('/') {
        if matches!(name, "" | "." | "..") || Path::new(name).components().count() != 1 {
            return Err(refused("leads out of the directory"));
        }
        if path.is_symlink() && path != root {
            return Err(refused("leads through a link"));
        }
        path.push(name);
    }
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_that_lead_out_are_refused() {
        let root = Path::new("root");
        assert_eq!(path_below(root, "a/b.txt").unwrap(), Path::new("root/a/b.txt"));
        for place in ["", "/etc/passwd", "..", "a/../../b", "a//b", "a/./b", "a\0b", "a\\..\\b", "a/"] {
            assert!(path_below(root, place).is_err(), "{place:?}");
        }
    }

    #[test]
    fn links_that_lead_out_are_known() {
        assert!(stays_inside("a/link", "../b"));
        assert!(stays_inside("link", "b/c"));
        assert!(!stays_inside("link", "../b"));
        assert!(!stays_inside("a/link", "../../b"));
        assert!(!stays_inside("a/link", "b/../../../c"));
        assert!(!stays_inside("link", "/etc/passwd"));
        assert!(!stays_inside("link", ""));
    }
}
