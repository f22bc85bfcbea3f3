//! The context of every element, from the base alone.

use super::header::{Rule, Rules};
use super::{MAX_CONTEXTS, Number};
use crate::arch::kernels;

/// Writes the context of each element of `base` to `out`.
pub(super) fn assign(number: Number, rules: &Rules, base: &[u8], out: &mut Vec<u8>) {
    let n = base.len() / number.width;
    out.resize(n, 0);
    let mut firsts = [0; MAX_CONTEXTS];
    let mut first = 0;
    for (at, rule) in rules.rules.iter().enumerate() {
        firsts[at] = first;
        first += rule.n_contexts;
    }
    if rules.rows.is_empty() {
        assign_by(number, rules.rules[0], 0, base, out);
        return;
    }
    let row_bytes = rules.row_len.saturating_mul(number.width);
    for ((base, out), &rule) in base.chunks(row_bytes).zip(out.chunks_mut(rules.row_len)).zip(&rules.rows) {
        let rule = usize::from(rule);
        assign_by(number, rules.rules[rule], firsts[rule], base, out);
    }
}

/// A rule in the form that kernels take.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ContextRule {
    /// Bits of an element that are its magnitude.
    pub(crate) magnitude: u64,
    pub(crate) shift: u8,
    pub(crate) low: u16,
    pub(crate) cyclic: bool,
    /// Context of the smallest magnitudes.
    pub(crate) first: u8,
    /// How many more contexts there are.
    pub(crate) last: u8,
}

/// Writes the context of each element by one rule, whose first context has the number `first`.
pub(super) fn assign_by(number: Number, rule: Rule, first: u8, base: &[u8], out: &mut [u8]) {
    let mask = number.magnitude(number.mask());
    let Rule { shift, low, cyclic, .. } = rule;
    let for_kernels = ContextRule { magnitude: mask, shift, low, cyclic, first, last: rule.n_contexts - 1 };
    let done = kernels().delta_contexts(number.width, for_kernels, base, out);
    let (base, out) = (&base[done * number.width..], &mut out[done..]);
    // Written once per width, so that the compiler makes vector code of each.
    match number.width {
        1 => each(out, base.as_chunks::<1>().0, first, rule, |x| u64::from(x[0]) & mask),
        2 => each(out, base.as_chunks::<2>().0, first, rule, |x| u64::from(u16::from_le_bytes(x)) & mask),
        4 => each(out, base.as_chunks::<4>().0, first, rule, |x| u64::from(u32::from_le_bytes(x)) & mask),
        _ => each(out, base.as_chunks::<8>().0, first, rule, |x| u64::from_le_bytes(x) & mask),
    }
}

#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "clamped to fewer than sixteen contexts")]
fn each<T: Copy>(out: &mut [u8], base: &[T], first: u8, rule: Rule, magnitude: impl Fn(T) -> u64) {
    let last = u64::from(rule.n_contexts - 1);
    let low = u64::from(rule.low);
    if rule.cyclic {
        for (out, &x) in out.iter_mut().zip(base) {
            *out = first + ((magnitude(x) >> rule.shift) & last) as u8;
        }
    } else {
        for (out, &x) in out.iter_mut().zip(base) {
            *out = first + (magnitude(x) >> rule.shift).saturating_sub(low).min(last) as u8;
        }
    }
}

/// How many elements each context has.
pub(super) fn count(contexts: &[u8]) -> [usize; MAX_CONTEXTS] {
    count_16(contexts, 0)
}

/// How often each of the sixteen values from `first` on occurs.
pub(crate) fn count_16(bytes: &[u8], first: u8) -> [usize; 16] {
    let mut counts = [0u32; 16];
    let done = kernels().count_values(bytes, first, &mut counts);
    for &byte in &bytes[done..] {
        if let Some(count) = counts.get_mut(usize::from(byte.wrapping_sub(first))) {
            *count += 1;
        }
    }
    counts.map(|count| count as usize)
}
