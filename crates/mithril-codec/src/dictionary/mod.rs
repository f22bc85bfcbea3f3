//! zstd dictionaries: which content they should hold, their header, and small records compressed with them.
//!
//! A dictionary is content that records resemble, behind a header with entropy tables. Training goes through these
//! steps, each a function of its input, so that a caller can share out the parts of a step among threads:
//!
//! 1. [`Frequencies`]: how many samples hold each run of `d` bytes.
//! 2. [`best_segment`] of every epoch, and `select`: a [`Pool`] of a few times the wanted size.
//! 3. [`PoolIndex::measure`] and [`shrink`], some times: what saves most when samples are parsed stays.
//! 4. [`measure_with_zstd`], [`most_used_last`] and [`shrink`], some times: the same with the parser of the level that
//!    will be used.
//! 5. [`finish`]: header and entropy tables. [`with_repeat_offsets`]: free offsets for the start of records.
//!
//! [`Prepared`] compresses records with a dictionary to standard zstd frames.

mod cover;
mod finish;
mod frequencies;
mod header;
mod pool;
mod prune;
mod records;
mod samples;
#[cfg(test)]
mod tests;
mod usage;

pub use cover::{CoverScratch, Segment, best_segment, epochs, take_segment};
pub use finish::{finish, id_of, with_repeat_offsets};
pub use frequencies::{Frequencies, MAX_D, MIN_D};
pub use header::{Header, MAGIC, MIN_ID};
pub use pool::{NO_SAMPLE, Piece, Pool};
pub use prune::{most_used_last, shrink};
pub use records::{
    Prepared, RecordCompressor, RecordDecompressor, are_frames, dictionary_id_of_frame, frame_len, record_len,
};
pub use samples::Samples;
pub use usage::{MatchModel, PARTS_PER_BIT, PoolIndex, Usage, measure_with_zstd};
