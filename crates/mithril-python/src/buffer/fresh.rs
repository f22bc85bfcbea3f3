//! New `bytes` objects that are filled in place.

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

// SAFETY: the declaration of CPython's header. The function is not part of the stable interface, but every CPython from
// 3.10 on exports it; without it a frame, whose length is known only when it is done, would be copied once more.
unsafe extern "C" {
    fn _PyBytes_Resize(object: *mut *mut ffi::PyObject, size: ffi::Py_ssize_t) -> std::ffi::c_int;
}

/// A `bytes` object that nobody else has seen yet.
pub(crate) struct FreshBytes {
    object: Py<PyBytes>,
    start: *mut u8,
    len: usize,
}

// SAFETY: the object is not shared before `finish` takes it apart; its memory does not move.
unsafe impl Send for FreshBytes {}

impl FreshBytes {
    /// Asks Python for the memory, which is not touched: fresh pages cost as much as decoding into them.
    pub(crate) fn new(py: Python<'_>, len: usize) -> PyResult<Self> {
        let size = ffi::Py_ssize_t::try_from(len)
            .map_err(|_| pyo3::exceptions::PyMemoryError::new_err("more bytes than memory can hold"))?;
        // SAFETY: without a source, Python returns an object of `size` bytes that the caller fills, or null and an error.
        let pointer = unsafe { ffi::PyBytes_FromStringAndSize(std::ptr::null(), size) };
        // SAFETY: a new reference, or null with the error set.
        let object = unsafe { Bound::from_owned_ptr_or_err(py, pointer) }?;
        let object = object.cast_into::<PyBytes>()?;
        // SAFETY: `object` is a bytes object.
        let start = unsafe { ffi::PyBytes_AsString(object.as_ptr()) }.cast();
        Ok(Self { object: object.unbind(), start, len })
    }

    /// The bytes. Their values are arbitrary before they are written.
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: the object has `len` bytes there and lives as long as `self`; nobody else has a reference to it. What
        // the memory holds was decided by the C allocator, so any value may be read.
        unsafe { std::slice::from_raw_parts_mut(self.start, self.len) }
    }

    /// The object cut off behind its first bytes, which were written. Memory behind them goes back to the system.
    pub(crate) fn finish_short(self, py: Python<'_>, len: usize) -> PyResult<Py<PyBytes>> {
        let size = ffi::Py_ssize_t::try_from(len.min(self.len)).unwrap_or(0);
        let mut object = self.object.into_ptr();
        // SAFETY: the only reference to a bytes object; it is replaced by the shortened one, or by null with an error set.
        let status = unsafe { _PyBytes_Resize(&raw mut object, size) };
        if status != 0 {
            return Err(PyErr::fetch(py));
        }
        // SAFETY: a bytes object that we own.
        Ok(unsafe { Bound::from_owned_ptr(py, object) }.cast_into::<PyBytes>()?.unbind())
    }

    /// The object, every byte of which was written.
    pub(crate) fn finish(self) -> Py<PyBytes> {
        self.object
    }
}
