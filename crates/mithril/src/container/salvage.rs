//! Saves what is intact of a damaged container.
//!
//! With an index, every frame is summed up, and what is whole is kept as it is. Without one, entries are found by their
//! records, and frames decoded to see whether they are whole. Nothing is coded again: frames are copied.

use super::frame_source::{Fetch, FrameSource};
use super::{Content, Entry, EntryKind, Header, Original, Reader};
use crate::Error;
use crate::pack::{Progress, can_be_an_entry};
use mithril_codec::Checksummer;
use mithril_format::container::{ContainerWriter, Found, StoredFrame, read_front, scan};
use mithril_format::{FormatError, ReadAt, safetensors};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::io::Write;
use std::ops::Range;

/// What is intact of a container, and what is not.
#[derive(Debug)]
pub struct Salvage {
    header: Header,
    alignment_log2: u8,
    parts: Vec<Part>,
    lost: Vec<Lost>,
    index: Damage,
    header_damage: Damage,
}

/// Whether a part of a container is as it was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Damage {
    /// As it was.
    None,
    /// It cannot be read.
    Lost,
}

/// A tensor that cannot be saved.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Lost {
    /// Its name; nothing where only its number is known.
    pub name: Option<String>,
    /// Its number among the entries, where it is known.
    pub entry_idx: Option<usize>,
    /// Why.
    pub reason: String,
}

/// An entry that is intact.
#[derive(Debug)]
struct Part {
    entry: Entry,
    /// Its number in the damaged container.
    entry_idx: usize,
    frame: Option<Range<u64>>,
}

/// Bytes that are read at a time.
const PIECE_LEN: u64 = 4 << 20;

impl Salvage {
    /// Looks for what is intact. Progress is counted in bytes of the file.
    ///
    /// # Errors
    /// When the source cannot be read. Damage is no error.
    pub fn examine<S: ReadAt>(source: &S, threads: usize, progress: Progress<'_>) -> Result<Self, Error> {
        match Reader::open(source) {
            Ok(reader) => by_index(&reader, progress),
            Err(error @ Error::Io { .. }) => Err(error),
            Err(_) => by_scanning(source, threads, progress),
        }
    }

    /// Names of the tensors that are intact, in order.
    pub fn saved(&self) -> impl Iterator<Item = &Entry> {
        self.parts.iter().map(|part| &part.entry).filter(|entry| !entry.glue)
    }

    /// What is lost.
    pub fn lost(&self) -> &[Lost] {
        &self.lost
    }

    /// Whether the index was lost, so that frames had to be found by scanning.
    pub fn index(&self) -> Damage {
        self.index
    }

    /// Whether the header was lost.
    pub fn header(&self) -> Damage {
        self.header_damage
    }

    /// Whether the container that [`Salvage::write`] makes can be unpacked to the original file.
    pub fn is_whole(&self) -> bool {
        self.lost.is_empty() && self.header.original.is_some()
    }

    /// Writes a container of everything that is intact, by copying frames. Returns the writer, not flushed, and the
    /// container's length.
    ///
    /// # Errors
    /// When reading or writing fails.
    pub fn write<W: Write>(
        &self,
        source: &(impl ReadAt + ?Sized),
        writer: W,
        progress: Progress<'_>,
    ) -> Result<(W, u64), Error> {
        let mut container =
            ContainerWriter::new(writer, &self.header, self.alignment_log2).map_err(Error::writing)?;
        for part in &self.parts {
            let Some(frame) = &part.frame else {
                container.add_link(part.entry.clone()).map_err(Error::writing)?;
                continue;
            };
            let mut out = container.start_frame(part.entry.clone()).map_err(Error::writing)?;
            let mut at = frame.start;
            while at < frame.end {
                let end = (at + PIECE_LEN).min(frame.end);
                out.write_all(&source.read_range(at..end).map_err(Error::reading)?)
                    .map_err(Error::writing)?;
                progress(end - at);
                at = end;
            }
            out.finish();
        }
        let finished = container.finish().map_err(Error::writing)?;
        Ok((finished.writer, finished.len))
    }

    /// Numbers the parts anew, drops links to what is lost, and says in the header what is missing.
    fn settle(mut self) -> Self {
        self.resolve();
        loop {
            let kept: HashMap<usize, usize> =
                self.parts.iter().enumerate().map(|(new, part)| (part.entry_idx, new)).collect();
            let part_of = |entry_idx: usize| kept.get(&entry_idx).map(|&target| &self.parts[target]);
            let fault = self.parts.iter().enumerate().find_map(|(place, part)| {
                let fault = match (part.entry.target(), part.entry.step()) {
                    (Some(target), _) => link_fault(part, part_of(target)),
                    (None, Some(step)) => step_fault(part, step.moments.map(part_of)),
                    (None, None) => None,
                };
                Some((place, fault?))
            });
            let Some((place, reason)) = fault else {
                for part in &mut self.parts {
                    match &mut part.entry.content {
                        Content::Ref { entry_idx } | Content::Derived { entry_idx, .. } => {
                            *entry_idx = kept[entry_idx];
                        }
                        Content::Delta { step: Some(step), .. } => {
                            step.moments = step.moments.map(|entry_idx| kept[&entry_idx]);
                        }
                        _ => {}
                    }
                }
                break;
            };
            let part = self.parts.remove(place);
            let (name, entry_idx) = (Some(part.entry.name), Some(part.entry_idx));
            self.lost.push(Lost { name, entry_idx, reason: reason.to_owned() });
        }
        if !self.lost.is_empty() {
            self.header.original = None;
            let names: Vec<_> = self.lost.iter().filter_map(|lost| lost.name.as_deref()).collect();
            self.header.metadata.insert("lost_tensors".to_owned(), names.into());
        }
        if self.header.original.is_none() {
            self.parts.iter_mut().for_each(|part| part.entry.glue_before = 0);
        }
        self
    }
}

/// Why a link cannot be kept, if so. Records were found one by one, so nobody has compared them yet.
fn link_fault(part: &Part, target: Option<&Part>) -> Option<&'static str> {
    let Some(target) = target else {
        return Some("it has the bytes of another tensor, which is lost");
    };
    let is_earlier = target.entry_idx < part.entry_idx || part.entry.kind() == EntryKind::Derived;
    let fits = is_earlier && part.entry.can_come_from(&target.entry);
    (!fits).then_some("its record names a tensor that it cannot have the bytes of")
}

/// Why a tensor whose base makes a step cannot be kept, if so.
fn step_fault(part: &Part, moments: [Option<&Part>; 2]) -> Option<&'static str> {
    let fits =
        |moment: Option<&Part>| moment.is_some_and(|moment| moment.entry.can_be_moment_of(&part.entry));
    (!moments.into_iter().all(fits)).then_some("it is read with moments, one of which is lost")
}

/// Keeps the entries whose frames sum up to what the index says.
fn by_index<S: ReadAt>(reader: &Reader<S>, progress: Progress<'_>) -> Result<Salvage, Error> {
    let mut parts = Vec::new();
    let mut lost = Vec::new();
    for (entry_idx, entry) in reader.entries().iter().enumerate() {
        let stored = reader.directory().frame(entry_idx);
        let checked = stored.map_or(Ok(()), |frame| reader.verify_sum(frame));
        progress(stored.map_or(0, |frame| frame.len));
        match checked {
            Ok(()) => {
                let frame = stored.map(|frame| frame.offset..frame.end());
                parts.push(Part { entry: entry.clone(), entry_idx, frame });
            }
            Err(error @ Error::Io { .. }) => return Err(error),
            Err(error) => {
                let name = if entry.glue { "(bytes outside of tensors)" } else { &entry.name };
                lost.push(Lost {
                    name: Some(name.to_owned()),
                    entry_idx: Some(entry_idx),
                    reason: error.to_string(),
                });
            }
        }
    }
    let front = read_front(reader.source()).ok();
    let header_damage = if front.is_some() { Damage::None } else { Damage::Lost };
    let alignment_log2 = front.as_ref().map_or(6, |(prologue, _)| prologue.alignment_log2);
    let mut header = front.map_or_else(Header::default, |(_, header)| header);
    if header_damage == Damage::Lost && reader.entries().first().is_some_and(|entry| entry.glue) {
        // There is glue, so it was a file: its name is lost, its bytes are not.
        let len = reader.entries().iter().map(Entry::raw_len).fold(0, u64::saturating_add);
        header.original = Some(Original::new("", "", len));
    }
    let salvage = Salvage { header, alignment_log2, parts, lost, index: Damage::None, header_damage };
    Ok(salvage.settle())
}

/// Finds frames by their records, and keeps those that decode.
fn by_scanning<S: ReadAt>(source: &S, threads: usize, progress: Progress<'_>) -> Result<Salvage, Error> {
    let front = match read_front(source) {
        Ok(front) => Some(front),
        Err(mithril_format::ReadError::Io(error)) => return Err(Error::reading(error)),
        Err(_) => None,
    };
    let header_damage = if front.is_some() { Damage::None } else { Damage::Lost };
    let alignment_log2 = front.as_ref().map(|(prologue, _)| prologue.alignment_log2);
    let found = scan(source, alignment_log2, progress)?;
    let mut parts = BTreeMap::new();
    let mut lost = BTreeMap::new();
    let mut names = HashSet::new();
    for found in found {
        let entry_idx = found.record.entry_idx as usize;
        let name = found.record.name.clone();
        match entry_of(source, &found, threads) {
            Err(error @ Error::Io { .. }) => return Err(error),
            Ok(entry) if !parts.contains_key(&entry_idx) && (entry.glue || names.insert(name.clone())) => {
                lost.remove(&entry_idx);
                parts.insert(entry_idx, Part { entry, entry_idx, frame: found.frame });
            }
            Ok(_) => {}
            Err(error) => {
                if !parts.contains_key(&entry_idx) {
                    let name = if found.record.glue { "(bytes outside of tensors)".to_owned() } else { name };
                    let reason = error.to_string();
                    lost.insert(entry_idx, Lost { name: Some(name), entry_idx: Some(entry_idx), reason });
                }
            }
        }
    }
    let header = front.map_or_else(Header::default, |(_, header)| header);
    let mut salvage = Salvage {
        header,
        alignment_log2: alignment_log2.unwrap_or(6),
        parts: parts.into_values().collect(),
        lost: lost.into_values().collect(),
        index: Damage::Lost,
        header_damage,
    };
    if !salvage.complete_by_original(source)? {
        salvage.name_missing();
        salvage.header.original = None;
    }
    Ok(salvage.settle())
}

impl Salvage {
    /// Tells from the original file's own header, which is glue, what belongs where and what is missing. Returns whether
    /// that header is known.
    fn complete_by_original(&mut self, source: &impl ReadAt) -> Result<bool, Error> {
        let Some(original) = self.header.original.clone().filter(|file| file.format == "safetensors") else {
            return Ok(false);
        };
        let Some(glue) = self.parts.first().filter(|part| part.entry.glue) else { return Ok(false) };
        let Some(frame) = glue.frame.clone() else { return Ok(false) };
        let stored = StoredFrame {
            record_offset: frame.start,
            offset: frame.start,
            len: frame.end - frame.start,
            checksum: 0,
        };
        let opened = FrameSource::open(source, stored, Fetch::WholeIfSmall)?;
        let mut head = vec![0; usize::try_from(glue.entry.raw_len()).map_err(|_| Error::invalid("glue"))?];
        opened.read_range(0..glue.entry.raw_len(), None, &mut head, 1)?;
        let Ok(mut tensors) = safetensors::tensors_to_pack(&head, original.len) else { return Ok(false) };
        tensors.retain(can_be_an_entry);
        let known: HashMap<&str, usize> =
            self.parts.iter().enumerate().map(|(idx, part)| (part.entry.name.as_str(), idx)).collect();
        let mut glue_before = Vec::new();
        let mut end = 0;
        let mut missing = Vec::new();
        for tensor in &tensors {
            match known.get(tensor.name.as_str()) {
                Some(&part_idx) => glue_before.push((part_idx, tensor.bytes.start.saturating_sub(end))),
                None => missing.push(tensor.name.clone()),
            }
            end = tensor.bytes.end;
        }
        for (part_idx, len) in glue_before {
            self.parts[part_idx].entry.glue_before = len;
        }
        for name in missing {
            if !self.lost.iter().any(|lost| lost.name.as_ref() == Some(&name)) {
                let reason = "neither its record nor the index is there".to_owned();
                self.lost.push(Lost { name: Some(name), entry_idx: None, reason });
            }
        }
        Ok(true)
    }

    /// A record may say that a tensor is derived from one that turned out to be a reference: it is then derived from what
    /// that refers to.
    fn resolve(&mut self) {
        let references: HashMap<usize, usize> = self
            .parts
            .iter()
            .filter(|part| part.entry.kind() == EntryKind::Ref)
            .filter_map(|part| Some((part.entry_idx, part.entry.target()?)))
            .collect();
        for part in &mut self.parts {
            if let Content::Derived { entry_idx, .. } = &mut part.entry.content {
                *entry_idx = *references.get(entry_idx).unwrap_or(entry_idx);
            }
        }
    }

    /// Entries that must have been there, because others have higher numbers.
    fn name_missing(&mut self) {
        let seen: HashSet<usize> = self
            .parts
            .iter()
            .map(|part| part.entry_idx)
            .chain(self.lost.iter().filter_map(|lost| lost.entry_idx))
            .collect();
        let n_entries = seen.iter().max().map_or(0, |max| max + 1);
        // Every number takes a record somewhere, so a claim beyond what a file can hold is not listed one by one.
        let missing = (0..n_entries).filter(|entry_idx| !seen.contains(entry_idx));
        for entry_idx in missing.take(seen.len() + 1000) {
            let reason = "neither its record nor the index is there".to_owned();
            self.lost.push(Lost { name: None, entry_idx: Some(entry_idx), reason });
        }
    }
}

/// The entry of a record that was found, once its frame has been decoded. A delta is not decoded, but its structure was
/// checked when it was found.
fn entry_of<S: ReadAt>(source: &S, found: &Found, threads: usize) -> Result<Entry, Error> {
    if let Some(link) = &found.record.link {
        return Ok(link.clone());
    }
    let damaged = || FormatError::Corrupt { what: "its frame is damaged or cut off", offset: found.offset };
    let frame = found.frame.clone().ok_or_else(damaged)?;
    let stored = StoredFrame {
        record_offset: found.offset,
        offset: frame.start,
        len: frame.end - frame.start,
        checksum: checksum(source, &frame)?,
    };
    let opened = FrameSource::open(source, stored, Fetch::WholeIfSmall)?;
    let header = opened.layout().header();
    let raw_len = opened.layout().raw_len();
    let shape = header.shape.clone().unwrap_or_else(|| vec![header.dtype.elements_in(raw_len)]);
    let mut entry = match found.record.glue {
        true => Entry::glue(raw_len),
        false => Entry::full(&found.record.name, header.dtype, shape),
    };
    let (len, checksum) = (stored.len, stored.checksum);
    entry.content = match (found.record.kind, header.base) {
        (EntryKind::Delta, Some(_)) if found.record.steps => {
            let what = "its base makes a step of which only the index told";
            return Err(FormatError::Corrupt { what, offset: found.offset }.into());
        }
        (EntryKind::Delta, Some(base)) => Content::Delta { base, base_name: None, step: None, len, checksum },
        (EntryKind::Full, None) => Content::Full { len, checksum },
        _ => {
            return Err(
                FormatError::Corrupt { what: "record and frame disagree", offset: found.offset }.into()
            );
        }
    };
    if header.base.is_none() {
        let mut piece = Vec::new();
        let piece_len = PIECE_LEN.next_multiple_of(u64::from(header.block_len));
        let mut at = 0;
        while at < raw_len {
            let end = (at + piece_len).min(raw_len);
            piece.resize(usize::try_from(end - at).expect("a piece lies in memory"), 0);
            opened.read_range(at..end, None, &mut piece, threads)?;
            at = end;
        }
    }
    Ok(entry)
}

fn checksum(source: &(impl ReadAt + ?Sized), range: &Range<u64>) -> Result<u64, Error> {
    let mut sum = Checksummer::default();
    let mut at = range.start;
    while at < range.end {
        let end = (at + PIECE_LEN).min(range.end);
        sum.update(&source.read_range(at..end).map_err(Error::reading)?);
        at = end;
    }
    Ok(sum.finish())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::container::{Bases, Model};
    use crate::pack::{PackOptions, pack};

    /// A file of three tensors, the last of which has the bytes of the first.
    fn file() -> Vec<u8> {
        let header = br#"{"a":{"dtype":"F32","shape":[64],"data_offsets":[0,256]},"b":{"dtype":"U8","shape":[90],"data_offsets":[256,346]},"c":{"dtype":"F32","shape":[64],"data_offsets":[346,602]}}"#;
        let numbers: Vec<u8> = (0..64u16).flat_map(|i| (f32::from(i) * 0.37).sin().to_le_bytes()).collect();
        let bytes: Vec<u8> = (0..90u8).map(|i| i.wrapping_mul(73)).collect();
        [&(header.len() as u64).to_le_bytes()[..], header, &numbers, &bytes, &numbers].concat()
    }

    fn container() -> Vec<u8> {
        pack(&file(), Vec::new(), &PackOptions::default(), &|_| ()).unwrap().0
    }

    /// Everything saved has the bytes that it had.
    fn check(damaged: &Vec<u8>) -> Salvage {
        let salvage = Salvage::examine(damaged, 1, &|_| ()).unwrap();
        let (saved, _) = salvage.write(damaged, Vec::new(), &|_| ()).unwrap();
        let open = |bytes: Vec<u8>| Model::open("model", Box::new(bytes), Bases::none()).unwrap();
        let (saved, original) = (open(saved), open(file()));
        for (idx, tensor) in saved.tensors().iter().enumerate() {
            let expected = original.read(original.find(&tensor.name).unwrap()).unwrap();
            assert_eq!(saved.read(idx).unwrap(), expected, "{}", tensor.name);
        }
        salvage
    }

    #[test]
    fn every_cut_saves_what_lies_before_it_and_nothing_wrong() {
        let whole = container();
        let mut n_saved = 0;
        for len in 0..=whole.len() {
            let saved = check(&whole[..len].to_vec()).saved().count();
            assert!(saved >= n_saved, "a longer piece holds no less");
            n_saved = saved;
        }
        assert_eq!(n_saved, 3);
    }

    #[test]
    fn every_damaged_byte_costs_at_most_the_tensors_that_need_it() {
        let whole = container();
        for at in 0..whole.len() {
            let mut damaged = whole.clone();
            damaged[at] ^= 0x55;
            let salvage = check(&damaged);
            // `c` needs the index and the frame of `a`.
            assert!(salvage.saved().count() >= 1, "byte {at}");
            if salvage.index() == Damage::None && salvage.lost().is_empty() {
                assert_eq!(salvage.saved().count(), 3, "byte {at}");
            }
        }
    }

    #[test]
    fn original_comes_back_when_only_the_index_is_lost() {
        let header = br#"{"a":{"dtype":"U8","shape":[90],"data_offsets":[0,90]},"b":{"dtype":"U8","shape":[9],"data_offsets":[92,101]}}"#;
        let bytes: Vec<u8> = (0..101u8).map(|i| i.wrapping_mul(73)).collect();
        let file = [&(header.len() as u64).to_le_bytes()[..], header, &bytes].concat();
        let mut packed = pack(&file, Vec::new(), &PackOptions::default(), &|_| ()).unwrap().0;
        packed.truncate(packed.len() - 8);
        let salvage = Salvage::examine(&packed, 1, &|_| ()).unwrap();
        assert_eq!(salvage.index(), Damage::Lost);
        assert!(salvage.is_whole(), "{:?}", salvage.lost());
        let (saved, _) = salvage.write(&packed, Vec::new(), &|_| ()).unwrap();
        let reader = Reader::open(saved).unwrap();
        let (restored, _) = crate::pack::unpack(&reader, Vec::new(), &Bases::none(), 1, &|_| ()).unwrap();
        assert_eq!(restored, file);
    }
}
