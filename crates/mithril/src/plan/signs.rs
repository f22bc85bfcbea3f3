//! Classes of rows or columns whose signs lean to one side.

use super::classes::quantiles;
use super::effort::SignSearch;
use super::grid::Matrix;
use mithril_codec::Contexts;
use mithril_codec::entropy::log2_65536ths;
use mithril_codec::entropy::rans8::Frequencies;
use mithril_codec::transform::fields::{Layout, sign_plane};

/// Classes of the side that is classed.
const N_CLASSES: usize = 8;

/// Signs looked at for columns.
const MAX_SIGNS: usize = 1 << 19;

/// The better of row and column classes, if it saves enough.
pub(super) fn model(
    source: &[u8],
    layout: Layout,
    matrix: Matrix,
    search: &SignSearch,
) -> Option<(Contexts, Vec<Frequencies>)> {
    let width = usize::from(layout.width);
    if matrix.n_rows < 16 || matrix.row_len < 16 {
        return None;
    }
    if search.samples_first && !may_lean(source, width, matrix, search) {
        return None;
    }
    // Every row is counted in its first columns, every column in some rows.
    let row_step = (matrix.n_rows * matrix.row_len).div_ceil(MAX_SIGNS);
    let counted = matrix.row_len.min(search.n_per_row);
    let [by_row, by_column] = sides(source, width, matrix, counted, row_step)?;
    let side = if by_row.cost <= by_column.cost { &by_row } else { &by_column };
    if side.cost > 256 - search.min_gain {
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

/// Whether some rows leave a chance that signs lean. Most tensors have none, and are not looked at any further.
fn may_lean(source: &[u8], width: usize, matrix: Matrix, search: &SignSearch) -> bool {
    // An odd step does not follow a structure of the rows.
    let step = (matrix.n_rows * matrix.row_len / SAMPLED_SIGNS).min(matrix.n_rows / MIN_SAMPLED_ROWS) | 1;
    if step < 3 {
        return true;
    }
    let row_bytes = matrix.row_len * width;
    let mut sample = Vec::with_capacity(source.len() / step + row_bytes);
    source.chunks_exact(row_bytes).step_by(step).for_each(|row| sample.extend_from_slice(row));
    let rows = Matrix { n_rows: sample.len() / row_bytes, ..matrix };
    let counted = matrix.row_len.min(search.n_per_row);
    let least = sides(&sample, width, rows, counted, 1)
        .and_then(|sides| sides.map(|side| side.cost).into_iter().min());
    // Half of the gain that is wanted, as a sample cannot tell exactly.
    least.is_none_or(|least| least <= 256 - search.min_gain / 2)
}

/// Signs that leave a chance or do not.
const SAMPLED_SIGNS: usize = 1 << 14;

/// Rows of such a sample, at least: columns are told apart by fewer only if they lean much.
const MIN_SAMPLED_ROWS: usize = 64;

/// Both sides: rows by their first `counted` columns, columns by every `row_step`th row.
fn sides(source: &[u8], width: usize, matrix: Matrix, counted: usize, row_step: usize) -> Option<[Side; 2]> {
    let (rows, columns) = match matrix.row_len {
        // Short rows have a code of their own, which is compiled for their length.
        16 => count_negative(source, width, 16, counted, row_step),
        64 => count_negative(source, width, 64, counted, row_step),
        row_len => count_negative(source, width, row_len, counted, row_step),
    };
    let n_sampled = u32::try_from(matrix.n_rows.div_ceil(row_step)).ok()?;
    Some([Side::new(&rows, u32::try_from(counted).ok()?), Side::new(&columns, n_sampled)])
}

/// Negative signs of each row in its first `counted` columns, and of each column in every `row_step`th row.
#[inline(always)]
fn count_negative(
    source: &[u8],
    width: usize,
    row_len: usize,
    counted: usize,
    row_step: usize,
) -> (Vec<u32>, Vec<u32>) {
    // Sums of few signs fit a byte, of which a register holds many.
    const FEW: usize = 128;
    const BATCH: usize = 1 << 14;
    let sum = |signs: &[u8]| u32::from(signs.iter().sum::<u8>());
    let (mut rows, mut columns) = (Vec::with_capacity(source.len() / (width * row_len)), vec![0; row_len]);
    let (mut few, mut n_few) = (vec![0u8; row_len], 0);
    let mut flush = |few: &mut [u8]| {
        columns.iter_mut().zip(&mut *few).for_each(|(column, few)| *column += u32::from(*few));
        few.fill(0);
    };
    let batch_len = (BATCH / row_len).max(1) * row_len;
    let mut signs = vec![0; batch_len];
    for batch in source.chunks(batch_len * width) {
        let signs = &mut signs[..batch.len() / width];
        sign_plane(width, batch, signs);
        for row in signs.chunks_exact(row_len) {
            let is_sampled = rows.len().is_multiple_of(row_step);
            rows.push(if row_len <= FEW && counted == row_len {
                sum(row)
            } else {
                row[..counted].chunks(FEW).map(sum).sum()
            });
            if is_sampled {
                few.iter_mut().zip(row).for_each(|(column, sign)| *column += sign);
                n_few += 1;
                if n_few == FEW {
                    flush(&mut few);
                    n_few = 0;
                }
            }
        }
    }
    flush(&mut few);
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
