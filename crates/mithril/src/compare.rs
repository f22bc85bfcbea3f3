//! Two models side by side: which tensors are equal, and how far the others are apart.
//!
//! Models of any kind, packed or not, are compared tensor by tensor, by name, in pieces: memory does not grow with them.

mod distance;
mod number;

pub use distance::Distance;

use crate::Error;
use crate::container::{Model, ModelTensor, OpenTensor};
use crate::pack::Progress;
use distance::Meter;

/// Raw bytes that are compared at a time: whole elements of every dtype, and of groups of them.
const PIECE_LEN: u64 = 3 << 20;

/// A tensor of one model or of both.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Pair {
    /// Its name.
    pub name: String,
    /// The tensor in the first model.
    pub a: Option<ModelTensor>,
    /// The tensor in the second model.
    pub b: Option<ModelTensor>,
    /// What comparing them found.
    pub outcome: Outcome,
}

/// What comparing two tensors found.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Outcome {
    /// Every bit is equal.
    Same,
    /// Only the first model has it.
    OnlyInA,
    /// Only the second model has it.
    OnlyInB,
    /// Dtype or shape differ.
    OtherType,
    /// The bits differ.
    Different {
        /// The first byte that differs, counted from the tensor's first.
        first_offset: u64,
    },
    /// The bits differ, and it was measured how much.
    Apart(Distance),
}

/// Compares the tensors of two models bit by bit: those of the first in order, then those that only the second has.
/// Stops at the first difference of each. `threads` as in [`DecodeOptions`](crate::DecodeOptions).
///
/// # Errors
/// When a tensor cannot be read.
pub fn compare(a: &Model, b: &Model, threads: usize, progress: Progress<'_>) -> Result<Vec<Pair>, Error> {
    each_pair(a, b, |tensor, (a, b)| {
        let mut outcome = Outcome::Same;
        each_piece(a, b, threads, progress, |at, a, b| {
            let Some(first) = a.iter().zip(b).position(|(a, b)| a != b) else { return true };
            outcome = Outcome::Different { first_offset: at + first as u64 };
            false
        })
        .map_err(|error| error.in_tensor(&tensor.name))?;
        Ok(outcome)
    })
}

/// Measures how far the tensors of two models are apart, in the order of [`compare`].
///
/// # Errors
/// When a tensor cannot be read.
pub fn diff(a: &Model, b: &Model, threads: usize, progress: Progress<'_>) -> Result<Vec<Pair>, Error> {
    each_pair(a, b, |tensor, (a, b)| {
        let mut meter = Meter::new(tensor.dtype);
        each_piece(a, b, threads, progress, |_, a, b| {
            meter.add(a, b);
            true
        })
        .map_err(|error| error.in_tensor(&tensor.name))?;
        let distance = meter.finish();
        Ok(if distance.n_changed == 0 { Outcome::Same } else { Outcome::Apart(distance) })
    })
}

/// The share of elements that differ in each of `n_parts` parts of a tensor, front to back.
///
/// # Errors
/// `InvalidArgument` when they are not of the same length; else when a tensor cannot be read.
pub fn change_map(
    a: &OpenTensor<'_>,
    b: &OpenTensor<'_>,
    element_len: u64,
    n_parts: usize,
    threads: usize,
) -> Result<Vec<f64>, Error> {
    if a.raw_len() != b.raw_len() {
        return Err(Error::invalid("tensors of different lengths have no change map"));
    }
    let n_elements = a.raw_len() / element_len.max(1);
    let n_parts = n_parts.min(usize::try_from(n_elements).unwrap_or(usize::MAX)).max(1);
    let mut changed = vec![0u64; n_parts];
    let mut total = vec![0u64; n_parts];
    let step = usize::try_from(element_len.max(1)).map_err(|_| Error::invalid("elements that long"))?;
    each_piece(a, b, threads, &|_| (), |at, a, b| {
        for (element, (a, b)) in (at / element_len.max(1)..).zip(a.chunks(step).zip(b.chunks(step))) {
            let part = u128::from(element) * n_parts as u128 / u128::from(n_elements.max(1));
            let part = usize::try_from(part).unwrap_or(usize::MAX).min(n_parts - 1);
            total[part] += 1;
            changed[part] += u64::from(a != b);
        }
        true
    })?;
    Ok(changed.iter().zip(&total).map(|(&changed, &total)| changed as f64 / total.max(1) as f64).collect())
}

/// Pairs tensors by name; `measure` is given those that are of the same dtype and shape.
fn each_pair<'m>(
    a: &'m Model,
    b: &'m Model,
    mut measure: impl FnMut(&ModelTensor, (&OpenTensor<'m>, &OpenTensor<'m>)) -> Result<Outcome, Error>,
) -> Result<Vec<Pair>, Error> {
    let mut pairs = Vec::new();
    for (a_idx, tensor) in a.tensors().iter().enumerate() {
        let b_idx = b.find(&tensor.name);
        let other = b_idx.map(|idx| &b.tensors()[idx]);
        let outcome = match (b_idx, other) {
            (Some(b_idx), Some(other)) if tensor.dtype == other.dtype && tensor.shape == other.shape => {
                measure(tensor, (&a.open_tensor(a_idx)?, &b.open_tensor(b_idx)?))?
            }
            (Some(_), _) => Outcome::OtherType,
            (None, _) => Outcome::OnlyInA,
        };
        pairs.push(Pair { name: tensor.name.clone(), a: Some(tensor.clone()), b: other.cloned(), outcome });
    }
    for tensor in b.tensors().iter().filter(|tensor| a.find(&tensor.name).is_none()) {
        let (name, b) = (tensor.name.clone(), Some(tensor.clone()));
        pairs.push(Pair { name, a: None, b, outcome: Outcome::OnlyInB });
    }
    Ok(pairs)
}

/// Hands pieces of two tensors of the same length to a function with their place, until it returns false.
fn each_piece(
    a: &OpenTensor<'_>,
    b: &OpenTensor<'_>,
    threads: usize,
    progress: Progress<'_>,
    mut take: impl FnMut(u64, &[u8], &[u8]) -> bool,
) -> Result<(), Error> {
    let (mut a_piece, mut b_piece) = (Vec::new(), Vec::new());
    let mut at = 0;
    while at < a.raw_len() {
        let end = (at + PIECE_LEN).min(a.raw_len());
        let len = usize::try_from(end - at).expect("a piece lies in memory");
        a_piece.resize(len, 0);
        b_piece.resize(len, 0);
        a.read_range(at..end, &mut a_piece, threads)?;
        b.read_range(at..end, &mut b_piece, threads)?;
        let goes_on = take(at, &a_piece, &b_piece);
        progress(if goes_on { end - at } else { a.raw_len() - at });
        if !goes_on {
            return Ok(());
        }
        at = end;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
