//! What the encoder chooses for a block: rules, centers, windows of classes. Counted in integers.

use super::header::{Context, EXACT_FROM, Rule, Rules};
use super::{DeltaRecipe, MAX_CONTEXTS, Number, Scratch, contexts, encode};
use crate::entropy::order_0_65536ths;
use crate::entropy::rans8::Frequencies;
use crate::transform::fields::Layout;

/// Codes of an element: sign and bit length of its distance from the center, `2 * length + sign`.
pub(super) const STILL: u8 = 255;
/// Codes of elements at one of the exact differences of their context.
pub(super) const EXACT: [u8; 2] = [253, 254];

/// How often each code occurs in a context.
pub(super) type CodeCounts = [u32; 256];

/// Elements looked at for steps that many have in common, and those that show whether it is worth while.
const SAMPLED: usize = 4096;
const FEW_SAMPLED: usize = 512;

/// Elements of each block looked at to see how large they are.
const SIZES_SAMPLED: usize = 4096;

/// Sizes of so many bits are counted rather than sorted: floats of up to four bytes have no more, two to an octave.
const COUNTED_SIZE_BITS: u32 = 9;

/// Elements of each row looked at to see whether they moved alike: of a row that did, nearly all.
const ROW_SAMPLED: usize = 32;

/// A block has fewer contexts if it has fewer elements than this for each.
const ELEMENTS_PER_CONTEXT: usize = 2048;

/// Contexts of magnitudes in blocks whose rows have two kinds, and of the mantissas of the second kind.
const CONTEXTS_OF_TWO: u8 = 8;

/// Smaller steps are common anyway, and classes serve them.
const SMALL_STEP: u64 = 16;

/// Large steps that a sample shows again and again: what many elements moved by. Most frequent first.
///
/// Weight decay moves the rows that a fine-tune never touches by the same few steps each.
pub fn common_steps(layout: Layout, source: &[u8], base: &[u8]) -> Vec<u64> {
    let number = Number::of(layout);
    // Most tensors have none, which a few elements show.
    let (few, n_few) = large_steps(number, source, base, FEW_SAMPLED);
    if n_few >= FEW_SAMPLED && !few.chunk_by(|a, b| a == b).any(|run| run.len() * 32 > n_few) {
        return Vec::new();
    }
    let (steps, n_sampled) = large_steps(number, source, base, SAMPLED);
    let mut common: Vec<(usize, u64)> = steps
        .chunk_by(|a, b| a == b)
        .map(|run| (run.len(), run[0]))
        .filter(|(count, _)| count * 16 > n_sampled)
        .collect();
    common.sort_unstable_by_key(|&(count, step)| (std::cmp::Reverse(count), step));
    common.truncate(3);
    common.into_iter().map(|(_, step)| step).collect()
}

/// The large steps among about so many elements, in order, and how many elements these were.
fn large_steps(number: Number, source: &[u8], base: &[u8], of: usize) -> (Vec<u64>, usize) {
    let n = source.len().min(base.len()) / number.width;
    let n_sampled = sampled(n, of).count();
    let mut steps = Vec::with_capacity(n_sampled);
    number.by_width(|number| {
        for at in sampled(n, of) {
            let step = number.difference(number.read(source, at), number.read(base, at));
            if step != 0 && number.sign_and_rest(step).1 >= SMALL_STEP {
                steps.push(step);
            }
        }
    });
    steps.sort_unstable();
    (steps, n_sampled)
}

/// Places of a sample, spread so that they do not follow the columns of a matrix.
fn sampled(n: usize, of: usize) -> impl Iterator<Item = usize> {
    let stride = (n / of).max(1);
    (0..n / stride).map(move |i| i * stride + i * 37 % stride)
}

/// How contexts follow from the base, and which rows are of the second kind.
pub(super) fn rules(recipe: &DeltaRecipe, steps: &[u64], source: &[u8], base: &[u8]) -> Rules {
    let number = Number::of(recipe.layout);
    let n = source.len() / number.width;
    let by_size = by_size(recipe, !steps.is_empty(), base, n);
    let row_len = recipe.row_len.map_or(0, |len| len as usize).min(n);
    let of_two = row_len > 0 && !steps.is_empty();
    if !of_two {
        return Rules { rules: vec![by_size], row_len: n.max(1), rows: Vec::new() };
    }
    let by_mantissa = Rule {
        shift: recipe.layout.mantissa.saturating_sub(3),
        low: 0,
        n_contexts: CONTEXTS_OF_TWO,
        cyclic: true,
    };
    let moved_alike = |row: &[u8], base: &[u8]| {
        let n = row.len() / number.width;
        let (mut n_alike, mut n_seen) = (0, 0);
        number.by_width(|number| {
            for at in sampled(n, ROW_SAMPLED) {
                let step = number.difference(number.read(row, at), number.read(base, at));
                n_alike += usize::from(steps.contains(&step));
                n_seen += 1;
            }
        });
        u8::from(n_alike * 2 > n_seen)
    };
    let row_bytes = row_len * number.width;
    let elements = n * number.width;
    let rows = source[..elements].chunks(row_bytes).zip(base[..elements].chunks(row_bytes));
    Rules {
        rules: vec![by_size, by_mantissa],
        row_len,
        rows: rows.map(|(row, base)| moved_alike(row, base)).collect(),
    }
}

/// The rule that follows the size of the base's elements, for a block of `n` elements like these.
fn by_size(recipe: &DeltaRecipe, of_two: bool, base: &[u8], n: usize) -> Rule {
    let number = Number::of(recipe.layout);
    let finer = u8::from(recipe.per_octave == 2);
    let shift = recipe.layout.mantissa.saturating_sub(finer);
    let wanted = if of_two { CONTEXTS_OF_TWO } else { 8 << finer };
    let n_contexts = wanted.min(u8::try_from(n / ELEMENTS_PER_CONTEXT).unwrap_or(u8::MAX)).max(1);
    let top = largest_size(number, shift, base);
    let low = u16::try_from((top + 1).saturating_sub(u64::from(n_contexts))).unwrap_or(u16::MAX);
    Rule { shift, low, n_contexts, cyclic: false }
}

/// The size that few elements of a sample exceed.
fn largest_size(number: Number, shift: u8, base: &[u8]) -> u64 {
    let at_hand = || sampled(base.len() / number.width, SIZES_SAMPLED);
    if number.bits() - u32::from(number.sign) > u32::from(shift) + COUNTED_SIZE_BITS {
        let mut sizes: Vec<u64> =
            at_hand().map(|at| number.magnitude(number.read(base, at)) >> shift).collect();
        return match sizes.len() {
            0 => 0,
            n => *sizes.select_nth_unstable(n.saturating_sub(1 + n / 512)).1,
        };
    }
    // Counting takes less time than sorting.
    let mut counts = [0u16; 1 << COUNTED_SIZE_BITS];
    let mut n = 0;
    number.by_width(|number| {
        for at in at_hand() {
            let size = usize::try_from(number.magnitude(number.read(base, at)) >> shift).unwrap_or(0);
            counts[size % counts.len()] += 1;
            n += 1;
        }
    });
    let mut n_larger = 0;
    let exceeded_by_few = counts.iter().rposition(|&count| {
        n_larger += usize::from(count);
        n_larger > n / 512
    });
    exceeded_by_few.unwrap_or(0) as u64
}

/// Center and exact differences of a context, from how often each common step (and zero, the last) occurs in it.
pub(super) fn center(steps: &[u64], counts: &[u32], n: usize) -> (u64, Option<[u64; 2]>) {
    let step_of = |at: usize| steps.get(at).copied().unwrap_or(0);
    let mut order: Vec<usize> = (0..counts.len()).collect();
    order.sort_by_key(|&at| std::cmp::Reverse(counts[at]));
    let center = order.first().map_or(0, |&at| step_of(at));
    let often = |&&at: &&usize| counts[at] as usize * 64 > n;
    let exact: Vec<u64> = order.iter().skip(1).take(2).filter(often).map(|&at| step_of(at)).collect();
    match exact[..] {
        [] => (center, None),
        [one] => (center, Some([one, one])),
        [one, other, ..] => (center, Some([one, other])),
    }
}

/// The symbol of each code in a context, and what the context costs.
pub(super) struct Classes {
    /// Symbol of each code; `NO_SYMBOL` for those that are escapes.
    pub(super) symbols: [u8; 256],
    pub(super) low: u8,
    pub(super) counts: [u32; 16],
    /// Cost of classes, kept bits and escapes, in 256ths of a bit.
    pub(super) cost: u64,
}

/// Stands for no symbol.
pub(super) const NO_SYMBOL: u8 = 255;

/// Chooses the window of classes that costs least.
pub(super) fn classes(number: Number, counts: &CodeCounts, has_exact: bool) -> Classes {
    let n_lens = number.bits() as usize + 1;
    let by_len = |len: usize| counts[2 * len] + counts[2 * len + 1];
    let n_coded: u32 = (0..n_lens).map(by_len).sum();
    // Above this length so few lie that they are escapes in any window worth trying.
    let mut highest = n_lens - 1;
    let mut above = 0;
    while highest > 0 && above + by_len(highest) <= n_coded / 64 {
        above += by_len(highest);
        highest -= 1;
    }
    let n_classes = if has_exact { 7 } else { 8 };
    let max_low = number.bits() as usize - 7;
    let lowest = (highest + 1).saturating_sub(n_classes).min(max_low);
    let last = (lowest + 3).min(max_low);
    (lowest..=last)
        .map(|low| window(number, counts, low, n_classes, has_exact))
        .min_by_key(|classes| classes.cost)
        .expect("there is at least one window")
}

/// Classes with so many bits kept by the first.
fn window(number: Number, counts: &CodeCounts, low: usize, n_classes: usize, has_exact: bool) -> Classes {
    let mut classes = Classes { symbols: [NO_SYMBOL; 256], low: 0, counts: [0; 16], cost: 0 };
    classes.low = u8::try_from(low).unwrap_or(0);
    let (mut raw_bits, mut n_escapes) = (0, 0);
    for len in 0..=number.bits() as usize {
        let class = len.saturating_sub(low);
        for sign in 0..2 {
            let code = 2 * len + sign;
            if class < n_classes {
                let symbol = 2 * class + sign;
                classes.symbols[code] = u8::try_from(symbol).unwrap_or(NO_SYMBOL);
                classes.counts[symbol] += counts[code];
                let kept = if class == 0 { low } else { low + class - 1 };
                raw_bits += u64::from(counts[code]) * kept as u64;
            } else {
                n_escapes += u64::from(counts[code]);
            }
        }
    }
    if has_exact {
        for (symbol, code) in (EXACT_FROM..).zip(EXACT) {
            classes.symbols[usize::from(code)] = symbol;
            classes.counts[usize::from(symbol)] = counts[usize::from(code)];
        }
    }
    let escape_bits = u64::from(32 + number.bits());
    classes.cost = entropy_bits(&classes.counts) + ((raw_bits + n_escapes * escape_bits) << 8);
    classes
}

/// Order-0 cost of symbols with these counts, in 256ths of a bit.
pub(super) fn entropy_bits(counts: &[u32; 16]) -> u64 {
    order_0_65536ths(counts) >> 8
}

/// The table of a context whose elements are coded like this.
pub(super) fn context(center: u64, exact: Option<[u64; 2]>, classes: &Classes) -> Context {
    Context {
        center,
        exact,
        low: classes.low,
        classes: Some(Frequencies::from_counts(&classes.counts)),
        ..Context::STILL
    }
}

/// Sizes told apart in a sample: more than any rule has contexts.
const SIZES: usize = 32;

/// About how many bits a block of `n` elements would take with one context per octave and with two, in 256ths, from a
/// piece of it; for comparing recipes.
pub fn sampled_bits(layout: Layout, source: &[u8], base: &[u8], n: usize) -> [u64; 2] {
    let number = Number::of(layout);
    let n_at_hand = source.len() / number.width;
    let rules =
        [1, 2].map(|per_octave| by_size(&DeltaRecipe { layout, per_octave, row_len: None }, false, base, n));
    let [_, fine] = rules;
    // The largest size that has a context of its own is one of the last.
    let first = (u64::from(fine.low) + u64::from(fine.n_contexts)).saturating_sub(SIZES as u64);
    let by_half_octaves = Rule {
        shift: fine.shift,
        low: u16::try_from(first).unwrap_or(u16::MAX),
        n_contexts: SIZES.to_le_bytes()[0],
        cyclic: false,
    };
    let (elements, base) = (&source[..n_at_hand * number.width], &base[..n_at_hand * number.width]);
    let mut sizes = vec![0; n_at_hand];
    contexts::assign_by(number, by_half_octaves, 0, base, &mut sizes);
    // Contexts tell centers apart, of which there are none here.
    let mut scratch = Scratch { contexts: vec![0; n_at_hand], ..Scratch::default() };
    encode::set_codes(number, &[(0, None); MAX_CONTEXTS], elements, base, &mut scratch);
    let mut counts = vec![[0u32; 256]; SIZES];
    for (&size, &code) in sizes.iter().zip(&scratch.codes) {
        counts[usize::from(size)][usize::from(code)] += 1;
    }
    rules.map(|rule| {
        let mut of_contexts = vec![[0u32; 256]; usize::from(rule.n_contexts)];
        for (size, counts) in (first..).zip(&counts) {
            let size = (size >> (rule.shift - fine.shift)).saturating_sub(u64::from(rule.low));
            let context = usize::try_from(size).unwrap_or(usize::MAX).min(of_contexts.len() - 1);
            of_contexts[context].iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
        }
        let bits: u64 = of_contexts.iter().map(|counts| counted(number, counts)).sum();
        bits * n as u64 / (n_at_hand as u64).max(1) + u64::from(rule.n_contexts) * TABLES_BITS
    })
}

/// Flags, classes and the window of a context, in 256ths of a bit.
const TABLES_BITS: u64 = 34 * 8 * 256;

/// Cost of a context with these codes: flags and classes.
fn counted(number: Number, counts: &CodeCounts) -> u64 {
    let still = counts[usize::from(STILL)];
    let n: u32 = counts.iter().sum();
    let mut flags = [0; 16];
    (flags[0], flags[1]) = (still, n - still);
    entropy_bits(&flags) + classes(number, counts, false).cost
}

/// Sign and bit length of a difference.
pub(super) fn code(number: Number, difference: u64) -> u8 {
    if difference == 0 {
        return STILL;
    }
    let (negative, rest) = number.sign_and_rest(difference);
    let len = u64::BITS - rest.leading_zeros();
    u8::try_from(2 * len + u32::from(negative)).unwrap_or(STILL)
}
