//! A linear layer over a coded matrix.

use super::parts::bf16_parts;
use crate::Error;
use crate::convert::ecq::levels::Levels;
use crate::convert::ecq::{EcqFile, MatrixParts, NewPart};
use crate::options::thread_count;
use crate::pipeline::tasks;
use mithril_codec::ecq::gemv::{Activations, Exponents, MAX_COLUMNS};
use mithril_codec::ecq::{Coded, Escape, low_bits};
use mithril_codec::quantised::Layout;
use mithril_format::ecq::{
    COLUMN_SCALES, COMPRESSED, FREQ, LEVELS, LOW_BITS, MatrixHeader, SCALES, STREAM_OFFSETS, SideSum, damaged,
};
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

/// What the weights of a layer are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum WeightClass {
    /// Levels of our quantiser, entropy-coded.
    Levels,
    /// bf16 weights with exponents of four bits.
    Fixed12,
    /// bf16 weights with entropy-coded exponents.
    EntropyCoded,
}

/// A linear layer, `y = W x + b`, whose weights stay coded.
#[derive(Debug, Clone)]
pub struct EntropyCodedLinear {
    pub(super) name: String,
    pub(super) parts: MatrixParts,
    pub(super) header: MatrixHeader,
    class: WeightClass,
    /// The values of codes and what scales them; or the first exponent, and nothing.
    pub(super) levels: Levels,
    /// Weights beside the codes, by row and column.
    escapes: Vec<Escape>,
    /// What each of them adds to what its code already counts, for the input times the scale of its column.
    corrections: Vec<f32>,
    bias: Option<Vec<f32>>,
}

impl EntropyCodedLinear {
    /// Codes bf16 weights, little-endian, row by row. Bit-exact for every weight.
    ///
    /// # Errors
    /// When there are not `rows * columns` of them, or none.
    pub fn from_bf16(
        name: &str,
        weights: &[u8],
        rows: usize,
        columns: usize,
        class: WeightClass,
    ) -> Result<Self, Error> {
        Self::from_parts(name, bf16_parts(name, weights, rows, columns, class)?)
    }

    /// Reads a matrix of a coded file, and checks all of it.
    ///
    /// # Errors
    /// When it is damaged, is no matrix of levels or bf16 weights, or cannot be read.
    pub fn from_file(file: &EcqFile, name: &str) -> Result<Self, Error> {
        let part = |suffix: &str| {
            let name = format!("{name}{suffix}");
            file.find(&name).map(|tensor| {
                Ok(NewPart {
                    bytes: file.read(&name)?,
                    dtype: tensor.dtype,
                    shape: tensor.shape.clone(),
                    name,
                })
            })
        };
        let suffixes = [COMPRESSED, STREAM_OFFSETS, FREQ, LOW_BITS, LEVELS, SCALES, COLUMN_SCALES];
        let parts =
            suffixes.iter().filter_map(|suffix| part(suffix)).collect::<Result<Vec<NewPart>, Error>>()?;
        Self::from_parts(name, parts)
    }

    /// Takes the tensors of a matrix, and checks all of them.
    ///
    /// # Errors
    /// When they are damaged, or are no matrix of levels or bf16 weights.
    pub fn from_parts(name: &str, parts: Vec<NewPart>) -> Result<Self, Error> {
        let mut parts = parts;
        let mut take = |suffix: &str| {
            let wanted = format!("{name}{suffix}");
            let part = parts.iter_mut().find(|part| part.name == wanted);
            part.map(|part| std::mem::take(&mut part.bytes)).unwrap_or_default()
        };
        let matrix = MatrixParts {
            compressed: take(COMPRESSED),
            stream_offsets: take(STREAM_OFFSETS),
            freq: take(FREQ),
            low_bits: take(LOW_BITS),
        };
        let sides = [take(LEVELS), take(SCALES), take(COLUMN_SCALES)];
        let (header, coded) = matrix.read(name)?;
        let [levels, scales, column_scales] = &sides;
        let (class, levels) = match header.layout {
            Layout::Levels | Layout::CrossLevels => {
                (WeightClass::Levels, Levels::read(name, &header, levels, scales, column_scales)?)
            }
            Layout::Bf16 if levels.len() == 1 && scales.is_empty() && column_scales.is_empty() => {
                if SideSum::of(&[levels]) != header.side_sum {
                    return Err(damaged(name, "checksum of its first exponent").into());
                }
                let values = levels.iter().map(|first| first.cast_signed()).collect();
                let class = if is_packed(&coded) { WeightClass::Fixed12 } else { WeightClass::EntropyCoded };
                (class, Levels { values, scales: Vec::new(), column_scales: Vec::new() })
            }
            _ => return Err(damaged(name, "it has no levels and is not bf16").into()),
        };
        if header.shape.columns() > MAX_COLUMNS {
            return Err(damaged(name, "too many columns").into());
        }
        let refused = |error: mithril_codec::CodecError| Error::from(damaged(name, error));
        let mut symbols = Vec::new();
        let (mut escapes, mut corrections) = (Vec::new(), Vec::new());
        let (shape, padded) = (header.shape, header.shape.padded_columns());
        let mut low = vec![0; padded];
        for block in 0..shape.n_blocks() {
            symbols.resize(shape.n_symbols(block), 0);
            coded.decode_symbols(block..block + 1, &mut symbols).map_err(refused)?;
            for escape in coded.escapes(block).map_err(refused)? {
                let (mut counted, mut column) = (0.0, 1.0);
                if class == WeightClass::Levels {
                    let (len, n_low) = (shape.low_row_len(), shape.low_bits());
                    low_bits::unpack(n_low, &matrix.low_bits[escape.row * len..][..len], &mut low);
                    let symbol = symbols[(escape.row - shape.rows_of(block).start) * padded + escape.column];
                    let code = usize::from(symbol) << n_low | usize::from(low[escape.column]);
                    column = levels.column_scales.get(escape.column).copied().unwrap_or(1.0);
                    counted = levels.scale(escape.row) * column * f32::from(levels.values[code]);
                }
                escapes.push(escape);
                corrections.push((escape.value - counted) / column);
            }
        }
        let name = name.to_owned();
        Ok(Self { name, parts: matrix, header, class, levels, escapes, corrections, bias: None })
    }

    /// Adds a bias.
    ///
    /// # Errors
    /// When it has not a value for every row.
    pub fn with_bias(mut self, bias: Vec<f32>) -> Result<Self, Error> {
        if bias.len() != self.rows() {
            return Err(Error::invalid(format!("a bias of {} values for {} rows", bias.len(), self.rows())));
        }
        self.bias = Some(bias);
        Ok(self)
    }

    /// What its weights are.
    pub fn class(&self) -> WeightClass {
        self.class
    }

    /// Outputs.
    pub fn rows(&self) -> usize {
        self.header.shape.rows()
    }

    /// Inputs.
    pub fn columns(&self) -> usize {
        self.header.shape.columns()
    }

    /// Bytes that the layer keeps in memory for its weights.
    pub fn resident_len(&self) -> usize {
        let parts = &self.parts;
        parts.compressed.len()
            + parts.stream_offsets.len()
            + parts.freq.len()
            + parts.low_bits.len()
            + self.levels.values.len()
            + 4 * (self.levels.scales.len() + self.levels.column_scales.len())
            + (size_of::<Escape>() + 4) * self.escapes.len()
    }

    /// `W x + b` for each of some vectors, one behind the other, in singles. Threads share rows; 0 is one per core.
    ///
    /// # Errors
    /// When inputs or outputs have other lengths than the layer.
    pub fn forward(&self, x: &[f32], out: &mut [f32], threads: usize) -> Result<(), Error> {
        let n = self.batch(x, out)?;
        if n == 1 && self.class != WeightClass::Levels {
            let arranged = Activations::new(x, self.header.shape.padded_columns());
            let exponents = self.exponents();
            self.for_each_rows(out, threads, |coded, blocks, out| {
                coded.dot_bf16(blocks, &exponents, &arranged, out)
            })?;
            self.add_escapes(x, out);
        } else {
            self.multiply_rows(x, n, out, threads)?;
        }
        self.add_bias(out);
        Ok(())
    }

    /// As [`EntropyCodedLinear::forward`], with activations rounded to 8 bits by their largest: lossy, and for levels
    /// only.
    ///
    /// # Errors
    /// When inputs or outputs have other lengths than the layer, or the weights are no levels.
    pub fn forward_int8(&self, x: &[f32], out: &mut [f32], threads: usize) -> Result<(), Error> {
        self.batch(x, out)?;
        if self.class != WeightClass::Levels {
            return Err(Error::invalid(format!("`{}` has no levels to multiply in integers", self.name)));
        }
        let (rows, columns) = (self.rows(), self.columns());
        let mut sums = vec![0i32; rows];
        for (x, out) in x.chunks_exact(columns).zip(out.chunks_exact_mut(rows)) {
            let scaled: Vec<f32>;
            let x = if self.levels.column_scales.is_empty() {
                x
            } else {
                scaled = x.iter().zip(&self.levels.column_scales).map(|(x, column)| x * column).collect();
                scaled.as_slice()
            };
            let (activations, step) = eight_bits(x, self.header.shape.padded_columns());
            self.for_each_rows(&mut sums, threads, |coded, blocks, out| {
                coded.dot_levels(blocks, &self.levels.values, &activations, out)
            })?;
            for (row, (out, &sum)) in out.iter_mut().zip(&sums).enumerate() {
                *out = sum as f32 * (self.levels.scale(row) * step);
            }
            for (escape, correction) in self.escapes.iter().zip(&self.corrections) {
                out[escape.row] += correction * (f32::from(activations[escape.column]) * step);
            }
        }
        self.add_bias(out);
        Ok(())
    }

    /// The weights of some rows, as singles: what products are made of.
    ///
    /// # Errors
    /// When there are no such rows.
    pub fn decode_rows(&self, rows: Range<usize>) -> Result<Vec<f32>, Error> {
        if rows.start > rows.end || rows.end > self.rows() {
            return Err(Error::invalid(format!("`{}` has no rows {rows:?}", self.name)));
        }
        let coded = self.coded()?;
        let mut weights = vec![0.0; rows.len() * self.columns()];
        self.decode_into(&coded, rows, &mut weights)?;
        Ok(weights)
    }

    /// The bf16 weights of all rows, little-endian, row by row: the bytes that the layer was made of. Threads share rows;
    /// 0 is one per core.
    ///
    /// # Errors
    /// When the weights are levels, or the output has another length.
    pub fn decode_bf16(&self, out: &mut [u8], threads: usize) -> Result<(), Error> {
        let (rows, columns) = (self.rows(), self.columns());
        if self.class == WeightClass::Levels || out.len() != 2 * rows * columns {
            return Err(Error::invalid(format!(
                "`{}` is not {} bytes of bf16 weights",
                self.name,
                out.len()
            )));
        }
        let coded = self.coded()?;
        let step = self.header.shape.rows_per_block();
        let pieces: Vec<Mutex<&mut [u8]>> = out.chunks_mut(2 * step * columns).map(Mutex::new).collect();
        let threads = thread_count(threads, pieces.len(), rows * columns);
        tasks::run(pieces.len(), threads, |block| {
            let own = block * step..((block + 1) * step).min(rows);
            let mut weights = vec![0.0; own.len() * columns];
            self.decode_into(&coded, own, &mut weights)?;
            let mut out = pieces[block].lock().unwrap_or_else(PoisonError::into_inner);
            for (out, weight) in out.as_chunks_mut::<2>().0.iter_mut().zip(&weights) {
                let [_, _, low, high] = weight.to_bits().to_le_bytes();
                *out = [low, high];
            }
            Ok(())
        })
    }

    fn decode_into(&self, coded: &Coded<'_>, rows: Range<usize>, out: &mut [f32]) -> Result<(), Error> {
        let (shape, columns) = (self.header.shape, self.columns());
        let refused = |error: mithril_codec::CodecError| Error::from(damaged(&self.name, error));
        if self.class == WeightClass::Levels {
            let mut codes = vec![0; out.len()];
            coded.decode_rows(rows.clone(), &mut codes).map_err(refused)?;
            for (row, (codes, out)) in
                rows.clone().zip(codes.chunks_exact(columns).zip(out.chunks_exact_mut(columns)))
            {
                self.levels.weights(row, codes, out);
            }
        } else {
            let exponents = self.exponents();
            let padded = shape.padded_columns();
            let mut symbols = Vec::new();
            for block in shape.blocks_of(rows.clone()) {
                symbols.resize(shape.n_symbols(block), 0);
                coded.decode_symbols(block..block + 1, &mut symbols).map_err(refused)?;
                for (row, symbols) in shape.rows_of(block).zip(symbols.chunks_exact(padded)) {
                    let Some(at) = row.checked_sub(rows.start).filter(|_| row < rows.end) else { continue };
                    let low = &self.parts.low_bits[row * padded..][..columns];
                    for ((out, &symbol), &low) in
                        out[at * columns..][..columns].iter_mut().zip(symbols).zip(low)
                    {
                        *out = f32::from_bits(u32::from(exponents.weight(symbol, low)) << 16);
                    }
                }
            }
        }
        let first = self.escapes.partition_point(|escape| escape.row < rows.start);
        for escape in self.escapes[first..].iter().take_while(|escape| escape.row < rows.end) {
            out[(escape.row - rows.start) * columns + escape.column] = escape.value;
        }
        Ok(())
    }

    fn batch(&self, x: &[f32], out: &[f32]) -> Result<usize, Error> {
        let n = x.len() / self.columns();
        if x.len() != n * self.columns() || out.len() != n * self.rows() || n == 0 {
            return Err(Error::invalid(format!(
                "`{}` takes {} values and gives {}; there are {} and {}",
                self.name,
                self.columns(),
                self.rows(),
                x.len(),
                out.len()
            )));
        }
        Ok(n)
    }

    fn coded(&self) -> Result<Coded<'_>, Error> {
        let refused = |error: mithril_codec::CodecError| Error::from(damaged(&self.name, error));
        Coded::new(self.header.shape, self.parts.parts()).map_err(refused)
    }

    fn exponents(&self) -> Exponents {
        Exponents::new(self.levels.values.first().copied().unwrap_or(0).cast_unsigned())
    }

    fn add_escapes(&self, x: &[f32], out: &mut [f32]) {
        for escape in &self.escapes {
            out[escape.row] += escape.value * x[escape.column];
        }
    }

    fn add_bias(&self, out: &mut [f32]) {
        if let Some(bias) = &self.bias {
            for out in out.chunks_exact_mut(bias.len()) {
                out.iter_mut().zip(bias).for_each(|(out, bias)| *out += bias);
            }
        }
    }

    /// Runs a product over ranges of blocks on several threads, each into its own rows.
    fn for_each_rows<T: Send>(
        &self,
        out: &mut [T],
        threads: usize,
        work: impl Fn(&Coded<'_>, Range<usize>, &mut [T]) -> Result<(), mithril_codec::CodecError> + Sync,
    ) -> Result<(), Error> {
        let coded = self.coded()?;
        let shape = &self.header.shape;
        // Multiples of four blocks, which kernels take together, and of about 128 rows.
        let n_blocks = (128 / shape.rows_per_block()).next_multiple_of(4).max(4);
        let pieces: Vec<Mutex<&mut [T]>> =
            out.chunks_mut(n_blocks * shape.rows_per_block()).map(Mutex::new).collect();
        let threads = thread_count(threads, pieces.len(), self.rows() * self.columns());
        tasks::run(pieces.len(), threads, |idx| {
            let blocks = idx * n_blocks..((idx + 1) * n_blocks).min(shape.n_blocks());
            let mut out = pieces[idx].lock().unwrap_or_else(PoisonError::into_inner);
            work(&coded, blocks, &mut out).map_err(|error| damaged(&self.name, error).into())
        })
    }

    /// Several vectors at once: rows are decoded once for all of them.
    fn multiply_rows(&self, x: &[f32], n: usize, out: &mut [f32], threads: usize) -> Result<(), Error> {
        let (rows, columns) = (self.rows(), self.columns());
        let coded = self.coded()?;
        let step = self.header.shape.rows_per_block() * 4;
        let n_pieces = rows.div_ceil(step);
        let products: Vec<Mutex<Vec<f32>>> = (0..n_pieces).map(|_| Mutex::default()).collect();
        let threads = thread_count(threads, n_pieces, rows * columns * n);
        tasks::run(n_pieces, threads, |piece| {
            let own = piece * step..((piece + 1) * step).min(rows);
            let mut weights = vec![0.0; own.len() * columns];
            self.decode_into(&coded, own.clone(), &mut weights)?;
            let mut sums = Vec::with_capacity(n * own.len());
            for x in x.chunks_exact(columns) {
                sums.extend(weights.chunks_exact(columns).map(|row| dot(row, x)));
            }
            *products[piece].lock().unwrap_or_else(PoisonError::into_inner) = sums;
            Ok(())
        })?;
        for (piece, sums) in products.into_iter().enumerate() {
            let sums = sums.into_inner().unwrap_or_else(PoisonError::into_inner);
            let own = sums.len() / n;
            for (out, sums) in out.chunks_exact_mut(rows).zip(sums.chunks_exact(own.max(1))) {
                out[piece * step..piece * step + own].copy_from_slice(sums);
            }
        }
        Ok(())
    }
}

/// Whether no block is entropy-coded.
fn is_packed(coded: &Coded<'_>) -> bool {
    (0..coded.shape().n_blocks()).all(|block| coded.is_fixed(block))
}

/// Sixteen sums in parallel, joined in order: the same on every machine.
fn dot(row: &[f32], x: &[f32]) -> f32 {
    let mut sums = [0f32; 16];
    let (rows, rest) = row.as_chunks::<16>();
    let (xs, x_rest) = x.as_chunks::<16>();
    for (row, x) in rows.iter().zip(xs) {
        for ((sum, weight), x) in sums.iter_mut().zip(row).zip(x) {
            *sum += weight * x;
        }
    }
    let tail: f32 = rest.iter().zip(x_rest).map(|(weight, x)| weight * x).sum();
    sums.iter().sum::<f32>() + tail
}

/// Activations in 8 bits, and what one step of them is.
#[expect(clippy::cast_possible_truncation, reason = "clamped, and a cast of floats saturates")]
fn eight_bits(x: &[f32], padded: usize) -> (Vec<i8>, f32) {
    let most = x.iter().fold(0f32, |most, x| most.max(x.abs()));
    let step = if most > 0.0 && most.is_finite() { most / 127.0 } else { 1.0 };
    let mut activations: Vec<i8> =
        x.iter().map(|x| (x / step).round_ties_even().clamp(-127.0, 127.0) as i8).collect();
    activations.resize(padded, 0);
    (activations, step)
}
