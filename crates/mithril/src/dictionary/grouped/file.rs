//! The file of grouped dictionaries: see `docs/format/grouped.md`.

use super::super::DictionaryError;
use mithril_codec::checksum;

/// First bytes of the file.
pub(super) const MAGIC: [u8; 4] = *b"MDIC";
/// The only version.
const VERSION: u8 = 1;
/// Bytes before the entries: magic, version, three zeros, groups, bytes of the base.
const HEAD_LEN: usize = 16;
/// Bytes of an entry without its name.
const ENTRY_LEN: usize = 12;
/// Most groups of a file: every one of them is kept ready, and tried on every record.
pub(super) const MAX_GROUPS: usize = 1024;

/// What a file holds.
pub(super) struct Parsed<'a> {
    pub(super) base: &'a [u8],
    pub(super) groups: Vec<ParsedGroup<'a>>,
}

/// What is a group's own.
pub(super) struct ParsedGroup<'a> {
    pub(super) name: &'a str,
    /// Header of its dictionary.
    pub(super) head: &'a [u8],
    /// What stands behind the content of the base.
    pub(super) content: &'a [u8],
}

/// The bytes of a file.
pub(super) fn write(base: &[u8], groups: &[ParsedGroup<'_>]) -> Result<Vec<u8>, DictionaryError> {
    if groups.len() > MAX_GROUPS {
        return Err(DictionaryError::invalid(format!("a file has at most {MAX_GROUPS} groups")));
    }
    let number = |len: usize, what: &str| {
        u32::try_from(len).map_err(|_| DictionaryError::invalid(format!("{what} is too long")))
    };
    let mut file = MAGIC.to_vec();
    file.extend_from_slice(&[VERSION, 0, 0, 0]);
    file.extend_from_slice(&number(groups.len(), "list of groups")?.to_le_bytes());
    file.extend_from_slice(&number(base.len(), "base")?.to_le_bytes());
    for group in groups {
        for (len, what) in
            [(group.name.len(), "name"), (group.head.len(), "header"), (group.content.len(), "content")]
        {
            file.extend_from_slice(&number(len, what)?.to_le_bytes());
        }
        file.extend_from_slice(group.name.as_bytes());
    }
    file.extend_from_slice(base);
    for group in groups {
        file.extend_from_slice(group.head);
        file.extend_from_slice(group.content);
    }
    let sum = checksum(&file);
    file.extend_from_slice(&sum.to_le_bytes());
    Ok(file)
}

/// Reads a file and checks its lengths and its checksum.
pub(super) fn parse(file: &[u8]) -> Result<Parsed<'_>, DictionaryError> {
    let damaged = |what| DictionaryError::Grouped { what };
    let (body, sum) = file.split_last_chunk::<8>().ok_or(damaged("file is shorter than its checksum"))?;
    if !body.starts_with(&MAGIC) || body.len() < HEAD_LEN {
        return Err(damaged("file does not start like one"));
    }
    if body[4] != VERSION || body[5..8] != [0; 3] {
        return Err(damaged("version is not known"));
    }
    if checksum(body) != u64::from_le_bytes(*sum) {
        return Err(damaged("file has another checksum"));
    }
    let mut rest = Rest(&body[8..]);
    let (n_groups, base_len) = (rest.number()?, rest.number()?);
    if n_groups > MAX_GROUPS {
        return Err(damaged("more groups than a file has"));
    }
    let mut entries = Vec::with_capacity(n_groups.min(body.len() / ENTRY_LEN));
    for _ in 0..n_groups {
        let (name_len, head_len, content_len) = (rest.number()?, rest.number()?, rest.number()?);
        let name = std::str::from_utf8(rest.take(name_len)?).map_err(|_| damaged("a name is no text"))?;
        entries.push((name, head_len, content_len));
    }
    let base = rest.take(base_len)?;
    let mut groups = Vec::with_capacity(entries.len());
    for (name, head_len, content_len) in entries {
        groups.push(ParsedGroup { name, head: rest.take(head_len)?, content: rest.take(content_len)? });
    }
    if !rest.0.is_empty() {
        return Err(damaged("bytes behind the last group"));
    }
    let mut names: Vec<&str> = groups.iter().map(|group| group.name).collect();
    names.sort_unstable();
    names.dedup();
    if names.len() != groups.len() || names.first() == Some(&"") {
        return Err(damaged("groups need names, each another one"));
    }
    Ok(Parsed { base, groups })
}

/// What is left to read.
struct Rest<'a>(&'a [u8]);

impl<'a> Rest<'a> {
    fn take(&mut self, len: usize) -> Result<&'a [u8], DictionaryError> {
        let ends = DictionaryError::Grouped { what: "a length reaches beyond the file" };
        let (taken, rest) = self.0.split_at_checked(len).ok_or(ends)?;
        self.0 = rest;
        Ok(taken)
    }

    fn number(&mut self) -> Result<usize, DictionaryError> {
        let bytes = self.take(4)?;
        let number = u32::from_le_bytes(bytes.try_into().expect("four bytes"));
        usize::try_from(number)
            .map_err(|_| DictionaryError::Grouped { what: "a length is larger than memory" })
    }
}
