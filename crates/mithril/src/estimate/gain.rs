//! How much smaller than `fast` an effort makes the tensors of a kind, from many rows of few of them.
//!
//! Tensors of a role and shape are a kind: the same layer of every block. What may be read of all of them together is
//! spent on one of them, or on as many as can be read by halves. Rows are whole, so that classes of columns are found,
//! and from all over the tensor. They are compressed at the effort and at `fast`, with every second one of them once
//! more: what the tables of a frame take does not grow with the tensor.

use super::{Role, TensorEstimate, role};
use crate::container::EntryKind;
use crate::pack::PackOptions;
use crate::{Effort, Error, FrameOptions, compress};
use mithril_codec::Dtype;
use mithril_format::{ReadAt, TensorInfo};
use std::collections::HashMap;
use std::time::Instant;

/// Bytes of a sample at least: less shows nothing of what an effort finds.
const MIN_LEN: u64 = 16 << 10;

/// Rows of a sample at least.
const MIN_ROWS: u64 = 16;

/// Tensors of a kind that are read at most.
const MAX_TENSORS: u64 = 8;

/// Bytes that are read at once, about.
const READ_LEN: u64 = 2 << 10;

/// Bytes of a row where a tensor has none.
const PIECE_LEN: u64 = 16 << 10;

/// Bytes read of a row that is too long.
const PIECE_OF_ROW_LEN: u64 = 512;

/// Shorter rows are not told apart.
const MIN_ROW_ELEMENTS: u64 = 16;

/// Sizes of tensors at the effort and at `fast`, and the seconds that the effort took for so many bytes.
#[derive(Debug, Clone, Copy, Default)]
struct Gain {
    len: f64,
    fast_len: f64,
    seconds: f64,
    read: f64,
}

impl Gain {
    fn add(&mut self, other: Self) {
        self.len += other.len;
        self.fast_len += other.fast_len;
        self.seconds += other.seconds;
        self.read += other.read;
    }

    /// Predicts a tensor at the effort that was predicted at `fast`.
    fn apply(&self, estimate: &mut TensorEstimate) {
        if self.fast_len > 0.0 {
            let stored_len = estimate.stored_len as f64 * self.len / self.fast_len;
            estimate.stored_len = super::sample::whole(stored_len);
            estimate.seconds = self.seconds / self.read.max(1.0) * estimate.raw_len as f64;
        }
    }
}

/// Changes what was predicted at `fast` to what the effort makes of it, and reads one byte in `share` for that.
pub(super) fn apply(
    source: &dyn ReadAt,
    tensors: &[TensorInfo],
    estimates: &mut [TensorEstimate],
    options: &PackOptions,
    share: u64,
) -> Result<(), Error> {
    let mut kinds: HashMap<(Role<'_>, &[u64]), Vec<usize>> = HashMap::new();
    for (idx, tensor) in tensors.iter().enumerate() {
        if estimates[idx].kind == EntryKind::Full {
            kinds.entry((role(tensor), &tensor.shape)).or_default().push(idx);
        }
    }
    let mut kinds: Vec<Vec<usize>> = kinds.into_values().collect();
    let total = |kind: &[usize]| kind.iter().map(|&idx| estimates[idx].raw_len).sum::<u64>();
    // The largest last: they can use what the others leave.
    kinds.sort_by_key(|kind| (total(kind), kind[0]));
    let mut left = 0;
    let mut of_role: HashMap<Role<'_>, Gain> = HashMap::new();
    let mut of_dtype: HashMap<Dtype, Gain> = HashMap::new();
    let mut unknown = Vec::new();
    for kind in kinds {
        let len = estimates[kind[0]].raw_len;
        left += kind.len() as u64 * len / share;
        // Most of a tensor, so that what is left goes to larger ones.
        let n = (2 * left / len.max(1)).clamp(1, MAX_TENSORS.min(kind.len() as u64));
        let mut gain = Gain::default();
        for at in 0..n {
            let idx = kind[usize::try_from((2 * at + 1) * kind.len() as u64 / (2 * n)).expect("an index")];
            let most = left / (n - at);
            let Some((measured, read)) = measure(source, &tensors[idx], most, options)? else { break };
            gain.add(measured);
            estimates[idx].sampled_len += read;
            left = left.saturating_sub(read);
        }
        if gain.fast_len == 0.0 {
            unknown.extend(kind);
            continue;
        }
        of_role.entry(role(&tensors[kind[0]])).or_default().add(gain);
        of_dtype.entry(tensors[kind[0]].dtype).or_default().add(gain);
        kind.into_iter().for_each(|idx| gain.apply(&mut estimates[idx]));
    }
    for idx in unknown {
        let tensor = &tensors[idx];
        if let Some(gain) = of_role.get(&role(tensor)).or_else(|| of_dtype.get(&tensor.dtype)) {
            gain.apply(&mut estimates[idx]);
        }
    }
    Ok(())
}

/// What an effort gains on a tensor, of which at most so many bytes are read, and how many were; none when that is too
/// little.
fn measure(
    source: &dyn ReadAt,
    tensor: &TensorInfo,
    most: u64,
    options: &PackOptions,
) -> Result<Option<(Gain, u64)>, Error> {
    let len = tensor.bytes.end - tensor.bytes.start;
    let is_whole = len <= most;
    if len < MIN_LEN || !is_whole && most < MIN_LEN {
        return Ok(None);
    }
    let (unit, row_shape) = if is_whole { (len, None) } else { unit_of(tensor, most) };
    let n_units = most / unit;
    if !is_whole && n_units == 0 {
        return Ok(None);
    }
    let bytes = if is_whole {
        source.read_range(tensor.bytes.clone()).map_err(Error::reading)?
    } else {
        spread(source, tensor, unit, n_units)?
    };
    let frame = |bytes: &[u8], effort: Effort| {
        let mut frame_options =
            FrameOptions::default().with_dtype(tensor.dtype).with_effort(effort).with_threads(1);
        frame_options.level = options.level;
        if is_whole {
            frame_options = frame_options.with_shape(tensor.shape.clone());
        } else if let Some(row_shape) = &row_shape {
            let n_rows = std::iter::once(bytes.len() as u64 / unit);
            frame_options =
                frame_options.with_shape(n_rows.chain(row_shape.iter().copied()).collect::<Vec<_>>());
        }
        let started = Instant::now();
        let frame_len = compress(bytes, &frame_options)?.len() as f64;
        Ok::<_, Error>((frame_len, started.elapsed().as_secs_f64()))
    };
    let (whole, seconds) = frame(&bytes, options.effort)?;
    let fast_whole = frame(&bytes, Effort::Fast)?.0;
    let read = bytes.len() as u64;
    if is_whole {
        return Ok(Some((Gain { len: whole, fast_len: fast_whole, seconds, read: read as f64 }, read)));
    }
    let unit = usize::try_from(unit).unwrap_or(usize::MAX);
    let half: Vec<u8> = bytes.chunks(unit).step_by(2).flatten().copied().collect();
    let (half_len, grown) = (half.len() as f64 / bytes.len() as f64, len as f64 / bytes.len() as f64);
    let scaled = |whole: f64, half: f64| {
        // whole = fixed + content, half = fixed + half_len * content.
        let fixed = ((half - half_len * whole) / (1.0 - half_len)).clamp(0.0, whole / 8.0);
        if half_len < 1.0 { fixed + (whole - fixed) * grown } else { whole * grown }
    };
    let gain = Gain {
        len: scaled(whole, frame(&half, options.effort)?.0),
        fast_len: scaled(fast_whole, frame(&half, Effort::Fast)?.0),
        seconds,
        read: read as f64,
    };
    Ok(Some((gain, read)))
}

/// Bytes of the rows of a tensor of which at least some fit what may be read, and their shape: slices along the first
/// dimension, kernels of convolutions, or pieces of long rows; long pieces where there are no rows.
fn unit_of(tensor: &TensorInfo, most: u64) -> (u64, Option<Vec<u64>>) {
    let unit_len = tensor.dtype.unit_len() as u64;
    for shape in [tensor.shape.get(1..), tensor.shape.get(2..)].into_iter().flatten() {
        let elements = shape.iter().try_fold(1u64, |n, &dimension| n.checked_mul(dimension));
        let row_len = elements.filter(|&n| n >= MIN_ROW_ELEMENTS).and_then(|n| tensor.dtype.len_of(n));
        if let Some(row_len) = row_len.filter(|row_len| row_len % unit_len == 0 && row_len * MIN_ROWS <= most)
        {
            return (row_len, Some(shape.to_vec()));
        }
    }
    let piece = |len: u64| (len / unit_len * unit_len).max(unit_len);
    match tensor.shape.len() {
        0 | 1 => (piece(PIECE_LEN), None),
        _ => (piece(PIECE_OF_ROW_LEN), Some(vec![tensor.dtype.elements_in(piece(PIECE_OF_ROW_LEN))])),
    }
}

/// So many rows or pieces from all over a tensor.
fn spread(source: &dyn ReadAt, tensor: &TensorInfo, unit: u64, n_units: u64) -> Result<Vec<u8>, Error> {
    let per_read = (READ_LEN / unit).clamp(1, n_units);
    let n_reads = n_units / per_read;
    let n_places = (tensor.bytes.end - tensor.bytes.start) / unit / per_read;
    let mut bytes = Vec::new();
    for at in 0..n_reads {
        // The middle of each of `n_reads` parts of equal length.
        let place = (2 * at + 1) * n_places / (2 * n_reads);
        let start = tensor.bytes.start + place * per_read * unit;
        bytes.extend(source.read_range(start..start + per_read * unit).map_err(Error::reading)?);
    }
    Ok(bytes)
}
