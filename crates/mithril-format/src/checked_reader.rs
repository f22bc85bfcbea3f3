//! Reads of foreign files: what a file claims is compared with its length before anything is allocated for it.

use crate::{FormatError, ReadAt, ReadError};

/// A file of a known format and length.
pub(crate) struct CheckedReader<'a> {
    source: &'a dyn ReadAt,
    len: u64,
    format: &'static str,
}

impl<'a> CheckedReader<'a> {
    pub(crate) fn new(source: &'a dyn ReadAt, format: &'static str) -> Result<Self, ReadError> {
        let len = source.size()?;
        Ok(Self { source, len, format })
    }

    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// The error of a file that breaks a rule of its format.
    pub(crate) fn invalid(&self, reason: impl Into<String>) -> ReadError {
        FormatError::Foreign { format: self.format, reason: reason.into() }.into()
    }

    /// Some bytes of the file, which `what` names when they are not there.
    pub(crate) fn read(&self, offset: u64, len: u64, what: &str) -> Result<Vec<u8>, ReadError> {
        let there = offset.checked_add(len).is_some_and(|end| end <= self.len);
        let n = usize::try_from(len).ok().filter(|_| there);
        let n = n.ok_or_else(|| self.invalid(format!("{what} at offset {offset} is cut off")))?;
        let mut bytes = vec![0; n];
        self.source.read_exact_at(offset, &mut bytes)?;
        Ok(bytes)
    }

    /// At most `len` bytes from the start of the file.
    pub(crate) fn start(&self, len: u64) -> Result<Vec<u8>, ReadError> {
        self.read(0, len.min(self.len), "start")
    }

    /// Reads `start` to `end` of the file front to back.
    pub(crate) fn forward(&self, start: u64, end: u64) -> Forward<'_> {
        Forward { reader: self, window: Vec::new(), in_window: 0, at: start, end: end.min(self.len) }
    }
}

/// Bytes read ahead at once: few requests for many small fields.
const WINDOW_LEN: u64 = 64 << 10;

/// Reads part of a file front to back, a window at a time.
pub(crate) struct Forward<'a> {
    reader: &'a CheckedReader<'a>,
    window: Vec<u8>,
    /// Bytes of the window that were taken.
    in_window: usize,
    /// Where the next byte stands in the file.
    at: u64,
    end: u64,
}

impl Forward<'_> {
    /// Where the next byte stands in the file.
    pub(crate) fn offset(&self) -> u64 {
        self.at
    }

    pub(crate) fn remaining(&self) -> u64 {
        self.end.saturating_sub(self.at)
    }

    /// The next bytes, as an array.
    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N], ReadError> {
        self.fill(N)?;
        let mut array = [0; N];
        array.copy_from_slice(&self.window[self.in_window..][..N]);
        self.in_window += N;
        self.at += N as u64;
        Ok(array)
    }

    pub(crate) fn u8(&mut self) -> Result<u8, ReadError> {
        Ok(u8::from_le_bytes(self.array()?))
    }

    pub(crate) fn u32(&mut self) -> Result<u32, ReadError> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    pub(crate) fn u64(&mut self) -> Result<u64, ReadError> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    /// The next `len` bytes; `limit` is the most that this field may have.
    pub(crate) fn bytes(&mut self, len: u64, limit: u64, what: &str) -> Result<Vec<u8>, ReadError> {
        self.check(len, what)?;
        if len > limit {
            let at = self.at;
            return Err(self
                .reader
                .invalid(format!("{what} of {len} bytes at offset {at} is above the limit of {limit}")));
        }
        let buffered = &self.window[self.in_window..];
        if let Some(bytes) = usize::try_from(len).ok().and_then(|len| buffered.get(..len)) {
            let bytes = bytes.to_vec();
            self.in_window += bytes.len();
            self.at += len;
            return Ok(bytes);
        }
        let bytes = self.reader.read(self.at, len, what)?;
        self.skip(len, what)?;
        Ok(bytes)
    }

    /// Bytes up to and without the next `\n`, at most `limit` of them.
    pub(crate) fn line(&mut self, limit: usize, what: &str) -> Result<Vec<u8>, ReadError> {
        let mut line = Vec::new();
        loop {
            match self.u8()? {
                b'\n' => return Ok(line),
                _ if line.len() == limit => {
                    return Err(self.reader.invalid(format!("{what} before offset {} is too long", self.at)));
                }
                byte => line.push(byte),
            }
        }
    }

    /// Leaves bytes out.
    pub(crate) fn skip(&mut self, len: u64, what: &str) -> Result<(), ReadError> {
        self.check(len, what)?;
        let left = (self.window.len() - self.in_window) as u64;
        match usize::try_from(len).ok().filter(|_| len <= left) {
            Some(len) => self.in_window += len,
            None => {
                self.window.clear();
                self.in_window = 0;
            }
        }
        self.at += len;
        Ok(())
    }

    fn check(&self, len: u64, what: &str) -> Result<(), ReadError> {
        if len > self.remaining() {
            return Err(self.reader.invalid(format!("{what} at offset {} is cut off", self.at)));
        }
        Ok(())
    }

    /// Makes sure that the window holds the next `len` bytes.
    fn fill(&mut self, len: usize) -> Result<(), ReadError> {
        if self.window.len() - self.in_window < len {
            self.check(len as u64, "data")?;
            let ahead = self.remaining().min(WINDOW_LEN);
            self.window = self.reader.read(self.at, ahead, "data")?;
            self.in_window = 0;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_read_across_windows_and_never_behind_the_end() {
        let file: Vec<u8> = (0..200_000u32).map(|i| i.to_le_bytes()[0]).collect();
        let reader = CheckedReader::new(&file, "test").unwrap();
        let mut forward = reader.forward(3, 199_990);
        let mut at = 3;
        for step in 0..45_000 {
            let len = match step % 4 {
                0 => {
                    assert_eq!(forward.u8().unwrap(), file[at]);
                    1
                }
                1 => {
                    assert_eq!(forward.array::<3>().unwrap(), file[at..at + 3]);
                    3
                }
                2 => {
                    forward.skip(1, "field").unwrap();
                    1
                }
                _ => {
                    assert_eq!(forward.bytes(5, 5, "field").unwrap(), file[at..at + 5]);
                    5
                }
            };
            at += len;
            assert_eq!(forward.offset(), at as u64);
        }
        forward.skip(forward.remaining() - 2, "field").unwrap();
        assert!(forward.u32().unwrap_err().to_string().contains("cut off"));
        assert!(forward.bytes(u64::MAX, u64::MAX, "text").unwrap_err().to_string().contains("cut off"));
        assert!(forward.bytes(2, 1, "text").unwrap_err().to_string().contains("above the limit"));
        assert_eq!(forward.bytes(2, 2, "text").unwrap().len(), 2);
        assert_eq!(forward.offset(), 199_990);
        assert!(reader.read(199_999, 2, "tail").unwrap_err().to_string().contains("tail at offset 199999"));
        assert!(reader.read(u64::MAX, 2, "tail").is_err());
    }
}
