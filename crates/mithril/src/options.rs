//! Options of compressing and of decompressing.

use mithril_codec::Dtype;

/// How much work may go into size. Decoding stays fast at every effort.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Effort {
    /// One pass at memory speed.
    #[default]
    Fast,
    /// Classes of rows, columns and signs, and rows with dead bits apart.
    Balanced,
    /// Searches for the smallest of everything the format can express.
    Max,
}

impl Effort {
    /// All efforts, from the fastest to the one of the smallest output.
    pub const ALL: [Self; 3] = [Self::Fast, Self::Balanced, Self::Max];

    /// The effort of this name: `fast`, `balanced` or `max`.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|effort| effort.name() == name)
    }

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Fast => "fast",
            Self::Balanced => "balanced",
            Self::Max => "max",
        }
    }
}

/// How much work goes into size, and how many threads do it: the same for frames, files and stores.
///
/// ```
/// use mithril::{Coding, Effort};
/// let coding = Coding::default().with_effort(Effort::Max).with_level(12);
/// # let _ = mithril::FrameOptions::default().with_coding(coding);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Coding {
    /// How much work may go into size.
    pub effort: Effort,
    /// Level of zstd and quality of brotli, where data with repeats is handed to them. By default the effort decides.
    pub level: Option<i32>,
    /// Whether numbers are split into their fields, or at least into their bytes. Without, they go to a general compressor
    /// as they are: larger and slower, for comparisons.
    pub byte_grouping: bool,
    /// Threads; 0 is one per core. The bytes do not depend on it.
    pub threads: usize,
}

impl Default for Coding {
    fn default() -> Self {
        Self { effort: Effort::default(), level: None, byte_grouping: true, threads: 0 }
    }
}

/// Setters for what [`Coding`] holds: of a type that has one in this field, or of `Coding` itself.
macro_rules! coding_setters {
    ($($coding:ident)?) => {
        /// Sets how much work may go into size.
        #[must_use]
        pub fn with_effort(mut self, effort: $crate::Effort) -> Self {
            self.$($coding.)?effort = effort;
            self
        }

        /// Sets the level of zstd and brotli.
        #[must_use]
        pub fn with_level(mut self, level: i32) -> Self {
            self.$($coding.)?level = Some(level);
            self
        }

        /// Sets whether numbers are split into their fields.
        #[must_use]
        pub fn with_byte_grouping(mut self, enabled: bool) -> Self {
            self.$($coding.)?byte_grouping = enabled;
            self
        }

        /// Sets the number of threads; 0 is one per core.
        #[must_use]
        pub fn with_threads(mut self, threads: usize) -> Self {
            self.$($coding.)?threads = threads;
            self
        }

        $(
            /// Sets effort, level, grouping and threads.
            #[must_use]
            pub fn with_coding(mut self, coding: $crate::Coding) -> Self {
                self.$coding = coding;
                self
            }
        )?
    };
}
pub(crate) use coding_setters;

impl Coding {
    coding_setters!();
}

/// How a buffer or tensor is compressed.
///
/// ```
/// use mithril::{Dtype, Effort, FrameOptions};
/// let options = FrameOptions::default().with_dtype(Dtype::Bf16).with_effort(Effort::Max);
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct FrameOptions {
    /// Type of the elements; plain bytes by default.
    pub dtype: Dtype,
    /// Dimensions; they are stored, and the last ones let rows and columns be told apart.
    pub shape: Option<Vec<u64>>,
    /// How much work goes into size, and how many threads do it.
    pub coding: Coding,
    /// Whether every block carries a checksum, which readers verify.
    pub checksum: bool,
    /// Raw bytes of a block at most, where blocks share nothing; at least 32 KiB. By default the plan decides. Smaller
    /// blocks mean less to decode for a range, and a larger frame.
    pub max_block_len: Option<u64>,
    /// Whether others may change the bytes while they are compressed, as memory that Python lends: every block is then
    /// copied before it is looked at. The frame holds each block as it was at some moment.
    pub changing: bool,
    /// Whether this is text about tensors, such as the header of a model file.
    pub(crate) is_metadata: bool,
}

impl Default for FrameOptions {
    fn default() -> Self {
        Self {
            dtype: Dtype::Bytes,
            shape: None,
            coding: Coding::default(),
            checksum: true,
            max_block_len: None,
            changing: false,
            is_metadata: false,
        }
    }
}

impl FrameOptions {
    /// Sets the type of the elements.
    #[must_use]
    pub fn with_dtype(mut self, dtype: Dtype) -> Self {
        self.dtype = dtype;
        self
    }

    /// Sets the dimensions.
    #[must_use]
    pub fn with_shape(mut self, shape: impl Into<Vec<u64>>) -> Self {
        self.shape = Some(shape.into());
        self
    }

    coding_setters!(coding);

    /// Sets how many raw bytes a block has at most, where blocks share nothing.
    #[must_use]
    pub fn with_max_block_len(mut self, len: u64) -> Self {
        self.max_block_len = Some(len);
        self
    }

    /// Sets whether others may change the bytes while they are compressed.
    #[must_use]
    pub fn with_changing(mut self, changing: bool) -> Self {
        self.changing = changing;
        self
    }

    /// Sets whether blocks carry checksums.
    #[must_use]
    pub fn with_checksum(mut self, checksum: bool) -> Self {
        self.checksum = checksum;
        self
    }
}

/// How a frame is decompressed. Nothing here changes the result.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct DecodeOptions {
    /// Threads; 0 is one per core.
    pub threads: usize,
    /// Raw bytes that [`decompress`](crate::decompress) may allocate. By default 64 MiB and 16384 times the size of
    /// the frame, which no frame exceeds that this library writes.
    pub max_output_len: Option<u64>,
}

impl DecodeOptions {
    /// Sets the number of threads; 0 is one per core.
    #[must_use]
    pub fn with_threads(mut self, threads: usize) -> Self {
        self.threads = threads;
        self
    }

    /// Sets how many bytes may be allocated.
    #[must_use]
    pub fn with_max_output_len(mut self, len: u64) -> Self {
        self.max_output_len = Some(len);
        self
    }

    /// Raw bytes that are allocated at most for a frame of this length.
    pub fn output_limit(&self, frame_len: usize) -> u64 {
        self.max_output_len.unwrap_or(honest_output_len(frame_len as u64))
    }
}

/// Raw bytes that no frame of this length exceeds that is written here.
pub(crate) fn honest_output_len(frame_len: u64) -> u64 {
    frame_len.saturating_mul(u64::from(HONEST_RATIO)).saturating_add(64 << 20)
}

/// Raw bytes for each byte of a frame.
const HONEST_RATIO: u32 = 16384;

/// Blocks up to this length keep that rule, however well they are coded: a header without checksum, a kind and a place in
/// the trailer are 13 bytes.
pub(crate) const HONEST_BLOCK_LEN: usize = 13 * HONEST_RATIO as usize;

/// Bytes that are worth a thread of their own when the caller leaves the number open: starting one costs about as much
/// as coding some hundred KiB.
const BYTES_PER_THREAD: usize = 1 << 20;

/// Threads for so many pieces of work, which hold so many bytes.
pub(crate) fn thread_count(requested: usize, n_pieces: usize, len: usize) -> usize {
    let available = || std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let wanted = if requested == 0 { available().min(len / BYTES_PER_THREAD) } else { requested };
    wanted.min(n_pieces).max(1)
}
