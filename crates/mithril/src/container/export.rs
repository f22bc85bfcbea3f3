//! Writes the tensors of a model of any kind to a new safetensors file.

use super::Model;
use crate::Error;
use mithril_format::safetensors_layout::Layout;
use std::collections::BTreeMap;
use std::io::Write;

impl Model {
    /// Writes all tensors to a safetensors file, laid out as the official library does. Returns the writer, not flushed.
    /// `threads` as in [`DecodeOptions`](crate::DecodeOptions).
    ///
    /// # Errors
    /// When a tensor has a type that safetensors does not know, or cannot be read; when writing fails.
    pub fn write_safetensors<W: Write>(&self, mut writer: W, threads: usize) -> Result<W, Error> {
        if let Some(tensor) = self.tensors().iter().find(|tensor| tensor.dtype.is_quantized()) {
            let what = format!("safetensors has no type {}", tensor.dtype.name());
            return Err(Error::invalid(what).in_tensor(&tensor.name));
        }
        let tensors = self.tensors().iter();
        let new = tensors.map(|tensor| (tensor.name.clone(), tensor.dtype, tensor.shape.clone())).collect();
        let layout = Layout::new(new, &BTreeMap::new());
        let layout = layout.ok_or_else(|| Error::invalid("the tensors together are too large"))?;
        writer.write_all(&layout.header).map_err(Error::writing)?;
        for tensor in &layout.tensors {
            let idx = self.find(&tensor.name).expect("the layout has the model's tensors");
            let write = |piece: &[u8]| writer.write_all(piece).map_err(Error::writing);
            let opened = self.open_tensor(idx)?;
            opened.for_each_piece(threads, write).map_err(|error| error.in_tensor(&tensor.name))?;
        }
        Ok(writer)
    }
}
