//! zstd dictionaries for small records: training, and records compressed with them.
//!
//! A record of a few hundred bytes has too little in it to be compressed alone. A dictionary holds what records of its
//! kind have in common. The dictionaries and the frames made with them are standard: every zstd reads them.
//!
//! * [`train`] makes a dictionary of [`SampleSet`] samples, [`update`] keeps one up to date, [`choose_size`] tells how
//!   large it should be, [`explain`] what its parts are good for.
//! * [`Dictionary`] compresses and decompresses records; [`pack`] puts many into one file, [`PackedRecords`] reads them.
//! * [`GroupedDictionary`] has a base and small additions for kinds of records; each record takes what suits it.

mod content;
mod error;
mod explain;
mod grouped;
mod packed;
mod progress;
mod records;
mod sample_set;
mod search;
mod size;
mod train;
mod update;
mod workers;

pub use content::Parameters;
pub use error::DictionaryError;
pub use explain::{Explanation, SegmentUse, explain};
pub use grouped::{GroupedDictionary, GroupedOptions, Member, TrainedGroups, find_groups, train_grouped};
pub use mithril_codec::dictionary::{Header, Piece, Samples, are_frames, dictionary_id_of_frame, frame_len};
pub use packed::{PackedRecords, pack};
pub use progress::Progress;
pub use records::{Dictionary, Evaluation, MAX_RECORD_LEN, RecordCodec};
pub use sample_set::SampleSet;
pub use search::Candidate;
pub use size::{SizePoint, choose_size};
pub use train::{MAX_SIZE, MIN_SIZE, SearchReport, TrainOptions, Trained, train, train_watched};
pub use update::update;
