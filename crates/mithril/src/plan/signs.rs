//! Classes of rows or columns whose signs lean to one side.

use super::classes::quantiles;
use super::grid::Matrix;
use crate::options::Effort;
use mithril_codec::Contexts;
use mithril_codec::entropy::log2_65536ths;
use mithril_codec::entropy::rans8::Frequencies;
use mithril_codec::transform::fields::Layout;

/// Classes of the side that is classed.
const N_CLASSES: usize = 8;

/// Signs looked at for columns.
const MAX_SIGNS: usize = 1 << 19;

/// Signs looked at in each row.
const fn max_row_signs(effort: Effort) -> usize {
    match effort {
        Effort::Max => 512,
        _ => 128,
    }
}

/// Coded signs must save this share of them, in 256ths: they cost decoding speed.
const fn min_gain(effort: Effort) -> u64 {
    match effort {
        Effort::Max => 3,
        _ => 8,
    }
}

/// The better of row and column classes, if it saves enough.
pub(super) fn model(
    source: &[u8],
    layout: Layout,
    matrix: Matrix,
    effort: Effort,
) -> Option<(Contexts, Vec<Frequencies>)> {
    let width = usize::from(layout.width);
    if matrix.n_rows < 16 || matrix.row_len < 16 {
        return None;
    }
    // Every row is counted in its first columns, every column in some rows.
    let row_step = (matrix.n_rows * matrix.row_len).div_ceil(MAX_SIGNS);
    let counted = matrix.row_len.min(max_row_signs(effort));
    let count = match width {
        1 => count_negative::<1>,
        2 => count_negative::<2>,
        4 => count_negative::<4>,
        _ => count_negative::<8>,
    };
    let (rows, columns) = count(source, matrix, counted, row_step);
    let n_sampled = u32::try_from(matrix.n_rows.div_ceil(row_step)).ok()?;
    let by_row = Side::new(&rows, u32::try_from(counted).ok()?);
    let by_column = Side::new(&columns, n_sampled);
    let side = if by_row.cost <= by_column.cost { &by_row } else { &by_column };
    if side.cost > 256 - min_gain(effort) {
        return None;
    }
    let contexts = if by_row.cost <= by_column.cost {
        Contexts::new(by_row.classes.clone(), vec![0; matrix.row_len])
    } else {
        Contexts::new(vec![0; matrix.n_rows], by_column.classes.clone())
    };
    let quads = side.shares.iter().take(contexts.n_contexts()).map(|&share| quads(share)).collect();
    Some((contexts, quads))
}

/// Negative signs of each row in its first `counted` columns, and of each column in every `row_step`th row, for elements
/// of `WIDTH` bytes.
fn count_negative<const WIDTH: usize>(
    source: &[u8],
    matrix: Matrix,
    counted: usize,
    row_step: usize,
) -> (Vec<u32>, Vec<u32>) {
    let negative = |element: &[u8; WIDTH]| element[WIDTH - 1] >> 7;
    let (mut rows, mut columns) = (vec![0; matrix.n_rows], vec![0; matrix.row_len]);
    for (row, bytes) in source.chunks_exact(matrix.row_len * WIDTH).enumerate() {
        let elements = bytes.as_chunks::<WIDTH>().0;
        // Sums of so few signs fit a byte, of which a register holds many.
        let sum = |elements: &[[u8; WIDTH]]| elements.iter().map(negative).sum::<u8>();
        rows[row] = elements[..counted].chunks(128).map(|few| u32::from(sum(few))).sum();
        if row.is_multiple_of(row_step) {
            columns
                .iter_mut()
                .zip(elements)
                .for_each(|(column, element)| *column += u32::from(negative(element)));
        }
    }
    (rows, columns)
}

/// Classes of one side, the share of negative signs in each, and the mean cost of a sign, both in 256ths.
struct Side {
    classes: Vec<u8>,
    shares: Vec<u32>,
    cost: u64,
}

impl Side {
    fn new(negatives: &[u32], n_each: u32) -> Self {
        let means: Vec<u64> = negatives.iter().map(|&n| u64::from(n)).collect();
        let classes = quantiles(&means, N_CLASSES);
        let n_classes = classes.iter().copied().max().map_or(1, |class| usize::from(class) + 1);
        let (mut counts, mut totals) = (vec![0u64; n_classes], vec![0u64; n_classes]);
        for (&class, &n) in classes.iter().zip(negatives) {
            counts[usize::from(class)] += u64::from(n);
            totals[usize::from(class)] += u64::from(n_each);
        }
        let share = |class: usize| {
            u32::try_from((counts[class] * 256 / totals[class].max(1)).clamp(4, 252)).unwrap_or(128)
        };
        let shares: Vec<u32> = (0..n_classes).map(share).collect();
        let all: u64 = totals.iter().sum::<u64>().max(1);
        let bits: u64 = (0..n_classes)
            .map(|class| {
                let (negative, total) = (counts[class], totals[class]);
                let cost = |share: u64, n: u64| ((8 << 16) - log2_65536ths(share)) * n;
                cost(u64::from(shares[class]), negative)
                    + cost(256 - u64::from(shares[class]), total - negative)
            })
            .sum();
        // Sorting by the counts themselves makes even fair signs look skewed: by about three quarters of a bit per row.
        let luck = 184 / u64::from(n_each.max(1));
        Self { classes, shares, cost: bits / all / 256 + luck }
    }
}

/// Frequencies of four signs that are negative with this share, independently. Every pattern gets one.
fn quads(share: u32) -> Frequencies {
    let mut counts = [0; 16];
    for (pattern, count) in (0u32..).zip(&mut counts) {
        let negative = pattern.count_ones();
        *count = ((share.pow(negative)).saturating_mul((256 - share).pow(4 - negative)) >> 8).max(1);
    }
    let frequencies = Frequencies::from_counts(&counts);
    debug_assert!(!frequencies.bytes().contains(&0));
    frequencies
}
