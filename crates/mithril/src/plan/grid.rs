//! A tensor seen as a matrix, and samples of its coded fields by row and by column.

use crate::options::Effort;
use mithril_codec::MAX_LISTED;
use mithril_codec::block::{FieldRecipe, has_few_low_bytes};
use mithril_codec::transform::fields::{FieldSplit, Order, top_plane};

/// A way to see a tensor as rows of equal length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Matrix {
    pub(super) n_rows: usize,
    pub(super) row_len: usize,
}

/// Fewer rows or columns are not worth classes.
const MIN_LEN: usize = 16;

/// Lengths of rows where no shape gives them; shorter ones would not show that their low bits have few values.
const SHORT_ROWS: [usize; 3] = [256, 128, 64];

/// Rows of more elements do not fit a block.
const MAX_ROW_LEN: usize = 1 << 20;

/// Elements that are split at a time.
const ROWS_BATCH: usize = 1 << 14;

/// Fields that a search looks at: in one grid all rows and some columns, in the other the reverse.
fn max_cells(effort: Effort, n: usize) -> usize {
    match effort {
        Effort::Fast | Effort::Balanced => (n / 16).clamp(1 << 14, 1 << 18),
        Effort::Max => 1 << 21,
    }
}

impl Matrix {
    /// The views of a shape: outermost dimension against the others, and for convolutions all but the kernel against
    /// the kernel. Where no shape is known, `max` tries short rows.
    pub(super) fn views(n: usize, shape: Option<&[u64]>, effort: Effort) -> Vec<Self> {
        let mut row_lens = Vec::new();
        if let Some(shape) = shape.filter(|shape| shape.len() >= 2) {
            let inner = |from: usize| shape[from..].iter().product::<u64>();
            row_lens.push(inner(1));
            if shape.len() > 2 {
                row_lens.push(inner(2));
                row_lens.push(inner(shape.len() - 1));
            }
        } else if effort == Effort::Max {
            row_lens.extend([16, 64, 256]);
        }
        let mut views: Vec<Self> = Vec::new();
        for row_len in row_lens {
            let Ok(row_len) = usize::try_from(row_len) else { continue };
            let fits = (MIN_LEN..=MAX_ROW_LEN).contains(&row_len) && n.is_multiple_of(row_len);
            if fits
                && (MIN_LEN..=MAX_LISTED).contains(&(n / row_len))
                && !views.iter().any(|view| view.row_len == row_len)
            {
                views.push(Self { n_rows: n / row_len, row_len });
            }
        }
        views
    }

    /// The longest of the rows that a list of numbers may be cut into to tell some of them apart.
    pub(super) fn of_short_rows(n: usize) -> Option<Self> {
        let row_len = SHORT_ROWS.into_iter().find(|&row_len| n.is_multiple_of(row_len))?;
        (MIN_LEN..=MAX_LISTED).contains(&(n / row_len)).then_some(Self { n_rows: n / row_len, row_len })
    }
}

/// Coded fields of some rows and columns.
pub(super) struct Grid {
    /// Which rows; all when the step is one.
    pub(super) row_step: usize,
    /// Which columns.
    pub(super) column_step: usize,
    /// Columns per row of the grid.
    pub(super) n_columns: usize,
    /// Row by row.
    pub(super) cells: Vec<u8>,
    /// Sum of all fields of each row of the grid, sampled columns or not.
    pub(super) row_sums: Vec<u64>,
}

impl Grid {
    /// All rows, with as many columns as the effort allows.
    pub(super) fn of_rows(source: &[u8], recipe: &FieldRecipe, matrix: Matrix, effort: Effort) -> Self {
        let columns = (max_cells(effort, matrix.n_rows * matrix.row_len) / matrix.n_rows).max(8);
        Self::build(source, recipe, matrix, 1, matrix.row_len.div_ceil(columns))
    }

    /// All columns, with as many rows as the effort allows.
    pub(super) fn of_columns(source: &[u8], recipe: &FieldRecipe, matrix: Matrix, effort: Effort) -> Self {
        let rows = (max_cells(effort, matrix.n_rows * matrix.row_len) / matrix.row_len).max(8);
        Self::build(source, recipe, matrix, matrix.n_rows.div_ceil(rows), 1)
    }

    fn build(
        source: &[u8],
        recipe: &FieldRecipe,
        matrix: Matrix,
        row_step: usize,
        column_step: usize,
    ) -> Self {
        let split = FieldSplit {
            joint: recipe.joint,
            base: recipe.base,
            ..FieldSplit::plain(recipe.layout, Order::Natural)
        };
        let row_bytes = matrix.row_len * usize::from(recipe.layout.width);
        let n_columns = matrix.row_len.div_ceil(column_step);
        // Rows are split several at a time: kernels like long inputs.
        let batch = (ROWS_BATCH / matrix.row_len).max(1);
        let (mut plane, mut rest) = (vec![0; batch * matrix.row_len], Vec::new());
        let mut picked = Vec::new();
        let n_rows = matrix.n_rows.div_ceil(row_step);
        let mut cells = Vec::with_capacity(n_rows * n_columns);
        let mut row_sums = Vec::with_capacity(n_rows);
        for first in (0..n_rows).step_by(batch) {
            let n_batch = batch.min(n_rows - first);
            let rows = if row_step == 1 {
                &source[first * row_bytes..][..n_batch * row_bytes]
            } else {
                picked.clear();
                let all = source[first * row_step * row_bytes..].chunks_exact(row_bytes);
                all.step_by(row_step).take(n_batch).for_each(|row| picked.extend_from_slice(row));
                picked.as_slice()
            };
            let plane = &mut plane[..n_batch * matrix.row_len];
            top_plane(&split, rows, plane, &mut rest);
            for (row, fields) in
                (first * row_step..).step_by(row_step).zip(plane.chunks_exact(matrix.row_len))
            {
                // A row has at most a million fields.
                row_sums.push(u64::from(fields.iter().map(|&field| u32::from(field)).sum::<u32>()));
                if column_step == 1 {
                    cells.extend_from_slice(fields);
                } else {
                    // Sampled columns start at another one in each row, so that all of them are seen.
                    let (start, last) = (cells.len(), fields[matrix.row_len - 1]);
                    cells.extend(fields[row % column_step..].iter().step_by(column_step));
                    cells.resize(start + n_columns, last);
                }
            }
        }
        Self { row_step, column_step, n_columns, cells, row_sums }
    }

    /// All rows and columns, some rows at a time, each batch with its first row.
    pub(super) fn for_each_batch(
        source: &[u8],
        recipe: &FieldRecipe,
        matrix: Matrix,
        mut visit: impl FnMut(&Self, usize),
    ) {
        let row_bytes = matrix.row_len * usize::from(recipe.layout.width);
        let n_rows = ((1 << 18) / matrix.row_len).max(1);
        for (batch, rows) in source.chunks(n_rows * row_bytes).enumerate() {
            let part = Matrix { n_rows: rows.len() / row_bytes, row_len: matrix.row_len };
            visit(&Self::build(rows, recipe, part, 1, 1), batch * n_rows);
        }
    }

    /// What stands in the sampled columns of a list, once for every column that a row can start at.
    pub(super) fn sampled_columns(&self, of_columns: &[u8]) -> Vec<Vec<u8>> {
        let last = of_columns.len() - 1;
        let at = |first: usize, cell: usize| of_columns[(cell * self.column_step + first).min(last)];
        (0..self.column_step).map(|first| (0..self.n_columns).map(|cell| at(first, cell)).collect()).collect()
    }

    /// Rows of the grid, with the row of the matrix that each is.
    pub(super) fn rows(&self) -> impl Iterator<Item = (usize, &[u8])> {
        self.cells.chunks_exact(self.n_columns).enumerate().map(|(row, cells)| (row * self.row_step, cells))
    }
}

/// Whether some rows have low bits that are dead, or have few values, and the others have not.
pub(super) fn has_rows_apart(source: &[u8], width: usize, matrix: Matrix) -> bool {
    let dead = |row: &[u8]| {
        let mut seen = 0;
        for element in row.chunks_exact(width) {
            seen |= u32::from_le_bytes([element[0], element[1], element[2], element[3]]);
            if seen & 15 != 0 {
                return false;
            }
        }
        true
    };
    let rows = source.chunks_exact(matrix.row_len * width);
    let n_apart = rows.filter(|row| dead(row) || has_few_low_bytes(row, width)).count();
    n_apart > 0 && n_apart < matrix.n_rows
}
