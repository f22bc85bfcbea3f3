//! What can go wrong between here and a device.

use mithril_codec::CodecError;
use mithril_format::FormatError;

/// Why a GPU did not decode.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GpuError {
    /// There is no device that could run the kernels.
    #[error("no GPU adapter: {reason}")]
    NoAdapter {
        /// What the drivers say.
        reason: String,
    },
    /// The adapter's limits are too small.
    #[error("adapter `{adapter}` has {what} of {has}, kernels need {needs}")]
    Limit {
        /// Its name.
        adapter: String,
        /// The limit.
        what: &'static str,
        /// What it is.
        has: u64,
        /// What it must be.
        needs: u64,
    },
    /// The device refused work or was lost.
    #[error("GPU device: {reason}")]
    Device {
        /// What the driver says.
        reason: String,
    },
    /// The frame is damaged: what the CPU says too.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// The DFloat11 run is damaged.
    #[error(transparent)]
    Codec(#[from] CodecError),
}
