//! One buffer or tensor to a frame, and back.

use crate::buffer::{Buffer, FreshBytes, Output};
use crate::error::{UnsupportedError, to_python};
use crate::options::{Coding, decode_options, dtype};
use crate::work;
use mithril::Base;
use pyo3::exceptions::PyMemoryError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyTuple};

/// Compresses bytes to a frame.
#[pyfunction]
#[pyo3(signature = (data, dtype, shape, coding, /))]
pub(crate) fn compress(
    py: Python<'_>,
    data: &Bound<'_, PyAny>,
    dtype: Option<&str>,
    shape: Option<Vec<u64>>,
    coding: Coding,
) -> PyResult<Py<PyBytes>> {
    let data = Buffer::read(data)?;
    let options = coding.frame_options(dtype, shape)?.with_changing(data.is_changing());
    let len = data.bytes().len();
    // Pages that are not written cost nothing, so the bound is address space only.
    let inputs = (data, FreshBytes::new(py, mithril::compress_bound(len, &options))?);
    let (inputs, frame_len) = work::run(py, len, inputs, move |(data, out)| {
        mithril::compress_into(data.bytes(), &options, out.bytes_mut())
    })?;
    inputs.1.finish_short(py, frame_len.map_err(to_python)?)
}

/// Compresses bytes to a frame against others.
#[pyfunction]
#[pyo3(signature = (current, reference, dtype, shape, coding, /))]
pub(crate) fn compress_delta(
    py: Python<'_>,
    current: &Bound<'_, PyAny>,
    reference: &Bound<'_, PyAny>,
    dtype: Option<&str>,
    shape: Option<Vec<u64>>,
    coding: Coding,
) -> PyResult<Py<PyBytes>> {
    let inputs = (Buffer::read(current)?, Buffer::read(reference)?);
    let options = coding.frame_options(dtype, shape)?.with_changing(inputs.0.is_changing());
    let len = inputs.0.bytes().len();
    let (_, frame) = work::run(py, len, inputs, move |(current, reference)| {
        // The frame names the digest of its base: all of it must stay as it was when that was computed.
        let reference = reference.stable()?;
        let frame = mithril::compress_delta(current.bytes(), &Base::new(&reference), &options);
        frame.map_err(to_python)
    })?;
    Ok(PyBytes::new(py, &frame?).unbind())
}

/// Decompresses a frame to new bytes.
#[pyfunction]
#[pyo3(signature = (blob, reference, threads, /))]
pub(crate) fn decompress(
    py: Python<'_>,
    blob: &Bound<'_, PyAny>,
    reference: Option<&Bound<'_, PyAny>>,
    threads: i64,
) -> PyResult<Py<PyBytes>> {
    let (options, blob) = (decode_options(threads)?, Buffer::read(blob)?);
    let reference = reference.map(Buffer::read).transpose()?;
    let len = limited_len(&blob, reference.is_some())?;
    let inputs = (blob, reference, FreshBytes::new(py, len)?);
    let (inputs, result) = work::run(py, len, inputs, move |(blob, reference, out)| {
        decode(blob, reference.as_ref(), out.bytes_mut(), &options)
    })?;
    result.map_err(to_python)?;
    Ok(inputs.2.finish())
}

/// Decompresses a frame into memory of exactly the right length.
#[pyfunction]
#[pyo3(signature = (blob, reference, out, threads, /))]
pub(crate) fn decompress_into(
    py: Python<'_>,
    blob: &Bound<'_, PyAny>,
    reference: Option<&Bound<'_, PyAny>>,
    out: &Bound<'_, PyAny>,
    threads: i64,
) -> PyResult<()> {
    let (options, blob) = (decode_options(threads)?, Buffer::read(blob)?);
    let reference = reference.map(Buffer::read).transpose()?;
    let sources: Vec<&Buffer> = [Some(&blob), reference.as_ref()].into_iter().flatten().collect();
    let mut out = Output::new(out, &sources)?;
    let len = out.bytes_mut().len();
    let (_, result) = work::run(py, len, (blob, reference, out), move |(blob, reference, out)| {
        decode(blob, reference.as_ref(), out.bytes_mut(), &options)
    })?;
    result.map_err(to_python)
}

fn decode(
    blob: &Buffer,
    reference: Option<&Buffer>,
    out: &mut [u8],
    options: &mithril::DecodeOptions,
) -> Result<(), mithril::Error> {
    match reference {
        Some(reference) => {
            mithril::decompress_delta_into(blob.bytes(), &Base::new(reference.bytes()), out, options)
        }
        None => mithril::decompress_into(blob.bytes(), out, options),
    }
}

/// Raw bytes of a frame, which memory is taken for: no more than the bytes at hand can honestly hold.
fn limited_len(blob: &Buffer, has_reference: bool) -> PyResult<usize> {
    let info = mithril::inspect(blob.bytes()).map_err(to_python)?;
    // Against a base there are as many bytes as in the base, which is compared before anything is decoded.
    let is_delta = info.base.is_some() && has_reference;
    let limit = mithril::DecodeOptions::default().output_limit(blob.bytes().len());
    if !is_delta && info.raw_len > limit {
        let message = format!(
            "frame holds {} bytes, more than {limit} that are taken for one of its size: decompress it into `out`",
            info.raw_len
        );
        return Err(UnsupportedError::new_err(message));
    }
    usize::try_from(info.raw_len).map_err(|_| PyMemoryError::new_err("more bytes than memory can hold"))
}

/// Raw bytes of a frame that needs no base.
#[pyfunction]
#[pyo3(signature = (blob, /))]
pub(crate) fn output_len(blob: &Bound<'_, PyAny>) -> PyResult<usize> {
    limited_len(&Buffer::read(blob)?, false)
}

/// Whether bytes start like a frame or a container.
#[pyfunction]
#[pyo3(signature = (blob, /))]
pub(crate) fn magic(blob: &Bound<'_, PyAny>) -> PyResult<Option<&'static str>> {
    let blob = Buffer::read(blob)?;
    Ok(match blob.bytes().first_chunk() {
        Some(&mithril::FRAME_MAGIC) => Some("frame"),
        Some(&mithril::CONTAINER_MAGIC) => Some("container"),
        _ => None,
    })
}

/// Bytes of an element; 1 where several share a byte.
#[pyfunction]
#[pyo3(signature = (name, /))]
pub(crate) fn dtype_width(name: Option<&str>) -> PyResult<u32> {
    Ok((dtype(name)?.bits() / 8).max(1))
}

/// The one name of a number type.
#[pyfunction]
#[pyo3(signature = (name, /))]
pub(crate) fn dtype_name(name: &str) -> PyResult<&'static str> {
    Ok(dtype(Some(name))?.name())
}

/// Every number type whose elements are numbers of their own: those of safetensors, and no quantised blocks.
#[pyfunction]
pub(crate) fn dtype_names() -> Vec<&'static str> {
    let are_numbers = |dtype: &&mithril::Dtype| **dtype != mithril::Dtype::Bytes && !dtype.is_quantized();
    mithril::Dtype::ALL.iter().filter(are_numbers).map(|dtype| dtype.name()).collect()
}

/// What a frame holds, without decoding it.
#[pyclass(module = "mithril", frozen, get_all)]
pub(crate) struct FrameInfo {
    /// Name of the number type, `BYTES` for none.
    dtype: &'static str,
    /// Dimensions, if it is a tensor.
    shape: Option<Py<PyTuple>>,
    /// Raw bytes.
    original_size: u64,
    /// Bytes of the frame.
    compressed_size: u64,
    /// Raw bytes of a block.
    block_size: u32,
    /// Whether blocks carry checksums.
    checksums: bool,
    /// Digest of the base that it needs, if it needs one.
    base: Option<String>,
    /// How many blocks there are of each kind.
    block_kinds: std::collections::BTreeMap<&'static str, u64>,
}

#[pymethods]
impl FrameInfo {
    /// How many times smaller it is than what it holds.
    #[getter]
    fn ratio(&self) -> f64 {
        ratio(self.original_size, self.compressed_size)
    }

    fn __repr__(&self, py: Python<'_>) -> String {
        let shape = self.shape.as_ref().map_or_else(|| "None".to_owned(), |shape| shape.bind(py).to_string());
        format!(
            "FrameInfo(dtype='{}', shape={shape}, original_size={}, compressed_size={}, ratio={:.3})",
            self.dtype,
            self.original_size,
            self.compressed_size,
            self.ratio()
        )
    }
}

/// How many times smaller; 1 for nothing at all.
#[expect(clippy::cast_precision_loss, reason = "a ratio needs few digits")]
pub(crate) fn ratio(original: u64, compressed: u64) -> f64 {
    if compressed == 0 { 1.0 } else { original as f64 / compressed as f64 }
}

/// Describes a frame.
#[pyfunction]
#[pyo3(signature = (blob, /))]
pub(crate) fn inspect(py: Python<'_>, blob: &Bound<'_, PyAny>) -> PyResult<FrameInfo> {
    let info = mithril::inspect(Buffer::read(blob)?.bytes()).map_err(to_python)?;
    let shape = info.shape.map(|shape| PyTuple::new(py, shape)).transpose()?;
    Ok(FrameInfo {
        dtype: info.dtype.name(),
        shape: shape.map(Bound::unbind),
        original_size: info.raw_len,
        compressed_size: info.frame_len,
        block_size: info.block_len,
        checksums: info.checksums,
        base: info.base.map(|digest| digest.to_string()),
        block_kinds: info.block_kinds.into_iter().collect(),
    })
}
