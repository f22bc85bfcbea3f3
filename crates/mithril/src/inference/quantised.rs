//! Weights that came quantised: codes and scales stay coded, values are made when they are asked for.

use crate::convert::ecq::{MatrixParts, NewPart};
use crate::options::{honest_output_len, thread_count};
use crate::pipeline::tasks;
use crate::{DecodeOptions, Dtype, Error, decompress_range, inspect};
use mithril_codec::ecq::{Coded, low_bits};
use mithril_codec::quantised::products::{CodeRow, Inputs};
use mithril_codec::quantised::values::{self, Groups, Numbers};
use mithril_codec::quantised::zero_codes::{self, ZeroCodes};
use mithril_codec::quantised::{Layout, gguf};
use mithril_format::ecq::{
    BIAS_RESIDUALS, BIASES, COMPRESSED, FREQ, LOW_BITS, MatrixHeader, SCALES, STREAM_OFFSETS, ZERO_CODES,
    damaged,
};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

/// A matrix of a quantised model, as an entropy-coded file holds it: layouts of GGUF and of MLX.
#[derive(Debug, Clone)]
pub struct QuantisedMatrix {
    name: String,
    parts: MatrixParts,
    header: MatrixHeader,
    /// Frames of scales and the like, by the ends of their names.
    sides: BTreeMap<String, Vec<u8>>,
}

/// What a thread decodes into, again and again: memory that is taken anew for every call costs as much as decoding.
#[derive(Debug, Default)]
struct Scratch {
    symbols: Vec<u8>,
    groups: Groups,
}

/// Longest symbols that a thread keeps room for.
const SCRATCH_LEN: usize = 1 << 20;

thread_local! {
    static SCRATCH: Cell<Scratch> = Cell::default();
}

/// The planes of some rows, and the type of their scales.
struct Planes {
    planes: Vec<Vec<u8>>,
    dtype: Dtype,
}

impl QuantisedMatrix {
    /// Takes the tensors of a matrix, and checks all of them.
    ///
    /// # Errors
    /// When they are damaged, or the layout is none whose values are known.
    pub fn from_parts(name: &str, parts: Vec<NewPart>) -> Result<Self, Error> {
        let mut sides: BTreeMap<String, Vec<u8>> = parts
            .into_iter()
            .filter_map(|part| Some((part.name.strip_prefix(name)?.to_owned(), part.bytes)))
            .collect();
        let mut take = |suffix: &str| sides.remove(suffix).unwrap_or_default();
        let parts = MatrixParts {
            compressed: take(COMPRESSED),
            stream_offsets: take(STREAM_OFFSETS),
            freq: take(FREQ),
            low_bits: take(LOW_BITS),
        };
        let (header, coded) = parts.read(name)?;
        if !values::has_values(header.layout) {
            let what = header.layout.name();
            return Err(Error::invalid(format!(
                "`{name}`: weights of {what} are not decoded to floats here"
            )));
        }
        let refused = |error: mithril_codec::CodecError| Error::from(damaged(name, error));
        let mut symbols = Vec::new();
        for block in 0..header.shape.n_blocks() {
            symbols.resize(header.shape.n_symbols(block), 0);
            coded.decode_symbols(block..block + 1, &mut symbols).map_err(refused)?;
        }
        let matrix = Self { name: name.to_owned(), header, parts, sides };
        matrix.planes(0..matrix.rows(), 1)?;
        Ok(matrix)
    }

    /// The tensors of the matrix, named as in a coded file (`docs/format/ecq.md`).
    pub fn to_parts(&self) -> Vec<NewPart> {
        let part = |suffix: &str, dtype: Dtype, shape: Vec<u64>, bytes: &[u8]| NewPart {
            name: format!("{}{suffix}", self.name),
            dtype,
            shape,
            bytes: bytes.to_vec(),
        };
        let (held, shape) = (&self.parts, &self.header.shape);
        let n_offsets = held.stream_offsets.len() as u64 / 4;
        let mut parts = vec![
            part(COMPRESSED, Dtype::U8, vec![held.compressed.len() as u64], &held.compressed),
            part(STREAM_OFFSETS, Dtype::U32, vec![n_offsets], &held.stream_offsets),
            part(FREQ, Dtype::U8, vec![held.freq.len() as u64 / 16, 16], &held.freq),
        ];
        if shape.low_bits() > 0 {
            let size = vec![shape.rows() as u64, shape.low_row_len() as u64];
            parts.push(part(LOW_BITS, Dtype::U8, size, &held.low_bits));
        }
        let side =
            |(suffix, frame): (&String, &Vec<u8>)| part(suffix, Dtype::U8, vec![frame.len() as u64], frame);
        parts.extend(self.sides.iter().map(side));
        parts
    }

    /// Outputs.
    pub fn rows(&self) -> usize {
        self.header.shape.rows()
    }

    /// Inputs.
    pub fn columns(&self) -> usize {
        self.header.shape.columns()
    }

    /// Its layout.
    pub fn layout(&self) -> Layout {
        self.header.layout
    }

    /// Bytes that the matrix keeps in memory.
    pub fn resident_len(&self) -> usize {
        let parts = &self.parts;
        let sides: usize = self.sides.values().map(Vec::len).sum();
        parts.compressed.len() + parts.stream_offsets.len() + parts.freq.len() + parts.low_bits.len() + sides
    }

    /// The weights of some rows, as singles. Threads share rows; 0 is one per core.
    ///
    /// # Errors
    /// When there are no such rows, or the output has another length than they.
    pub fn decode_rows(&self, rows: Range<usize>, out: &mut [f32], threads: usize) -> Result<(), Error> {
        let columns = self.columns();
        if rows.start > rows.end || rows.end > self.rows() || out.len() != rows.len() * columns {
            return Err(Error::invalid(format!(
                "`{}` has {} rows of {columns}: {rows:?} are not {} weights",
                self.name,
                self.rows(),
                out.len()
            )));
        }
        if rows.is_empty() {
            return Ok(());
        }
        let planes = self.planes(rows.clone(), 1)?;
        let (coded, numbers) = (self.coded()?, self.numbers());
        // Pieces begin where blocks do, four of which are decoded at once.
        let step = 4 * self.header.shape.rows_per_block();
        let mut pieces = Vec::new();
        let (mut rest, mut at) = (out, rows.start);
        while at < rows.end {
            let end = ((at / step + 1) * step).min(rows.end);
            let (own, behind) = rest.split_at_mut((end - at) * columns);
            pieces.push((at..end, Mutex::new(own)));
            (rest, at) = (behind, end);
        }
        let threads = thread_count(threads, pieces.len(), rows.len() * columns);
        tasks::run(pieces.len(), threads, |idx| {
            let (own, out) = &pieces[idx];
            let mut out = out.lock().unwrap_or_else(PoisonError::into_inner);
            let mut codes = vec![0; out.len()];
            coded
                .decode_rows(own.clone(), &mut codes)
                .map_err(|error| Error::from(damaged(&self.name, error)))?;
            let mut groups = Groups::default();
            self.take_groups(&planes, own.start - rows.start..own.end - rows.start, &mut groups);
            groups.weights(&numbers, &codes, &mut out);
            Ok(())
        })
    }

    /// The products of every row with each of some vectors, one behind the other, in singles. Codes become weights in
    /// registers; the order of additions is that of [`mithril_codec::quantised::products`], so the products are those of
    /// [`multiply_singles`] with the decoded weights, bit for bit. Threads share rows; 0 is one per core.
    ///
    /// # Errors
    /// When inputs or outputs have other lengths than the matrix.
    pub fn multiply(&self, x: &[f32], out: &mut [f32], threads: usize) -> Result<(), Error> {
        let (rows, columns, shape) = (self.rows(), self.columns(), self.header.shape);
        let n = vectors_of(&self.name, (rows, columns), x, out)?;
        let inputs = Inputs::new(x, columns);
        let step = 4 * shape.rows_per_block();
        let threads = thread_count(threads, rows.div_ceil(step), rows * columns * n);
        let (planes, coded, numbers) = (self.planes(0..rows, threads)?, self.coded()?, self.numbers());
        let (padded, low_len) = (shape.padded_columns(), shape.low_row_len());
        multiply_pieces((rows, n), step, threads, out, |own, products| {
            let blocks = shape.blocks_of(own.clone());
            let mut scratch = SCRATCH.take();
            let Scratch { symbols, groups } = &mut scratch;
            symbols.resize(own.len() * padded, 0);
            coded
                .decode_symbols_again(blocks, symbols)
                .map_err(|error| Error::from(damaged(&self.name, error)))?;
            for ((row, symbols), out) in
                own.zip(symbols.chunks_exact(padded)).zip(products.chunks_exact_mut(n))
            {
                self.take_groups(&planes, row..row + 1, groups);
                let low_bits = &self.parts.low_bits[row * low_len..][..low_len];
                let n_low = shape.low_bits();
                CodeRow { symbols, n_low, low_bits, numbers: &numbers, groups }.dot(&inputs, out);
            }
            if scratch.symbols.len() <= SCRATCH_LEN {
                SCRATCH.set(scratch);
            }
            Ok(())
        })
    }

    fn coded(&self) -> Result<Coded<'_>, Error> {
        let refused = |error: mithril_codec::CodecError| Error::from(damaged(&self.name, error));
        Coded::new(self.header.shape, self.parts.parts()).map_err(refused)
    }

    fn numbers(&self) -> Numbers {
        Numbers::of(self.header.layout, self.header.bits)
    }

    /// The scales of some rows of the planes.
    fn take_groups(&self, planes: &Planes, rows: Range<usize>, groups: &mut Groups) {
        let columns = self.columns();
        let part =
            |plane: usize, per_row: usize| &planes.planes[plane][rows.start * per_row..rows.end * per_row];
        if let Layout::Gguf(dtype) = self.header.layout {
            let n_blocks = columns / dtype.elements_per_unit() as usize;
            let (mut sides, all): ([&[u8]; 4], _) = (Default::default(), self.header.layout.sides());
            for (plane, (side, known)) in sides.iter_mut().zip(all).enumerate() {
                *side = part(plane, n_blocks * known.per_unit * known.dtype.unit_len());
            }
            return groups.take_gguf(dtype, &sides[..all.len()]);
        }
        let group = self.header.group_size as usize;
        let row_len = columns / group.max(1) * planes.dtype.unit_len();
        let biases = if planes.planes.len() > 1 { part(1, row_len) } else { &[] };
        groups.take_mlx(self.header.layout, group, planes.dtype, (part(0, row_len), biases));
    }

    /// Scales and what else stands beside the codes of some rows.
    fn planes(&self, rows: Range<usize>, threads: usize) -> Result<Planes, Error> {
        let (layout, columns) = (self.header.layout, self.columns());
        if let Layout::Gguf(dtype) = layout {
            let per_block = dtype.elements_per_unit() as usize;
            if !columns.is_multiple_of(per_block) {
                return Err(damaged(&self.name, "rows that are no whole blocks").into());
            }
            let plane = |side: &mithril_codec::quantised::Side| {
                let row_len = columns / per_block * side.per_unit * side.dtype.unit_len();
                self.side(&format!(".{}", side.name), rows.clone(), row_len, threads)
            };
            let planes = layout.sides().iter().map(plane).collect::<Result<Vec<_>, Error>>()?;
            return Ok(Planes { planes, dtype: Dtype::F16 });
        }
        let group = self.header.group_size as usize;
        if group == 0 || !columns.is_multiple_of(group) {
            return Err(damaged(&self.name, "groups that do not fill its rows").into());
        }
        let per_row = columns / group;
        if layout != Layout::MlxAffine {
            let planes = vec![self.side(SCALES, rows, per_row, threads)?];
            return Ok(Planes { planes, dtype: Dtype::U8 });
        }
        // Frames may call their values whole numbers of the same width; what they are, the header says.
        let dtype = self.header.scale_dtype;
        let dtype = dtype.ok_or_else(|| damaged(&self.name, "no type of scales"))?;
        let row_len = per_row * dtype.unit_len();
        let scales = self.side(SCALES, rows.clone(), row_len, threads)?;
        let biases = if self.sides.contains_key(BIASES) {
            self.side(BIASES, rows, row_len, threads)?
        } else {
            let zero_codes = self.side(ZERO_CODES, rows.clone(), 2 * per_row, threads)?;
            let residuals = self.side(BIAS_RESIDUALS, rows, row_len, threads)?;
            zero_codes::join(dtype, &scales, &ZeroCodes { zero_codes, residuals })
        };
        Ok(Planes { planes: vec![scales, biases], dtype })
    }

    /// Rows of a plane that is a frame.
    fn side(
        &self,
        suffix: &str,
        rows: Range<usize>,
        row_len: usize,
        threads: usize,
    ) -> Result<Vec<u8>, Error> {
        let name = format!("{}{suffix}", self.name);
        let frame = self.sides.get(suffix).ok_or_else(|| damaged(&self.name, format!("no `{suffix}`")))?;
        let info = inspect(frame).map_err(|error| error.in_tensor(&name))?;
        if info.raw_len != (self.rows() * row_len) as u64 {
            return Err(damaged(&name, "it has another length than the codes need").into());
        }
        // What a frame claims costs memory only within what its length can hold.
        let limit = honest_output_len(frame.len() as u64);
        if info.raw_len > limit {
            return Err(Error::TooLarge { raw_len: info.raw_len, limit });
        }
        let range = (rows.start * row_len) as u64..(rows.end * row_len) as u64;
        let options = DecodeOptions::default().with_threads(threads);
        decompress_range(frame, range, &options).map_err(|error| error.in_tensor(&name))
    }
}

/// The weights of plain blocks of GGUF, as singles, in the arithmetic of [`QuantisedMatrix`].
///
/// # Errors
/// When the type has no values here, or the lengths do not fit.
pub fn block_values(dtype: Dtype, blocks: &[u8], out: &mut [f32]) -> Result<(), Error> {
    let layout = Layout::Gguf(dtype);
    if !values::has_values(layout) {
        return Err(Error::invalid(format!("blocks of {} are not decoded to floats here", dtype.name())));
    }
    let (per_block, block_len) = (dtype.elements_per_unit() as usize, dtype.unit_len());
    if !blocks.len().is_multiple_of(block_len) || blocks.len() / block_len * per_block != out.len() {
        return Err(Error::invalid(format!(
            "{} bytes of {} are not {} weights",
            blocks.len(),
            dtype.name(),
            out.len()
        )));
    }
    // Some thousand blocks at a time stay in the cache.
    let (mut codes, n_blocks) = (Vec::new(), 1024);
    for (blocks, out) in blocks.chunks(n_blocks * block_len).zip(out.chunks_mut(n_blocks * per_block)) {
        codes.resize(out.len(), 0);
        let mut planes = vec![Vec::new(); layout.sides().len()];
        gguf::split(dtype, blocks, &mut codes, &mut planes);
        let planes: Vec<&[u8]> = planes.iter().map(Vec::as_slice).collect();
        values::of_gguf(dtype, &codes, &planes, out);
    }
    Ok(())
}

/// How many vectors `x` holds for a matrix of rows and columns.
fn vectors_of(name: &str, size: (usize, usize), x: &[f32], out: &[f32]) -> Result<usize, Error> {
    let (rows, columns) = size;
    let n = x.len() / columns.max(1);
    if n == 0 || x.len() != n * columns || out.len() != n * rows {
        return Err(Error::invalid(format!(
            "`{name}` takes {columns} values and gives {rows}; there are {} and {}",
            x.len(),
            out.len()
        )));
    }
    Ok(n)
}

/// Runs `work` for pieces of `step` rows, each of which it gives `n` products, and writes them vector by vector.
fn multiply_pieces(
    (rows, n): (usize, usize),
    step: usize,
    threads: usize,
    out: &mut [f32],
    work: impl Fn(Range<usize>, &mut [f32]) -> Result<(), Error> + Sync,
) -> Result<(), Error> {
    let mut by_row = if n == 1 { Vec::new() } else { vec![0.0; out.len()] };
    let products = if n == 1 { &mut *out } else { by_row.as_mut_slice() };
    let pieces: Vec<Mutex<&mut [f32]>> = products.chunks_mut(step * n).map(Mutex::new).collect();
    tasks::run(pieces.len(), threads, |piece| {
        let own = piece * step..((piece + 1) * step).min(rows);
        work(own, &mut pieces[piece].lock().unwrap_or_else(PoisonError::into_inner))
    })?;
    for (row, products) in by_row.chunks_exact(n).enumerate() {
        for (vector, product) in products.iter().enumerate() {
            out[vector * rows + row] = *product;
        }
    }
    Ok(())
}

/// Rows that a thread takes at a time.
const PLAIN_ROWS: usize = 64;

/// The products of rows of singles with each of some vectors, in the order of [`QuantisedMatrix::multiply`]: what products
/// from codes are compared with.
///
/// # Errors
/// When weights or outputs have other lengths than vectors of so many columns need.
pub fn multiply_singles(
    weights: &[f32],
    columns: usize,
    x: &[f32],
    out: &mut [f32],
    threads: usize,
) -> Result<(), Error> {
    let rows = weights.len() / columns.max(1);
    let n = vectors_of("weights", (rows, columns), x, out)?;
    if weights.len() != rows * columns {
        return Err(Error::invalid(format!("{} weights are no rows of {columns}", weights.len())));
    }
    let threads = thread_count(threads, rows.div_ceil(PLAIN_ROWS), rows * columns * n);
    multiply_pieces((rows, n), PLAIN_ROWS, threads, out, |own, products| {
        for (row, out) in own.zip(products.chunks_exact_mut(n)) {
            let weights = &weights[row * columns..][..columns];
            for (x, out) in x.chunks_exact(columns).zip(out) {
                *out = mithril_codec::quantised::products::dot_singles(weights, x);
            }
        }
        Ok(())
    })
}

/// The products of rows of plain blocks of GGUF, as [`QuantisedMatrix::multiply`] has them of coded ones.
///
/// # Errors
/// When the type has no values here, or the lengths do not fit.
pub fn multiply_blocks(
    dtype: Dtype,
    blocks: &[u8],
    columns: usize,
    x: &[f32],
    out: &mut [f32],
    threads: usize,
) -> Result<(), Error> {
    let layout = Layout::Gguf(dtype);
    let (per_block, block_len) = (dtype.elements_per_unit() as usize, dtype.unit_len());
    if !values::has_values(layout) || !columns.is_multiple_of(per_block) {
        let name = dtype.name();
        return Err(Error::invalid(format!("rows of {columns} are not multiplied as blocks of {name}")));
    }
    let row_len = columns / per_block * block_len;
    let rows = blocks.len() / row_len.max(1);
    let n = vectors_of("blocks", (rows, columns), x, out)?;
    if blocks.len() != rows * row_len {
        return Err(Error::invalid(format!("{} bytes are no rows of {row_len}", blocks.len())));
    }
    let inputs = Inputs::new(x, columns);
    let bits = layout.bits().unwrap_or(8);
    let (numbers, n_low) = (Numbers::of(layout, bits), Layout::low_bits(bits));
    let padded = columns.next_multiple_of(64);
    let threads = thread_count(threads, rows.div_ceil(PLAIN_ROWS), rows * columns * n);
    multiply_pieces((rows, n), PLAIN_ROWS, threads, out, |own, products| {
        let (mut codes, mut groups) = (vec![0; padded], Groups::default());
        let mut low_plane = vec![0; padded / 8 * usize::from(n_low)];
        let mut planes = vec![Vec::new(); layout.sides().len()];
        for (row, out) in own.zip(products.chunks_exact_mut(n)) {
            planes.iter_mut().for_each(Vec::clear);
            gguf::split(dtype, &blocks[row * row_len..][..row_len], &mut codes[..columns], &mut planes);
            low_bits::pack(n_low, &codes, &mut low_plane);
            codes.iter_mut().for_each(|code| *code >>= n_low);
            let (mut sides, all): ([&[u8]; 4], _) = (Default::default(), planes.len());
            sides.iter_mut().zip(&planes).for_each(|(side, plane)| *side = plane);
            groups.take_gguf(dtype, &sides[..all]);
            let row =
                CodeRow { symbols: &codes, n_low, low_bits: &low_plane, numbers: &numbers, groups: &groups };
            row.dot(&inputs, out);
        }
        Ok(())
    })
}
