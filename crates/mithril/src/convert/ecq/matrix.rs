//! A matrix of codes as the tensors that hold it.

use crate::{Effort, Error, FrameOptions, compress};
use mithril_codec::Dtype;
use mithril_codec::ecq::{Coding, Escape, Shape, encode, low_bits};
use mithril_codec::quantised::Layout;
use mithril_format::ecq::{COMPRESSED, FREQ, LOW_BITS, MatrixHeader, STREAM_OFFSETS, SideSum};

/// A tensor that is to be written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewPart {
    /// Its name.
    pub name: String,
    /// Type of its elements.
    pub dtype: Dtype,
    /// Its dimensions.
    pub shape: Vec<u64>,
    /// Its bytes.
    pub bytes: Vec<u8>,
}

impl NewPart {
    pub(crate) fn bytes(name: String, bytes: Vec<u8>) -> Self {
        Self { name, dtype: Dtype::U8, shape: vec![bytes.len() as u64], bytes }
    }

    /// A frame of values that stand in rows: as what they are, or as whole numbers if that is smaller. Scales of rounded
    /// weights have few low bits, which coders of floats do not look for.
    pub(super) fn frame(name: String, dtype: Dtype, rows: usize, values: &[u8]) -> Result<Self, Error> {
        let n = dtype.elements_in(values.len() as u64);
        let frame = |dtype: Dtype, effort: Effort| {
            let options = FrameOptions::default()
                .with_dtype(dtype)
                .with_shape([rows as u64, n / rows.max(1) as u64])
                .with_effort(effort)
                .with_threads(1);
            compress(values, &options)
        };
        // The search of the highest effort is worth its time on what is small.
        let effort = if n <= 1 << 16 { Effort::Max } else { Effort::Balanced };
        let mut smallest = frame(dtype, effort)?;
        let whole = match dtype.unit_len() {
            2 => Dtype::U16,
            4 => Dtype::U32,
            _ => Dtype::U8,
        };
        let other = frame(whole, if whole == Dtype::U8 { Effort::Max } else { Effort::Fast })?;
        if other.len() < smallest.len() {
            smallest = other;
        }
        Ok(Self::bytes(name, smallest))
    }
}

/// What is known of a matrix besides its symbols.
#[derive(Debug, Clone, Copy)]
pub struct MatrixPlan<'a> {
    /// What its codes mean.
    pub layout: Layout,
    /// Bits of a code.
    pub bits: u8,
    /// Codes that share a scale.
    pub group_size: u32,
    /// Type of the scales of groups, where biases are predicted from them.
    pub scale_dtype: Option<Dtype>,
    /// Rows and columns.
    pub size: (usize, usize),
    /// Rows of a block; as many as fit by default.
    pub rows_per_block: Option<usize>,
    /// Weights that no code stands for, by row and column.
    pub escapes: &'a [Escape],
    /// Whether symbols are entropy-coded.
    pub coding: Coding,
    /// The sum of values beside it that have none of their own.
    pub side_sum: SideSum,
}

/// The tensors of a matrix of codes, one byte each, without padding.
///
/// # Errors
/// When the matrix is empty or too large, or a block has more than 65535 escapes.
///
/// # Panics
/// When there is not a code for every place, or one has more bits.
pub fn matrix_parts(name: &str, plan: &MatrixPlan<'_>, codes: &[u8]) -> Result<Vec<NewPart>, Error> {
    let n_low = Layout::low_bits(plan.bits);
    let mut symbols = codes.to_vec();
    symbols.iter_mut().for_each(|code| *code >>= n_low);
    planes_parts(name, plan, n_low, symbols, codes)
}

/// The tensors of a matrix of symbols and of the bits below them, one byte each, without padding.
pub(crate) fn planes_parts(
    name: &str,
    plan: &MatrixPlan<'_>,
    n_low: u8,
    symbols: Vec<u8>,
    low: &[u8],
) -> Result<Vec<NewPart>, Error> {
    let (rows, columns) = plan.size;
    let refused = |error: mithril_codec::CodecError| Error::from(mithril_format::ecq::damaged(name, error));
    let shape = match plan.rows_per_block {
        Some(rows_per_block) => Shape::of_blocks(rows, columns, rows_per_block, n_low),
        None => Shape::new(rows, columns, n_low),
    };
    let shape = shape.map_err(refused)?;
    assert!(symbols.len() == rows * columns && low.len() == symbols.len(), "a code for every place");
    let padded = shape.padded_columns();
    let mut low_plane = vec![0; rows * shape.low_row_len()];
    if n_low > 0 {
        let mut row = vec![0; padded];
        for (low, plane) in low.chunks_exact(columns).zip(low_plane.chunks_exact_mut(shape.low_row_len())) {
            row[..columns].copy_from_slice(low);
            low_bits::pack(n_low, &row, plane);
        }
    }
    // The format counts the escapes of a block in 16 bits.
    let block_of = |escape: &Escape| escape.row / shape.rows_per_block();
    let mut blocks = plan.escapes.chunk_by(|a, b| block_of(a) == block_of(b));
    if blocks.any(|own| own.len() > usize::from(u16::MAX)) {
        return Err(Error::invalid(format!("too many weights of `{name}` have no code")));
    }
    let symbols = pad(symbols, columns, padded);
    let mut encoded = encode(&shape, &symbols, &low_plane, plan.escapes, plan.coding);
    let &MatrixPlan { layout, bits, group_size, scale_dtype, side_sum, .. } = plan;
    MatrixHeader { layout, bits, group_size, scale_dtype, shape, side_sum }.write(&mut encoded);
    let mut parts = vec![
        NewPart::bytes(format!("{name}{COMPRESSED}"), encoded.compressed),
        NewPart {
            name: format!("{name}{STREAM_OFFSETS}"),
            dtype: Dtype::U32,
            shape: vec![encoded.stream_offsets.len() as u64 / 4],
            bytes: encoded.stream_offsets,
        },
        NewPart {
            name: format!("{name}{FREQ}"),
            dtype: Dtype::U8,
            shape: vec![encoded.freq.len() as u64 / 16, 16],
            bytes: encoded.freq,
        },
    ];
    if n_low > 0 {
        parts.push(NewPart {
            name: format!("{name}{LOW_BITS}"),
            dtype: Dtype::U8,
            shape: vec![rows as u64, shape.low_row_len() as u64],
            bytes: low_plane,
        });
    }
    Ok(parts)
}

/// Rows filled up with the most frequent symbol, which costs least.
fn pad(symbols: Vec<u8>, columns: usize, padded: usize) -> Vec<u8> {
    if columns == padded {
        return symbols;
    }
    let mut counts = [0usize; 16];
    symbols.iter().for_each(|&symbol| counts[usize::from(symbol)] += 1);
    let most = (0u8..16).max_by_key(|&symbol| counts[usize::from(symbol)]).unwrap_or(0);
    let mut out = vec![most; symbols.len() / columns * padded];
    for (out, row) in out.chunks_exact_mut(padded).zip(symbols.chunks_exact(columns)) {
        out[..columns].copy_from_slice(row);
    }
    out
}
