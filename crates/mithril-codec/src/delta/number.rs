//! Numbers as ordered integers of their own width.

use crate::transform::fields::Layout;

/// Width and sign of the elements, and arithmetic on their bits, modulo their width.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Number {
    pub(crate) width: usize,
    /// Whether the highest bit is a sign over a magnitude, as in floats.
    pub(crate) sign: bool,
}

impl Number {
    pub(crate) fn of(layout: Layout) -> Self {
        Self { width: usize::from(layout.width), sign: layout.sign }
    }

    /// Bits of an element.
    #[inline(always)]
    pub(crate) fn bits(self) -> u32 {
        match self.width {
            1 => 8,
            2 => 16,
            4 => 32,
            _ => 64,
        }
    }

    /// All bits of an element.
    #[inline(always)]
    pub(crate) fn mask(self) -> u64 {
        u64::MAX >> (64 - self.bits())
    }

    #[inline(always)]
    fn top(self) -> u64 {
        1 << (self.bits() - 1)
    }

    #[inline(always)]
    pub(crate) fn is_negative(self, x: u64) -> bool {
        self.sign && x & self.top() != 0
    }

    /// Magnitude: all bits but the sign.
    #[inline(always)]
    pub(crate) fn magnitude(self, x: u64) -> u64 {
        if self.sign { x & !self.top() } else { x }
    }

    /// The place of a number among all numbers, and the other way round: it undoes itself.
    #[inline(always)]
    fn ordered(self, x: u64) -> u64 {
        if self.is_negative(x) { x ^ (self.top() - 1) } else { x }
    }

    /// Steps from `base` to `x`, away from zero counted up.
    #[inline(always)]
    pub(crate) fn difference(self, x: u64, base: u64) -> u64 {
        let steps = self.ordered(x).wrapping_sub(self.ordered(base));
        (if self.is_negative(base) { steps.wrapping_neg() } else { steps }) & self.mask()
    }

    /// The number so many steps from `base`.
    #[inline(always)]
    pub(crate) fn moved(self, base: u64, difference: u64) -> u64 {
        let steps = if self.is_negative(base) { difference.wrapping_neg() } else { difference };
        self.ordered(self.ordered(base).wrapping_add(steps) & self.mask())
    }

    /// Sign and magnitude less one of a difference that is not zero.
    #[inline(always)]
    pub(crate) fn sign_and_rest(self, difference: u64) -> (bool, u64) {
        let negative = difference & self.top() != 0;
        (negative, if negative { !difference & self.mask() } else { difference.wrapping_sub(1) })
    }

    /// The difference with this sign and magnitude less one.
    #[inline(always)]
    pub(crate) fn with_sign(self, negative: bool, rest: u64) -> u64 {
        (if negative { !rest } else { rest.wrapping_add(1) }) & self.mask()
    }

    /// Element number `at`. A copy of constant length per width: one of variable length is a call.
    #[inline(always)]
    pub(crate) fn read(self, elements: &[u8], at: usize) -> u64 {
        match self.width {
            1 => u64::from(elements[at]),
            2 => u64::from(u16::from_le_bytes(elements.as_chunks().0[at])),
            4 => u64::from(u32::from_le_bytes(elements.as_chunks().0[at])),
            _ => u64::from_le_bytes(elements.as_chunks().0[at]),
        }
    }

    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "the bits of an element of that width")]
    pub(crate) fn write(self, elements: &mut [u8], at: usize, x: u64) {
        match self.width {
            1 => elements[at] = x as u8,
            2 => elements.as_chunks_mut().0[at] = (x as u16).to_le_bytes(),
            4 => elements.as_chunks_mut().0[at] = (x as u32).to_le_bytes(),
            _ => elements.as_chunks_mut().0[at] = x.to_le_bytes(),
        }
    }

    /// Runs with the width as a constant, so that the compiler writes a loop for each.
    #[inline(always)]
    pub(crate) fn by_width(self, mut work: impl FnMut(Self)) {
        match self.width {
            1 => work(Self { width: 1, ..self }),
            2 => work(Self { width: 2, ..self }),
            4 => work(Self { width: 4, ..self }),
            _ => work(Self { width: 8, ..self }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_pair_of_bytes_has_a_difference_that_leads_back() {
        for sign in [false, true] {
            let number = Number { width: 1, sign };
            for base in 0..=255 {
                for x in 0..=255 {
                    let difference = number.difference(x, base);
                    assert_eq!(number.moved(base, difference), x);
                    if difference != 0 {
                        let (negative, rest) = number.sign_and_rest(difference);
                        assert_eq!(number.with_sign(negative, rest), difference);
                        assert!(rest < 128);
                    }
                }
            }
        }
    }

    #[test]
    fn steps_follow_the_order_of_floats() {
        let number = Number { width: 4, sign: true };
        let steps = |x: f32, base: f32| number.difference(u64::from(x.to_bits()), u64::from(base.to_bits()));
        assert_eq!(steps(1.0 + f32::EPSILON, 1.0), 1);
        assert_eq!(steps(-1.0 - f32::EPSILON, -1.0), 1);
        assert_eq!(steps(1.0 - f32::EPSILON, 1.0), (-2i32).cast_unsigned().into());
        assert_eq!(steps(0.0, -0.0), u64::from(u32::MAX));
    }
}
