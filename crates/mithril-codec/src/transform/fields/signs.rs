//! Signs of elements, in a byte each.

use crate::arch::kernels;

/// Or-s a sign into the highest bit of every element.
pub(crate) fn set_signs(signs: &[u8], width: usize, elements: &mut [u8]) {
    if !kernels().set_signs(signs, width, elements) {
        set_signs_portable(signs, width, elements);
    }
}

/// The meaning of setting signs. Inlined into the kernel, which is this code compiled for AVX2.
#[inline(always)]
pub(crate) fn set_signs_portable(signs: &[u8], width: usize, elements: &mut [u8]) {
    match width {
        2 => {
            for (element, &sign) in elements.as_chunks_mut::<2>().0.iter_mut().zip(signs) {
                *element = (u16::from_le_bytes(*element) | u16::from(sign) << 15).to_le_bytes();
            }
        }
        4 => {
            for (element, &sign) in elements.as_chunks_mut::<4>().0.iter_mut().zip(signs) {
                *element = (u32::from_le_bytes(*element) | u32::from(sign) << 31).to_le_bytes();
            }
        }
        _ => {
            for (element, &sign) in elements.chunks_exact_mut(width).zip(signs) {
                element[width - 1] |= sign << 7;
            }
        }
    }
}

/// The meaning of taking signs. Inlined into the kernel, which is this code compiled for AVX2.
#[inline(always)]
pub(crate) fn take_signs_portable(width: usize, elements: &[u8], signs: &mut [u8]) {
    match width {
        2 => take::<2>(elements, signs),
        4 => take::<4>(elements, signs),
        8 => take::<8>(elements, signs),
        _ => take::<1>(elements, signs),
    }
}

/// The sign of every element of `WIDTH` bytes.
#[inline(always)]
fn take<const WIDTH: usize>(elements: &[u8], signs: &mut [u8]) {
    for (sign, element) in signs.iter_mut().zip(elements.as_chunks::<WIDTH>().0) {
        *sign = element[WIDTH - 1] >> 7;
    }
}
