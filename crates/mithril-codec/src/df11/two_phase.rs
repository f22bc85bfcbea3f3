//! Decoding as a GPU does it, one thread of the grid after the other: the definition of what a kernel must give.
//!
//! Phase one: every thread counts the codes that start in its chunk, from its gap on. A prefix sum over the threads of a
//! workgroup, beginning with the workgroup's output position, gives each thread its place. Phase two: every thread
//! decodes again, joins with the signs and mantissas, and writes to its place, up to the number of elements.

use super::{Coded, join};
use crate::CodecError;

/// Decodes all elements to little-endian BF16 numbers.
///
/// # Errors
/// `Corrupt` when a thread's codes do not end where the next thread's start, or a workgroup holds another number of
/// codes than its positions say. A GPU does not look and would give other numbers.
///
/// # Panics
/// If `out` has no room for exactly all elements.
pub fn decode_into(coded: &Coded<'_>, out: &mut [u8]) -> Result<(), CodecError> {
    assert_eq!(out.len(), 2 * coded.n_elements(), "room for another number of elements");
    let (out, _) = out.as_chunks_mut::<2>();
    for workgroup in 0..coded.n_workgroups() {
        let places = places(coded, workgroup)?;
        for (thread, &place) in (workgroup * coded.geometry.n_threads()..).zip(&places) {
            let mut bit = first_bit(coded, thread);
            let end = (thread + 1) * coded.geometry.chunk_bits();
            for (number, &sign_mantissa) in out[place..].iter_mut().zip(&coded.signs_mantissas[place..]) {
                if bit >= end {
                    break;
                }
                let (exponent, length) = find(coded, bit)?;
                *number = join(exponent, sign_mantissa).to_le_bytes();
                bit += usize::from(length);
            }
        }
    }
    Ok(())
}

/// The first element of each thread of a workgroup: the first phase and the prefix sum.
pub(super) fn places(coded: &Coded<'_>, workgroup: usize) -> Result<Vec<usize>, CodecError> {
    let n_threads = coded.geometry.n_threads();
    let elements = coded.elements(workgroup..workgroup + 1);
    let mut place = elements.start;
    let mut places = Vec::with_capacity(n_threads);
    for thread in workgroup * n_threads..(workgroup + 1) * n_threads {
        places.push(place);
        // Threads behind the last element count what nobody needs, and a GPU drops it.
        if place < coded.n_elements() {
            place += count(coded, thread, coded.n_elements() - place)?;
        }
    }
    let is_right = place == elements.end;
    is_right
        .then_some(places)
        .ok_or(CodecError::corrupt("DF11 workgroup with another number of codes than it states"))
}

/// The codes that start in a thread's chunk, at most `n_left`.
fn count(coded: &Coded<'_>, thread: usize, n_left: usize) -> Result<usize, CodecError> {
    let end = (thread + 1) * coded.geometry.chunk_bits();
    let mut bit = first_bit(coded, thread);
    let mut n_codes = 0;
    while bit < end && n_codes < n_left {
        bit += usize::from(find(coded, bit)?.1);
        n_codes += 1;
    }
    let is_right = if n_codes == n_left {
        bit.div_ceil(8) == coded.encoded.len()
    } else {
        bit == first_bit(coded, thread + 1)
    };
    is_right
        .then_some(n_codes)
        .ok_or(CodecError::corrupt("DF11 thread that ends where the next does not start"))
}

pub(super) fn first_bit(coded: &Coded<'_>, thread: usize) -> usize {
    thread * coded.geometry.chunk_bits() + coded.gap(thread)
}

pub(super) fn find(coded: &Coded<'_>, bit: usize) -> Result<(u8, u8), CodecError> {
    coded.tables.find(coded.bits_at(bit)).ok_or(CodecError::corrupt("DF11 tables that lead to no exponent"))
}
