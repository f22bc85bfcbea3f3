//! Whether a file is as it was when it was opened: one that changed while it was read may have been read as a mixture of
//! old and new.

use std::fs::{File, Metadata};
use std::io;
use std::path::Path;

/// Refuses a file that is not as it was when `before` was taken of it: its length, its times, or which file it is.
///
/// The time of the last change of its metadata counts as well: unlike the time of the last write, no program can put it
/// back. So a file that was removed, replaced by another or given other permissions counts as changed, too.
///
/// # Errors
/// When the file has changed, or the system cannot tell.
pub fn check_unchanged(before: &Metadata, file: &File) -> io::Result<()> {
    compare(before, &file.metadata()?)
}

/// As [`check_unchanged`], for a file that is not open.
pub(crate) fn check_unchanged_at(before: &Metadata, path: &Path) -> io::Result<()> {
    compare(before, &std::fs::metadata(path)?)
}

fn compare(before: &Metadata, now: &Metadata) -> io::Result<()> {
    let is_same = now.len() == before.len()
        && now.modified().ok() == before.modified().ok()
        && system_state(now) == system_state(before);
    if is_same { Ok(()) } else { Err(io::Error::other("it changed while it was read")) }
}

/// Which file it is, and when it changed in any way.
#[cfg(unix)]
fn system_state(metadata: &Metadata) -> (u64, u64, i64, i64) {
    use std::os::unix::fs::MetadataExt;
    (metadata.dev(), metadata.ino(), metadata.ctime(), metadata.ctime_nsec())
}

#[cfg(not(unix))]
fn system_state(_: &Metadata) {}

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use std::fs;
    use std::io::Write;

    #[test]
    fn every_change_is_noticed_and_reading_is_none() {
        let path = std::env::temp_dir().join(format!("mithril-unchanged-{}", std::process::id()));
        let open = || {
            fs::write(&path, b"old").unwrap();
            let file = File::open(&path).unwrap();
            let before = file.metadata().unwrap();
            (file, before)
        };
        let write = |bytes: &[u8]| {
            let mut file = File::options().write(true).open(&path).unwrap();
            file.write_all(bytes).unwrap();
            file
        };
        let (file, before) = open();
        assert_eq!(fs::read(&path).unwrap(), b"old");
        check_unchanged(&before, &file).unwrap();
        write(b"longer");
        assert!(check_unchanged(&before, &file).is_err());
        // Of the same length, with the time of writing put back as `touch -r` does. The clock of a file system ticks only
        // every few milliseconds.
        let (file, before) = open();
        let modified = before.modified().unwrap();
        while check_unchanged(&before, &file).is_ok() {
            write(b"new").set_modified(modified).unwrap();
        }
        assert_eq!(file.metadata().unwrap().modified().unwrap(), modified);
        let (_, before) = open();
        let other = path.with_extension("other");
        fs::write(&other, b"old").unwrap();
        assert!(check_unchanged(&before, &File::open(&other).unwrap()).is_err());
        fs::remove_file(&other).unwrap();
        fs::remove_file(&path).unwrap();
    }
}
