//! Bounded output of a block's encoder: a block that does not get smaller is stored instead.

/// The coded block would be larger than the raw one.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct DoesNotFit;

/// Coded bytes written to a slice, front to back.
pub(super) struct Output<'a> {
    bytes: &'a mut [u8],
    len: usize,
}

impl<'a> Output<'a> {
    pub(super) fn new(bytes: &'a mut [u8]) -> Self {
        Self { bytes, len: 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Forgets everything written.
    pub(super) fn restart(&mut self) -> &mut Self {
        self.len = 0;
        self
    }

    pub(super) fn push(&mut self, bytes: &[u8]) -> Result<(), DoesNotFit> {
        self.reserve(bytes.len())?.copy_from_slice(bytes);
        Ok(())
    }

    /// The next `len` bytes, to be written by the caller.
    pub(super) fn reserve(&mut self, len: usize) -> Result<&mut [u8], DoesNotFit> {
        let end = self.len.checked_add(len).filter(|&end| end <= self.bytes.len()).ok_or(DoesNotFit)?;
        let reserved = &mut self.bytes[self.len..end];
        self.len = end;
        Ok(reserved)
    }

    pub(super) fn push_u32(&mut self, value: usize) -> Result<(), DoesNotFit> {
        self.push(&u32::try_from(value).map_err(|_| DoesNotFit)?.to_le_bytes())
    }
}
