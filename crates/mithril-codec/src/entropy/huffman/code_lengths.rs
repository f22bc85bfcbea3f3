//! How many bits each symbol's Huffman code gets, and which bits those are.
//!
//! The two questions have separate functions because only the lengths are stored in a stream: a
//! decoder repeats [`assign_canonical`] on lengths it read, and never needs the counts.
//!
//! [`length_limited`] is package-merge. A symbol of length `n` pays its count once on each of `n`
//! levels, so the cheapest code is the cheapest choice of `2 * present - 2` items from the top level,
//! where an item is either a symbol ("leaf") or a pair of neighbours from the level below
//! ("package"). Each level is therefore one merge of two sorted lists, and the answer needs only, for
//! every prefix of every level, how many of its items are leaves.
//!
//! Invariant: with two or more symbols present the lengths fill the code space exactly, that is, the
//! sum of `2^-length` over present symbols is one.

/// The longest code either function works with.
pub const LONGEST_CODE: u8 = 32;

/// A level is cut to the `2 * 256 - 2` items the answer can use; prefixes of it have one length more.
const LEVEL_LEN: usize = 512;

/// The code length of every symbol, 0 for a symbol with count 0, such that no length exceeds `max_len`
/// and the total `count * length` is the least possible under that limit.
///
/// Several sets of lengths can share the least total. This function decides as follows, so that its
/// answer is the same everywhere: symbols are ordered by count, equal counts by symbol value
/// (ascending), and an earlier symbol never gets a shorter code than a later one; where a leaf and a
/// package weigh the same, the leaf goes first, which keeps the longest code short.
///
/// A symbol that is alone gets length 1.
///
/// # Panics
///
/// If `max_len` is 0 or above [`LONGEST_CODE`], or so small that `2^max_len` codes are too few for the
/// symbols present.
#[must_use]
#[expect(
    clippy::cast_possible_truncation,
    reason = "a key's low byte is its symbol; leaves number at most 256"
)]
pub fn length_limited(histogram: &[u32; 256], max_len: u8) -> [u8; 256] {
    assert!((1..=LONGEST_CODE).contains(&max_len), "code length limit outside 1..=32");
    let mut keys = [0u64; 256];
    let mut n_leaves = 0;
    for (symbol, &count) in (0u64..).zip(histogram) {
        keys[n_leaves] = u64::from(count) << 8 | symbol;
        n_leaves += usize::from(count > 0);
    }
    assert!(n_leaves as u64 <= 1 << max_len, "too many symbols for the code length limit");
    let keys = &mut keys[..n_leaves];
    keys.sort_unstable();

    let mut lengths = [0; 256];
    if n_leaves < 2 {
        for &key in keys.iter() {
            lengths[usize::from(key as u8)] = 1;
        }
        return lengths;
    }

    let leaf_counts = count_leaves_per_prefix(keys, usize::from(max_len).min(n_leaves - 1));
    let mut n_items = 2 * n_leaves - 2;
    for leaves_before in leaf_counts.iter().rev() {
        let n_taken = usize::from(leaves_before[n_items]);
        for &key in &keys[..n_taken] {
            lengths[usize::from(key as u8)] += 1;
        }
        n_items = 2 * (n_items - n_taken);
    }
    lengths
}

/// For each level, deepest first, and each `k`: how many of the level's first `k` items are leaves.
#[expect(clippy::cast_possible_truncation, reason = "there are at most 256 leaves")]
fn count_leaves_per_prefix(sorted_keys: &[u64], n_levels: usize) -> Vec<[u16; LEVEL_LEN]> {
    let n_leaves = sorted_keys.len();
    // One place past the last leaf holds a weight that never wins a merge.
    let mut leaves = [u64::MAX; 257];
    for (leaf, key) in leaves.iter_mut().zip(sorted_keys) {
        *leaf = key >> 8;
    }

    let mut levels = vec![[0u16; LEVEL_LEN]; n_levels];
    let mut below = [0u64; LEVEL_LEN];
    let mut n_below = 0;
    for leaves_before in &mut levels {
        let mut packages = [u64::MAX; LEVEL_LEN / 2 + 1];
        for (package, pair) in packages.iter_mut().zip(below[..n_below].as_chunks::<2>().0) {
            *package = pair[0] + pair[1];
        }
        let n_items = (n_leaves + n_below / 2).min(2 * n_leaves - 2).min(LEVEL_LEN - 1);
        let (mut leaf_idx, mut package_idx) = (0, 0);
        for k in 0..n_items {
            let (leaf, package) = (leaves[leaf_idx], packages[package_idx]);
            let takes_leaf = leaf <= package;
            below[k] = if takes_leaf { leaf } else { package };
            leaf_idx += usize::from(takes_leaf);
            package_idx += usize::from(!takes_leaf);
            leaves_before[k + 1] = leaf_idx as u16;
        }
        n_below = n_items;
    }
    levels
}

/// The canonical code of every symbol with a non-zero length, as a number whose most significant of
/// `length` bits is the code's first bit.
///
/// Codes are dealt out in order of length, equal lengths in order of symbol value (ascending). The
/// first code is all zero bits; each next one is the one before plus one, extended by zero bits when
/// the length grows. Symbols of length 0 get 0, which is not a code.
///
/// # Panics
///
/// If a length exceeds [`LONGEST_CODE`]. Lengths that claim more than the whole code space do not
/// panic, but their codes mean nothing: check the lengths first.
#[must_use]
#[expect(clippy::cast_possible_truncation, reason = "a code of a valid set has at most 32 bits")]
pub fn assign_canonical(lengths: &[u8; 256]) -> [u32; 256] {
    let mut n_of_length = [0u64; LONGEST_CODE as usize + 1];
    for &length in lengths {
        n_of_length[usize::from(length)] += 1;
    }
    n_of_length[0] = 0;
    let mut next = [0u64; LONGEST_CODE as usize + 1];
    for length in 1..next.len() {
        next[length] = (next[length - 1] + n_of_length[length - 1]) << 1;
    }
    let mut codes = [0; 256];
    for (code, &length) in codes.iter_mut().zip(lengths) {
        if length > 0 {
            *code = next[usize::from(length)] as u32;
            next[usize::from(length)] += 1;
        }
    }
    codes
}
