//! A source file as tensors and the glue around them.

use crate::Error;
use crate::container::is_tensor_name;
use mithril_format::source::{self, Kind};
use mithril_format::{ReadAt, TensorInfo, limits};
use std::ops::Range;

/// Where the tensors of a file lie, and what lies between them.
#[derive(Debug)]
pub(super) struct Layout {
    pub(super) kind: Kind,
    pub(super) tensors: Vec<TensorInfo>,
    /// Glue before each tensor, behind the one before it.
    pub(super) glue_before: Vec<u64>,
    /// All pieces of glue that are not empty, in order.
    pub(super) glue: Vec<Range<u64>>,
    pub(super) glue_len: u64,
    pub(super) file_len: u64,
}

/// Whether a tensor of a file becomes an entry of its container. Others stay in the glue, and can only be restored with
/// the whole file.
pub(crate) fn can_be_an_entry(tensor: &TensorInfo) -> bool {
    is_tensor_name(&tensor.name) && tensor.shape.len() <= limits::MAX_RANK
}

impl Layout {
    /// Finds the tensors of a file.
    pub(super) fn of(source: &dyn ReadAt) -> Result<Self, Error> {
        let file_len = source.size().map_err(Error::reading)?;
        let kind = source::try_detect(source)?.ok_or_else(|| {
            Error::invalid("no model file of a known kind (safetensors, npy, npz, pt, gguf, onnx)")
        })?;
        let mut tensors = source::tensors_to_pack(kind, source)?;
        tensors.retain(can_be_an_entry);
        Ok(Self::around(kind, tensors, file_len))
    }

    fn around(kind: Kind, tensors: Vec<TensorInfo>, file_len: u64) -> Self {
        let mut glue = Vec::new();
        let mut glue_before = Vec::with_capacity(tensors.len());
        let mut end = 0;
        for tensor in &tensors {
            glue_before.push(tensor.bytes.start - end);
            if tensor.bytes.start > end {
                glue.push(end..tensor.bytes.start);
            }
            end = tensor.bytes.end;
        }
        if file_len > end {
            glue.push(end..file_len);
        }
        let glue_len = glue.iter().map(|piece| piece.end - piece.start).sum();
        Self { kind, tensors, glue_before, glue, glue_len, file_len }
    }

    /// The number that a tensor's entry has in the container.
    pub(super) fn entry_idx(&self, tensor_idx: usize) -> usize {
        tensor_idx + usize::from(self.glue_len > 0)
    }
}
