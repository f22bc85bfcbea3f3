//! Frames decoded on a GPU, where the package was built with the kernels.

use crate::buffer::Buffer;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

/// Decompresses a frame that needs no base on the GPU.
#[pyfunction]
#[pyo3(signature = (blob, /))]
pub(crate) fn decompress_on_gpu(py: Python<'_>, blob: &Bound<'_, PyAny>) -> PyResult<Py<PyBytes>> {
    decode(py, Buffer::read(blob)?)
}

#[cfg(feature = "gpu")]
fn decode(py: Python<'_>, blob: Buffer) -> PyResult<Py<PyBytes>> {
    use crate::error::{MithrilError, UnsupportedError, to_python};
    use mithril_gpu::{Gpu, GpuError};
    use std::sync::OnceLock;

    // One device for the process: opening it compiles the kernels.
    static DEVICE: OnceLock<Gpu> = OnceLock::new();
    let to_exception = |error: GpuError| match error {
        GpuError::Format(error) => to_python(error.into()),
        error @ (GpuError::NoAdapter { .. } | GpuError::Limit { .. }) => {
            UnsupportedError::new_err(error.to_string())
        }
        error => MithrilError::new_err(error.to_string()),
    };
    let (_, decoded) = crate::work::run(py, blob.bytes().len(), blob, |blob| {
        let device = match DEVICE.get() {
            Some(device) => device,
            None => {
                let device = Gpu::new()?;
                DEVICE.get_or_init(|| device)
            }
        };
        device.decode_frame(blob.bytes())
    })?;
    Ok(PyBytes::new(py, &decoded.map_err(to_exception)?.bytes).unbind())
}

#[cfg(not(feature = "gpu"))]
fn decode(_: Python<'_>, _: Buffer) -> PyResult<Py<PyBytes>> {
    Err(crate::error::UnsupportedError::new_err(
        "this build of mithril has no GPU kernels: build it with the feature `gpu`, as in `maturin build --features gpu`",
    ))
}
