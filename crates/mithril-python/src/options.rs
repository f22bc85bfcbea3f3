//! Arguments that many functions have in common.

use mithril::pack::PackOptions;
use mithril::{DecodeOptions, Dtype, Effort, FrameOptions};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

/// The number type of this name; plain bytes for none.
pub(crate) fn dtype(name: Option<&str>) -> PyResult<Dtype> {
    let Some(name) = name else { return Ok(Dtype::Bytes) };
    Dtype::from_name(name).ok_or_else(|| {
        let known: Vec<String> = Dtype::ALL.iter().map(|dtype| dtype.name().to_lowercase()).collect();
        PyValueError::new_err(format!("unknown dtype `{name}`; known are {}", known.join(", ")))
    })
}

/// The effort of this name; the fastest for none.
pub(crate) fn effort(name: Option<&str>) -> PyResult<Effort> {
    let Some(name) = name else { return Ok(Effort::Fast) };
    let wrong = || PyValueError::new_err(format!("effort is `fast`, `balanced` or `max`, not `{name}`"));
    Effort::from_name(name).ok_or_else(wrong)
}

/// A level of zstd.
pub(crate) fn level(level: Option<i32>) -> PyResult<Option<i32>> {
    match level {
        Some(level) if !(1..=22).contains(&level) => {
            Err(PyValueError::new_err(format!("level is 1 to 22, not {level}")))
        }
        level => Ok(level),
    }
}

/// A number of threads; 0 is one per core.
pub(crate) fn threads(threads: i64) -> PyResult<usize> {
    usize::try_from(threads)
        .ok()
        .filter(|&threads| threads <= 1 << 16)
        .ok_or_else(|| PyValueError::new_err(format!("threads is 0 to 65536, not {threads}")))
}

/// How a buffer is compressed, as Python says it: level, threads, effort, and bytes of a block at most.
#[derive(FromPyObject)]
pub(crate) struct Coding(Option<i32>, i64, Option<String>, Option<u64>);

impl Coding {
    /// Options for a tensor of this type and shape.
    pub(crate) fn frame_options(
        &self,
        dtype: Option<&str>,
        shape: Option<Vec<u64>>,
    ) -> PyResult<FrameOptions> {
        let Self(level, threads, effort, max_block_len) = self;
        let mut options = FrameOptions::default()
            .with_dtype(self::dtype(dtype)?)
            .with_effort(self::effort(effort.as_deref())?)
            .with_threads(self::threads(*threads)?);
        options.coding.level = self::level(*level)?;
        options.shape = shape;
        options.max_block_len = *max_block_len;
        Ok(options)
    }
}

impl Coding {
    /// Options for a whole file.
    pub(crate) fn pack_options(&self) -> PyResult<PackOptions> {
        let Self(level, threads, effort, _) = self;
        let mut options = PackOptions::default()
            .with_effort(self::effort(effort.as_deref())?)
            .with_threads(self::threads(*threads)?);
        options.coding.level = self::level(*level)?;
        Ok(options)
    }
}

/// How a frame is decompressed.
pub(crate) fn decode_options(threads: i64) -> PyResult<DecodeOptions> {
    Ok(DecodeOptions::default().with_threads(self::threads(threads)?))
}
