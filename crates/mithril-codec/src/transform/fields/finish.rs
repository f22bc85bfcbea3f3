//! What is left to do with elements once they are joined: escapes put right, and the checksum taken.

use super::FieldSplit;
use crate::checksum::Checksummer;

/// Bytes that kernels finish together: few enough to stay in the first-level cache.
pub(crate) const FINISHED_LEN: usize = 4096;

/// Takes joined elements front to back. Kernels do it tile by tile, while a tile is in the first-level cache.
pub(crate) struct Finish<'a> {
    /// Elements whose top field is replaced, and by what, in the order of their tiles.
    pub(crate) escapes: &'a [(u32, u16)],
    /// The checksum that takes the finished elements, if one does.
    pub(crate) sum: Option<&'a mut Checksummer>,
}

impl Finish<'_> {
    /// Finishes all elements that are left, of which the first has number `first`.
    pub(crate) fn last(&mut self, split: &FieldSplit, first: usize, elements: &mut [u8]) {
        self.patch(split, first, usize::MAX, elements);
        if let Some(sum) = &mut self.sum {
            sum.update(elements);
        }
    }

    /// Finishes whole tiles of elements with the numbers from `first` to `end`. Inlined into kernels, which have the
    /// instructions for it.
    #[inline(always)]
    pub(crate) fn tiles(&mut self, split: &FieldSplit, first: usize, end: usize, elements: &mut [u8]) {
        self.patch(split, first, end, elements);
        if let Some(sum) = &mut self.sum {
            sum.take_rounds(elements.as_chunks().0);
        }
    }

    /// Replaces the top fields of the elements before number `end`; `elements` starts with number `first`.
    #[inline]
    pub(crate) fn patch(&mut self, split: &FieldSplit, first: usize, end: usize, elements: &mut [u8]) {
        match split.layout.width {
            1 => self.patch_words::<1>(split, first, end, elements),
            2 => self.patch_words::<2>(split, first, end, elements),
            4 => self.patch_words::<4>(split, first, end, elements),
            _ => self.patch_words::<8>(split, first, end, elements),
        }
    }

    /// As `patch`, for elements of `WIDTH` bytes: one in a hundred may be an escape.
    #[inline]
    fn patch_words<const WIDTH: usize>(
        &mut self,
        split: &FieldSplit,
        first: usize,
        end: usize,
        elements: &mut [u8],
    ) {
        let (elements, _) = elements.as_chunks_mut::<WIDTH>();
        while let Some((&(element, top), others)) = self.escapes.split_first()
            && (element as usize) < end
        {
            let bytes = &mut elements[element as usize - first];
            let mut word = [0; 8];
            word[..WIDTH].copy_from_slice(bytes);
            let patched = split.with_top(u64::from_le_bytes(word), u64::from(top)).to_le_bytes();
            bytes.copy_from_slice(&patched[..WIDTH]);
            self.escapes = others;
        }
    }
}
