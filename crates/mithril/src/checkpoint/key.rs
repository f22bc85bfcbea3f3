//! Keys of checkpoints, and the objects that they stand for.

use super::CheckpointError;

/// Directory of the manifests.
pub(super) const MANIFESTS: &str = "manifests";

/// Directory of the data.
pub(super) const DATA: &str = "data";

/// Directory of the marks of removals.
pub(super) const REMOVED: &str = "removed";

/// Where writers of a store can have left something: everywhere that it has objects.
pub(super) const DIRECTORIES: [&str; 4] = ["", MANIFESTS, DATA, REMOVED];

/// The object that names the newest checkpoint, for people and scripts.
pub(super) const LATEST: &str = "latest.json";

const SUFFIX: &str = ".json";

/// Bytes of a name in a file system, without room for a temporary one's prefix and suffix.
const MAX_NAME_LEN: usize = 200;

/// What stands for the key of the newest checkpoint, and so is none.
const ALIAS: &str = "latest";

/// Checks that a text can be the key of a new checkpoint.
pub(super) fn check_new(key: &str) -> Result<(), CheckpointError> {
    if key == ALIAS {
        let reason = "it stands for the newest checkpoint";
        return Err(CheckpointError::UnsafeName { name: key.to_owned(), reason });
    }
    check(key)
}

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

/// Whether an object of the data has a name that a save can have given it; all others are not ours.
pub(super) fn is_data(object: &str) -> bool {
    object.strip_prefix(DATA).and_then(|name| name.strip_prefix('/')).is_some_and(is_data_name)
}

/// The mark of a removal: an object that names what is being removed.
pub(super) fn removal(random: &str) -> String {
    format!("{REMOVED}/{random}")
}

/// Whether an object is the mark of a removal.
pub(super) fn is_removal(object: &str) -> bool {
    let name = object.strip_prefix(REMOVED).and_then(|name| name.strip_prefix('/'));
    name.is_some_and(|name| name.len() == 32 && name.bytes().all(is_hex))
}

fn is_hex(byte: u8) -> bool {
    matches!(byte, b'0'..=b'9' | b'a'..=b'f')
}

/// `GENERATION.mckp` or `GENERATION-N.mckp`.
fn is_data_name(name: &str) -> bool {
    let Some((generation, part)) = name.strip_suffix(".mckp").and_then(|name| name.split_at_checked(32))
    else {
        return false;
    };
    let is_part = |digits: &str| {
        !digits.is_empty() && !digits.starts_with('0') && digits.bytes().all(|byte| byte.is_ascii_digit())
    };
    generation.bytes().all(is_hex) && (part.is_empty() || part.strip_prefix('-').is_some_and(is_part))
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
    fn only_names_that_a_save_can_have_written_are_ours() {
        let generation = "0123456789abcdef0123456789abcdef";
        assert!(is_data(&data(generation, 0)) && is_data(&data(generation, 12)));
        assert!(is_removal(&removal(generation)));
        for name in [
            "train.csv",
            "sub/0123456789abcdef0123456789abcdef.mckp",
            "0123456789abcdef0123456789abcdef",
            "0123456789abcdef0123456789abcde.mckp",
            "0123456789abcdef0123456789abcdefa.mckp",
            "0123456789ABCDEF0123456789ABCDEF.mckp",
            "0123456789abcdef0123456789abcdef-0.mckp",
            "0123456789abcdef0123456789abcdef-.mckp",
            "0123456789abcdef0123456789abcdef-1x.mckp",
        ] {
            assert!(!is_data(&format!("data/{name}")), "{name}");
            assert!(!is_removal(&format!("removed/{name}")) || name == generation, "{name}");
        }
    }

    #[test]
    fn the_word_for_the_newest_is_no_key_of_a_new_checkpoint() {
        assert!(matches!(check_new("latest").unwrap_err(), CheckpointError::UnsafeName { .. }));
        check_new("latest_1").unwrap();
        // An earlier build may have saved one.
        check("latest").unwrap();
    }
}
