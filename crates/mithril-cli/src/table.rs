//! Text in aligned columns.

/// Rows of cells; the first columns are aligned to the left, the others to the right.
#[derive(Debug)]
pub(crate) struct Table {
    n_left: usize,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table with these headings, of which the first `n_left` stand over text and the others over numbers.
    pub(crate) fn new<const N: usize>(n_left: usize, headings: [&str; N]) -> Self {
        Self { n_left, rows: vec![headings.map(str::to_owned).to_vec()] }
    }

    /// Adds a row.
    pub(crate) fn push<const N: usize>(&mut self, cells: [String; N]) {
        self.rows.push(cells.to_vec());
    }

    /// The text, one line per row.
    pub(crate) fn render(&self) -> String {
        let width_of = |column: usize| {
            self.rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max()
        };
        let widths: Vec<usize> =
            (0..self.rows[0].len()).map(|column| width_of(column).unwrap_or(0)).collect();
        let mut text = String::new();
        for row in &self.rows {
            let cells = row.iter().zip(&widths).enumerate().map(|(column, (cell, &width))| {
                if column < self.n_left { format!("{cell:<width$}") } else { format!("{cell:>width$}") }
            });
            text += cells.collect::<Vec<_>>().join("  ").trim_end();
            text.push('\n');
        }
        text
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
