//! Classes of rows and columns whose tables code the top fields in the fewest bits.
//!
//! Rows start in quantiles of their mean field, of which neighbours are merged to the four classes with the shortest codes;
//! columns likewise. At `max` they then move, in a few rounds, to the class whose table codes them best (Lloyd's iteration
//! on code length), rows and columns in turn.

use super::blocks::{self, OWN_TABLES, STATES_LEN};
use super::effort::ClassSearch;
use super::grid::{Grid, Matrix};
use mithril_codec::Contexts;
use mithril_codec::block::{FieldRecipe, SymbolCoder, SymbolTables};
use mithril_codec::entropy::rans8::Window;
use mithril_codec::entropy::{log2_65536ths, order_0_65536ths, rans12};

/// Classes of rows, and of columns. More pay only for embeddings of more than ten million weights.
const N_CLASSES: usize = 4;

/// Quantiles of the mean field that are merged to classes: most rows are alike, and the few others differ much.
const N_QUANTILES: usize = 16;

/// Longest code in a search, in 256ths of a bit: a row of a million fields still adds up to 32 bits.
const MAX_LENGTH: u32 = 4095;

/// Bits that an escape costs beside its symbol: position and field.
const ESCAPE_BITS: u64 = 26;

/// As above, of a field that is wider than a byte.
const WIDE_ESCAPE_BITS: u64 = 34;

/// Column classes must save one of so many raw bits.
const MIN_COLUMN_GAIN: u64 = 1600;

/// A way to code the top fields of a tensor, and what it costs.
pub(super) struct Model {
    pub(super) recipe: FieldRecipe,
    pub(super) matrix: Matrix,
    /// Classes of rows and columns; none when blocks share nothing.
    pub(super) classes: Option<Classes>,
    /// Bits of all fields, raw rest, tables and classes.
    pub(super) cost: u64,
}

/// All models of one view: without classes, by row, by column, by both. What they cost is that of a tensor of `times` as
/// many rows.
pub(super) fn models(
    source: &[u8],
    recipe: &FieldRecipe,
    matrix: Matrix,
    search: ClassSearch,
    times: u64,
) -> Vec<Model> {
    let of = Search { recipe, matrix, rest_bits: rest_bits(recipe), times };
    match search {
        ClassSearch::Quantiles => of.models_of_quantiles(source),
        ClassSearch::CodeLength => of.models_by_search(source),
    }
}

/// Every n-th sum of so many histograms: by the other side of the contexts.
fn sum_every(counts: &[[u32; 256]], n: usize) -> Vec<[u32; 256]> {
    let mut sums = vec![[0; 256]; n];
    for (at, counts) in counts.iter().enumerate() {
        sums[at % n].iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
    }
    sums
}

/// Sums of so many histograms each.
fn sum_each(counts: &[[u32; 256]], n: usize) -> Vec<[u32; 256]> {
    let sum = |counts: &[[u32; 256]]| {
        let mut sum = [0; 256];
        for counts in counts {
            sum.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
        }
        sum
    };
    counts.chunks(n.max(1)).map(sum).collect()
}

/// One class for everything: blocks share a matrix and nothing else.
pub(super) fn one_class(matrix: Matrix) -> Classes {
    Classes { rows: vec![0; matrix.n_rows], columns: vec![0; matrix.row_len] }
}

/// The contexts of these classes, and the tables of the coder that shares them, counted over the whole tensor.
pub(super) fn tables(
    source: &[u8],
    recipe: &FieldRecipe,
    matrix: Matrix,
    classes: Classes,
) -> (Contexts, SymbolTables) {
    let search = Search { recipe, matrix, rest_bits: rest_bits(recipe), times: 1 };
    let tables = match recipe.coder {
        SymbolCoder::Rans12 => {
            let n_contexts = classes.n_row_classes() * classes.n_column_classes();
            let mut counts = vec![[0; 256]; n_contexts];
            Grid::for_each_batch(source, recipe, matrix, |grid, first_row| {
                search.count(grid, first_row, &classes, &mut counts);
            });
            SymbolTables::rans12(counts.iter().map(wide_table).collect())
        }
        _ => SymbolTables::Rans8PerBlock,
    };
    (Contexts::new(classes.rows, classes.columns), tables)
}

fn rest_bits(recipe: &FieldRecipe) -> u64 {
    u64::from(recipe.layout.mantissa - recipe.joint) + u64::from(recipe.layout.sign)
}

/// Class of every row and column.
#[derive(Debug, Clone)]
pub(super) struct Classes {
    rows: Vec<u8>,
    columns: Vec<u8>,
}

impl Classes {
    fn n_row_classes(&self) -> usize {
        self.rows.iter().copied().max().map_or(1, |class| usize::from(class) + 1)
    }

    fn n_column_classes(&self) -> usize {
        self.columns.iter().copied().max().map_or(1, |class| usize::from(class) + 1)
    }
}

struct Search<'a> {
    recipe: &'a FieldRecipe,
    matrix: Matrix,
    rest_bits: u64,
    /// How many of these parts the tensor has.
    times: u64,
}

impl Search<'_> {
    fn n(&self) -> u64 {
        ((self.matrix.n_rows * self.matrix.row_len) as u64).saturating_mul(self.times)
    }

    /// Blocks of this many elements that the tensor is cut to.
    fn n_blocks(&self, block: usize) -> u64 {
        self.n().div_ceil(block as u64)
    }

    /// Models whose classes are merged quantiles of the means, from sums of everything and counts of a sample.
    fn models_of_quantiles(&self, source: &[u8]) -> Vec<Model> {
        let grid = Grid::sampled(source, self.recipe, self.matrix);
        let (row, column) = (self.row_quantiles(&grid), self.column_quantiles(&grid));
        let both = Classes { rows: row.rows.clone(), columns: column.columns.clone() };
        let both_counts = self.counts(&grid, &both);
        let row_counts = sum_each(&both_counts, both.n_column_classes());
        let column_counts = sum_every(&both_counts, both.n_column_classes());
        let all = sum_each(&row_counts, row_counts.len());
        vec![
            self.own_tables(&grid, &all),
            self.shared_classes(&grid, row, &row_counts),
            self.shared_classes(&grid, column, &column_counts),
            self.shared_classes(&grid, both, &both_counts),
        ]
    }

    /// Models whose classes start as merged quantiles, and then move to where codes are shorter.
    fn models_by_search(&self, source: &[u8]) -> Vec<Model> {
        const ROUNDS: usize = 2;
        let by_row = Grid::of_rows(source, self.recipe, self.matrix);
        let by_column = Grid::of_columns(source, self.recipe, self.matrix);
        let (mut row, mut column) = (self.row_quantiles(&by_row), self.column_quantiles(&by_column));
        for _ in 0..ROUNDS {
            self.move_rows(&by_row, &mut row);
            self.move_columns(&by_column, &mut column);
        }
        let mut both = Classes { rows: row.rows.clone(), columns: column.columns.clone() };
        for _ in 0..ROUNDS {
            self.move_rows(&by_row, &mut both);
            self.move_columns(&by_column, &mut both);
        }
        let row_counts = self.counts(&by_row, &row);
        let both_counts = self.counts(&by_row, &both);
        let column_counts = self.counts(&by_column, &column);
        let all = sum_each(&row_counts, row_counts.len());
        vec![
            self.own_tables(&by_row, &all),
            self.shared_classes(&by_row, row, &row_counts),
            self.shared_classes(&by_column, column, &column_counts),
            self.shared_classes(&by_row, both, &both_counts),
        ]
    }

    /// Rows by merged quantiles of their sums.
    fn row_quantiles(&self, grid: &Grid) -> Classes {
        let columns = vec![0; self.matrix.row_len];
        let mut classes = Classes { rows: quantiles(&grid.row_sums, N_QUANTILES), columns };
        let merged = merged(&self.counts(grid, &classes));
        classes.rows.iter_mut().for_each(|class| *class = merged[usize::from(*class)]);
        classes
    }

    /// Columns by merged quantiles of their sums.
    fn column_quantiles(&self, grid: &Grid) -> Classes {
        let rows = vec![0; self.matrix.n_rows];
        let mut classes = Classes { rows, columns: quantiles(&grid.column_sums, N_QUANTILES) };
        let merged = merged(&self.counts(grid, &classes));
        classes.columns.iter_mut().for_each(|class| *class = merged[usize::from(*class)]);
        classes
    }

    /// Histograms by context, over a grid.
    fn counts(&self, grid: &Grid, classes: &Classes) -> Vec<[u32; 256]> {
        let mut counts = vec![[0; 256]; classes.n_row_classes() * classes.n_column_classes()];
        self.count(grid, 0, classes, &mut counts);
        counts
    }

    /// Adds the fields of a grid whose first row is `first_row` of the matrix.
    fn count(&self, grid: &Grid, first_row: usize, classes: &Classes, counts: &mut [[u32; 256]]) {
        let n_columns = classes.n_column_classes();
        let columns = grid.sampled_columns(&classes.columns);
        // Neighbours are counted apart: they are often equal, and one count would wait for the other.
        let mut others = vec![[0; 256]; counts.len()];
        for (start, (row, cells)) in grid.rows().enumerate() {
            let row = first_row + row;
            let contexts = usize::from(classes.rows[row]) * n_columns;
            let (counts, others) =
                (&mut counts[contexts..][..n_columns], &mut others[contexts..][..n_columns]);
            let (pairs, last) = cells.as_chunks::<2>();
            if let ([counts], [others]) = (&mut *counts, &mut *others) {
                for &[a, b] in pairs {
                    counts[usize::from(a)] += 1;
                    others[usize::from(b)] += 1;
                }
                last.iter().for_each(|&field| counts[usize::from(field)] += 1);
                continue;
            }
            let (class_pairs, last_class) = columns[start % columns.len()].as_chunks::<2>();
            for (&[class_a, class_b], &[a, b]) in class_pairs.iter().zip(pairs) {
                counts[usize::from(class_a)][usize::from(a)] += 1;
                others[usize::from(class_b)][usize::from(b)] += 1;
            }
            for (&class, &field) in last_class.iter().zip(last) {
                counts[usize::from(class)][usize::from(field)] += 1;
            }
        }
        for (counts, others) in counts.iter_mut().zip(&others) {
            counts.iter_mut().zip(others).for_each(|(count, other)| *count += other);
        }
    }

    /// The model without classes: a table per block, of which the counts of everything are a fair picture.
    fn own_tables(&self, grid: &Grid, counts: &[[u32; 256]]) -> Model {
        let bits = counts.iter().map(|counts| self.coded_bits(counts)).sum();
        let n_blocks = self.n_blocks(blocks::evenly(self.matrix.n_rows * self.matrix.row_len, OWN_TABLES));
        let cost = self.scale(bits, grid) + self.n() * self.rest_bits + n_blocks * 8 * STATES_LEN;
        Model { recipe: *self.recipe, matrix: self.matrix, classes: None, cost }
    }

    fn shared_classes(&self, grid: &Grid, classes: Classes, counts: &[[u32; 256]]) -> Model {
        let bits: u64 = counts.iter().map(|counts| self.coded_bits(counts)).sum();
        let n_blocks = self.n_blocks(blocks::rows_per_block(self.matrix.row_len) * self.matrix.row_len);
        // Tables fit the sample better than the tensor: by about half a bit and a half per cell.
        let fitted = counts.iter().flatten().filter(|&&count| count > 0).count() as u64 * 256;
        let tables: u64 = match self.recipe.coder {
            SymbolCoder::Rans12 => counts
                .iter()
                .filter_map(rans12::FrequencyTable::from_counts)
                .map(|table| table.coded_len() as u64)
                .sum(),
            _ => 17 * counts.len() as u64 * n_blocks,
        };
        let listed = |classes: &[u8]| {
            if classes.iter().all(|&class| class == 0) { 16 } else { 2 * classes.len() as u64 + 256 }
        };
        let of_rows = listed(&classes.rows).saturating_mul(self.times);
        let side = 8 * (tables + STATES_LEN * n_blocks) + of_rows + listed(&classes.columns);
        let coded = self.scale(bits + fitted, grid);
        let mut cost = coded + self.n() * self.rest_bits + side;
        if self.recipe.coder == SymbolCoder::Rans8 && classes.n_column_classes() > 1 {
            // Columns cost decoding speed, so they must save more than a little. They are put back 64 at a time.
            let moved = self.matrix.row_len.next_multiple_of(64) * self.matrix.n_rows;
            cost += moved as u64 * u64::from(self.recipe.layout.width) * 8 / MIN_COLUMN_GAIN;
        }
        Model { recipe: *self.recipe, matrix: self.matrix, classes: Some(classes), cost }
    }

    /// From 256ths of a bit over the grid to bits over the tensor.
    fn scale(&self, bits: u64, grid: &Grid) -> u64 {
        let cells = grid.cells.len().max(1) as u128;
        u64::try_from(u128::from(bits) * u128::from(self.n()) / cells / 256).unwrap_or(u64::MAX)
    }

    /// What fields with these counts cost in their best table, in 256ths of a bit.
    fn coded_bits(&self, counts: &[u32; 256]) -> u64 {
        match self.recipe.coder {
            SymbolCoder::Rans12 => {
                // What does not fit the plane is marked by 255, and escapes.
                let escapes = if self.recipe.base > 0 { u64::from(counts[255]) } else { 0 };
                let symbols =
                    rans12::FrequencyTable::from_counts(counts).map_or(0, |table| table.cost_bits(counts));
                symbols + 256 * WIDE_ESCAPE_BITS * escapes
            }
            _ => Window::of_counts(counts).cost_bits(counts, ESCAPE_BITS),
        }
    }

    /// Moves every row to the class that codes it in the fewest bits.
    fn move_rows(&self, grid: &Grid, classes: &mut Classes) {
        let n_columns = classes.n_column_classes();
        let lengths = code_lengths(&self.counts(grid, classes), n_columns, Side::Rows);
        let columns = grid.sampled_columns(&classes.columns);
        for (row, cells) in grid.rows() {
            let mut costs = [0u32; N_CLASSES];
            for (&column, &field) in columns[row % columns.len()].iter().zip(cells) {
                add(&mut costs, &lengths[usize::from(column) * 256 + usize::from(field)]);
            }
            classes.rows[row] = cheapest(&costs);
        }
    }

    /// Moves every column to the class that codes it in the fewest bits.
    fn move_columns(&self, grid: &Grid, classes: &mut Classes) {
        let n_columns = classes.n_column_classes();
        let lengths = code_lengths(&self.counts(grid, classes), n_columns, Side::Columns);
        let mut costs = vec![[0u32; N_CLASSES]; self.matrix.row_len];
        for (row, cells) in grid.rows() {
            let first = usize::from(classes.rows[row]) * 256;
            for (costs, &field) in costs.iter_mut().zip(cells) {
                add(costs, &lengths[first + usize::from(field)]);
            }
        }
        classes.columns = costs.iter().map(cheapest).collect();
    }
}

/// A table for counts; a context that never occurs gets any.
fn wide_table(counts: &[u32; 256]) -> rans12::FrequencyTable {
    let mut any = [0; 256];
    any[0] = 1;
    let table =
        rans12::FrequencyTable::from_counts(counts).or_else(|| rans12::FrequencyTable::from_counts(&any));
    table.expect("one count is not zero")
}

#[inline]
fn add(costs: &mut [u32; N_CLASSES], lengths: &[u32; N_CLASSES]) {
    for (cost, length) in costs.iter_mut().zip(lengths) {
        *cost = cost.wrapping_add(*length);
    }
}

fn cheapest(costs: &[u32; N_CLASSES]) -> u8 {
    (0u8..).zip(costs).min_by_key(|&(_, cost)| cost).map_or(0, |(class, _)| class)
}

/// Which side moves.
#[derive(Clone, Copy, PartialEq)]
enum Side {
    Rows,
    Columns,
}

/// Code length of every field in every class of the moving side, for each class of the other: entry
/// `256 * other + field` holds one length per class, in 256ths of a bit.
fn code_lengths(counts: &[[u32; 256]], n_columns: usize, moving: Side) -> Vec<[u32; N_CLASSES]> {
    let n_rows = counts.len() / n_columns;
    let (n_moving, n_other) = if moving == Side::Rows { (n_rows, n_columns) } else { (n_columns, n_rows) };
    let mut all = [0u64; 256];
    counts
        .iter()
        .for_each(|counts| all.iter_mut().zip(counts).for_each(|(all, &count)| *all += u64::from(count)));
    let all_total: u64 = all.iter().sum::<u64>().max(1);
    let mut lengths = vec![[MAX_LENGTH; N_CLASSES]; 256 * n_other];
    for other in 0..n_other {
        let context_of = |class: usize| {
            if moving == Side::Rows { class * n_columns + other } else { other * n_columns + class }
        };
        for (class, context) in (0..n_moving).map(|class| (class, context_of(class))) {
            let total: u64 = counts[context].iter().map(|&count| u64::from(count)).sum::<u64>().max(1);
            for field in 0..256 {
                // A fiftieth of everything keeps a class open to what it has not seen yet.
                let own = (u64::from(counts[context][field]) << 20) / total;
                let share = own + (all[field] << 20) / all_total / 50 + 1;
                let bits = log2_65536ths((1 << 20) + (1 << 20) / 50 + 256) - log2_65536ths(share);
                lengths[256 * other + field][class] =
                    u32::try_from(bits >> 8).unwrap_or(MAX_LENGTH).min(MAX_LENGTH);
            }
        }
    }
    lengths
}

/// The class of each quantile, given their histograms: neighbours are merged so that all codes together are shortest.
fn merged(counts: &[[u32; 256]]) -> Vec<u8> {
    let n = counts.len();
    // Fields that occur at all: a few of the 256.
    let occurs = |field: &usize| counts.iter().any(|counts| counts[*field] > 0);
    let first = (0..256).find(occurs).unwrap_or(0);
    let end = (first..256).rev().find(occurs).map_or(first, |last| last + 1);
    // Least bits of the first quantiles in so many classes, and where the last of these starts.
    let mut least: Vec<Vec<(u64, usize)>> = vec![vec![(u64::MAX, 0); n + 1]; N_CLASSES + 1];
    least[0][0].0 = 0;
    for from in 0..n {
        let mut sum = [0; 256];
        let sum = &mut sum[first..end];
        for (to, counts) in (from + 1..).zip(&counts[from..]) {
            sum.iter_mut().zip(&counts[first..end]).for_each(|(sum, count)| *sum += count);
            let bits = order_0_65536ths(sum);
            for class in 0..N_CLASSES {
                let cost = least[class][from].0.saturating_add(bits);
                if cost < least[class + 1][to].0 {
                    least[class + 1][to] = (cost, from);
                }
            }
        }
    }
    let n_classes = (1..=N_CLASSES).min_by_key(|&n_classes| least[n_classes][n].0).unwrap_or(1);
    let mut classes = vec![0; n];
    let mut to = n;
    for class in (1..=n_classes).rev() {
        let from = least[class][to].1;
        classes[from..to].fill(u8::try_from(class - 1).unwrap_or(0));
        to = from;
    }
    classes
}

/// Classes by rank; equal means share a class.
pub(super) fn quantiles(means: &[u64], n_classes: usize) -> Vec<u8> {
    let least = means.iter().copied().min().unwrap_or(0);
    let most = means.iter().copied().max().unwrap_or(0);
    let class_of =
        |bounds: &[u64], mean: u64| bounds.iter().map(|&bound| u8::from(bound <= mean)).sum::<u8>();
    match usize::try_from(most - least) {
        // Where there are many, most are equal to others, and ranks are found by counting them.
        Ok(range) if range < means.len() => {
            let at = |mean: u64| usize::try_from(mean - least).unwrap_or(0);
            let mut counts = vec![0u32; range + 1];
            means.iter().for_each(|&mean| counts[at(mean)] += 1);
            let bounds = counted_bounds(&counts, least, means.len(), n_classes);
            let classes: Vec<u8> = (least..=most).map(|mean| class_of(&bounds, mean)).collect();
            means.iter().map(|&mean| classes[at(mean)]).collect()
        }
        _ => {
            let bounds = sorted_bounds(means, n_classes);
            means.iter().map(|&mean| class_of(&bounds, mean)).collect()
        }
    }
}

/// The least mean of every class but the first, which are those of these ranks, from counts of means from `least` on.
fn counted_bounds(counts: &[u32], least: u64, n: usize, n_classes: usize) -> Vec<u64> {
    let mut bounds = Vec::with_capacity(n_classes);
    let mut ranks = (1..n_classes).map(|class| class * n / n_classes).peekable();
    let mut end = 0;
    for (mean, &count) in (least..).zip(counts) {
        end += count as usize;
        while ranks.next_if(|&rank| rank < end).is_some() {
            bounds.push(mean);
        }
    }
    bounds
}

/// As [`counted_bounds`], by selection.
fn sorted_bounds(means: &[u64], n_classes: usize) -> Vec<u64> {
    let mut rest = means.to_vec();
    let mut bounds = Vec::with_capacity(n_classes);
    // Each bound splits what lies below the one above it.
    for class in (1..n_classes).rev() {
        let at = class * means.len() / n_classes;
        if at < rest.len() {
            let (_, &mut bound, _) = rest.select_nth_unstable(at);
            bounds.push(bound);
            rest.truncate(at + 1);
        } else {
            bounds.push(bounds.last().copied().unwrap_or(0));
        }
    }
    bounds
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_that_are_alike_are_merged() {
        let mut counts = vec![[0; 256]; 16];
        for (quantile, counts) in counts.iter_mut().enumerate() {
            // One far off at either end, and a step within the others.
            let field = match quantile {
                0 => 10,
                1..7 => 60,
                7..15 => 62,
                _ => 100,
            };
            counts[field] = 500;
            counts[field + 1] = 500;
        }
        assert_eq!(merged(&counts), [0, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 2, 2, 3]);
        assert_eq!(merged(&counts[1..4]), [0, 0, 0]);
        assert_eq!(merged(&counts[..1]), [0]);
    }

    #[test]
    fn counting_and_sorting_give_the_same_quantiles() {
        let mut state = 11u64;
        for n in (1..40).chain([1000]) {
            for range in [1, 2, 7, 300, 5000] {
                let means: Vec<u64> = (0..n)
                    .map(|_| {
                        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(99);
                        1000 + (state >> 33) % range
                    })
                    .collect();
                for n_classes in [1, 4, 8, 16] {
                    let bounds = sorted_bounds(&means, n_classes);
                    let class_of = |mean: &u64| bounds.iter().map(|bound| u8::from(bound <= mean)).sum();
                    let expected: Vec<u8> = means.iter().map(class_of).collect();
                    assert_eq!(quantiles(&means, n_classes), expected, "{n} means of {range}");
                }
            }
        }
    }
}
