//! From samples to a dictionary.

use super::DictionaryError;
use super::content::{Parameters, select_content};
use super::progress::{Progress, Watched};
use super::search::{Candidate, Found, SEARCH_STEPS, Start, content_len, finish_on_part, search, with_start};
use mithril_codec::dictionary::{MAX_D, MIN_D, Piece, Samples};
use std::collections::HashSet;

/// How a dictionary is trained.
///
/// ```
/// use mithril::dictionary::TrainOptions;
/// let options = TrainOptions::default().with_size(64 << 10).with_level(19);
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct TrainOptions {
    /// Bytes of the dictionary at most.
    pub size: usize,
    /// The level that records will be compressed at.
    pub level: i32,
    /// Longest segment that is taken from a sample. Searched when it is not given.
    pub k: Option<usize>,
    /// Length of the runs that are counted, 4 to 64. Searched when it is not given.
    pub d: Option<usize>,
    /// Whether what is not given is searched on held-out samples, or is what serves most data.
    pub search: bool,
    /// The dictionary's id; made from its content when it is not given.
    pub id: Option<u32>,
    /// Whether the dictionary is bare content, without header, id and entropy tables.
    pub raw_content: bool,
    /// Threads; 0 is one per core. The dictionary does not depend on it.
    pub threads: usize,
}

impl Default for TrainOptions {
    fn default() -> Self {
        Self {
            size: 112_640,
            level: 3,
            k: None,
            d: None,
            search: true,
            id: None,
            raw_content: false,
            threads: 0,
        }
    }
}

impl TrainOptions {
    /// Sets the largest size of the dictionary, in bytes.
    #[must_use]
    pub fn with_size(mut self, size: usize) -> Self {
        self.size = size;
        self
    }

    /// Sets the level that records will be compressed at.
    #[must_use]
    pub fn with_level(mut self, level: i32) -> Self {
        self.level = level;
        self
    }

    /// Sets the longest segment.
    #[must_use]
    pub fn with_k(mut self, k: usize) -> Self {
        self.k = Some(k);
        self
    }

    /// Sets the length of the runs that are counted.
    #[must_use]
    pub fn with_d(mut self, d: usize) -> Self {
        self.d = Some(d);
        self
    }

    /// Sets whether parameters that are not given are searched.
    #[must_use]
    pub fn with_search(mut self, search: bool) -> Self {
        self.search = search;
        self
    }

    /// Sets the id.
    #[must_use]
    pub fn with_id(mut self, id: u32) -> Self {
        self.id = Some(id);
        self
    }

    /// Sets whether the dictionary is bare content.
    #[must_use]
    pub fn with_raw_content(mut self, raw_content: bool) -> Self {
        self.raw_content = raw_content;
        self
    }

    /// Sets the number of threads; 0 is one per core.
    #[must_use]
    pub fn with_threads(mut self, threads: usize) -> Self {
        self.threads = threads;
        self
    }

    /// Refuses what no dictionary can have.
    pub(super) fn check(&self) -> Result<(), DictionaryError> {
        if !(MIN_SIZE..=MAX_SIZE).contains(&self.size) {
            return Err(DictionaryError::invalid(format!(
                "size of a dictionary must be {MIN_SIZE} to {MAX_SIZE} bytes, not {}",
                self.size
            )));
        }
        if !(1..=22).contains(&self.level) {
            return Err(DictionaryError::invalid(format!("level must be 1 to 22, not {}", self.level)));
        }
        if let Some(d) = self.d.filter(|d| !(MIN_D..=MAX_D).contains(d)) {
            return Err(DictionaryError::invalid(format!("d must be {MIN_D} to {MAX_D}, not {d}")));
        }
        if let Some(k) = self.k.filter(|&k| k < self.d.unwrap_or(MIN_D).max(MIN_D) || k > MAX_SIZE) {
            return Err(DictionaryError::invalid(format!(
                "k must be at least d and at most {MAX_SIZE}, not {k}"
            )));
        }
        if self.id == Some(0) {
            return Err(DictionaryError::invalid("id 0 means no id"));
        }
        Ok(())
    }
}

/// Smallest dictionary: header and entropy tables take about half of it.
pub const MIN_SIZE: usize = 256;
/// Largest dictionary.
pub const MAX_SIZE: usize = 32 << 20;
/// Fewest samples that can be told apart.
const MIN_SAMPLES: usize = 8;
/// Fewest bytes of samples.
const MIN_TOTAL_LEN: usize = 256;

/// A dictionary, and how it came to be.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Trained {
    /// The dictionary.
    pub dictionary: Vec<u8>,
    /// How its content was chosen.
    pub parameters: Parameters,
    /// What was tried on held-out samples, if there was a search.
    pub search: Option<SearchReport>,
    /// Where the pieces of its content come from, from its start on; places count from the start of the content.
    pub pieces: Vec<Piece>,
}

/// What a search tried and found, on samples that its dictionaries had not seen.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct SearchReport {
    /// Every dictionary that was tried.
    pub candidates: Vec<Candidate>,
    /// Bytes of the held-out samples.
    pub raw_len: u64,
    /// What they take without a dictionary.
    pub plain_len: u64,
    /// What they take with the best one.
    pub coded_len: u64,
}

/// Trains a dictionary.
///
/// Segments that cover what the samples have in common are gathered; what saves most when zstd compresses samples with
/// them stays, with the most used last. What `k` and `d` are, and some smaller choices, is decided on samples that are
/// held out. The result depends on the samples, their order and the options, and not on the number of threads.
///
/// ```
/// use mithril::dictionary::{SampleSet, TrainOptions, train};
/// # let record = |i: u32| format!("{{\"user\": {i}, \"name\": \"name {}\", \"active\": true}}", i * 7919 % 1000);
/// let samples: SampleSet = (0..1000).map(record).collect();
/// let trained = train(&samples.samples(), &TrainOptions::default().with_size(4096))?;
/// assert!(trained.dictionary.len() <= 4096);
/// # Ok::<(), mithril::dictionary::DictionaryError>(())
/// ```
///
/// # Errors
/// When the samples are too few, too small, too alike or too random to learn from, or an option is out of its range.
pub fn train(samples: &Samples<'_>, options: &TrainOptions) -> Result<Trained, DictionaryError> {
    train_watched(samples, options, &|_| ())
}

/// As [`train`], and says how far it has come, from any of its threads.
///
/// # Errors
/// As [`train`].
pub fn train_watched(
    samples: &Samples<'_>,
    options: &TrainOptions,
    watch: &(dyn Fn(Progress) + Sync),
) -> Result<Trained, DictionaryError> {
    options.check()?;
    check_samples(samples)?;
    let watched = Watched::new(watch, if options.search { SEARCH_STEPS + 1 } else { 2 });
    let usual = Parameters::of_level(options.level);
    let k = options.k.unwrap_or(usual.k);
    let given = Parameters { k, d: options.d.unwrap_or(usual.d), ..usual };
    let found = match options.search {
        true => {
            let given = (options.k, options.d);
            Some(search(samples, options.size, options.level, given, options.threads, &watched)?)
        }
        false => None,
    };
    if let Some(Found { plain_len, coded_len, .. }) = found
        && coded_len >= plain_len
    {
        return Err(DictionaryError::TooRandom { plain_len, coded_len });
    }
    let parameters = found.as_ref().map_or(given, |found| found.parameters);
    let start = found.as_ref().map_or(Start::Usual, |found| found.start);
    let wanted_len = if options.raw_content { options.size } else { content_len(options.size) };
    let filled_len = parameters.filled_len(wanted_len);
    let (pool, usage) = select_content(samples, filled_len, options.level, parameters, options.threads)?;
    watched.step();
    if pool.is_empty() {
        // Samples hold bytes, as was checked, so only runs that are longer than any of them leave nothing to choose.
        let longest = samples.iter().map(<[u8]>::len).max().unwrap_or(0);
        let d = parameters.d;
        return Err(DictionaryError::invalid(format!(
            "d is {d}, and the longest sample has {longest} bytes: give a smaller d"
        )));
    }
    let dictionary = if options.raw_content {
        pool.bytes().to_vec()
    } else {
        let usual = finish_on_part(pool.bytes(), samples, options.level, options.id, options.size)?;
        with_start(&usual, &usage, start, options.id).unwrap_or(usual)
    };
    // Finishing drops the front of the content when tables are longer than usual.
    let header_len = mithril_codec::dictionary::Header::parse(&dictionary)?.header_len;
    let dropped_len = pool.len().saturating_sub(dictionary.len() - header_len);
    let pieces = pool.pieces().iter().filter(|piece| piece.end > dropped_len).map(|piece| Piece {
        sample_idx: piece.sample_idx,
        start: piece.start.saturating_sub(dropped_len),
        end: piece.end - dropped_len,
    });
    watched.finish();
    Ok(Trained {
        pieces: pieces.collect(),
        dictionary,
        parameters,
        search: found.map(|found| SearchReport {
            candidates: found.candidates,
            raw_len: found.raw_len,
            plain_len: found.plain_len,
            coded_len: found.coded_len,
        }),
    })
}

/// Refuses samples that nothing can be learnt from.
pub(super) fn check_samples(samples: &Samples<'_>) -> Result<(), DictionaryError> {
    let n_samples = samples.iter().filter(|sample| !sample.is_empty()).count();
    if n_samples < MIN_SAMPLES {
        return Err(DictionaryError::TooFewSamples { n_samples, needed: MIN_SAMPLES });
    }
    let total_len = samples.total_len();
    if total_len < MIN_TOTAL_LEN {
        return Err(DictionaryError::TooSmall { total_len, needed: MIN_TOTAL_LEN });
    }
    // Two distinct ones end the search early, so that this costs nothing for most data.
    let mut distinct = HashSet::new();
    for sample in samples.iter().filter(|sample| !sample.is_empty()) {
        distinct.insert(sample);
        if distinct.len() > 2 {
            return Ok(());
        }
    }
    Err(DictionaryError::TooAlike { n_samples, n_distinct: distinct.len() })
}
