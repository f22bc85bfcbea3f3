//! A tensor of a file: its name, its type and the bytes it lies in.

use crate::FormatError;
use mithril_codec::Dtype;
use std::collections::HashMap;
use std::ops::Range;

/// A tensor of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorInfo {
    /// Its name.
    pub name: String,
    /// Type of its elements.
    pub dtype: Dtype,
    /// Its dimensions, slowest first.
    pub shape: Vec<u64>,
    /// Its bytes, counted from the start of the file.
    pub bytes: Range<u64>,
}

/// Bytes that a tensor of this shape takes, if that is a whole number that fits.
pub(crate) fn len_of_shape(dtype: Dtype, shape: &[u64]) -> Option<u64> {
    let n_elements = shape.iter().try_fold(1u64, |n, &dimension| n.checked_mul(dimension))?;
    dtype.len_of(n_elements)
}

/// Puts tensors in the order of their bytes; refuses two that share a byte or a name.
pub(crate) fn in_order(
    mut tensors: Vec<TensorInfo>,
    format: &'static str,
) -> Result<Vec<TensorInfo>, FormatError> {
    let invalid = |reason: String| FormatError::Foreign { format, reason };
    tensors.sort_by(|a, b| a.name.cmp(&b.name));
    if let Some(pair) = tensors.windows(2).find(|pair| pair[0].name == pair[1].name) {
        return Err(invalid(format!("tensor `{}` is there twice", shown(&pair[0].name))));
    }
    tensors.sort_by_key(|tensor| (tensor.bytes.start, tensor.bytes.end));
    if let Some(pair) = tensors.windows(2).find(|pair| pair[1].bytes.start < pair[0].bytes.end) {
        return Err(invalid(format!(
            "tensors `{}` and `{}` overlap at offset {}",
            shown(&pair[0].name),
            shown(&pair[1].name),
            pair[1].bytes.start
        )));
    }
    Ok(tensors)
}

/// A name that no other storage has: keys that hold dots can lead to the same path.
pub(crate) fn unique(name: String, taken: &mut HashMap<String, u64>) -> String {
    // How often a name was asked for is kept, so that many equal names do not take quadratic time.
    let mut n = taken.get(&name).copied().unwrap_or(0);
    let mut candidate = name.clone();
    while n > 0 && taken.contains_key(&candidate) {
        n += 1;
        candidate = format!("{name}#{n}");
    }
    taken.insert(name, n.max(1));
    taken.entry(candidate.clone()).or_insert(1);
    candidate
}

/// A name cut to what a message can carry.
pub(crate) fn shown(name: &str) -> String {
    const MOST: usize = 120;
    match name.char_indices().nth(MOST) {
        None => name.escape_debug().to_string(),
        Some((at, _)) => format!("{}...", name[..at].escape_debug()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tensor(name: &str, bytes: Range<u64>) -> TensorInfo {
        TensorInfo { name: name.to_owned(), dtype: Dtype::U8, shape: vec![bytes.end - bytes.start], bytes }
    }

    #[test]
    fn tensors_that_share_bytes_or_names_are_refused() {
        let reason = |tensors| in_order(tensors, "test").unwrap_err().to_string();
        let twice = vec![tensor("a", 0..2), tensor("b", 2..4), tensor("a", 4..6)];
        assert!(reason(twice).contains("`a` is there twice"));
        let overlapping = vec![tensor("b", 3..6), tensor("a", 0..4)];
        assert!(reason(overlapping).contains("`a` and `b` overlap at offset 3"));
        let inside = vec![tensor("a", 0..4), tensor("empty", 2..2)];
        assert!(reason(inside).contains("overlap"));
        let apart = vec![tensor("b", 4..6), tensor("empty", 4..4), tensor("a", 0..3)];
        let names: Vec<_> = in_order(apart, "test").unwrap().into_iter().map(|tensor| tensor.name).collect();
        assert_eq!(names, ["a", "empty", "b"]);
    }

    #[test]
    fn long_names_are_cut_and_control_characters_made_visible() {
        assert_eq!(shown("a\n\u{0}"), "a\\n\\0");
        assert!(shown(&"é".repeat(100_000)).len() < 300);
    }
}
