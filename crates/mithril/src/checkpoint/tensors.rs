//! Checkpoints in memory: named tensors and metadata.

use super::CheckpointError;
use crate::Dtype;
use bytes::Bytes;
use mithril_format::ReadAt;
use mithril_format::safetensors_layout::{Layout, check_new_name};
use std::collections::BTreeMap;
use std::io;

/// The user's own metadata: anything that JSON can hold.
pub type Metadata = BTreeMap<String, serde_json::Value>;

/// The state of a training run at one moment.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Checkpoint {
    /// Its tensors by name.
    pub tensors: BTreeMap<String, TensorData>,
    /// The user's own metadata.
    pub metadata: Metadata,
    /// Training step. Without one, the number at the end of the key counts.
    pub step: Option<u64>,
}

/// A tensor. Clones share the bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorData {
    /// Its bytes, little-endian, rows one behind the other.
    pub data: Bytes,
    /// Its dimensions, slowest first.
    pub shape: Vec<u64>,
    /// Type of its elements.
    pub dtype: Dtype,
}

impl Checkpoint {
    /// A checkpoint of nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a tensor.
    #[must_use]
    pub fn with_tensor(mut self, name: impl Into<String>, tensor: TensorData) -> Self {
        self.tensors.insert(name.into(), tensor);
        self
    }

    /// Sets the training step.
    #[must_use]
    pub fn with_step(mut self, step: u64) -> Self {
        self.step = Some(step);
        self
    }

    /// Bytes of all tensors.
    pub fn raw_len(&self) -> u64 {
        self.tensors.values().map(|tensor| tensor.data.len() as u64).sum()
    }

    /// The same checkpoint, borrowed.
    pub fn view(&self) -> CheckpointView<'_> {
        let tensors = self.tensors.iter().map(|(name, tensor)| {
            let view = TensorView { data: &tensor.data, shape: &tensor.shape, dtype: tensor.dtype };
            (name.as_str(), view)
        });
        CheckpointView { tensors: tensors.collect(), metadata: self.metadata.clone(), step: self.step }
    }
}

impl TensorData {
    /// A tensor of these bytes.
    pub fn new(data: impl Into<Bytes>, shape: impl Into<Vec<u64>>, dtype: Dtype) -> Self {
        Self { data: data.into(), shape: shape.into(), dtype }
    }
}

/// A checkpoint whose tensors belong to the caller: nothing is copied to save it.
#[derive(Debug, Clone, Default)]
pub struct CheckpointView<'a> {
    /// Its tensors by name.
    pub tensors: BTreeMap<&'a str, TensorView<'a>>,
    /// The user's own metadata.
    pub metadata: Metadata,
    /// Training step.
    pub step: Option<u64>,
}

/// A tensor that belongs to the caller.
#[derive(Debug, Clone, Copy)]
pub struct TensorView<'a> {
    /// Its bytes.
    pub data: &'a [u8],
    /// Its dimensions.
    pub shape: &'a [u64],
    /// Type of its elements.
    pub dtype: Dtype,
}

/// A checkpoint as the bytes of a safetensors file, without making that file: what is saved is then what `export` gives
/// back.
pub(super) struct CheckpointFile<'a> {
    header: Vec<u8>,
    /// Where each tensor starts, and its bytes; in order.
    tensors: Vec<(u64, &'a [u8])>,
    len: u64,
    /// Whether the tensors may change, so that they are copied and never lent.
    changing: bool,
}

impl<'a> CheckpointFile<'a> {
    pub(super) fn new(view: &CheckpointView<'a>, changing: bool) -> Result<Self, CheckpointError> {
        let mut list = Vec::with_capacity(view.tensors.len());
        for (&name, tensor) in &view.tensors {
            check_tensor(name, tensor)?;
            // Plain bytes have no name in safetensors.
            let dtype = if tensor.dtype == Dtype::Bytes { Dtype::U8 } else { tensor.dtype };
            list.push((name.to_owned(), dtype, tensor.shape.to_vec()));
        }
        let layout = Layout::new(list, &BTreeMap::new()).expect("lengths fit, as the bytes are in memory");
        let tensors = layout.tensors.iter().map(|placed| {
            let bytes = view.tensors[placed.name.as_str()].data;
            (placed.bytes.start, bytes)
        });
        Ok(Self { tensors: tensors.collect(), len: layout.file_len(), header: layout.header, changing })
    }

    /// The piece that holds a place, and where it starts.
    fn piece(&self, at: u64) -> (u64, &[u8]) {
        let behind = self.tensors.partition_point(|&(start, _)| start <= at);
        match behind.checked_sub(1) {
            Some(idx) => self.tensors[idx],
            None => (0, &self.header),
        }
    }
}

fn check_tensor(name: &str, tensor: &TensorView<'_>) -> Result<(), CheckpointError> {
    let unsafe_name = |reason| CheckpointError::UnsafeName {
        name: name.chars().take(120).flat_map(char::escape_debug).collect(),
        reason,
    };
    check_new_name(name).map_err(unsafe_name)?;
    // Elements of foreign quantised formats have no name in safetensors.
    if tensor.dtype.id() >= Dtype::Q4_0.id() {
        return Err(CheckpointError::UnsupportedDtype { name: name.to_owned(), dtype: tensor.dtype });
    }
    let n_elements = tensor.shape.iter().try_fold(1u64, |n, &dimension| n.checked_mul(dimension));
    let len = n_elements.and_then(|n| tensor.dtype.len_of(n));
    if len != Some(tensor.data.len() as u64) || tensor.shape.len() > mithril_format::limits::MAX_RANK {
        let actual = vec![tensor.data.len() as u64 / tensor.dtype.unit_len().max(1) as u64];
        return Err(CheckpointError::ShapeMismatch {
            name: name.to_owned(),
            expected: tensor.shape.to_vec(),
            actual,
        });
    }
    Ok(())
}

impl ReadAt for CheckpointFile<'_> {
    fn size(&self) -> io::Result<u64> {
        Ok(self.len)
    }

    fn read_exact_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let end = offset.checked_add(out.len() as u64).filter(|&end| end <= self.len);
        end.ok_or(io::ErrorKind::UnexpectedEof)?;
        let (mut at, mut rest) = (offset, out);
        while !rest.is_empty() {
            let (start, bytes) = self.piece(at);
            let from = usize::try_from(at - start).map_err(|_| io::ErrorKind::UnexpectedEof)?;
            let len = (bytes.len() - from).min(rest.len());
            let (head, tail) = rest.split_at_mut(len);
            head.copy_from_slice(&bytes[from..from + len]);
            (at, rest) = (at + len as u64, tail);
        }
        Ok(())
    }

    fn slice(&self, range: std::ops::Range<u64>) -> Option<&[u8]> {
        if self.changing {
            return None;
        }
        let (start, bytes) = self.piece(range.start);
        bytes.slice(range.start - start..range.end - start)
    }
}
