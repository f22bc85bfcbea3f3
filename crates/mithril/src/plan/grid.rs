//! A tensor seen as a matrix, and samples of its coded fields by row and by column.

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

/// Fields that a search by code length looks at: in one grid all rows and some columns, in the other the reverse.
const MAX_CELLS: usize = 1 << 21;

/// Fields that are counted where nothing is searched for.
fn max_counted(n: usize) -> usize {
    (n / 16).clamp(1 << 14, 1 << 18)
}

/// Sampled columns of a row, at least.
const MIN_SAMPLED: usize = 8;

/// Rows whose fields add up to less than 65536 in every column.
const ROWS_IN_16_BITS: usize = 256;

impl Matrix {
    /// The views of a shape: outermost dimension against the others, and for convolutions all but the kernel against
    /// the kernel. Where no shape is known, rows of these lengths.
    pub(super) fn views(n: usize, shape: Option<&[u64]>, otherwise: &[u64]) -> Vec<Self> {
        let mut row_lens = Vec::new();
        if let Some(shape) = shape.filter(|shape| shape.len() >= 2) {
            let inner = |from: usize| shape[from..].iter().product::<u64>();
            row_lens.push(inner(1));
            if shape.len() > 2 {
                row_lens.push(inner(2));
                row_lens.push(inner(shape.len() - 1));
            }
        } else {
            row_lens.extend(otherwise);
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
    /// Which rows have cells; all when the step is one.
    pub(super) row_step: usize,
    /// Which columns.
    pub(super) column_step: usize,
    /// Columns per row of the grid.
    pub(super) n_columns: usize,
    /// Row by row.
    pub(super) cells: Vec<u8>,
    /// Sum of all fields of each row, sampled or not; of every `row_step`th row where not all are looked at.
    pub(super) row_sums: Vec<u64>,
    /// Sum of all fields of each column in the same rows.
    pub(super) column_sums: Vec<u64>,
}

/// What a grid holds of a matrix.
#[derive(Clone, Copy)]
struct Steps {
    /// Every so many rows are looked at.
    row: usize,
    /// Of so many of these the cells of one are kept.
    kept_row: usize,
    column: usize,
}

impl Grid {
    /// All rows, with as many columns as a search may look at.
    pub(super) fn of_rows(source: &[u8], recipe: &FieldRecipe, matrix: Matrix) -> Self {
        let columns = (MAX_CELLS / matrix.n_rows).max(MIN_SAMPLED);
        let steps = Steps { row: 1, kept_row: 1, column: matrix.row_len.div_ceil(columns) };
        Self::build(source, recipe, matrix, steps)
    }

    /// All columns, with as many rows as a search may look at.
    pub(super) fn of_columns(source: &[u8], recipe: &FieldRecipe, matrix: Matrix) -> Self {
        let rows = (MAX_CELLS / matrix.row_len).max(MIN_SAMPLED);
        Self::build(
            source,
            recipe,
            matrix,
            Steps { row: matrix.n_rows.div_ceil(rows), kept_row: 1, column: 1 },
        )
    }

    /// The sums of all rows and columns, and a sample of cells.
    pub(super) fn sampled(source: &[u8], recipe: &FieldRecipe, matrix: Matrix) -> Self {
        let cells = max_counted(matrix.n_rows * matrix.row_len);
        let columns = (cells / matrix.n_rows).max(MIN_SAMPLED);
        let column = matrix.row_len.div_ceil(columns);
        // An odd step does not follow a structure of the rows.
        let kept_row = (matrix.n_rows * matrix.row_len.div_ceil(column) / cells).max(1) | 1;
        Self::build(source, recipe, matrix, Steps { row: 1, kept_row, column })
    }

    fn build(source: &[u8], recipe: &FieldRecipe, matrix: Matrix, steps: Steps) -> Self {
        let Steps { row: row_step, kept_row, column: column_step } = steps;
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
        let mut cells = Vec::with_capacity(n_rows.div_ceil(kept_row) * n_columns);
        let mut row_sums = Vec::with_capacity(n_rows);
        let mut column_sums = ColumnSums::new(matrix.row_len);
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
            add_row_sums(plane, matrix.row_len, &mut row_sums);
            column_sums.add(plane);
            // The first of these rows whose cells are kept.
            let skipped = (kept_row - first % kept_row) % kept_row;
            let kept = plane.chunks_exact(matrix.row_len).enumerate().skip(skipped).step_by(kept_row);
            for (at, fields) in kept {
                let kept = (first + at) / kept_row;
                if column_step == 1 {
                    cells.extend_from_slice(fields);
                } else {
                    // Sampled columns start at another one in each row, so that all of them are seen.
                    let (start, last) = (cells.len(), fields[matrix.row_len - 1]);
                    cells.extend(fields[kept % column_step..].iter().step_by(column_step));
                    cells.resize(start + n_columns, last);
                }
            }
        }
        let column_sums = column_sums.finish();
        Self { row_step: row_step * kept_row, column_step, n_columns, cells, row_sums, column_sums }
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
            visit(&Self::build(rows, recipe, part, Steps { row: 1, kept_row: 1, column: 1 }), batch * n_rows);
        }
    }

    /// What stands in the sampled columns of a list, once for every column that a row can start at: each row of the grid
    /// starts one further.
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

/// Adds the sum of every row of a plane.
fn add_row_sums(plane: &[u8], row_len: usize, sums: &mut Vec<u64>) {
    if row_len <= ROWS_IN_16_BITS {
        let sum = |row: &[u8]| row.iter().map(|&field| u16::from(field)).sum::<u16>();
        match row_len {
            16 => sums.extend(plane.as_chunks::<16>().0.iter().map(|row| u64::from(sum(row)))),
            64 => sums.extend(plane.as_chunks::<64>().0.iter().map(|row| u64::from(sum(row)))),
            _ => sums.extend(plane.chunks_exact(row_len).map(|row| u64::from(sum(row)))),
        }
    } else {
        // A row has at most a million fields.
        let sum = |row: &[u8]| row.iter().map(|&field| u32::from(field)).sum::<u32>();
        sums.extend(plane.chunks_exact(row_len).map(|row| u64::from(sum(row))));
    }
}

/// Sums of columns: in 16 bits, of which a register holds many, as long as they fit.
struct ColumnSums {
    few: Vec<u16>,
    n_few: usize,
    all: Vec<u64>,
}

impl ColumnSums {
    fn new(row_len: usize) -> Self {
        Self { few: vec![0; row_len], n_few: 0, all: vec![0; row_len] }
    }

    fn add(&mut self, plane: &[u8]) {
        for row in plane.chunks_exact(self.few.len()) {
            self.few.iter_mut().zip(row).for_each(|(sum, &field)| *sum += u16::from(field));
            self.n_few += 1;
            if self.n_few == ROWS_IN_16_BITS {
                self.flush();
            }
        }
    }

    fn flush(&mut self) {
        self.all.iter_mut().zip(&self.few).for_each(|(sum, &few)| *sum += u64::from(few));
        self.few.fill(0);
        self.n_few = 0;
    }

    fn finish(mut self) -> Vec<u64> {
        self.flush();
        self.all
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
