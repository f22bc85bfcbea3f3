//! Numbers of one to ten bytes: seven bits a byte, the lowest first, the high bit set on all but the last.

/// Why there is no number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NoNumber {
    /// The bytes end before it does.
    CutOff,
    /// It has more than 64 bits, or more bytes than it needs.
    Impossible,
}

/// Appends a number.
pub(super) fn push(mut number: u64, out: &mut Vec<u8>) {
    while number >= 0x80 {
        out.push(number.to_le_bytes()[0] | 0x80);
        number >>= 7;
    }
    out.push(number.to_le_bytes()[0]);
}

/// Bytes of a number.
pub(super) fn len(number: u64) -> usize {
    (64 - (number | 1).leading_zeros()).div_ceil(7) as usize
}

/// The number at the front of `bytes`, and its length.
pub(super) fn read(bytes: &[u8]) -> Result<(u64, usize), NoNumber> {
    let mut number = 0;
    for (at, shift) in (0..64).step_by(7).enumerate() {
        let &byte = bytes.get(at).ok_or(NoNumber::CutOff)?;
        let bits = u64::from(byte & 0x7f);
        if bits << shift >> shift != bits || byte == 0 && shift > 0 {
            break;
        }
        number |= bits << shift;
        if byte < 0x80 {
            return Ok((number, at + 1));
        }
    }
    Err(NoNumber::Impossible)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_come_back_and_have_one_form() {
        for shift in 0..64 {
            for number in [1u64 << shift, (1 << shift) - 1, u64::MAX >> shift] {
                let mut bytes = Vec::new();
                push(number, &mut bytes);
                assert_eq!((read(&bytes), len(number)), (Ok((number, bytes.len())), bytes.len()));
                assert_eq!(read(&bytes[..bytes.len() - 1]), Err(NoNumber::CutOff));
                *bytes.last_mut().unwrap() |= 0x80;
                bytes.push(0);
                assert_eq!(read(&bytes), Err(NoNumber::Impossible), "{number}");
            }
        }
    }
}
