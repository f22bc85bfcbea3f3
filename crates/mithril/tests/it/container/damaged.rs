//! Containers cut off at every length and with every bit flipped: refused, and the tensor is named.

use super::forge::{BF16, F32, Forge, Forged, LINK_RECORDS};
use super::{Tensor, master_and_copy, packed_with, safetensors, salvaged, unpacked};
use crate::samples::pattern;
use mithril::container::{Bases, Model, Reader};
use mithril::pack::{PackOptions, unpack};
use mithril::{Dtype, Effort, Error, ErrorKind};

/// A file whose container has entries of all kinds that need no base, and blocks with bits that mean nothing.
fn tensors() -> Vec<Tensor> {
    let (master, copy) = master_and_copy(Dtype::Bf16, 40, 3);
    vec![
        Tensor::new("weights", Dtype::Bf16, &[3, 91], pattern("weights", Dtype::Bf16, 546, 1)),
        Tensor::new("tied", Dtype::Bf16, &[91, 3], pattern("weights", Dtype::Bf16, 546, 1)),
        Tensor::new("master", Dtype::F32, &[40], master),
        Tensor::new("copy", Dtype::Bf16, &[40], copy),
        Tensor::new("none", Dtype::F32, &[3, 0], Vec::new()),
        Tensor::new("scalar", Dtype::I64, &[], 7i64.to_le_bytes().to_vec()),
        Tensor::new("mask", Dtype::Bool, &[77], pattern("sparse", Dtype::Bool, 77, 2)),
    ]
}

fn container(effort: Effort) -> (Vec<u8>, Vec<u8>) {
    let file = safetensors(&tensors());
    let options = PackOptions::default().with_name("m.safetensors").with_digests(true).with_effort(effort);
    let (container, summary) = packed_with(&file, &options);
    let kinds: Vec<_> = summary.tensors.iter().map(|tensor| tensor.kind.name()).collect();
    assert_eq!(kinds, ["full", "ref", "full", "derived", "inline", "inline", "full"]);
    (file, container)
}

#[test]
fn a_container_cut_off_anywhere_is_refused() {
    let (_, container) = container(Effort::Fast);
    for len in 0..container.len() {
        let error = Reader::open(&container[..len]).unwrap_err();
        let expected = if len == 0 { ErrorKind::Corrupt } else { ErrorKind::Truncated };
        assert_eq!(error.kind(), expected, "cut to {len}: {error}");
    }
}

#[test]
fn a_flipped_bit_anywhere_is_refused_and_the_tensor_named() {
    for effort in [Effort::Fast, Effort::Max] {
        let (file, mut container) = container(effort);
        assert!(unpacked(&container).unwrap() == file);
        let reader = Reader::open(container.clone()).unwrap();
        // The name of the entry whose record, padding or frame holds a byte.
        let owner = |at: u64| {
            (0..reader.entries().len()).find_map(|entry_idx| {
                let directory = reader.directory();
                let frame = directory.frame(entry_idx).map(|frame| frame.record_offset..frame.end());
                let range = frame.or_else(|| directory.link_record(entry_idx))?;
                range.contains(&at).then(|| reader.entries()[entry_idx].label())
            })
        };
        for bit in 0..8 * container.len() {
            container[bit / 8] ^= 1 << (bit % 8);
            let error = match unpacked(&container) {
                Err(error) => error.to_string(),
                Ok(_) => panic!("bit {bit} of {} is not missed", 8 * container.len()),
            };
            if let Some(name) = owner(bit as u64 / 8) {
                assert!(error.starts_with(&format!("tensor `{name}`: ")), "bit {bit}: {error}");
            }
            container[bit / 8] ^= 1 << (bit % 8);
        }
    }
}

#[test]
fn a_flipped_bit_never_gives_other_bytes_of_a_single_tensor() {
    let (_, mut container) = container(Effort::Fast);
    let tensors = tensors();
    for bit in 0..8 * container.len() {
        container[bit / 8] ^= 1 << (bit % 8);
        if let Ok(reader) = Reader::open(container.as_slice()) {
            for tensor in &tensors {
                if let Ok(raw) = reader.read(reader.find(&tensor.name).unwrap(), &Bases::none()) {
                    assert!(raw == tensor.raw, "bit {bit}: other bytes of `{}`", tensor.name);
                }
            }
        }
        container[bit / 8] ^= 1 << (bit % 8);
    }
}

#[test]
fn a_flipped_bit_of_a_container_with_a_base_is_refused() {
    let before = Tensor::weights("a", Dtype::Bf16, 1500, 1);
    let same = Tensor::weights("same", Dtype::F32, 90, 2);
    let mut after = before.clone();
    after.raw.iter_mut().step_by(20).for_each(|byte| *byte ^= 1);
    let base = safetensors(&[before, same.clone()]);
    let bases = Bases::new([Model::open("base", Box::new(base), Bases::none()).unwrap()]);
    let file = safetensors(&[after, same]);
    let (mut container, summary) = packed_with(&file, &PackOptions::default().with_bases(bases.clone()));
    let kinds: Vec<_> = summary.tensors.iter().map(|tensor| tensor.kind.name()).collect();
    assert_eq!(kinds, ["delta", "copy"]);
    let restore = |container: &[u8]| -> Result<Vec<u8>, Error> {
        Ok(unpack(&Reader::open(container)?, Vec::new(), &bases, 1, &|_| ())?.0)
    };
    assert!(restore(&container).unwrap() == file);
    for bit in 0..8 * container.len() {
        container[bit / 8] ^= 1 << (bit % 8);
        assert!(restore(&container).is_err(), "bit {bit} of {} is not missed", 8 * container.len());
        container[bit / 8] ^= 1 << (bit % 8);
    }
}

#[test]
fn damage_in_one_tensor_leaves_the_others_readable() {
    let (_, mut container) = container(Effort::Fast);
    let reader = Reader::open(container.clone()).unwrap();
    let frame = reader.directory().frame(reader.find("master").unwrap()).unwrap();
    container[(frame.offset + frame.len / 2) as usize] ^= 0x10;
    let reader = Reader::open(container.as_slice()).unwrap();
    for tensor in tensors() {
        let result = reader.read(reader.find(&tensor.name).unwrap(), &Bases::none());
        match tensor.name.as_str() {
            "master" | "copy" => assert_eq!(result.unwrap_err().kind(), ErrorKind::Corrupt),
            _ => assert!(result.unwrap() == tensor.raw, "{}", tensor.name),
        }
    }
}

#[test]
fn tensors_without_a_frame_are_saved_without_an_index() {
    let (_, container) = container(Effort::Fast);
    let reader = Reader::open(container.as_slice()).unwrap();
    let record = |name: &str| reader.directory().link_record(reader.find(name).unwrap()).unwrap();
    let lost_of = |damaged: &[u8]| {
        let (saved, lost) = salvaged(damaged);
        let saved = Reader::open(saved.as_slice()).unwrap();
        for tensor in tensors().iter().filter(|tensor| !lost.contains(&tensor.name)) {
            let raw = saved.read(saved.find(&tensor.name).unwrap(), &Bases::none()).unwrap();
            assert!(raw == tensor.raw, "{}", tensor.name);
        }
        lost
    };
    // Cut off behind the record of the derived tensor, and before its end.
    let end = record("copy").end as usize;
    assert_eq!(lost_of(&container[..end]), ["none", "scalar", "mask"]);
    assert_eq!(lost_of(&container[..end - 1]), ["copy", "none", "scalar", "mask"]);
    // A damaged record, with and without an index.
    let mut damaged = container.clone();
    damaged[record("tied").start as usize + 12] ^= 1;
    assert_eq!(lost_of(&damaged[..reader.directory().index_offset() as usize]), ["tied"]);
    assert_eq!(lost_of(&damaged), [""; 0]);
}

#[test]
fn records_that_contradict_each_other_are_not_saved() {
    let raw = [1, 2, 3, 4, 5, 6, 7, 8];
    let mut forge = Forge::of(vec![
        Forged::full("a", F32, &[2], &raw),
        Forged::reference("longer", F32, &[3], 0),
        Forged::reference("later", F32, &[2], 6),
        Forged::reference("itself", F32, &[2], 3),
        Forged::derived("no rounding", F32, &[1], 0),
        Forged::derived("good", BF16, &[2], 0),
        Forged::full("b", F32, &[2], &raw),
        Forged::derived("of a reference", BF16, &[2], 8),
        Forged::reference("tied", F32, &[2], 6),
        Forged::reference("of glue", F32, &[2], 99),
    ]);
    forge.flags = LINK_RECORDS;
    let mut file = forge.build();
    assert!(Reader::open(file.as_slice()).is_err());
    file.truncate(file.len() - 1);
    let (saved, lost) = salvaged(&file);
    assert_eq!(lost, ["longer", "later", "itself", "no rounding", "of glue"]);
    let saved = Reader::open(saved.as_slice()).unwrap();
    let names: Vec<_> = saved.entries().iter().map(|entry| entry.name.as_str()).collect();
    assert_eq!(names, ["a", "good", "b", "of a reference", "tied"]);
    assert_eq!(saved.read(3, &Bases::none()).unwrap(), saved.read(1, &Bases::none()).unwrap());
}

#[test]
fn offsets_in_messages_are_those_of_the_file() {
    let (_, container) = container(Effort::Fast);
    let reader = Reader::open(container.clone()).unwrap();
    let frame = reader.directory().frame(reader.find("weights").unwrap()).unwrap();
    let message = |at: u64| {
        let mut damaged = container.clone();
        damaged[at as usize] ^= 1;
        unpacked(&damaged).unwrap_err().to_string()
    };
    let start = frame.offset;
    assert!(message(start + 20).contains(&format!("frame header at offset {start} is damaged")));
    // The header of a matrix takes 48 bytes, its block's header 16.
    assert!(message(start + 48 + 30).contains(&format!("block 0 at offset {}", start + 48)));
    let trailer = frame.end() - 28;
    assert!(message(frame.end() - 20).contains(&format!("frame trailer at offset {trailer} is damaged")));
    let record = frame.record_offset;
    assert!(message(record + 5).contains(&format!("record at offset {record} is damaged")));
    assert!(message(start - 1).contains(&format!("damaged at offset {}: padding", start - 1)));
}

#[test]
fn large_frames_are_summed_up_while_they_are_read() {
    // Larger than what is read ahead, noise with a constant start: its last tile has places that hold no element.
    let n = (17 << 20) / 2 + 5;
    let raw = pattern("weights", Dtype::Bf16, 2 * n as usize, 9);
    let file = safetensors(&[Tensor::new("large", Dtype::Bf16, &[n], raw)]);
    let (mut container, _) = packed_with(&file, &PackOptions::default());
    assert!(unpacked(&container).unwrap() == file);
    let reader = Reader::open(container.clone()).unwrap();
    let frame = reader.directory().frame(reader.find("large").unwrap()).unwrap();
    assert!(frame.len > 11 << 20, "{}", frame.len);
    for at in [frame.offset + 9, frame.offset + frame.len / 2, frame.end() - 100, frame.end() - 1] {
        container[at as usize] ^= 4;
        let error = unpacked(&container).unwrap_err().to_string();
        assert!(error.starts_with("tensor `large`: "), "{error}");
        container[at as usize] ^= 4;
    }
}
