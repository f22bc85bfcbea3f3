//! Containers from any bytes: opened, read tensor by tensor, and unpacked.

use super::MAX_RAW_LEN;
use mithril::container::{Bases, Reader};
use mithril::pack::unpack;
use mithril_format::Digest;
use mithril_format::container::{Footer, Prologue};

/// Any bytes are a container or are refused; what a whole restore gives is what its entries give one by one.
///
/// An odd first byte asks for the sums of prologue, index and footer to be made right first, which lets the rest of the
/// input reach the entries.
pub fn read_container(input: &[u8]) {
    let Some((mode, file)) = input.split_first() else { return };
    let mut file = file.to_vec();
    if mode % 2 == 1 {
        mend_sums(&mut file);
    }
    let Ok(reader) = Reader::open(file.as_slice()) else { return };
    let bases = Bases::none();
    let total = reader.entries().iter().fold(0u64, |sum, entry| sum.saturating_add(entry.raw_len()));
    let mut read = Vec::new();
    for (entry_idx, entry) in reader.entries().iter().enumerate() {
        let Ok(tensor) = reader.open_tensor(entry_idx, &bases) else { continue };
        assert_eq!(tensor.raw_len(), entry.raw_len());
        if tensor.raw_len() > MAX_RAW_LEN {
            // Where it is claimed to be long, only its end.
            let (start, mut out) = (tensor.raw_len() - 10, [0; 10]);
            let _ = tensor.read_range(start..tensor.raw_len(), &mut out, 1);
            continue;
        }
        let Ok(raw) = tensor.read_all(1) else { continue };
        let (start, end) = (raw.len() / 3, raw.len() - raw.len() / 4);
        let mut part = vec![0; end - start];
        tensor.read_range(start as u64..end as u64, &mut part, 1).expect("a part of what was read");
        assert_eq!(part, raw[start..end], "part and whole differ");
        read.push(raw);
    }
    if total > MAX_RAW_LEN {
        return;
    }
    let Ok((restored, _)) = unpack(&reader, Vec::new(), &bases, 1, &|_| ()) else { return };
    assert_eq!(read.len(), reader.entries().len(), "an entry that is restored but not read");
    let mut expected: Vec<u8> = Vec::new();
    let (mut glue, mut glue_at) = (&[][..], 0);
    for (entry, raw) in reader.entries().iter().zip(&read) {
        if entry.glue {
            glue = raw;
            continue;
        }
        let glue_end = glue_at + usize::try_from(entry.glue_before).expect("checked against the glue");
        expected.extend(&glue[glue_at..glue_end]);
        expected.extend(raw);
        glue_at = glue_end;
    }
    expected.extend(&glue[glue_at..]);
    assert_eq!(restored, expected, "the whole is not its parts");
}

/// Makes the sums of prologue, index and footer right, and the digest, as far as their places make sense.
fn mend_sums(file: &mut [u8]) {
    let Some(footer) = file.len().checked_sub(Footer::LEN).filter(|&at| at >= Prologue::LEN) else { return };
    let field = |file: &[u8], at: usize| {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&file[at..at + 8]);
        usize::try_from(u64::from_le_bytes(bytes)).unwrap_or(usize::MAX)
    };
    let (data_offset, index_offset) = (field(file, footer), field(file, footer + 16));
    if (Prologue::LEN..=footer).contains(&data_offset) {
        let sum = mithril::checksum(&[&file[..16], &file[Prologue::LEN..data_offset]].concat());
        file[16..24].copy_from_slice(&sum.to_le_bytes());
        if (data_offset..=footer).contains(&index_offset) {
            let index = file[index_offset..footer].to_vec();
            file[footer + 32..footer + 40].copy_from_slice(&mithril::checksum(&index).to_le_bytes());
            let digest = Digest::of(&[&file[..data_offset], &index].concat());
            file[footer + 40..footer + 72].copy_from_slice(&digest.0);
        }
    }
    let sum = mithril::checksum(&file[footer..footer + 72]);
    file[footer + 72..footer + 80].copy_from_slice(&sum.to_le_bytes());
    file[footer + 80..].copy_from_slice(b"MCKF");
}
