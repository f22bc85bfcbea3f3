//! How much smaller than `fast` an effort makes the tensors of a kind, from many rows of few of them.
//!
//! Tensors of a role and shape are a kind: the same layer of every block. What may be read of all of them together is
//! spent on one of them, or on as many as can be read by halves; kinds with too few bytes for a sample lend theirs to the
//! largest of their role, and gain what that gains. Rows are whole, so that classes of columns are found, and from all over
//! the tensor; or, where a tensor has few rows that are long, a part of each of them.
//!
//! A part of a tensor is planned as the tensor would be (`Evidence::Slice`): tables that do not pay for so few bytes do for
//! the whole. It is coded at the effort and at `fast`, with half of it once more: what the tables of a frame take does not
//! grow with the tensor.

use super::{Role, TensorEstimate, len_of, like};
use crate::container::EntryKind;
use crate::pack::PackOptions;
use crate::plan::{self, Evidence};
use crate::{Effort, Error, FrameOptions};
use mithril_format::{ReadAt, TensorInfo};
use std::collections::HashMap;
use std::time::Instant;

/// Bytes of a sample at least: less shows nothing of what an effort finds.
pub(super) const MIN_LEN: u64 = 16 << 10;

/// Rows of a sample at least.
const MIN_ROWS: u64 = 16;

/// Elements of a part of each row at least: fewer do not show a low rank.
const MIN_COLUMNS: u64 = 64;

/// Tensors of a kind that are read at most.
const MAX_TENSORS: u64 = 8;

/// Bytes of a tensor that show what there is to gain, if they are enough rows.
const ENOUGH_LEN: u64 = 40 << 10;

/// Bytes that are read at once, about.
const READ_LEN: u64 = 2 << 10;

/// Bytes of a row where a tensor has none.
const PIECE_LEN: u64 = 8 << 10;

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
    roles: &[Role<'_>],
    estimates: &mut [TensorEstimate],
    options: &PackOptions,
    share: u64,
) -> Result<(), Error> {
    let mut kinds: HashMap<(Role<'_>, &[u64]), Vec<usize>> = HashMap::new();
    for (idx, tensor) in tensors.iter().enumerate() {
        if estimates[idx].kind == EntryKind::Full {
            kinds.entry((roles[idx], &tensor.shape)).or_default().push(idx);
        }
    }
    let mut left = 0;
    let mut gains: HashMap<Role<'_>, Gain> = HashMap::new();
    // What is too small to be searched gains nothing of that.
    let searched =
        |idx: usize| plan::is_searched(tensors[idx].dtype, &tensors[idx].shape, options.coding.effort);
    let mut unknown = Vec::new();
    for group in groups(tensors, roles, kinds.into_values().collect(), share) {
        left += group.budget;
        let mut gain = Gain::default();
        let picked = group.pick(tensors, left);
        for (at, &idx) in picked.iter().enumerate() {
            let most = left / (picked.len() - at) as u64;
            let Some((measured, read)) = measure(source, &tensors[idx], most, options)? else { break };
            gain.add(measured);
            estimates[idx].sampled_len += read;
            left = left.saturating_sub(read);
        }
        if gain.fast_len == 0.0 {
            unknown.extend(group.tensors);
            continue;
        }
        // The same one twice changes nothing: sizes are only compared within a role.
        like(group.role).into_iter().for_each(|role| gains.entry(role).or_default().add(gain));
        let gaining = group.tensors.into_iter().filter(|&idx| searched(idx) || picked.contains(&idx));
        gaining.for_each(|idx| gain.apply(&mut estimates[idx]));
    }
    for idx in unknown.into_iter().filter(|&idx| searched(idx)) {
        if let Some(gain) = like(roles[idx]).iter().find_map(|role| gains.get(role)) {
            gain.apply(&mut estimates[idx]);
        }
    }
    Ok(())
}

/// Tensors that are measured together.
struct Group<'a> {
    role: Role<'a>,
    /// The largest first.
    tensors: Vec<usize>,
    /// Bytes that may be read of them.
    budget: u64,
}

impl Group<'_> {
    /// Which tensors are read when there are so many bytes to be read: as many as can be read by halves, or as show what
    /// there is to gain, from all over the group.
    fn pick(&self, tensors: &[TensorInfo], most: u64) -> Vec<usize> {
        let candidates: Vec<usize> =
            self.tensors.iter().copied().filter(|&idx| len_of(&tensors[idx]) >= MIN_LEN).collect();
        let Some(&first) = candidates.first() else { return Vec::new() };
        let by_halves = 2 * most / len_of(&tensors[first]);
        // One tensor tells more by more bytes, but not what others are like that are only of its role.
        let lens = |is_first: bool| {
            let like =
                candidates.iter().filter(|&&idx| (tensors[idx].shape == tensors[first].shape) == is_first);
            like.map(|&idx| len_of(&tensors[idx])).sum::<u64>()
        };
        let is_mixed = lens(false) > lens(true);
        let of_others = if is_mixed { most / enough(&tensors[first]) } else { 0 };
        let n = by_halves.max(of_others).clamp(1, MAX_TENSORS.min(candidates.len() as u64));
        let total: u64 = candidates.iter().map(|&idx| len_of(&tensors[idx])).sum();
        let mut picked = Vec::new();
        let mut end = 0;
        for idx in candidates {
            end += len_of(&tensors[idx]);
            // The middle of each of `n` parts of equal length.
            if u128::from(end) * 2 * u128::from(n)
                > u128::from(2 * picked.len() as u64 + 1) * u128::from(total)
            {
                picked.push(idx);
            }
        }
        picked
    }
}

/// Kinds, each a group, smallest first: the largest can use what the others leave. Those with too few bytes for a sample
/// belong to the group of the largest kind of their role.
fn groups<'a>(
    tensors: &[TensorInfo],
    roles: &[Role<'a>],
    mut kinds: Vec<Vec<usize>>,
    share: u64,
) -> Vec<Group<'a>> {
    let total = |kind: &[usize]| kind.iter().map(|&idx| len_of(&tensors[idx])).sum::<u64>();
    kinds.sort_by_key(|kind| (total(kind), kind[0]));
    let mut largest: HashMap<Role<'_>, usize> = HashMap::new();
    let mut groups: Vec<Group<'a>> = Vec::new();
    for kind in kinds.into_iter().rev() {
        let (budget, role) = (total(&kind) / share, roles[kind[0]]);
        match largest.get(&role) {
            Some(&largest) if budget < MIN_LEN => {
                groups[largest].budget += budget;
                groups[largest].tensors.extend(kind);
            }
            _ => {
                largest.entry(role).or_insert(groups.len());
                groups.push(Group { role, tensors: kind, budget });
            }
        }
    }
    groups.reverse();
    groups
}

/// Bytes of a tensor that show what there is to gain.
fn enough(tensor: &TensorInfo) -> u64 {
    let row_len = len_of(tensor) / tensor.shape.first().copied().unwrap_or(1).max(1);
    let of_rows = MIN_ROWS.saturating_mul(row_len);
    let of_columns = len_of(tensor) / (row_len / tensor.dtype.unit_len() as u64).max(1) * MIN_COLUMNS;
    ENOUGH_LEN.max(if tensor.shape.len() < 2 { 0 } else { of_rows.min(of_columns) })
}

/// A part of a tensor, and half of it.
struct Part {
    bytes: Vec<u8>,
    half: Vec<u8>,
    /// Dimensions of both, if rows are told apart.
    shape: Option<Vec<u64>>,
    half_shape: Option<Vec<u64>>,
    /// Which share of what stands in lists of rows and columns grows with the part.
    growing: f64,
}

/// What an effort gains on a tensor, of which at most so many bytes are read, and how many were; none when that is too
/// little.
fn measure(
    source: &dyn ReadAt,
    tensor: &TensorInfo,
    most: u64,
    options: &PackOptions,
) -> Result<Option<(Gain, u64)>, Error> {
    let len = len_of(tensor);
    if len < MIN_LEN || len > most && most < MIN_LEN {
        return Ok(None);
    }
    if len <= most {
        let bytes = source.read_range(tensor.bytes.clone()).map_err(Error::reading)?;
        let shape = Some(tensor.shape.clone());
        let (coded, seconds) = coded_lens(tensor, &bytes, shape.as_ref(), options.coding.effort, options, 1)?;
        let smallest = |lens: &[CodedLen]| lens.iter().map(CodedLen::sum).fold(f64::INFINITY, f64::min);
        let fast_len = smallest(&coded_lens(tensor, &bytes, shape.as_ref(), Effort::Fast, options, 1)?.0);
        let gain = Gain { len: smallest(&coded), fast_len, seconds, read: len as f64 };
        return Ok(Some((gain, len)));
    }
    let Some(part) = Part::read(source, tensor, most)? else { return Ok(None) };
    let (read, half_read) = (part.bytes.len() as f64, part.half.len() as f64);
    let grown = len as f64 / read;
    let at = |effort: Effort| -> Result<_, Error> {
        let times = super::sample::whole(grown).max(2);
        let whole = coded_lens(tensor, &part.bytes, part.shape.as_ref(), effort, options, times)?;
        let half = coded_lens(tensor, &part.half, part.half_shape.as_ref(), effort, options, 2 * times)?;
        Ok((whole, half))
    };
    let unpredicted = |whole: &[CodedLen], half: &[CodedLen]| {
        let (whole, half, share) = (whole[0].sum(), half[0].sum(), half_read / read);
        // whole = fixed + content, half = fixed + share * content.
        let fixed = ((half - share * whole) / (1.0 - share)).clamp(0.0, whole / 8.0);
        fixed + (whole - fixed) * grown
    };
    let ((fast, _), (fast_half, _)) = at(Effort::Fast)?;
    let ((whole, seconds), (half, half_seconds)) = at(options.coding.effort)?;
    // Factors of the side that does not grow are there once.
    let predicted =
        |coded: &CodedLen| coded.blocks * grown + coded.shared * (1.0 - part.growing + part.growing * grown);
    let predicted = whole.get(1).map_or(f64::INFINITY, predicted);
    let gain = Gain {
        len: unpredicted(&whole, &half).min(predicted),
        fast_len: unpredicted(&fast, &fast_half),
        // What every call takes, however little it is given, is in both; clocks are not exact.
        seconds: ((seconds - half_seconds) * read / (read - half_read)).max(seconds / 8.0),
        read,
    };
    Ok(Some((gain, part.bytes.len() as u64)))
}

/// Bytes of the blocks of a tensor, and of what they share.
struct CodedLen {
    blocks: f64,
    shared: f64,
}

impl CodedLen {
    fn sum(&self) -> f64 {
        self.blocks + self.shared
    }
}

/// What one part in `times` of a tensor comes to by each of the plans that the tensor may get, and the seconds that took.
fn coded_lens(
    tensor: &TensorInfo,
    bytes: &[u8],
    shape: Option<&Vec<u64>>,
    effort: Effort,
    options: &PackOptions,
    times: u64,
) -> Result<(Vec<CodedLen>, f64), Error> {
    let coding = options.coding.with_effort(effort).with_threads(1);
    let mut frame_options = FrameOptions::default().with_dtype(tensor.dtype).with_coding(coding);
    frame_options.shape = shape.cloned();
    let started = Instant::now();
    let plan = plan::tensor(bytes, Evidence::Slice { times }, None, &frame_options)?;
    let predicted = plan::low_rank(bytes, &frame_options).map(|(plan, _)| plan);
    let lens = [Some(plan), predicted].into_iter().flatten().map(|plan| {
        let shared = plan.shared.to_bytes().len() as f64;
        CodedLen { blocks: plan::sampled_len(&plan, bytes, None) as f64 - shared, shared }
    });
    let lens = lens.collect();
    Ok((lens, started.elapsed().as_secs_f64()))
}

impl Part {
    /// Reads at most so many bytes of a tensor; none when they are too few.
    fn read(source: &dyn ReadAt, tensor: &TensorInfo, most: u64) -> Result<Option<Self>, Error> {
        let (unit, row_shape) = match unit_of(tensor, most) {
            Unit::PartOfRows { n_rows, row_len, part_len } => {
                return Self::read_part_of_rows(source, tensor, n_rows, row_len, part_len).map(Some);
            }
            Unit::Rows { len, shape } => (len, Some(shape)),
            Unit::Pieces { len } => (len, None),
        };
        let n_units = most / unit;
        if n_units < 2 {
            return Ok(None);
        }
        let bytes = spread(source, tensor, unit, n_units)?;
        let unit = usize::try_from(unit).unwrap_or(usize::MAX);
        let half: Vec<u8> = bytes.chunks(unit).step_by(2).flatten().copied().collect();
        let shape_of = |bytes: &[u8]| {
            let n_rows = (bytes.len() / unit) as u64;
            row_shape.as_ref().map(|row_shape| [vec![n_rows], row_shape.clone()].concat())
        };
        let (shape, half_shape) = (shape_of(&bytes), shape_of(&half));
        let growing = shape.as_ref().map_or(1.0, |shape| {
            let (n_rows, row_len) = (shape[0] as f64, shape[1..].iter().product::<u64>() as f64);
            n_rows / (n_rows + row_len)
        });
        Ok(Some(Self { bytes, half, shape, half_shape, growing }))
    }

    fn read_part_of_rows(
        source: &dyn ReadAt,
        tensor: &TensorInfo,
        n_rows: u64,
        row_len: u64,
        part_len: u64,
    ) -> Result<Self, Error> {
        let (mut bytes, mut half) = (Vec::new(), Vec::new());
        let half_len = part_len / 2;
        for row in 0..n_rows {
            // The middle of every row.
            let start = tensor.bytes.start + row * row_len + (row_len - part_len) / 2 / 64 * 64;
            let part = source.read_range(start..start + part_len).map_err(Error::reading)?;
            half.extend_from_slice(&part[..usize::try_from(half_len).expect("a part of a row")]);
            bytes.extend(part);
        }
        let elements = |len: u64| tensor.dtype.elements_in(len);
        let columns = elements(part_len) as f64;
        Ok(Self {
            bytes,
            half,
            shape: Some(vec![n_rows, elements(part_len)]),
            half_shape: Some(vec![n_rows, elements(half_len)]),
            growing: columns / (columns + n_rows as f64),
        })
    }
}

/// What is read of a tensor at a time.
enum Unit {
    /// So many bytes, with rows of this shape in them.
    Rows { len: u64, shape: Vec<u64> },
    /// So many bytes of each of all rows, which have so many.
    PartOfRows { n_rows: u64, row_len: u64, part_len: u64 },
    /// So many bytes of a list.
    Pieces { len: u64 },
}

/// Rows of a tensor of which at least some fit what may be read: slices along the first dimension, kernels of convolutions,
/// parts of all rows, or pieces of long rows; long pieces where there are no rows.
fn unit_of(tensor: &TensorInfo, most: u64) -> Unit {
    let unit_len = tensor.dtype.unit_len() as u64;
    let elements = |shape: &[u64]| shape.iter().try_fold(1u64, |n, &dimension| n.checked_mul(dimension));
    let len_of_row = |shape: &[u64]| {
        let row_len = elements(shape).filter(|&n| n >= MIN_ROW_ELEMENTS).and_then(|n| tensor.dtype.len_of(n));
        row_len.filter(|row_len| row_len % unit_len == 0)
    };
    for shape in [tensor.shape.get(1..), tensor.shape.get(2..)].into_iter().flatten() {
        if let Some(len) = len_of_row(shape).filter(|len| len * MIN_ROWS <= most) {
            return Unit::Rows { len, shape: shape.to_vec() };
        }
    }
    let piece = |len: u64| (len / unit_len * unit_len).max(unit_len);
    if tensor.shape.len() < 2 {
        return Unit::Pieces { len: piece(PIECE_LEN) };
    }
    let n_rows = tensor.shape[0].max(1);
    // An even number of elements, so that there is a half of them.
    let part_len = most / n_rows / (16 * unit_len) * (16 * unit_len);
    match len_of_row(&tensor.shape[1..]) {
        Some(row_len) if n_rows >= MIN_ROWS && part_len < row_len && part_len >= MIN_COLUMNS * unit_len => {
            Unit::PartOfRows { n_rows, row_len, part_len }
        }
        _ => {
            let len = piece(PIECE_OF_ROW_LEN);
            Unit::Rows { len, shape: vec![tensor.dtype.elements_in(len)] }
        }
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
