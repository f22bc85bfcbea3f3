//! Text in aligned columns.

use std::fmt;

/// Rows of cells; the first columns are aligned to the left, the others to the right. All cells share one text, because a
/// file may have a million tensors.
#[derive(Debug)]
pub(crate) struct Table {
    n_left: usize,
    n_columns: usize,
    cells: String,
    /// Bytes of each cell.
    lens: Vec<u32>,
}

impl Table {
    /// A table with these headings: the first `n_left` are above text, the others above numbers.
    pub(crate) fn new<const N: usize>(n_left: usize, headings: [&str; N]) -> Self {
        let mut table = Self { n_left, n_columns: N, cells: String::new(), lens: Vec::new() };
        table.push(headings.map(str::to_owned));
        table
    }

    /// Adds a row.
    pub(crate) fn push<const N: usize>(&mut self, cells: [String; N]) {
        debug_assert_eq!(N, self.n_columns, "as many cells as headings");
        for cell in cells {
            self.cells += &cell;
            self.lens.push(u32::try_from(cell.len()).expect("less than 4 GiB in a cell"));
        }
    }

    /// The text, one line per row.
    pub(crate) fn render(&self) -> String {
        self.to_string()
    }

    /// The cells, row by row.
    fn cells(&self) -> impl Iterator<Item = &str> {
        let mut rest = self.cells.as_str();
        self.lens.iter().map(move |&len| {
            let (cell, after) = rest.split_at(len as usize);
            rest = after;
            cell
        })
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut widths = vec![0; self.n_columns];
        for (idx, cell) in self.cells().enumerate() {
            let width: &mut usize = &mut widths[idx % self.n_columns];
            *width = (*width).max(cell.chars().count());
        }
        let mut line = String::new();
        for (idx, cell) in self.cells().enumerate() {
            let column = idx % self.n_columns;
            let padding = " ".repeat(widths[column] - cell.chars().count());
            line += if column > 0 { "  " } else { "" };
            match column < self.n_left {
                true => line.extend([cell, padding.as_str()]),
                false => line.extend([padding.as_str(), cell]),
            }
            if column + 1 == self.n_columns {
                writeln!(f, "{}", line.trim_end())?;
                line.clear();
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let mut table = Table::new(1, ["name", "size"]);
        table.push(["a".to_owned(), "12345".to_owned()]);
        table.push(["longer".to_owned(), "1".to_owned()]);
        assert_eq!(table.render(), "name     size\na       12345\nlonger      1\n");
    }
}
