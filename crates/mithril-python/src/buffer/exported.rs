//! The buffer protocol of Python.
//!
//! It belongs to the stable interface since Python 3.11 only, so pyo3 does not offer it to an extension for 3.10; the
//! functions and the structure are the same there, and are declared here.

use pyo3::ffi::{Py_ssize_t, PyObject};
use pyo3::prelude::*;
use std::ffi::{c_char, c_int, c_void};
use std::ptr;

/// What Python calls `Py_buffer`.
#[repr(C)]
struct RawBuffer {
    buf: *mut c_void,
    obj: *mut PyObject,
    len: Py_ssize_t,
    itemsize: Py_ssize_t,
    readonly: c_int,
    ndim: c_int,
    format: *mut c_char,
    shape: *mut Py_ssize_t,
    strides: *mut Py_ssize_t,
    suboffsets: *mut Py_ssize_t,
    internal: *mut c_void,
}

// SAFETY: these are the declarations of CPython's header for 3.10 and all later versions.
unsafe extern "C" {
    fn PyObject_GetBuffer(object: *mut PyObject, view: *mut RawBuffer, flags: c_int) -> c_int;
    fn PyBuffer_Release(view: *mut RawBuffer);
}

/// What is done with the memory.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Access {
    /// `PyBUF_SIMPLE`: contiguous bytes.
    Read = 0,
    /// `PyBUF_WRITABLE`.
    Write = 1,
}

/// Memory that an object exports, until it is dropped.
pub(super) struct Exported {
    /// In a box, because exporters may keep pointers into it.
    view: Box<RawBuffer>,
}

// SAFETY: the memory stays where it is until the view is released, which happens with the interpreter attached; between,
// the view is only read.
unsafe impl Send for Exported {}
// SAFETY: as for `Send`: shared references only read the view's fields and the exported bytes.
unsafe impl Sync for Exported {}

impl Exported {
    /// Asks an object for its memory: contiguous bytes, else Python's own error.
    pub(super) fn new(object: &Bound<'_, PyAny>, access: Access) -> PyResult<Self> {
        let mut view = Box::new(RawBuffer {
            buf: ptr::null_mut(),
            obj: ptr::null_mut(),
            len: 0,
            itemsize: 0,
            readonly: 0,
            ndim: 0,
            format: ptr::null_mut(),
            shape: ptr::null_mut(),
            strides: ptr::null_mut(),
            suboffsets: ptr::null_mut(),
            internal: ptr::null_mut(),
        });
        // SAFETY: `object` is alive and the interpreter attached, as `Bound` proves; `view` is a structure to be filled.
        let status = unsafe { PyObject_GetBuffer(object.as_ptr(), &raw mut *view, access as c_int) };
        if status != 0 {
            return Err(PyErr::fetch(object.py()));
        }
        Ok(Self { view })
    }

    pub(super) fn bytes(&self) -> &[u8] {
        let len = self.len();
        if len == 0 {
            return &[];
        }
        // SAFETY: the exporter promises `len` readable bytes at `buf` until the view is released, and `self` holds it.
        unsafe { std::slice::from_raw_parts(self.view.buf.cast(), len) }
    }

    /// Only for views made with [`Access::Write`].
    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        let len = self.len();
        if len == 0 || self.view.readonly != 0 {
            return &mut [];
        }
        // SAFETY: as in `bytes`; the exporter did not say that the memory is read-only, and `Output` saw to it that
        // nothing else of this call refers to it.
        unsafe { std::slice::from_raw_parts_mut(self.view.buf.cast(), len) }
    }

    fn len(&self) -> usize {
        usize::try_from(self.view.len).unwrap_or(0)
    }
}

impl Drop for Exported {
    fn drop(&mut self) {
        let view = &raw mut *self.view;
        // An interpreter that is ending takes its memory with it.
        Python::try_attach(|_| {
            // SAFETY: the view was filled by `PyObject_GetBuffer` and is released once, with the interpreter attached.
            unsafe { PyBuffer_Release(view) }
        });
    }
}
