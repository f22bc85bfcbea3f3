//! What stands before the coded symbols of a difference block: rules, rows, and a table for each context.

use super::{MAX_CONTEXTS, Number};
use crate::CodecError;
use crate::bytes::Cursor;
use crate::entropy::rans8::Frequencies;
use crate::entropy::stream::{self, Allowed};

/// How the magnitude of the base's element gives its context.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Rule {
    /// Low bits of the magnitude that do not matter.
    pub(super) shift: u8,
    /// The lowest shifted magnitude that has a context of its own; all below share the first.
    pub(super) low: u16,
    /// Contexts of this rule.
    pub(super) n_contexts: u8,
    /// Whether only the lowest bits of the shifted magnitude count, rather than its size.
    pub(super) cyclic: bool,
}

/// Rules, and which rule each row follows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Rules {
    pub(super) rules: Vec<Rule>,
    /// Elements of a row; all follow the first rule if there is one only.
    pub(super) row_len: usize,
    /// Rule of each row.
    pub(super) rows: Vec<u8>,
}

/// How the elements of one context are coded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Context {
    /// The difference of elements that are not flagged.
    pub(super) center: u64,
    pub(super) flags: Flags,
    /// Bits that the first class keeps.
    pub(super) low: u8,
    /// Frequencies of the classes, if elements can be flagged.
    pub(super) classes: Option<Frequencies>,
    /// Differences that the last two symbols stand for, in place of a class.
    pub(super) exact: Option<[u64; 2]>,
}

/// Which elements of a context are away from its center.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Flags {
    None,
    All,
    Coded(Frequencies),
}

impl Context {
    /// A context of elements that all are at zero.
    pub(super) const STILL: Self = Self { center: 0, flags: Flags::None, low: 0, classes: None, exact: None };

    /// Kept bits of a class symbol.
    pub(super) fn raw_len(&self, symbol: u8) -> u8 {
        match symbol >> 1 {
            _ if symbol >= EXACT_FROM && self.exact.is_some() => 0,
            0 => self.low,
            class => self.low + class - 1,
        }
    }

    /// What a class symbol and its kept bits stand for, before the center is added.
    pub(super) fn difference(&self, number: Number, symbol: u8, raw: u64) -> u64 {
        if let Some(exact) = self.exact.filter(|_| symbol >= EXACT_FROM) {
            return exact[usize::from(symbol - EXACT_FROM)];
        }
        let leading = if symbol < 2 { 0 } else { 1 << (self.low + (symbol >> 1) - 1) };
        let rest = number.with_sign(symbol & 1 == 1, leading | raw);
        rest.wrapping_add(self.center) & number.mask()
    }
}

/// The first of the two symbols that can stand for exact differences.
pub(super) const EXACT_FROM: u8 = 14;

const FLAG_SIGN: u8 = 1 << 2;
const CYCLIC: u8 = 1 << 7;
const MAX_RULES: usize = 4;
const HAS_CENTER: u8 = 1 << 2;
const HAS_EXACT: u8 = 1 << 3;

/// Writes everything before the number of streams.
pub(super) fn write(number: Number, rules: &Rules, contexts: &[Context], out: &mut Vec<u8>) {
    let width = u8::try_from(number.width.trailing_zeros()).unwrap_or(0);
    out.push(width | if number.sign { FLAG_SIGN } else { 0 });
    out.push(u8::try_from(rules.rules.len()).unwrap_or(u8::MAX));
    for rule in &rules.rules {
        out.push(rule.shift);
        out.extend(rule.low.to_le_bytes());
        out.push(rule.n_contexts | if rule.cyclic { CYCLIC } else { 0 });
    }
    if rules.rules.len() > 1 {
        out.extend(u32::try_from(rules.row_len).unwrap_or(u32::MAX).to_le_bytes());
        stream::encode_smallest(&rules.rows, Allowed::Entropy, out);
    }
    for context in contexts {
        let mode = match context.flags {
            Flags::None => 0,
            Flags::All => 1,
            Flags::Coded(_) => 2,
        };
        let has = |flag: u8, set: bool| if set { flag } else { 0 };
        out.push(mode | has(HAS_CENTER, context.center != 0) | has(HAS_EXACT, context.exact.is_some()));
        if context.center != 0 {
            out.extend(&context.center.to_le_bytes()[..number.width]);
        }
        if let Flags::Coded(frequencies) = &context.flags {
            out.extend(frequencies.bytes());
        }
        if let Some(classes) = &context.classes {
            out.push(context.low);
            out.extend(classes.bytes());
        }
        for exact in context.exact.iter().flatten() {
            out.extend(&exact.to_le_bytes()[..number.width]);
        }
    }
}

/// Reads what [`write`] writes. `len` is the raw length of the block.
pub(super) fn read(cursor: &mut Cursor<'_>, len: usize) -> Result<(Number, Rules, Vec<Context>), CodecError> {
    let flags = cursor.u8()?;
    if flags >> 3 != 0 {
        return Err(CodecError::Unsupported { what: "difference flags", id: u32::from(flags) });
    }
    let number = Number { width: 1 << (flags & 3), sign: flags & FLAG_SIGN != 0 };
    let rules = read_rules(cursor, number, len / number.width)?;
    let n_contexts = rules.rules.iter().map(|rule| usize::from(rule.n_contexts)).sum();
    let mut contexts = Vec::with_capacity(MAX_CONTEXTS);
    for _ in 0..n_contexts {
        contexts.push(read_context(cursor, number)?);
    }
    Ok((number, rules, contexts))
}

fn read_rules(cursor: &mut Cursor<'_>, number: Number, n: usize) -> Result<Rules, CodecError> {
    let corrupt = || CodecError::corrupt("rules of a difference block");
    let n_rules = usize::from(cursor.u8()?);
    if !(1..=MAX_RULES).contains(&n_rules) {
        return Err(corrupt());
    }
    let mut rules = Vec::with_capacity(MAX_RULES);
    let mut n_contexts = 0;
    for _ in 0..n_rules {
        let shift = cursor.u8()?;
        let low = cursor.u16()?;
        let contexts = cursor.u8()?;
        let rule = Rule { shift, low, n_contexts: contexts & !CYCLIC, cyclic: contexts & CYCLIC != 0 };
        n_contexts += usize::from(rule.n_contexts);
        let cycle_breaks = rule.cyclic && !(rule.n_contexts.is_power_of_two() && low == 0);
        if u32::from(shift) >= number.bits() || rule.n_contexts == 0 || cycle_breaks {
            return Err(corrupt());
        }
        rules.push(rule);
    }
    if n_contexts > MAX_CONTEXTS {
        return Err(corrupt());
    }
    let (mut row_len, mut rows) = (n.max(1), Vec::new());
    if n_rules > 1 {
        row_len = cursor.len32()?;
        if row_len == 0 {
            return Err(corrupt());
        }
        rows.resize(n.div_ceil(row_len), 0);
        stream::decode_into(cursor, &mut rows)?;
        if rows.iter().any(|&rule| usize::from(rule) >= n_rules) {
            return Err(corrupt());
        }
    }
    Ok(Rules { rules, row_len, rows })
}

fn read_context(cursor: &mut Cursor<'_>, number: Number) -> Result<Context, CodecError> {
    let corrupt = || CodecError::corrupt("context of a difference block");
    let read_number = |cursor: &mut Cursor<'_>| -> Result<u64, CodecError> {
        let mut word = [0; 8];
        word[..number.width].copy_from_slice(cursor.take(number.width)?);
        Ok(u64::from_le_bytes(word))
    };
    let head = cursor.u8()?;
    if head >> 4 != 0 {
        return Err(CodecError::Unsupported { what: "flags of a difference context", id: u32::from(head) });
    }
    let mut context = Context::STILL;
    if head & HAS_CENTER != 0 {
        context.center = read_number(cursor)?;
        // There is one way only to write a context.
        if context.center == 0 {
            return Err(corrupt());
        }
    }
    context.flags = match head & 3 {
        0 => Flags::None,
        1 => Flags::All,
        2 => Flags::Coded(Frequencies::parse(cursor.array()?)?),
        _ => return Err(corrupt()),
    };
    if context.flags != Flags::None {
        context.low = cursor.u8()?;
        context.classes = Some(Frequencies::parse(cursor.array()?)?);
        if u32::from(context.low) + 7 > number.bits() {
            return Err(corrupt());
        }
    }
    if head & HAS_EXACT != 0 {
        if context.classes.is_none() {
            return Err(corrupt());
        }
        context.exact = Some([read_number(cursor)?, read_number(cursor)?]);
    }
    Ok(context)
}
