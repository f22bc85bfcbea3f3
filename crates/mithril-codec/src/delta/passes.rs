//! The elements of a difference block, one step after the other for all of them: the definition, with kernels for AVX2.

use super::decode::Differences;
use super::header::Context;
use super::raw;
use super::{MAX_CONTEXTS, Number, PassScratch, Scratch, classes, flags};
use crate::arch::kernels;

/// Steps that a kernel makes at a time.
const STEPS: usize = 16;

/// Moves every element of the base by its difference.
pub(super) fn apply(differences: &Differences<'_>, base: &[u8], out: &mut [u8], scratch: &mut Scratch) {
    let Differences { number, tables, symbols, planes, .. } = differences;
    let Scratch { contexts, bucketed, flags: strings, passes, .. } = scratch;
    flags::merge(contexts, symbols.sources, strings, &mut passes.moved);
    flags::keep_flagged(contexts, &passes.moved, &mut passes.moved_contexts);
    classes::merge(&passes.moved_contexts, symbols.starts, bucketed, &mut passes.symbols);
    set_raw_lens(tables, &passes.moved_contexts, &passes.symbols, &mut passes.raw_lens);
    raw::spread(planes, &passes.raw_lens, &mut passes.plane, &mut passes.raw_bits);
    move_elements(*number, tables, &planes.bytes, base, out, scratch);
}

/// The number of kept bits of every moved element.
pub(super) fn set_raw_lens(
    tables: &[Context],
    moved_contexts: &[u8],
    symbols: &[u8],
    raw_lens: &mut Vec<u8>,
) {
    let mut lens = [[0; 16]; MAX_CONTEXTS];
    for (lens, context) in lens.iter_mut().zip(tables) {
        for (symbol, len) in (0..).zip(lens) {
            *len = context.raw_len(symbol);
        }
    }
    raw_lens.resize(symbols.len(), 0);
    let done = match kernels() {
        kernels if tables.iter().all(|context| context.exact.is_none()) => {
            let mut lows = [0; MAX_CONTEXTS];
            lows.iter_mut().zip(tables).for_each(|(low, context)| *low = context.low);
            kernels.delta_raw_lens(&lows, moved_contexts, symbols, raw_lens)
        }
        _ => 0,
    };
    let pairs = moved_contexts[done..].iter().zip(&symbols[done..]);
    for (len, (&context, &symbol)) in raw_lens[done..].iter_mut().zip(pairs) {
        *len = lens[usize::from(context & 15)][usize::from(symbol & 15)];
    }
}

/// Moves every element of the base, by what is known of the moved ones.
fn move_elements(
    number: Number,
    tables: &[Context],
    planes: &[&[u8]; 8],
    base: &[u8],
    out: &mut [u8],
    scratch: &mut Scratch,
) {
    let plain = tables.iter().all(|context| context.center == 0 && context.exact.is_none());
    let (mut done, mut next, mut at) = (0, 0, [0; 8]);
    if plain && number.width == 2 && set_steps(tables, planes[0], &mut scratch.passes) {
        (done, next) =
            kernels().delta_apply_16(number.sign, base, &scratch.passes.moved, &scratch.passes.steps, out);
    }
    done *= 64;
    // Elements that a kernel left need to know where their kept bytes start.
    if done > 0 && done < scratch.contexts.len() {
        let lens = &scratch.passes.raw_lens[..next];
        for (at, least) in at.iter_mut().zip([8, 16, 24]) {
            *at = lens.iter().filter(|&&len| len >= least).count();
        }
    }
    let Scratch { contexts, passes: PassScratch { moved, symbols, raw_bits, raw_lens, .. }, .. } = scratch;
    number.by_width(|number| {
        for (element, &context) in contexts.iter().enumerate().skip(done) {
            let context = &tables[usize::from(context)];
            let difference = if moved[element / 64] >> (element % 64) & 1 == 1 {
                let n_bytes = usize::from(raw_lens[next] / 8);
                let mut raw = u64::from(raw_bits[next]) << (8 * n_bytes);
                for (byte, (plane, at)) in planes.iter().zip(&mut at).take(n_bytes).enumerate() {
                    raw |= u64::from(plane[*at]) << (8 * byte);
                    *at += 1;
                }
                next += 1;
                context.difference(number, symbols[next - 1], raw)
            } else {
                context.center
            };
            number.write(out, element, number.moved(number.read(base, element), difference));
        }
    });
}

/// The steps of all moved elements of two bytes, unless no kernel makes those of whole vectors; returns whether.
fn set_steps(tables: &[Context], low_bytes: &[u8], scratch: &mut PassScratch) -> bool {
    let PassScratch { moved_contexts, symbols, raw_bits, raw_lens, steps, .. } = scratch;
    let n = symbols.len();
    // A kernel reads up to 32 steps at a time.
    steps.resize(n + 32, 0);
    let (done, taken) = kernels().delta_steps_16(symbols, raw_lens, raw_bits, low_bytes, steps);
    if done == 0 && n >= STEPS {
        return false;
    }
    let number = Number { width: 2, sign: true };
    let mut low_bytes = low_bytes[taken..].iter();
    for at in done..n {
        let mut raw = u64::from(raw_bits[at]);
        if raw_lens[at] >= 8 {
            raw = raw << 8 | u64::from(low_bytes.next().copied().unwrap_or(0));
        }
        let step = tables[usize::from(moved_contexts[at])].difference(number, symbols[at], raw);
        steps[at] = u16::try_from(step).unwrap_or(0);
    }
    true
}
