//! Functions of libzstd about dictionaries that its safe wrappers leave out.
//!
//! They are no kernels; they stand here because this is where `unsafe` may.

#![expect(unsafe_code, reason = "calls into C")]

use std::ptr::NonNull;
use zstd::zstd_safe::zstd_sys::{
    ZDICT_finalizeDictionary, ZDICT_getDictHeaderSize, ZDICT_isError, ZDICT_params_t, ZSTD_CCtx,
    ZSTD_CCtx_loadDictionary, ZSTD_CCtx_setParameter, ZSTD_Sequence, ZSTD_cParameter, ZSTD_createCCtx,
    ZSTD_freeCCtx, ZSTD_generateSequences, ZSTD_isError, ZSTD_sequenceBound,
};

/// Puts a header before content: magic number, id, and entropy tables made by compressing the samples at this level.
/// Nothing when libzstd refuses, for instance because there is nothing to make tables from.
pub(crate) fn finalize(
    content: &[u8],
    samples: &[u8],
    sample_lens: &[usize],
    level: i32,
    id: u32,
) -> Option<Vec<u8>> {
    // libzstd reads as many bytes of `samples` as the lengths add up to.
    let total = sample_lens.iter().try_fold(0usize, |sum, &len| sum.checked_add(len))?;
    if total > samples.len() {
        return None;
    }
    let n_samples = u32::try_from(sample_lens.len()).ok()?;
    // Headers take at most 256 bytes, and no dictionary may be shorter than that.
    let mut dictionary = vec![0u8; content.len().checked_add(512)?];
    let parameters = ZDICT_params_t { compressionLevel: level, notificationLevel: 0, dictID: id };
    // SAFETY: the pointers are of slices that live through the call, each with its own length; the lengths of the
    // samples add up to no more than `samples` holds, as was just checked. libzstd keeps none of the pointers.
    let len = unsafe {
        ZDICT_finalizeDictionary(
            dictionary.as_mut_ptr().cast(),
            dictionary.len(),
            content.as_ptr().cast(),
            content.len(),
            samples.as_ptr().cast(),
            sample_lens.as_ptr(),
            n_samples,
            parameters,
        )
    };
    if is_error(len) || len > dictionary.len() {
        return None;
    }
    dictionary.truncate(len);
    Some(dictionary)
}

/// Bytes before the content of a dictionary with a header; nothing when the header is damaged.
pub(crate) fn header_len(dictionary: &[u8]) -> Option<usize> {
    // SAFETY: pointer and length are of one slice, which libzstd only reads.
    let len = unsafe { ZDICT_getDictHeaderSize(dictionary.as_ptr().cast(), dictionary.len()) };
    (!is_error(len) && len <= dictionary.len()).then_some(len)
}

/// Shows how zstd parses a record with a dictionary: which matches it takes.
#[derive(Debug)]
pub(crate) struct Parser {
    /// Owned: made by `new`, freed by `drop`, and used through `&mut self` only.
    context: NonNull<ZSTD_CCtx>,
    sequences: Vec<ZSTD_Sequence>,
}

/// Literals, and the match behind them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Sequence {
    pub(crate) literal_len: usize,
    /// Zero for the literals at the end of a block.
    pub(crate) match_len: usize,
    /// How far back the match lies; beyond the start of the record, it lies in the dictionary.
    pub(crate) offset: usize,
    /// Whether the offset is one of the last three, which costs next to nothing.
    pub(crate) repeats: bool,
}

impl Parser {
    /// A parser at a level. Content without a header is a dictionary too.
    pub(crate) fn new(dictionary: &[u8], level: i32) -> Option<Self> {
        // SAFETY: takes nothing; gives a context or null.
        let context = NonNull::new(unsafe { ZSTD_createCCtx() })?;
        let parser = Self { context, sequences: Vec::new() };
        // SAFETY: the context is alive, and the parameter takes any number.
        let set = unsafe {
            ZSTD_CCtx_setParameter(context.as_ptr(), ZSTD_cParameter::ZSTD_c_compressionLevel, level)
        };
        // SAFETY: pointer and length are of one slice, which libzstd copies.
        let loaded = unsafe {
            ZSTD_CCtx_loadDictionary(context.as_ptr(), dictionary.as_ptr().cast(), dictionary.len())
        };
        (!is_zstd_error(set) && !is_zstd_error(loaded)).then_some(parser)
    }

    /// The sequences of a record. Nothing when libzstd refuses.
    pub(crate) fn parse(&mut self, record: &[u8]) -> Option<impl Iterator<Item = Sequence> + '_> {
        // SAFETY: a function of a number.
        let bound = unsafe { ZSTD_sequenceBound(record.len()) };
        if self.sequences.len() < bound {
            let empty = ZSTD_Sequence { offset: 0, litLength: 0, matchLength: 0, rep: 0 };
            self.sequences.resize(bound, empty);
        }
        // SAFETY: the context is alive and used by nobody else; both buffers live through the call and come with their
        // own lengths.
        let n_sequences = unsafe {
            ZSTD_generateSequences(
                self.context.as_ptr(),
                self.sequences.as_mut_ptr(),
                self.sequences.len(),
                record.as_ptr().cast(),
                record.len(),
            )
        };
        if is_zstd_error(n_sequences) {
            return None;
        }
        Some(self.sequences.get(..n_sequences)?.iter().map(|sequence| Sequence {
            literal_len: sequence.litLength as usize,
            match_len: sequence.matchLength as usize,
            offset: sequence.offset as usize,
            repeats: sequence.rep != 0,
        }))
    }
}

impl Drop for Parser {
    fn drop(&mut self) {
        // SAFETY: the context came from `ZSTD_createCCtx`, and nobody has it after this.
        unsafe { ZSTD_freeCCtx(self.context.as_ptr()) };
    }
}

fn is_zstd_error(code: usize) -> bool {
    // SAFETY: a function of a number.
    unsafe { ZSTD_isError(code) != 0 }
}

fn is_error(code: usize) -> bool {
    // SAFETY: a function of a number.
    unsafe { ZDICT_isError(code) != 0 }
}
