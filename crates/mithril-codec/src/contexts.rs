//! Contexts of a matrix: rows and columns sorted into a few classes, each pair of classes with its own table.
//!
//! A weight's size depends on its row and its column (an output neuron, an input channel), and both are known
//! before a symbol is decoded. So the symbols of a block are put into one bucket per context, coded bucket by
//! bucket with that bucket's table, and put back: the coder never switches tables inside a vector.
//!
//! A bucket holds its symbols by row, then by column. As every row of a class has the same columns of each
//! column class, positions in a bucket are found by one division.

use crate::CodecError;
use crate::arch::kernels;
use crate::bytes::Cursor;
use crate::entropy::stream;
use std::borrow::Cow;

/// Classes that rows or columns may have at most.
pub const MAX_CLASSES: usize = 16;

/// Columns that are put back at a time.
const GROUP: usize = 16;

/// Columns that the wider kernels move at a time.
const WIDE_GROUP: usize = 64;

/// Bytes behind planes and buckets that kernels may touch.
pub(crate) const SLACK: usize = 64;

/// Which class each row and each column of a matrix belongs to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Contexts {
    row_classes: Vec<u8>,
    column_classes: Vec<u8>,
    n_row_classes: usize,
    n_column_classes: usize,
    /// Columns of each class; this and what follows is empty where all columns are of one.
    columns_by_class: Vec<Vec<u32>>,
    /// For every group of columns and every class, the shuffle that puts the class's next symbols in place.
    shuffles: Vec<[u8; GROUP]>,
    /// How many symbols that shuffle takes.
    taken: Vec<u8>,
    /// For every wide group of columns and every class, which of the columns are of the class.
    masks: Vec<u64>,
}

impl Contexts {
    /// Classes of rows and of columns, numbered from zero. There are at most 16 of each.
    ///
    /// # Panics
    /// When there are no columns, or a class number is 16 or more.
    pub fn new(row_classes: Vec<u8>, column_classes: Vec<u8>) -> Self {
        let count = |classes: &[u8]| usize::from(highest(classes)) + 1;
        let (n_row_classes, n_column_classes) = (count(&row_classes), count(&column_classes));
        assert!(
            n_row_classes <= MAX_CLASSES && n_column_classes <= MAX_CLASSES && !column_classes.is_empty()
        );
        let mut contexts = Self {
            row_classes,
            column_classes,
            n_row_classes,
            n_column_classes,
            columns_by_class: Vec::new(),
            shuffles: Vec::new(),
            taken: Vec::new(),
            masks: Vec::new(),
        };
        if n_column_classes > 1 {
            contexts.list_columns();
        }
        contexts
    }

    fn for_kernels(&self) -> ColumnClasses<'_> {
        ColumnClasses {
            row_len: self.row_len(),
            n_classes: self.n_column_classes,
            shuffles: &self.shuffles,
            taken: &self.taken,
            masks: &self.masks,
        }
    }

    /// What it takes to put columns in their places.
    fn list_columns(&mut self) {
        let (column_classes, n_column_classes) = (&self.column_classes, self.n_column_classes);
        let mut columns_by_class = vec![Vec::new(); n_column_classes];
        for (column, &class) in (0u32..).zip(column_classes) {
            columns_by_class[usize::from(class)].push(column);
        }
        let mut shuffles = vec![[0x80; GROUP]; column_classes.len().div_ceil(GROUP) * n_column_classes];
        let mut taken = vec![0; shuffles.len()];
        for (column, &class) in column_classes.iter().enumerate() {
            let at = column / GROUP * n_column_classes + usize::from(class);
            shuffles[at][column % GROUP] = taken[at];
            taken[at] += 1;
        }
        let mut masks = vec![0; column_classes.len().div_ceil(WIDE_GROUP) * n_column_classes];
        for (column, &class) in column_classes.iter().enumerate() {
            masks[column / WIDE_GROUP * n_column_classes + usize::from(class)] |= 1 << (column % WIDE_GROUP);
        }
        (self.columns_by_class, self.shuffles, self.taken, self.masks) =
            (columns_by_class, shuffles, taken, masks);
    }

    /// Columns of a class.
    fn n_columns(&self, class: usize) -> usize {
        if self.n_column_classes == 1 { self.row_len() } else { self.columns_by_class[class].len() }
    }

    /// Elements of a row.
    pub fn row_len(&self) -> usize {
        self.column_classes.len()
    }

    /// Rows of the matrix.
    pub fn n_rows(&self) -> usize {
        self.row_classes.len()
    }

    /// Number of contexts: pairs of a row class and a column class.
    pub fn n_contexts(&self) -> usize {
        self.n_row_classes * self.n_column_classes
    }

    /// The context of an element.
    pub fn context(&self, row: usize, column: usize) -> usize {
        usize::from(self.row_classes[row]) * self.n_column_classes + usize::from(self.column_classes[column])
    }

    /// Appends row length, number of rows and both class lists.
    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        for classes in [&self.row_classes, &self.column_classes] {
            let n = u32::try_from(classes.len()).expect("a matrix that is classed has fewer than 2^32 rows");
            out.extend(n.to_le_bytes());
            stream::encode_smallest(classes, stream::Allowed::Entropy, out);
        }
    }

    /// Reads what [`Contexts::write`] wrote.
    pub(crate) fn read(cursor: &mut Cursor<'_>) -> Result<Self, CodecError> {
        let mut lists = [Vec::new(), Vec::new()];
        for list in &mut lists {
            let n = cursor.len32()?;
            if n > MAX_LISTED {
                return Err(CodecError::corrupt("more rows or columns than a classed matrix may have"));
            }
            *list = vec![0; n];
            stream::decode_into(cursor, list)?;
            if usize::from(highest(list)) >= MAX_CLASSES {
                return Err(CodecError::corrupt("class number out of range"));
            }
        }
        let [rows, columns] = lists;
        if columns.is_empty() {
            return Err(CodecError::corrupt("a classed matrix without columns"));
        }
        Ok(Self::new(rows, columns))
    }

    /// The buckets of a block that holds these rows.
    pub(crate) fn buckets<'a>(&'a self, rows: &[u32]) -> Result<Buckets<'a>, CodecError> {
        let row_classes = self.classes_of(rows)?;
        let mut starts = Vec::with_capacity(self.n_contexts() + 1);
        let mut end = 0;
        starts.push(0);
        for class in (0..=u8::MAX).take(self.n_row_classes) {
            let n_rows = count_of(class, &row_classes);
            for column_class in 0..self.n_column_classes {
                end += n_rows * self.n_columns(column_class);
                starts.push(end);
            }
        }
        Ok(Buckets { contexts: self, row_classes, starts })
    }

    /// The class of each of these rows. Nearly always they follow each other, and nothing is copied.
    fn classes_of(&self, rows: &[u32]) -> Result<Cow<'_, [u8]>, CodecError> {
        let missing = || CodecError::corrupt("row without a class");
        let first = rows.first().copied().unwrap_or(0);
        // Without a way out, so that many are compared at a time.
        let (_, difference) = rows.iter().fold((first, 0), |(expected, difference), &row| {
            (expected.wrapping_add(1), difference | (expected ^ row))
        });
        if difference == 0 {
            let classes =
                self.row_classes.get(first as usize..).and_then(|classes| classes.get(..rows.len()));
            return classes.map(Cow::Borrowed).ok_or_else(missing);
        }
        let class_of = |&row: &u32| self.row_classes.get(row as usize).copied().ok_or_else(missing);
        rows.iter().map(class_of).collect::<Result<_, _>>().map(Cow::Owned)
    }
}

/// The highest class of a list.
fn highest(classes: &[u8]) -> u8 {
    classes.iter().fold(0, |highest, &class| highest.max(class))
}

/// How often a class occurs. Few counts fit a byte, of which a register holds many.
fn count_of(class: u8, classes: &[u8]) -> usize {
    let count = |few: &[u8]| few.iter().map(|&other| u8::from(other == class)).sum::<u8>();
    classes.chunks(usize::from(u8::MAX)).map(|few| usize::from(count(few))).sum()
}

/// Rows or columns that a file may list; beyond that classes do not pay and hostile files cost memory.
pub const MAX_LISTED: usize = 1 << 20;

/// What kernels need to move the columns of every row, which are of several classes.
#[derive(Clone, Copy)]
pub(crate) struct ColumnClasses<'a> {
    pub(crate) row_len: usize,
    pub(crate) n_classes: usize,
    /// For every group of 16 columns and every class, the shuffle that puts the class's next symbols in place, and how many
    /// it takes.
    pub(crate) shuffles: &'a [[u8; GROUP]],
    pub(crate) taken: &'a [u8],
    /// For every group of 64 columns and every class, which of the columns are of the class.
    pub(crate) masks: &'a [u64],
}

/// The rows of one block in buckets.
pub(crate) struct Buckets<'a> {
    contexts: &'a Contexts,
    /// Class of each row of the block.
    row_classes: Cow<'a, [u8]>,
    /// Where each bucket starts, and where the last ends.
    starts: Vec<usize>,
}

impl Buckets<'_> {
    /// Whether every row is one piece of its bucket.
    pub(crate) fn has_whole_rows(&self) -> bool {
        self.contexts.n_column_classes == 1
    }

    /// Elements of the block.
    pub(crate) fn len(&self) -> usize {
        self.starts.last().copied().unwrap_or(0)
    }

    /// Runs of groups of `group_len` symbols: (context, number of groups).
    pub(crate) fn group_runs(&self, group_len: usize) -> Vec<(usize, usize)> {
        group_runs(&self.starts, group_len)
    }

    /// The positions of each bucket.
    pub(crate) fn ranges(&self) -> impl Iterator<Item = std::ops::Range<usize>> {
        self.starts.windows(2).map(|ends| ends[0]..ends[1])
    }

    /// Plane to buckets, which have [`SLACK`] bytes more than elements.
    pub(crate) fn gather(&self, plane: &[u8], bucketed: &mut [u8]) {
        let columns = self.contexts;
        let mut at = self.starts.clone();
        if columns.n_column_classes == 1 {
            match columns.row_len() {
                16 => gather_rows_of::<16>(&self.row_classes, plane, &mut at, bucketed),
                32 => gather_rows_of::<32>(&self.row_classes, plane, &mut at, bucketed),
                64 => gather_rows_of::<64>(&self.row_classes, plane, &mut at, bucketed),
                row_len => {
                    for (row, &class) in plane.chunks_exact(row_len).zip(&*self.row_classes) {
                        let at = &mut at[usize::from(class)];
                        bucketed[*at..*at + row_len].copy_from_slice(row);
                        *at += row_len;
                    }
                }
            }
            return;
        }
        if kernels().gather_rows(&columns.for_kernels(), &self.row_classes, plane, &mut at, bucketed) {
            return;
        }
        for (row, &class) in plane.chunks_exact(columns.row_len()).zip(&*self.row_classes) {
            let first = usize::from(class) * columns.n_column_classes;
            let at = &mut at[first..first + columns.n_column_classes];
            for (&symbol, &class) in row.iter().zip(&columns.column_classes) {
                let at = &mut at[usize::from(class)];
                bucketed[*at] = symbol;
                *at += 1;
            }
        }
    }

    /// Buckets to rows, from the first on.
    pub(crate) fn scatter<'a>(&'a self, bucketed: &'a [u8]) -> Scatter<'a> {
        let Self { contexts, row_classes, starts } = self;
        Scatter { contexts, row_classes, at: starts.clone(), bucketed }
    }

    /// Where in their rows the elements of each position of the buckets stand.
    pub(crate) fn elements(&self) -> ElementsOfBuckets<'_> {
        let Contexts { n_row_classes, n_column_classes, .. } = *self.contexts;
        let mut class_starts = [0; MAX_CLASSES];
        for (class, start) in class_starts.iter_mut().enumerate().take(n_row_classes) {
            *start = self.starts[class * n_column_classes] / self.contexts.row_len();
        }
        let (mut rows, mut next) = (vec![0; self.row_classes.len()], class_starts);
        for (row, &class) in (0u32..).zip(&*self.row_classes) {
            let next = &mut next[usize::from(class) % MAX_CLASSES];
            rows[*next] = row;
            *next += 1;
        }
        ElementsOfBuckets { buckets: self, rows, class_starts }
    }
}

/// Short rows to the buckets of their classes, of which `at` says where they go on.
fn gather_rows_of<const ROW_LEN: usize>(
    row_classes: &[u8],
    plane: &[u8],
    at: &mut [usize],
    bucketed: &mut [u8],
) {
    for (row, &class) in plane.as_chunks::<ROW_LEN>().0.iter().zip(row_classes) {
        let at = &mut at[usize::from(class)];
        bucketed[*at..*at + ROW_LEN].copy_from_slice(row);
        *at += ROW_LEN;
    }
}

/// Finds the element at a position of the buckets.
pub(crate) struct ElementsOfBuckets<'a> {
    buckets: &'a Buckets<'a>,
    /// Rows by class.
    rows: Vec<u32>,
    /// Where the rows of each class start.
    class_starts: [usize; MAX_CLASSES],
}

impl ElementsOfBuckets<'_> {
    /// The element at a position of the buckets.
    pub(crate) fn at(&self, position: usize) -> usize {
        let Buckets { contexts, starts, .. } = self.buckets;
        let context = starts.partition_point(|&start| start <= position).saturating_sub(1);
        let n_classes = contexts.n_column_classes;
        let rows = &self.rows[self.class_starts[context / n_classes]..];
        let within = position - starts[context];
        let n_columns = contexts.n_columns(context % n_classes);
        let column = match n_classes {
            1 => within % n_columns,
            _ => contexts.columns_by_class[context % n_classes][within % n_columns] as usize,
        };
        rows[within / n_columns] as usize * contexts.row_len() + column
    }
}

/// Buckets that are being put back into rows, some rows at a time.
pub(crate) struct Scatter<'a> {
    contexts: &'a Contexts,
    /// Classes of the rows that are left.
    row_classes: &'a [u8],
    /// Where each bucket goes on.
    at: Vec<usize>,
    bucketed: &'a [u8],
}

impl Scatter<'_> {
    /// Puts up to `n_rows` rows at the front of `plane`, and returns how many it were. Plane and buckets have
    /// [`SLACK`] bytes more than elements, so that whole groups can be moved.
    pub(crate) fn next_rows(&mut self, n_rows: usize, plane: &mut [u8]) -> usize {
        let (rows, left) = self.row_classes.split_at(n_rows.min(self.row_classes.len()));
        self.row_classes = left;
        let columns = self.contexts.for_kernels();
        if columns.n_classes == 1 {
            self.scatter_whole_rows(rows, plane);
        } else if !kernels().scatter_rows(&columns, rows, self.bucketed, &mut self.at, plane) {
            self.scatter_by_column(rows, plane);
        }
        rows.len()
    }

    /// Without column classes a row is one piece of its bucket.
    fn scatter_whole_rows(&mut self, rows: &[u8], plane: &mut [u8]) {
        match self.contexts.row_len() {
            16 => self.scatter_rows_of::<16>(rows, plane),
            32 => self.scatter_rows_of::<32>(rows, plane),
            64 => self.scatter_rows_of::<64>(rows, plane),
            row_len => {
                for (out, &class) in plane.chunks_exact_mut(row_len).zip(rows) {
                    let at = &mut self.at[usize::from(class)];
                    out.copy_from_slice(&self.bucketed[*at..*at + row_len]);
                    *at += row_len;
                }
            }
        }
    }

    /// Short rows, of which a call each would be most of the work.
    fn scatter_rows_of<const ROW_LEN: usize>(&mut self, rows: &[u8], plane: &mut [u8]) {
        for (out, &class) in plane.as_chunks_mut::<ROW_LEN>().0.iter_mut().zip(rows) {
            let at = &mut self.at[usize::from(class)];
            out.copy_from_slice(&self.bucketed[*at..*at + ROW_LEN]);
            *at += ROW_LEN;
        }
    }

    /// The meaning of putting rows back.
    fn scatter_by_column(&mut self, rows: &[u8], plane: &mut [u8]) {
        let columns = self.contexts;
        for (out, &class) in plane.chunks_exact_mut(columns.row_len()).zip(rows) {
            let at = &mut self.at[usize::from(class) * columns.n_column_classes..];
            for (out, &class) in out.iter_mut().zip(&columns.column_classes) {
                let at = &mut at[usize::from(class)];
                *out = self.bucketed[*at];
                *at += 1;
            }
        }
    }
}

/// Runs of groups over buckets with these starts: (bucket, number of groups). A group belongs to the bucket of
/// its first symbol, so no bucket needs padding; the last group may reach past the end.
pub(crate) fn group_runs(starts: &[usize], group_len: usize) -> Vec<(usize, usize)> {
    let group_after = |position: usize| position.div_ceil(group_len);
    starts
        .windows(2)
        .enumerate()
        .map(|(bucket, ends)| (bucket, group_after(ends[1]) - group_after(ends[0])))
        .filter(|&(_, n_groups)| n_groups > 0)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arch::{KernelSet, kernel_sets, with_kernels};
    use crate::sizes;

    fn sample(n_rows: usize, row_len: usize, n_row_classes: u8, n_column_classes: u8) -> Contexts {
        let mut state = 12345u64;
        let mut next = move |bound: u8| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            u8::try_from((state >> 40) % u64::from(bound)).unwrap()
        };
        let rows = (0..n_rows).map(|_| next(n_row_classes)).collect();
        let columns = (0..row_len).map(|_| next(n_column_classes)).collect();
        Contexts::new(rows, columns)
    }

    #[test]
    fn gathering_and_scattering_give_the_plane_back() {
        let odd = [(1, 1), (7, 16), (5, 33), (40, 100), (3, 1000)];
        let all = odd.into_iter().chain((1..=400).map(|row_len| (4, row_len)));
        for (n_rows, row_len) in all.take(sizes(405, 3)) {
            for (row_classes, column_classes) in [(1, 1), (4, 1), (1, 4), (4, 4), (2, 16), (3, 8)] {
                let contexts = sample(n_rows, row_len, row_classes, column_classes);
                let rows: Vec<u32> = (0..u32::try_from(n_rows).unwrap()).collect();
                let buckets = contexts.buckets(&rows).unwrap();
                let n = n_rows * row_len;
                assert_eq!(buckets.len(), n);
                let plane: Vec<u8> = (0..n).map(|i| u8::try_from(i % 251).unwrap()).collect();
                let mut bucketed = vec![0; n + SLACK];
                with_kernels(KernelSet::Scalar, || buckets.gather(&plane, &mut bucketed));
                for kernels in kernel_sets() {
                    let mut again = vec![0; n + SLACK];
                    with_kernels(kernels, || buckets.gather(&plane, &mut again));
                    assert!(again == bucketed, "{kernels:?} {n_rows} x {row_len}");
                    for rows_each in [1, 3, n_rows] {
                        let mut scatter = buckets.scatter(&bucketed);
                        let mut back = vec![0; n + SLACK];
                        let mut done = 0;
                        with_kernels(kernels, || {
                            while done < n_rows {
                                done += scatter.next_rows(rows_each, &mut back[done * row_len..]);
                            }
                        });
                        assert!(back[..n] == plane, "{kernels:?} {n_rows} x {row_len}");
                    }
                }
                let elements = buckets.elements();
                let mut at: Vec<usize> = buckets.starts.clone();
                for (context, at) in at.iter_mut().enumerate().take(contexts.n_contexts()) {
                    while *at < buckets.starts[context + 1] {
                        let element = elements.at(*at);
                        assert_eq!(bucketed[*at], plane[element]);
                        assert_eq!(contexts.context(element / row_len, element % row_len), context);
                        *at += 1;
                    }
                }
            }
        }
    }

    #[test]
    fn every_group_of_symbols_has_a_context() {
        let contexts = sample(40, 100, 4, 4);
        let rows: Vec<u32> = (0..40).collect();
        for group_len in [32, 64, 128] {
            let runs = contexts.buckets(&rows).unwrap().group_runs(group_len);
            assert_eq!(runs.iter().map(|run| run.1).sum::<usize>(), 4000usize.div_ceil(group_len));
        }
    }

    #[test]
    fn classes_are_read_back() {
        let contexts = sample(300, 77, 4, 3);
        let mut bytes = Vec::new();
        contexts.write(&mut bytes);
        assert_eq!(Contexts::read(&mut Cursor::new(&bytes, "contexts")).unwrap(), contexts);
        for len in 0..bytes.len() {
            assert!(Contexts::read(&mut Cursor::new(&bytes[..len], "contexts")).is_err());
        }
    }
}
