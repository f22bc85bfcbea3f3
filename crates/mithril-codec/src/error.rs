//! Why coded bytes could not be decoded.

/// What is wrong with coded bytes. The format layer adds where (block and offset).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CodecError {
    /// The bytes end before the data does.
    #[error("coded data ends early: {what}")]
    Truncated {
        /// The part that is cut off.
        what: &'static str,
    },
    /// The bytes contradict themselves.
    #[error("coded data is damaged: {what}")]
    Corrupt {
        /// The rule that is broken.
        what: &'static str,
    },
    /// The bytes ask for something this build does not know.
    #[error("{what} {id} is not known to this version")]
    Unsupported {
        /// What kind of thing is unknown, for instance "coder".
        what: &'static str,
        /// Its number in the file.
        id: u32,
    },
}

impl CodecError {
    pub(crate) fn corrupt(what: &'static str) -> Self {
        Self::Corrupt { what }
    }

    pub(crate) fn truncated(what: &'static str) -> Self {
        Self::Truncated { what }
    }
}
