//! The bytes of a container do not depend on threads, and equal tensors give equal frames in every file.

use super::{Tensor, file_of, packed_with, safetensors};
use crate::samples::pattern;
use mithril::container::{Bases, Reader};
use mithril::pack::{PackOptions, unpack};
use mithril::{Dtype, Effort};

fn file() -> Vec<u8> {
    let matrix = |name: &str, dtype: Dtype, rows: u64, seed: u64| {
        let raw = pattern("rows", dtype, rows as usize * 64 * dtype.unit_len(), seed);
        Tensor::new(name, dtype, &[rows, 64], raw)
    };
    safetensors(&[
        matrix("a", Dtype::Bf16, 12_000, 1),
        matrix("b", Dtype::F32, 5_000, 2),
        matrix("tied", Dtype::Bf16, 12_000, 1),
        Tensor::weights("c", Dtype::I8, 700_000, 3),
    ])
}

#[test]
fn threads_give_identical_containers() {
    let file = file();
    for effort in [Effort::Fast, Effort::Balanced] {
        let pack = |threads| {
            packed_with(
                &file,
                &PackOptions::default().with_effort(effort).with_threads(threads).with_digests(true),
            )
            .0
        };
        let first = pack(1);
        assert!(pack(2) == first && pack(8) == first, "{}", effort.name());
        let reader = Reader::open(first.as_slice()).unwrap();
        for threads in [1, 2, 8] {
            let (restored, _) = unpack(&reader, Vec::new(), &Bases::none(), threads, &|_| ()).unwrap();
            assert!(restored == file, "{} threads", threads);
        }
    }
}

#[test]
fn equal_tensors_have_equal_frames_in_every_file() {
    let shared = Tensor::weights("shared", Dtype::Bf16, 5000, 4);
    let frame = |file: &[u8]| {
        let (container, _) = packed_with(file, &PackOptions::default());
        let reader = Reader::open(container.as_slice()).unwrap();
        let frame = reader.directory().frame(reader.find(&shared.name).unwrap()).unwrap();
        container[frame.offset as usize..frame.end() as usize].to_vec()
    };
    let alone = safetensors(std::slice::from_ref(&shared));
    let among = safetensors(&[Tensor::weights("x", Dtype::F32, 77, 5), shared.clone()]);
    let holed = file_of(&format!("{{{}}}", shared.json(3)), &[b"abc", &shared.raw[..]].concat());
    assert!(frame(&alone) == frame(&among) && frame(&alone) == frame(&holed));
}
