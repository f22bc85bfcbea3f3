//! Containers put together by hand, byte by byte as `docs/format/container.md` says, so that any rule can be broken.

#![allow(dead_code, reason = "each of the binaries that include this file uses part of it")]

use mithril_codec::checksum;

/// A container to be. Checksums, lengths and the digest are made right when it is built, whatever else is wrong.
pub(crate) struct Forge {
    pub(crate) header: String,
    pub(crate) alignment_log2: u8,
    /// The flags of prologue and footer; with [`LINK_RECORDS`], links get records.
    pub(crate) flags: u8,
    pub(crate) entries: Vec<Forged>,
}

/// An entry as it stands in the index, with its frame.
#[derive(Clone)]
pub(crate) struct Forged {
    /// Kind and flags.
    pub(crate) tag: u8,
    pub(crate) name: Vec<u8>,
    pub(crate) dtype: u8,
    pub(crate) shape: Vec<u64>,
    pub(crate) glue_before: u64,
    /// What stands behind `glue_before` and before the length of the frame.
    pub(crate) content: Vec<u8>,
    /// What stands in the record of a link instead, where numbers have a fixed length.
    pub(crate) recorded: Vec<u8>,
    pub(crate) frame: Option<Vec<u8>>,
}

/// A part that can be changed before what covers it is summed up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    /// The first sixteen bytes.
    Prologue,
    /// The header as a stream.
    Header,
    /// The record of the entry of this number without its checksum.
    Record(usize),
    /// The index before it is coded.
    Index,
    /// The index as a stream.
    CodedIndex,
    /// The footer without checksum and magic.
    Footer,
}

pub(crate) const FULL: u8 = 0;
pub(crate) const REF: u8 = 1;
pub(crate) const COPY: u8 = 2;
pub(crate) const DELTA: u8 = 3;
pub(crate) const DERIVED: u8 = 4;
pub(crate) const INLINE: u8 = 5;
pub(crate) const GLUE: u8 = 0x10;
pub(crate) const DIGEST: u8 = 0x20;
pub(crate) const BASE_NAME: u8 = 0x40;

/// Links have records.
pub(crate) const LINK_RECORDS: u8 = 2;

pub(crate) const BYTES: u8 = 0;
pub(crate) const U8: u8 = 2;
pub(crate) const F16: u8 = 10;
pub(crate) const BF16: u8 = 11;
pub(crate) const F32: u8 = 12;

impl Forged {
    /// A tensor with a frame of one stored block.
    pub(crate) fn full(name: &str, dtype: u8, shape: &[u64], raw: &[u8]) -> Self {
        let frame = Some(stored_frame(dtype, shape, raw));
        Self { content: Vec::new(), frame, ..Self::link(FULL, name, dtype, shape, &[]) }
    }

    /// The bytes that belong to no tensor.
    pub(crate) fn glue(raw: &[u8]) -> Self {
        Self { tag: FULL | GLUE, ..Self::full("", BYTES, &[raw.len() as u64], raw) }
    }

    /// An entry without a frame.
    pub(crate) fn link(tag: u8, name: &str, dtype: u8, shape: &[u64], content: &[u8]) -> Self {
        Self {
            tag,
            name: name.as_bytes().to_vec(),
            dtype,
            shape: shape.to_vec(),
            glue_before: 0,
            content: content.to_vec(),
            recorded: content.to_vec(),
            frame: None,
        }
    }

    pub(crate) fn reference(name: &str, dtype: u8, shape: &[u64], target: u64) -> Self {
        let recorded = target.to_le_bytes()[..4].to_vec();
        Self { recorded, ..Self::link(REF, name, dtype, shape, &number(target)) }
    }

    pub(crate) fn derived(name: &str, dtype: u8, shape: &[u64], target: u64) -> Self {
        let recorded = [&target.to_le_bytes()[..4], &[0]].concat();
        Self { recorded, ..Self::link(DERIVED, name, dtype, shape, &[number(target), vec![0]].concat()) }
    }

    pub(crate) fn behind(self, glue_before: u64) -> Self {
        Self { glue_before, ..self }
    }

    /// What its record has behind the name, if it is a link.
    fn link_bytes(&self) -> Vec<u8> {
        let mut out = vec![self.dtype];
        out.extend(number(self.shape.len() as u64));
        self.shape.iter().for_each(|&dimension| out.extend(number(dimension)));
        out.extend(number(self.glue_before));
        out.extend(&self.recorded);
        out
    }

    /// Its bytes in the index.
    fn index_bytes(&self) -> Vec<u8> {
        let mut out = vec![self.tag];
        out.extend(number(self.name.len() as u64));
        out.extend(&self.name);
        out.push(self.dtype);
        out.extend(number(self.shape.len() as u64));
        self.shape.iter().for_each(|&dimension| out.extend(number(dimension)));
        out.extend(number(self.glue_before));
        out.extend(&self.content);
        if let Some(frame) = &self.frame {
            out.extend(number(frame.len() as u64));
            out.extend(checksum(frame).to_le_bytes());
        }
        out
    }
}

impl Forge {
    /// A container of tensors that is no packed file, its frames on multiples of 64.
    pub(crate) fn of(entries: Vec<Forged>) -> Self {
        Self { header: "{}".to_owned(), alignment_log2: 6, flags: 0, entries }
    }

    /// A packed file of so many bytes.
    pub(crate) fn packed(len: usize, entries: Vec<Forged>) -> Self {
        let header = format!(r#"{{"original":{{"name":"m","format":"safetensors","len":{len}}}}}"#);
        Self { header, ..Self::of(entries) }
    }

    pub(crate) fn build(&self) -> Vec<u8> {
        self.build_with(|_, _| ())
    }

    /// Builds it with some parts changed.
    pub(crate) fn build_with(&self, change: impl Fn(Part, &mut Vec<u8>)) -> Vec<u8> {
        let mut header = stored_stream(self.header.as_bytes());
        change(Part::Header, &mut header);
        let mut out = b"MCKP".to_vec();
        out.extend([1, self.alignment_log2, self.flags, 0]);
        out.extend(len32(header.len()));
        out.extend(len32(self.header.len()));
        change(Part::Prologue, &mut out);
        let sum = checksum(&[&out[..], &header].concat());
        out.extend(sum.to_le_bytes());
        out.extend(header);
        let head = out.clone();

        let mut index = number(self.entries.len() as u64);
        for (entry_idx, entry) in self.entries.iter().enumerate() {
            index.extend(entry.index_bytes());
            if entry.frame.is_none() && self.flags & LINK_RECORDS == 0 {
                continue;
            }
            let mut record = b"MCKE".to_vec();
            record.extend(len32(entry_idx));
            record.extend([entry.tag & !DIGEST & !BASE_NAME, 0]);
            record.extend(&len32(entry.name.len())[..2]);
            record.extend(&entry.name);
            if entry.frame.is_none() {
                record.extend(entry.link_bytes());
            }
            change(Part::Record(entry_idx), &mut record);
            out.extend(&record);
            out.extend(checksum(&record).to_le_bytes());
            if let Some(frame) = &entry.frame {
                out.resize(out.len().next_multiple_of(1 << self.alignment_log2), 0);
                out.extend(frame);
            }
        }

        change(Part::Index, &mut index);
        let mut coded = stored_stream(&index);
        change(Part::CodedIndex, &mut coded);
        let mut footer = Vec::new();
        footer.extend((head.len() as u64).to_le_bytes());
        footer.extend([1, self.alignment_log2, self.flags, 0, 0, 0, 0, 0]);
        footer.extend((out.len() as u64).to_le_bytes());
        footer.extend(len32(coded.len()));
        footer.extend(len32(index.len()));
        footer.extend(checksum(&coded).to_le_bytes());
        footer.extend(mithril_format::Digest::of(&[&head[..], &coded].concat()).0);
        change(Part::Footer, &mut footer);
        out.extend(coded);
        out.extend(&footer);
        out.extend(checksum(&footer).to_le_bytes());
        out.extend(b"MCKF");
        out
    }
}

/// Seven bits a byte, the lowest first, the high bit set on all but the last.
pub(crate) fn number(mut number: u64) -> Vec<u8> {
    let mut out = Vec::new();
    loop {
        let low = number.to_le_bytes()[0] & 0x7f;
        number >>= 7;
        if number == 0 {
            out.push(low);
            return out;
        }
        out.push(low | 0x80);
    }
}

/// A stream that is stored.
pub(crate) fn stored_stream(raw: &[u8]) -> Vec<u8> {
    [&[0][..], &len32(raw.len()), raw].concat()
}

/// A frame of one stored block, or none for no bytes.
pub(crate) fn stored_frame(dtype: u8, shape: &[u64], raw: &[u8]) -> Vec<u8> {
    let rank = shape.len().to_le_bytes()[0];
    let mut out = [&b"MTHF"[..], &[1, 7, dtype, rank], &len32(1 << 20), &[0; 4]].concat();
    out.extend((raw.len() as u64).to_le_bytes());
    shape.iter().for_each(|dimension| out.extend(dimension.to_le_bytes()));
    let sum = checksum(&out);
    out.extend(sum.to_le_bytes());
    if !raw.is_empty() {
        out.extend(len32(raw.len() + 1));
        out.extend(len32(raw.len()));
        out.extend(checksum(raw).to_le_bytes());
        out.push(0);
        out.extend(raw);
    }
    out.extend([0; 4]);
    let start = out.len();
    if !raw.is_empty() {
        out.extend(len32(raw.len() + 1));
    }
    out.extend((raw.len() as u64).to_le_bytes());
    out.extend(len32(usize::from(!raw.is_empty())));
    let sum = checksum(&out[start..]);
    out.extend(sum.to_le_bytes());
    out.extend(b"MTHE");
    out
}

fn len32(len: usize) -> [u8; 4] {
    u32::try_from(len).expect("a short length").to_le_bytes()
}
