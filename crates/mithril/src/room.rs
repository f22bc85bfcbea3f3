//! Room on a file system: what would not fit is refused before a byte is written.

use crate::Error;
use std::io;
use std::path::Path;

/// Fails when the file system of a file that is to be written has less room than so many bytes. Where it does not say,
/// nothing fails.
///
/// # Errors
/// `StorageFull`, with both sizes.
pub fn check(path: &Path, len: u64) -> io::Result<()> {
    match free(path) {
        Some(free) if free < len => {
            let what = format!("{len} bytes are to be written, and {free} are free");
            Err(io::Error::new(io::ErrorKind::StorageFull, what))
        }
        _ => Ok(()),
    }
}

/// Fails when so many bytes are more than the caller allows.
///
/// # Errors
/// `TooLarge`.
pub fn check_limit(raw_len: u64, limit: Option<u64>) -> Result<(), Error> {
    match limit {
        Some(limit) if raw_len > limit => Err(Error::TooLarge { raw_len, limit }),
        _ => Ok(()),
    }
}

/// Bytes that may be written to the file system of the nearest directory above a path that exists.
#[cfg(unix)]
fn free(path: &Path) -> Option<u64> {
    let mut at = path;
    let status = loop {
        at = match at.parent()? {
            above if above.as_os_str().is_empty() => Path::new("."),
            above => above,
        };
        match rustix::fs::statvfs(at) {
            Ok(status) => break status,
            Err(rustix::io::Errno::NOENT) if at != Path::new(".") => {}
            Err(_) => return None,
        }
    };
    // Some file systems, such as /proc, have no blocks at all, and say so.
    (status.f_blocks > 0).then(|| status.f_bavail.saturating_mul(status.f_frsize))
}

#[cfg(not(unix))]
fn free(_: &Path) -> Option<u64> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_fit_is_refused_with_both_sizes() {
        let path = std::env::temp_dir().join("no/such/directory/model");
        check(&path, 1).unwrap();
        let error = check(&path, u64::MAX).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
        assert!(error.to_string().contains("18446744073709551615 bytes"), "{error}");
        check(Path::new("model"), 1).unwrap();
        assert!(check(Path::new("model"), u64::MAX).is_err());
        check(Path::new("/proc/model"), u64::MAX).unwrap();
    }

    #[test]
    fn limits_hold_to_the_byte() {
        check_limit(7, None).unwrap();
        check_limit(7, Some(7)).unwrap();
        assert!(matches!(check_limit(8, Some(7)), Err(Error::TooLarge { raw_len: 8, limit: 7 })));
    }
}
