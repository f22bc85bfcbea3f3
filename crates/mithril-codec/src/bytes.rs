//! Reading little-endian fields off the front of untrusted bytes.

use crate::CodecError;

/// Bytes, and what is after them in memory: kernels may read that, but never use it.
#[derive(Debug, Clone, Copy)]
pub struct Padded<'a> {
    data: &'a [u8],
    len: usize,
}

impl<'a> Padded<'a> {
    /// The first `len` bytes of `data`, if there are that many.
    pub fn new(data: &'a [u8], len: usize) -> Option<Self> {
        (len <= data.len()).then_some(Self { data, len })
    }

    /// The bytes.
    pub fn bytes(self) -> &'a [u8] {
        &self.data[..self.len]
    }

    /// The bytes and what is after them.
    pub(crate) fn with_padding(self) -> &'a [u8] {
        self.data
    }

    /// The last `n` of the bytes.
    pub(crate) fn last(self, n: usize) -> Self {
        Self { data: &self.data[self.len - n..], len: n }
    }
}

impl<'a> From<&'a [u8]> for Padded<'a> {
    /// With nothing after them.
    fn from(bytes: &'a [u8]) -> Self {
        Self { data: bytes, len: bytes.len() }
    }
}

/// A cursor over coded bytes. Every read is checked; a short input is `Truncated`, never a panic.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Cursor<'a> {
    rest: &'a [u8],
    what: &'static str,
}

impl<'a> Cursor<'a> {
    /// `what` names the part being read in the error of a short read.
    pub(crate) fn new(bytes: &'a [u8], what: &'static str) -> Self {
        Self { rest: bytes, what }
    }

    pub(crate) fn take(&mut self, len: usize) -> Result<&'a [u8], CodecError> {
        let (head, rest) = self.rest.split_at_checked(len).ok_or(CodecError::truncated(self.what))?;
        self.rest = rest;
        Ok(head)
    }

    pub(crate) fn array_ref<const N: usize>(&mut self) -> Result<&'a [u8; N], CodecError> {
        let (head, rest) = self.rest.split_first_chunk::<N>().ok_or(CodecError::truncated(self.what))?;
        self.rest = rest;
        Ok(head)
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N], CodecError> {
        self.array_ref().copied()
    }

    pub(crate) fn u8(&mut self) -> Result<u8, CodecError> {
        Ok(self.array::<1>()?[0])
    }

    pub(crate) fn u16(&mut self) -> Result<u16, CodecError> {
        Ok(u16::from_le_bytes(self.array()?))
    }

    pub(crate) fn u32(&mut self) -> Result<u32, CodecError> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    /// A length or count stored in four bytes.
    pub(crate) fn len32(&mut self) -> Result<usize, CodecError> {
        Ok(self.u32()? as usize)
    }

    pub(crate) fn rest(self) -> &'a [u8] {
        self.rest
    }

    pub(crate) fn is_empty(self) -> bool {
        self.rest.is_empty()
    }
}
