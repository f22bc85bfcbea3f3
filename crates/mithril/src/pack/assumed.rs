//! What tensors are taken to hold that others are made from: it must be what is written of them.
//!
//! A source may change while it is packed. Each tensor is coded from bytes that are read once, so it decodes to what was
//! read. But a tensor may be stored as the rounding of another one, or its base may be moved by the moments of an
//! optimiser, and those are read again at another time.

use super::layout::Layout;
use crate::Error;
use mithril_format::Digest;
use std::sync::{Mutex, PoisonError};

/// Tensors by number, each with the digest of its bytes when they were read for another tensor.
#[derive(Debug, Default)]
pub(super) struct Assumed {
    read: Mutex<Vec<(usize, Digest)>>,
}

impl Assumed {
    /// Another tensor is stored by what this one holds.
    pub(super) fn add(&self, tensor_idx: usize, digest: Digest) {
        self.read.lock().unwrap_or_else(PoisonError::into_inner).push((tensor_idx, digest));
    }

    /// Compares with what was written.
    pub(super) fn check(&self, written: &[Option<Digest>], layout: &Layout) -> Result<(), Error> {
        for &(tensor_idx, digest) in &*self.read.lock().unwrap_or_else(PoisonError::into_inner) {
            if written[tensor_idx] != Some(digest) {
                return Err(Error::Changed.in_tensor(&layout.tensors[tensor_idx].name));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
