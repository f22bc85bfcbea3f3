//! Tensors of any framework through DLPack, the protocol by which they lend each other memory.

use mithril::Dtype;
use pyo3::exceptions::{PyBufferError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyTuple};
use std::ffi::{CStr, c_void};
use std::sync::Arc;

/// Name of a capsule that holds a tensor, and of one whose tensor was taken.
const FULL: &CStr = c"dltensor";
const TAKEN: &CStr = c"used_dltensor";

/// `kDLCPU`.
const CPU: i32 = 1;

#[repr(C)]
struct DlTensor {
    data: *mut c_void,
    device_type: i32,
    device_id: i32,
    ndim: i32,
    code: u8,
    bits: u8,
    lanes: u16,
    shape: *const i64,
    strides: *const i64,
    byte_offset: u64,
}

#[repr(C)]
struct DlManagedTensor {
    tensor: DlTensor,
    manager_ctx: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut DlManagedTensor)>,
}

/// A tensor that its framework lends until this is dropped.
pub(super) struct Managed {
    raw: *mut DlManagedTensor,
    start: *const u8,
    len: usize,
}

// SAFETY: the memory stays where it is until the deleter runs; shared references only read it.
unsafe impl Send for Managed {}
// SAFETY: as for `Send`.
unsafe impl Sync for Managed {}

impl Managed {
    pub(super) fn bytes(&self) -> &[u8] {
        if self.len == 0 {
            return &[];
        }
        // SAFETY: `borrow` computed place and length from what the framework said of its tensor, which it keeps alive
        // until the deleter runs.
        unsafe { std::slice::from_raw_parts(self.start, self.len) }
    }
}

impl Drop for Managed {
    fn drop(&mut self) {
        // An interpreter that is ending takes its memory with it.
        Python::try_attach(|_| {
            // SAFETY: `raw` is the tensor that the capsule held; it is ours and given back once.
            let deleter = unsafe { (*self.raw).deleter };
            if let Some(deleter) = deleter {
                // SAFETY: as above; deleters may use Python, which is attached.
                unsafe { deleter(self.raw) }
            }
        });
    }
}

/// A contiguous tensor on the CPU that its framework lends: what it is, and its bytes.
#[pyclass(module = "mithril._mithril", frozen)]
pub(crate) struct BorrowedTensor {
    managed: Arc<Managed>,
    /// Name of its number type.
    #[pyo3(get)]
    dtype: &'static str,
    shape: Vec<u64>,
}

#[pymethods]
impl BorrowedTensor {
    /// Borrows what `tensor.__dlpack__()` lends.
    #[new]
    fn new(tensor: &Bound<'_, PyAny>) -> PyResult<Self> {
        let device: (i32, i32) = tensor.call_method0("__dlpack_device__")?.extract()?;
        if device.0 != CPU {
            return Err(PyValueError::new_err(
                "the tensor is not in the memory of the CPU: move it there first",
            ));
        }
        let capsule = tensor.call_method0("__dlpack__")?;
        borrow(capsule.cast::<PyCapsule>()?)
    }

    /// Its dimensions.
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, &self.shape)
    }
}

impl BorrowedTensor {
    pub(super) fn managed(&self) -> PyResult<Arc<Managed>> {
        Ok(self.managed.clone())
    }
}

fn borrow(capsule: &Bound<'_, PyCapsule>) -> PyResult<BorrowedTensor> {
    let raw = capsule.pointer_checked(Some(FULL))?.as_ptr().cast::<DlManagedTensor>();
    // SAFETY: a capsule of this name holds a managed tensor; renaming it says that it was taken.
    let renamed = unsafe { pyo3::ffi::PyCapsule_SetName(capsule.as_ptr(), TAKEN.as_ptr()) };
    if renamed != 0 {
        return Err(PyErr::fetch(capsule.py()));
    }
    // From here on the tensor is ours, and goes back whatever happens.
    let mut managed = Managed { raw, start: std::ptr::null(), len: 0 };
    // SAFETY: the framework keeps the description valid until its deleter runs.
    let tensor = unsafe { &(*raw).tensor };
    if tensor.device_type != CPU {
        return Err(PyValueError::new_err("the tensor is not in the memory of the CPU: move it there first"));
    }
    let dtype = dtype_of(tensor)
        .ok_or_else(|| PyBufferError::new_err("DLPack lends a number type that mithril does not know"))?;
    let rank = usize::try_from(tensor.ndim).unwrap_or(0);
    let shape = integers(tensor.shape, rank);
    let strides = if tensor.strides.is_null() { None } else { Some(integers(tensor.strides, rank)) };
    if strides.is_some_and(|strides| !is_contiguous(&shape, &strides)) {
        return Err(PyBufferError::new_err("the tensor is not contiguous: make a contiguous copy first"));
    }
    let too_large = || PyBufferError::new_err("DLPack lends a tensor of an impossible shape");
    let shape: Vec<u64> = shape
        .iter()
        .map(|&dimension| u64::try_from(dimension))
        .collect::<Result<_, _>>()
        .map_err(|_| too_large())?;
    let n_elements = shape.iter().try_fold(1u64, |n, &dimension| n.checked_mul(dimension));
    let len = n_elements.and_then(|n| dtype.len_of(n)).and_then(|len| usize::try_from(len).ok());
    managed.len = len.ok_or_else(too_large)?;
    let offset = usize::try_from(tensor.byte_offset).map_err(|_| too_large())?;
    managed.start = tensor.data.cast::<u8>().wrapping_add(offset);
    Ok(BorrowedTensor { managed: Arc::new(managed), dtype: dtype.name(), shape })
}

fn integers(start: *const i64, n: usize) -> Vec<i64> {
    if n == 0 || start.is_null() {
        return Vec::new();
    }
    // SAFETY: shapes and strides have as many numbers as the tensor has dimensions.
    unsafe { std::slice::from_raw_parts(start, n) }.to_vec()
}

/// Whether the last dimension varies fastest and nothing lies between elements.
fn is_contiguous(shape: &[i64], strides: &[i64]) -> bool {
    if shape.contains(&0) {
        return true;
    }
    let mut expected = 1i64;
    for (&dimension, &stride) in shape.iter().zip(strides).rev() {
        if dimension != 1 && stride != expected {
            return false;
        }
        expected = expected.saturating_mul(dimension);
    }
    true
}

fn dtype_of(tensor: &DlTensor) -> Option<Dtype> {
    if tensor.lanes != 1 {
        return None;
    }
    Some(match (tensor.code, tensor.bits) {
        (0, 8) => Dtype::I8,
        (0, 16) => Dtype::I16,
        (0, 32) => Dtype::I32,
        (0, 64) => Dtype::I64,
        (1, 8) => Dtype::U8,
        (1, 16) => Dtype::U16,
        (1, 32) => Dtype::U32,
        (1, 64) => Dtype::U64,
        (2, 16) => Dtype::F16,
        (2, 32) => Dtype::F32,
        (2, 64) => Dtype::F64,
        (4, 16) => Dtype::Bf16,
        (5, 64) => Dtype::C64,
        (6, 8) => Dtype::Bool,
        (10, 8) => Dtype::F8E4m3,
        (11, 8) => Dtype::F8E4m3Fnuz,
        (12, 8) => Dtype::F8E5m2,
        (13, 8) => Dtype::F8E5m2Fnuz,
        (14, 8) => Dtype::F8E8m0,
        _ => return None,
    })
}
