//! Keys of checkpoints, and the objects that they stand for.

use super::CheckpointError;

/// Directory of the manifests.
pub(super) const MANIFESTS: &str = "manifests";

/// Directory of the data.
pub(super) const DATA: &str = "data";

/// Directory of the marks of what is being removed.
pub(super) const REMOVED: &str = "removed";

/// The object that names the newest checkpoint, for people and scripts.
pub(super) const LATEST: &str = "latest.json";

const SUFFIX: &str = ".json";

/// Bytes of a name in a file system, without room for a temporary one's prefix and suffix.
const MAX_NAME_LEN: usize = 200;

/// Checks that a text can be the key of a checkpoint: printable, not a path that leads elsewhere, not too long.
pub(super) fn check(key: &str) -> Result<(), CheckpointError> {
    let unsafe_name = |reason| Err(CheckpointError::UnsafeName { name: shown(key), reason });
    if key.is_empty() {
        return unsafe_name("it is empty");
    }
    if key.chars().any(char::is_control) {
        return unsafe_name("it has control characters");
    }
    if key.starts_with('/') || key.ends_with('/') || key.contains('\\') {
        return unsafe_name("it starts or ends with a slash, or has a backslash");
    }
    if key.split('/').any(|part| matches!(part, "" | "." | "..")) {
        return unsafe_name("a part of it is empty, `.` or `..`");
    }
    if escaped(key).len() > MAX_NAME_LEN {
        return unsafe_name("it is longer than 200 bytes, counting three for each special character");
    }
    Ok(())
}

/// The object that holds the manifest of a key.
pub(super) fn manifest(key: &str) -> String {
    format!("{MANIFESTS}/{}{SUFFIX}", escaped(key))
}

/// The key whose manifest an object is.
pub(super) fn of_manifest(object: &str) -> Option<String> {
    let name = object.strip_prefix(MANIFESTS)?.strip_prefix('/')?.strip_suffix(SUFFIX)?;
    let mut bytes = Vec::with_capacity(name.len());
    let mut rest = name.as_bytes();
    while let Some((&byte, tail)) = rest.split_first() {
        rest = tail;
        if byte != b'~' {
            bytes.push(byte);
            continue;
        }
        let (digits, tail) = rest.split_at_checked(2)?;
        bytes.push(u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?);
        rest = tail;
    }
    // Only what we would write ourselves: two objects must not stand for the same key.
    String::from_utf8(bytes).ok().filter(|key| check(key).is_ok() && escaped(key) == name)
}

/// The object that holds the data of a generation; a checkpoint of several files has several.
pub(super) fn data(generation: &str, part: usize) -> String {
    match part {
        0 => format!("{DATA}/{generation}.mckp"),
        part => format!("{DATA}/{generation}-{part}.mckp"),
    }
}

/// The mark of an object that is being removed.
pub(super) fn removal_of(object: &str) -> String {
    format!("{REMOVED}/{}", object.strip_prefix("data/").unwrap_or(object))
}

/// Letters, digits, `.`, `_` and `-` stand for themselves, except for a dot in front; all else is `~` and two digits.
fn escaped(key: &str) -> String {
    let mut name = String::with_capacity(key.len());
    for (at, byte) in key.bytes().enumerate() {
        let is_plain = byte.is_ascii_alphanumeric() || b"_-".contains(&byte) || (byte == b'.' && at > 0);
        if is_plain {
            name.push(char::from(byte));
        } else {
            name.push_str(&format!("~{byte:02x}"));
        }
    }
    name
}

fn shown(key: &str) -> String {
    key.chars().take(120).flat_map(char::escape_debug).collect()
}

/// The step that a key ends with: 1000 for `step_1000`.
pub(super) fn step_of(key: &str) -> Option<u64> {
    let digits = key.len() - key.trim_end_matches(|c: char| c.is_ascii_digit()).len();
    key[key.len() - digits..].parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_become_flat_names_and_come_back() {
        for key in ["step_1000", "run 1/step-2", "a.b", ".hidden", "é~", "%2F"] {
            check(key).unwrap();
            let object = manifest(key);
            assert!(crate::storage::is_key(&object), "{object}");
            assert_eq!(of_manifest(&object).as_deref(), Some(key));
        }
        assert_eq!(manifest("run/1"), "manifests/run~2f1.json");
        for other in ["manifests/a~2", "manifests/a~61.json", "manifests/..json", "data/a.json"] {
            assert_eq!(of_manifest(other), None, "{other}");
        }
    }

    #[test]
    fn keys_that_lead_elsewhere_are_refused() {
        let long = "x".repeat(201);
        for key in ["", "/a", "a/", "..", "a/../b", "a//b", "a\\b", "a\0", "a\nb", ".", &long] {
            let error = check(key).unwrap_err();
            assert!(matches!(error, CheckpointError::UnsafeName { .. }), "{key:?}");
        }
    }

    #[test]
    fn the_step_of_a_key_is_the_number_at_its_end() {
        assert_eq!(step_of("step_1000"), Some(1000));
        assert_eq!(step_of("7"), Some(7));
        assert_eq!(step_of("best"), None);
        assert_eq!(step_of("x99999999999999999999999"), None);
    }
}
