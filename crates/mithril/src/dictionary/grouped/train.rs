//! From samples in groups to a base dictionary and one for each group.

use super::file::{self, MAX_GROUPS, ParsedGroup};
use crate::dictionary::content::select_beside;
use crate::dictionary::search::finish_on_part;
use crate::dictionary::train::check_samples;
use crate::dictionary::workers::map_in_order;
use crate::dictionary::{DictionaryError, MAX_SIZE, SampleSet, TrainOptions, Trained, train};
use mithril_codec::dictionary::{Header, MIN_ID, Samples};

/// How dictionaries of two levels are trained.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct GroupedOptions {
    /// How the base is trained; `size` is its size. It needs a header and an id, so it is no bare content.
    pub base: TrainOptions,
    /// Bytes that each group adds at most, beside its header.
    pub group_size: usize,
}

impl GroupedOptions {
    /// A base that is trained like this, and groups of so many bytes.
    pub fn new(base: TrainOptions, group_size: usize) -> Self {
        Self { base, group_size }
    }
}

/// A file of grouped dictionaries, and how its base came to be.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct TrainedGroups {
    /// The file.
    pub bytes: Vec<u8>,
    /// Its base.
    pub base: Trained,
}

/// Trains a base on the samples of all groups, and for each group what the base lacks for it.
///
/// The result depends on the samples, their order and the options, and not on the number of threads.
///
/// # Errors
/// When the samples of all groups, or those of one, are too few, too small or too alike; when groups share a name; or an
/// option is out of its range.
pub fn train_grouped(
    groups: &[(String, Samples<'_>)],
    options: &GroupedOptions,
) -> Result<TrainedGroups, DictionaryError> {
    check(groups, options)?;
    let all: SampleSet = groups.iter().flat_map(|(_, samples)| samples.iter()).collect();
    let base = train(&all.samples(), &options.base)?;
    let header = Header::parse(&base.dictionary)?;
    let content = &base.dictionary[header.header_len..];
    let level = options.base.level;
    let trained = map_in_order(groups, options.base.threads, |(name, samples)| {
        let own = select_beside(content, samples, options.group_size, level)?;
        let whole = [content, own.as_slice()].concat();
        let dictionary =
            finish_on_part(&whole, samples, level, None, usize::MAX).map_err(|error| error.of_group(name))?;
        let header_len = Header::parse(&dictionary)?.header_len;
        Ok((dictionary[..header_len].to_vec(), own))
    });
    let trained = trained.into_iter().collect::<Result<Vec<_>, DictionaryError>>()?;
    let mut taken = vec![header.id.unwrap_or(0)];
    let mut members = Vec::with_capacity(groups.len());
    for ((name, _), (mut head, own)) in groups.iter().zip(trained) {
        distinct_id(&mut head, &mut taken);
        members.push((name.as_str(), head, own));
    }
    let members: Vec<ParsedGroup<'_>> =
        members.iter().map(|(name, head, content)| ParsedGroup { name, head, content }).collect();
    Ok(TrainedGroups { bytes: file::write(&base.dictionary, &members)?, base })
}

/// Gives a header the next id that no other member has, if its own is taken.
fn distinct_id(head: &mut [u8], taken: &mut Vec<u32>) {
    let mut id = u32::from_le_bytes(head[4..8].try_into().expect("a header has an id"));
    while taken.contains(&id) {
        id = MIN_ID + (id + 1) % MIN_ID;
    }
    head[4..8].copy_from_slice(&id.to_le_bytes());
    taken.push(id);
}

fn check(groups: &[(String, Samples<'_>)], options: &GroupedOptions) -> Result<(), DictionaryError> {
    if groups.is_empty() || groups.len() > MAX_GROUPS {
        return Err(DictionaryError::invalid(format!("there must be 1 to {MAX_GROUPS} groups")));
    }
    if options.base.raw_content {
        return Err(DictionaryError::invalid("groups need a base with a header and an id"));
    }
    if options.group_size > MAX_SIZE {
        return Err(DictionaryError::invalid(format!("a group adds at most {MAX_SIZE} bytes")));
    }
    let mut names: Vec<&str> = groups.iter().map(|(name, _)| name.as_str()).collect();
    names.sort_unstable();
    names.dedup();
    if names.len() != groups.len() || names[0].is_empty() {
        return Err(DictionaryError::invalid("groups need names, each another one"));
    }
    for (name, samples) in groups {
        check_samples(samples).map_err(|error| error.of_group(name))?;
    }
    Ok(())
}
