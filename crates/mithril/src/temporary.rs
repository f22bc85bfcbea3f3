//! Temporary files: names that cannot be guessed and are known as ours by their form, and files without a name.

use std::fs::File;
use std::io;
use std::path::Path;

/// Bytes of the final name that a temporary one repeats: file systems take 255 in all.
const MAX_STEM_LEN: usize = 200;

/// Random digits of a temporary name.
const N_DIGITS: usize = 32;

/// 128 random bits as hexadecimal digits.
pub(crate) fn random_digits() -> io::Result<String> {
    let mut random = [0; 16];
    getrandom::fill(&mut random).map_err(|error| io::Error::other(error.to_string()))?;
    Ok(format!("{:032x}", u128::from_le_bytes(random)))
}

/// The name that a file or directory has until it is complete: `.NAME.RANDOM.tmp`.
pub(crate) fn name_for(name: &str) -> io::Result<String> {
    Ok(format!(".{}.{}.tmp", stem(name), random_digits()?))
}

/// Whether a name is a temporary one of ours, of one final name or of any.
pub(crate) fn is_name(file_name: &str, of: Option<&str>) -> bool {
    let parts = file_name.strip_prefix('.').and_then(|rest| rest.strip_suffix(".tmp"));
    let Some((name, random)) = parts.and_then(|rest| rest.rsplit_once('.')) else { return false };
    let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    of.is_none_or(|of| stem(of) == name) && random.len() == N_DIGITS && random.bytes().all(is_digit)
}

fn stem(name: &str) -> &str {
    &name[..name.floor_char_boundary(MAX_STEM_LEN)]
}

/// A file without a name, for as long as it is open: no other process can open it, and nothing is left of it, however
/// the program ends. `directory` says where its bytes are kept.
///
/// # Errors
/// The system's reason.
pub fn anonymous_file(directory: &Path) -> io::Result<File> {
    #[cfg(target_os = "linux")]
    {
        use rustix::fs::{Mode, OFlags};
        let flags = OFlags::TMPFILE | OFlags::EXCL | OFlags::RDWR | OFlags::CLOEXEC;
        // Some file systems have no such files.
        if let Ok(file) = rustix::fs::open(directory, flags, Mode::RUSR | Mode::WUSR) {
            return Ok(file.into());
        }
    }
    unlinked_file(directory)
}

/// A file whose name is removed as soon as it is open. A process that is killed in between leaves the name, which the
/// next one removes.
fn unlinked_file(directory: &Path) -> io::Result<File> {
    const NAME: &str = "mithril";
    crate::atomic_file::remove_abandoned(&crate::files::Disk, directory, Some(NAME), &|_| true);
    let path = directory.join(name_for(NAME)?);
    let mut options = File::options();
    options.read(true).write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let file = options.open(&path)?;
    match std::fs::remove_file(&path) {
        // Another process took it for a leftover.
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        removed => removed?,
    }
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;
    use std::io::{Read, Seek, Write};

    #[test]
    fn names_are_ours_by_their_form_and_never_the_same() {
        let names: HashSet<String> = (0..1000).map(|_| name_for("model.mckp").unwrap()).collect();
        assert_eq!(names.len(), 1000);
        for name in names {
            assert!(is_name(&name, None) && is_name(&name, Some("model.mckp")), "{name}");
            assert!(!is_name(&name, Some("model")) && !is_name(&name, Some("mckp")), "{name}");
        }
        let digits = "0123456789abcdef0123456789abcdef";
        assert!(is_name(&format!(".a.{digits}.tmp"), None));
        for other in [
            format!("a.{digits}.tmp"),
            format!(".a.{digits}"),
            format!(".{digits}.tmp"),
            format!(".a.{digits}0.tmp"),
            format!(".a.{}.tmp", digits.to_uppercase()),
            ".a.notes.tmp".to_owned(),
            ".a.4000000000-7.tmp".to_owned(),
        ] {
            assert!(!is_name(&other, None), "{other}");
        }
    }

    #[test]
    fn long_names_have_temporary_ones_that_file_systems_take() {
        for name in ["n".repeat(255), "é".repeat(127)] {
            let temporary = name_for(&name).unwrap();
            assert!(temporary.len() <= 255 && is_name(&temporary, Some(&name)), "{temporary}");
        }
    }

    #[test]
    fn files_without_a_name_hold_bytes_and_leave_nothing() {
        let folder = std::env::temp_dir().join(name_for("anonymous").unwrap());
        std::fs::create_dir(&folder).unwrap();
        for make in [anonymous_file, unlinked_file] {
            let mut file = make(&folder).unwrap();
            assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 0);
            file.write_all(b"kept").unwrap();
            file.rewind().unwrap();
            let mut bytes = Vec::new();
            file.read_to_end(&mut bytes).unwrap();
            assert_eq!(bytes, b"kept");
            #[cfg(unix)]
            {
                use std::os::unix::fs::PermissionsExt;
                assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o600);
            }
        }
        std::fs::write(folder.join(name_for("mithril").unwrap()), b"of a killed run").unwrap();
        drop(unlinked_file(&folder).unwrap());
        std::fs::remove_dir(&folder).expect("nothing is left");
    }
}
