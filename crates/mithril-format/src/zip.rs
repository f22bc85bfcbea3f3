//! The directory of zip archives: which entry lies where. Nothing is inflated, so no archive is a bomb.
//!
//! Archives of numpy and PyTorch, which start with their first entry, up to 2^64 bytes, of one disk. Entries must lie
//! between the start of the file and the directory, each in bytes of its own.

use crate::ReadError;
use crate::checked_reader::CheckedReader;
use crate::limits::MAX_ZIP_DIRECTORY_LEN;
use crate::tensor_info::shown;
use std::ops::Range;

/// First bytes of an archive that has entries.
pub(crate) const MAGIC: &[u8] = b"PK\x03\x04";

const LOCAL_LEN: u64 = 30;
const CENTRAL_LEN: usize = 46;
const END_LEN: usize = 22;
const END64_LEN: u64 = 56;
const LOCATOR_LEN: u64 = 20;
const MAX_COMMENT_LEN: u64 = 0xffff;

/// A file in an archive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) name: String,
    /// Its bytes as they stand in the archive.
    pub(crate) bytes: Range<u64>,
    /// Whether those bytes are the file itself: neither compressed nor encrypted.
    pub(crate) is_stored: bool,
}

/// The name of the entry that an archive starts with, if `start` holds all of it.
pub(crate) fn first_name(start: &[u8]) -> Option<&[u8]> {
    let header = start.strip_prefix(MAGIC)?;
    let len = u16::from_le_bytes([*header.get(22)?, *header.get(23)?]);
    header.get(26..26 + usize::from(len))
}

/// The entries of an archive, in the order of their bytes.
pub(crate) fn entries(reader: &CheckedReader<'_>) -> Result<Vec<Entry>, ReadError> {
    let directory = find_directory(reader)?;
    let bytes = reader.read(directory.start, directory.end - directory.start, "zip directory")?;
    let mut entries = Vec::new();
    let mut rest = bytes.as_slice();
    while !rest.is_empty() {
        let at = directory.end - rest.len() as u64;
        let (central, after) = Central::parse(rest)
            .map_err(|what| reader.invalid(format!("zip directory at offset {at}: {what}")))?;
        rest = after;
        entries.push(central);
    }
    if entries.len() as u64 != directory.n_entries {
        return Err(reader.invalid(format!(
            "zip directory has {} entries and says {}",
            entries.len(),
            directory.n_entries
        )));
    }
    entries.sort_by_key(|entry| entry.local_offset);
    if entries.first().is_some_and(|first| first.local_offset > 0) {
        return Err(reader.invalid("bytes before the first zip entry"));
    }
    let mut end = 0;
    let mut found = Vec::with_capacity(entries.len());
    for central in entries {
        let entry = locate(reader, central, end, directory.start)?;
        end = entry.bytes.end;
        found.push(entry);
    }
    let mut names: Vec<&str> = found.iter().map(|entry| entry.name.as_str()).collect();
    names.sort_unstable();
    if let Some(pair) = names.windows(2).find(|pair| pair[0] == pair[1]) {
        return Err(reader.invalid(format!("zip entry `{}` is there twice", shown(pair[0]))));
    }
    Ok(found)
}

/// Where the directory lies.
struct Directory {
    start: u64,
    end: u64,
    n_entries: u64,
}

fn find_directory(reader: &CheckedReader<'_>) -> Result<Directory, ReadError> {
    let tail_len = reader.len().min(END_LEN as u64 + MAX_COMMENT_LEN);
    let tail_at = reader.len() - tail_len;
    let tail = reader.read(tail_at, tail_len, "zip end record")?;
    let is_end = |at: &usize| {
        let record = &tail[*at..];
        record.starts_with(b"PK\x05\x06") && record.len() - END_LEN == usize::from(u16_at(record, 20))
    };
    let candidates = 0..(tail.len() + 1).saturating_sub(END_LEN);
    let at = candidates.rev().find(is_end).ok_or_else(|| {
        reader.invalid("no zip directory at the end: the file is cut off, or bytes follow it")
    })?;
    let record = &tail[at..];
    let end_offset = tail_at + at as u64;
    let (n_entries, len, start) =
        (u64::from(u16_at(record, 10)), u64::from(u32_at(record, 12)), u64::from(u32_at(record, 16)));
    let disks = [u16_at(record, 4), u16_at(record, 6)];
    let needs_64 = n_entries == 0xffff || len == 0xffff_ffff || start == 0xffff_ffff;
    let directory = match end_offset.checked_sub(LOCATOR_LEN) {
        Some(locator) if reader.read(locator, 4, "zip64 locator")? == b"PK\x06\x07" => {
            find_directory_64(reader, locator)?
        }
        _ if needs_64 => return Err(reader.invalid("no zip64 directory, which the end record asks for")),
        _ if disks != [0, 0] || u64::from(u16_at(record, 8)) != n_entries => {
            return Err(reader.invalid("zip archive of several disks"));
        }
        _ => {
            let end = start + len;
            if end != end_offset {
                return Err(reader.invalid(format!(
                    "zip directory ends at offset {end}, its end record stands at {end_offset}"
                )));
            }
            Directory { start, end, n_entries }
        }
    };
    if directory.end - directory.start > MAX_ZIP_DIRECTORY_LEN {
        return Err(reader.invalid(format!("zip directory of more than {MAX_ZIP_DIRECTORY_LEN} bytes")));
    }
    Ok(directory)
}

fn find_directory_64(reader: &CheckedReader<'_>, locator: u64) -> Result<Directory, ReadError> {
    let bytes = reader.read(locator, LOCATOR_LEN, "zip64 locator")?;
    let record_offset = u64_at(&bytes, 8);
    let record = reader.read(record_offset, END64_LEN, "zip64 end record")?;
    let record_len = u64_at(&record, 4).checked_add(12);
    if !record.starts_with(b"PK\x06\x06")
        || record_len.and_then(|len| record_offset.checked_add(len)) != Some(locator)
    {
        return Err(reader.invalid(format!("damaged zip64 end record at offset {record_offset}")));
    }
    let (n_entries, len, start) = (u64_at(&record, 32), u64_at(&record, 40), u64_at(&record, 48));
    if u64_at(&record, 16) != 0 || u64_at(&record, 24) != n_entries {
        return Err(reader.invalid("zip archive of several disks"));
    }
    if start.checked_add(len) != Some(record_offset) {
        return Err(reader.invalid("zip64 directory does not end at its end record"));
    }
    Ok(Directory { start, end: record_offset, n_entries })
}

/// What the directory says of an entry.
struct Central {
    name: String,
    method: u16,
    is_encrypted: bool,
    stored_len: u64,
    raw_len: u64,
    local_offset: u64,
}

impl Central {
    fn parse(bytes: &[u8]) -> Result<(Self, &[u8]), &'static str> {
        let (fixed, rest) = bytes.split_at_checked(CENTRAL_LEN).ok_or("entry is cut off")?;
        if !fixed.starts_with(b"PK\x01\x02") {
            return Err("no entry");
        }
        let lens = [28, 30, 32].map(|at| usize::from(u16_at(fixed, at)));
        let (name, rest) = rest.split_at_checked(lens[0]).ok_or("name is cut off")?;
        let (mut extra, rest) = rest.split_at_checked(lens[1]).ok_or("extra field is cut off")?;
        let (_comment, rest) = rest.split_at_checked(lens[2]).ok_or("comment is cut off")?;
        let mut raw_len = u64::from(u32_at(fixed, 24));
        let mut stored_len = u64::from(u32_at(fixed, 20));
        let mut local_offset = u64::from(u32_at(fixed, 42));
        let mut disk = u64::from(u16_at(fixed, 34));
        while extra.len() >= 4 {
            let (id, len) = (u16_at(extra, 0), usize::from(u16_at(extra, 2)));
            let field = extra.get(4..4 + len).ok_or("extra field is cut off")?;
            if id == 1 {
                let mut field = field;
                // Only what does not fit the fixed part is there, in this order.
                for value in [&mut raw_len, &mut stored_len, &mut local_offset] {
                    if *value == 0xffff_ffff {
                        let (number, after) = field.split_first_chunk().ok_or("zip64 field is cut off")?;
                        (*value, field) = (u64::from_le_bytes(*number), after);
                    }
                }
                if disk == 0xffff {
                    disk = u64::from(u32_at(field.get(..4).ok_or("zip64 field is cut off")?, 0));
                }
            }
            extra = &extra[4 + len..];
        }
        if disk != 0 {
            return Err("entry on another disk");
        }
        let central = Self {
            name: String::from_utf8_lossy(name).into_owned(),
            method: u16_at(fixed, 10),
            is_encrypted: u16_at(fixed, 8) & 1 != 0,
            stored_len,
            raw_len,
            local_offset,
        };
        Ok((central, rest))
    }
}

/// Finds the bytes of an entry behind its local header, which must lie between the entry before it and the directory.
fn locate(
    reader: &CheckedReader<'_>,
    central: Central,
    earliest: u64,
    latest: u64,
) -> Result<Entry, ReadError> {
    let invalid = |what: &str| {
        let (name, at) = (shown(&central.name), central.local_offset);
        reader.invalid(format!("zip entry `{name}` at offset {at} {what}"))
    };
    if central.local_offset < earliest {
        return Err(invalid("overlaps the one before it"));
    }
    if central.local_offset.checked_add(LOCAL_LEN).is_none_or(|end| end > latest) {
        return Err(invalid("lies behind the directory"));
    }
    let local = reader.read(central.local_offset, LOCAL_LEN, "zip entry")?;
    if !local.starts_with(MAGIC) || u16_at(&local, 8) != central.method {
        return Err(invalid("is not what the directory says"));
    }
    let start =
        central.local_offset + LOCAL_LEN + u64::from(u16_at(&local, 26)) + u64::from(u16_at(&local, 28));
    let end = start.checked_add(central.stored_len).filter(|&end| end <= latest);
    let end = end.ok_or_else(|| invalid("reaches into the directory"))?;
    let is_stored = central.method == 0 && !central.is_encrypted;
    if is_stored && central.stored_len != central.raw_len {
        return Err(invalid("is stored, with two different lengths"));
    }
    Ok(Entry { name: central.name, bytes: start..end, is_stored })
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from(u16_at(bytes, at)) | u32::from(u16_at(bytes, at + 2)) << 16
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}

#[cfg(test)]
pub(crate) mod tests;
