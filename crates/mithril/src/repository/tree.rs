//! The files below a directory, and places below one that cannot lead out of it.

use crate::Error;
use std::collections::HashSet;
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
    let directories: HashSet<String> =
        directories(files.iter().map(|file| file.path.as_str())).map(str::to_owned).collect();
    for file in &mut files {
        let place = &file.path;
        if file
            .link
            .as_ref()
            .is_some_and(|link| !stays_inside(place, link, |name| directories.contains(name)))
        {
            *file = followed(&root.join(place), place.clone())?;
        }
    }
    files.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(files)
}

/// The directories of some places, each as often as there is a place in it.
pub(super) fn directories<'a>(places: impl Iterator<Item = &'a str>) -> impl Iterator<Item = &'a str> {
    places.flat_map(|place| place.match_indices('/').map(move |(end, _)| &place[..end]))
}

fn visit(directory: &Path, prefix: &str, files: &mut Vec<TreeFile>) -> Result<(), Error> {
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |error| Error::cannot_read(&path, error)
    };
    for entry in fs::read_dir(directory).map_err(failed(directory))? {
        let path = entry.map_err(failed(directory))?.path();
        let name = path
            .file_name()
            .and_then(|name| name.to_str())
            .ok_or_else(|| Error::invalid(format!("`{}` has a name that is not UTF-8", path.display())))?;
        let place = format!("{prefix}{name}");
        let own = fs::symlink_metadata(&path).map_err(failed(&path))?;
        if own.is_symlink() {
            let link = fs::read_link(&path).ok().and_then(|link| link.to_str().map(str::to_owned));
            files.push(match link {
                Some(link) => TreeFile { path: place, mode: 0o777, len: 0, link: Some(link) },
                None => followed(&path, place)?,
            });
        } else if own.is_dir() {
            visit(&path, &format!("{place}/"), files)?;
        } else if own.is_file() {
            files.push(TreeFile { path: place, mode: mode(&own), len: own.len(), link: None });
        } else {
            return Err(Error::invalid(format!("`{}` is neither a file nor a directory", path.display())));
        }
    }
    Ok(())
}

/// The file that a link leads to, which leads out.
fn followed(path: &Path, place: String) -> Result<TreeFile, Error> {
    let metadata = fs::metadata(path);
    let metadata = metadata.map_err(|error| Error::io(format!("cannot read `{}`", path.display()), error))?;
    if metadata.is_dir() {
        return Err(Error::invalid(format!("`{}` is a link to a directory outside", path.display())));
    }
    if !metadata.is_file() {
        return Err(Error::invalid(format!("`{}` is neither a file nor a directory", path.display())));
    }
    Ok(TreeFile { path: place, mode: mode(&metadata), len: metadata.len(), link: None })
}

#[cfg(unix)]
fn mode(metadata: &fs::Metadata) -> u32 {
    std::os::unix::fs::MetadataExt::mode(metadata) & 0o777
}

#[cfg(not(unix))]
fn mode(metadata: &fs::Metadata) -> u32 {
    if metadata.permissions().readonly() { 0o444 } else { 0o644 }
}

/// Whether a link at this place with this target leads to somewhere inside, whatever other links do that stay inside.
///
/// A text alone does not tell where `..` after a name leads, as the name may be that of a link: it must be one of the
/// directories that files lie in. Such a directory is made, and no link can have its name, nor one that the file system
/// takes for the same.
pub(super) fn stays_inside(place: &str, target: &str, is_directory: impl Fn(&str) -> bool) -> bool {
    let mut at: Vec<&str> = place.split('/').collect();
    at.pop();
    let mut n_named = 0usize;
    for component in Path::new(target).components() {
        match component {
            Component::Normal(name) => {
                let Some(name) = name.to_str() else { return false };
                at.push(name);
                n_named += 1;
            }
            Component::CurDir => {}
            Component::ParentDir if n_named == 0 || is_directory(&at.join("/")) => {
                n_named = n_named.saturating_sub(1);
                if at.pop().is_none() {
                    return false;
                }
            }
            _ => return false,
        }
    }
    !target.is_empty() && !target.contains('\0')
}

/// Makes room for a file that is written: a link of its name, which an earlier version of the directory may have, is removed,
/// and never written through.
pub(super) fn clear_link(path: &Path, replace: bool) -> Result<(), Error> {
    if !path.is_symlink() {
        return Ok(());
    }
    if !replace {
        return Err(Error::cannot_write(path, std::io::ErrorKind::AlreadyExists.into()));
    }
    fs::remove_file(path).map_err(|error| Error::cannot_write(path, error))
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

/// Makes the directories of a place below `root`, and `root` itself. New ones are as private as those of the same place
/// below `like`, where there are such.
pub(super) fn make_parents(root: &Path, like: &Path, place: &str) -> Result<(), Error> {
    let (mut path, mut like) = (root.to_owned(), like.to_owned());
    make_directory(&path, &like)?;
    let names: Vec<&str> = place.split('/').collect();
    for name in &names[..names.len() - 1] {
        path.push(name);
        like.push(name);
        make_directory(&path, &like)?;
    }
    Ok(())
}

fn make_directory(path: &Path, like: &Path) -> Result<(), Error> {
    if path.is_dir() {
        return Ok(());
    }
    let failed = |error| Error::cannot_write(path, error);
    fs::create_dir_all(path).map_err(failed)?;
    #[cfg(unix)]
    if let Ok(like) = fs::metadata(like) {
        use std::os::unix::fs::{MetadataExt, PermissionsExt};
        let mode = fs::metadata(path).map_err(failed)?.mode() & (like.mode() | 0o700) & 0o777;
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).map_err(failed)?;
    }
    Ok(())
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
        let places = ["a/file", "x/y/z/file", "x/y/z/l"];
        let directories: Vec<&str> = directories(places.into_iter()).collect();
        let stays_inside =
            |place: &str, target: &str| stays_inside(place, target, |at| directories.contains(&at));
        assert!(stays_inside("a/link", "../b"));
        assert!(stays_inside("link", "b/c"));
        assert!(stays_inside("link", "a/../b"));
        assert!(stays_inside("x/y/z/l", "../../.."));
        assert!(stays_inside("a/link", "../x/y/./../file"));
        assert!(!stays_inside("link", "../b"));
        assert!(!stays_inside("a/link", "../../b"));
        assert!(!stays_inside("a/link", "../a/../../c"));
        assert!(!stays_inside("config.json", "x/y/z/l/../../.bashrc"), "`l` is a link");
        assert!(
            !stays_inside("config.json", "X/y/z/../../file"),
            "a name that the file system may take for another"
        );
        assert!(!stays_inside("link", "/etc/passwd"));
        assert!(!stays_inside("link", ""));
    }
}
