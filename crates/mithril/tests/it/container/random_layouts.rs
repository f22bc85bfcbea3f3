//! Files of random tensors at random places come back.

use super::{Tensor, file_of, packed_with, unpacked};
use crate::samples::{Random, pattern};
use mithril::Dtype;
use mithril::container::{Bases, Reader};
use mithril::pack::PackOptions;
use proptest::prelude::*;

/// A tensor and the hole before it.
fn tensor() -> impl Strategy<Value = (Tensor, usize)> {
    let dtypes =
        [Dtype::F32, Dtype::Bf16, Dtype::F16, Dtype::I64, Dtype::U8, Dtype::Bool, Dtype::F4, Dtype::F6E2m3];
    let shapes = prop_oneof![
        Just(vec![]),
        Just(vec![0]),
        Just(vec![7, 0, 3]),
        (1u64..40).prop_map(|n| vec![4 * n]),
        (1u64..20, 1u64..20).prop_map(|(rows, columns)| vec![rows, 4 * columns]),
    ];
    let holes = prop_oneof![4 => Just(0usize), 1 => 1usize..100];
    // Few seeds, so that some tensors are equal.
    (prop::sample::select(dtypes.to_vec()), shapes, 0u64..3, holes).prop_map(|(dtype, shape, seed, hole)| {
        let n: u64 = shape.iter().product();
        // A single element of four or six bits does not fill bytes.
        let (shape, len) = match dtype.len_of(n) {
            Some(len) => (shape, len),
            None => (vec![4], dtype.len_of(4).unwrap()),
        };
        let content = ["weights", "constant", "random"][seed as usize];
        let raw = pattern(content, dtype, len as usize, seed + 1);
        (Tensor::new("", dtype, &shape, raw), hole)
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn any_layout_comes_back(
        tensors in prop::collection::vec(tensor(), 0..12),
        tail in 0usize..50,
        blanks in 0usize..20,
        seed in 1u64..1000,
        alignment_log2 in 0u8..=16,
        digests: bool,
        threads in 1usize..4,
    ) {
        let mut random = Random::new(seed);
        let mut data = Vec::new();
        let mut entries = Vec::new();
        let mut named = Vec::new();
        for (i, (mut tensor, hole)) in tensors.into_iter().enumerate() {
            tensor.name = format!("{} {i}", ["w", "a/b", "λ", "x \" y", "/.."][i % 5]);
            data.extend(random.bytes(hole));
            entries.push(tensor.json(data.len()));
            data.extend(&tensor.raw);
            named.push(tensor);
        }
        data.extend(random.bytes(tail));
        // The header lists them in any order.
        for i in (1..entries.len()).rev() {
            entries.swap(i, random.below(i as u64 + 1) as usize);
        }
        let header = format!("{{{}}}{}", entries.join(", "), " ".repeat(blanks));
        let file = file_of(&header, &data);
        let mut options = PackOptions::default().with_digests(digests).with_threads(threads);
        options.alignment_log2 = alignment_log2;
        let (container, _) = packed_with(&file, &options);
        prop_assert!(unpacked(&container).unwrap() == file);
        let reader = Reader::open(container.as_slice()).unwrap();
        for (entry_idx, entry) in reader.entries().iter().enumerate() {
            if let Some(frame) = reader.directory().frame(entry_idx) {
                prop_assert!(frame.offset.is_multiple_of(1 << alignment_log2), "{} at {}", entry.name, frame.offset);
            }
        }
        for tensor in &named {
            let entry_idx = reader.find(&tensor.name).unwrap();
            let entry = &reader.entries()[entry_idx];
            prop_assert_eq!((entry.dtype, &entry.shape), (tensor.dtype, &tensor.shape));
            if let Some(digest) = entry.digest {
                prop_assert_eq!(digest, mithril::Digest::of(&tensor.raw));
            }
            let bases = Bases::none();
            let open = reader.open_tensor(entry_idx, &bases).unwrap();
            prop_assert!(open.read_all(1).unwrap() == tensor.raw);
            let start = random.below(tensor.raw.len() as u64 + 1);
            let end = start + random.below(tensor.raw.len() as u64 - start + 1);
            let mut part = vec![0; (end - start) as usize];
            open.read_range(start..end, &mut part, 1).unwrap();
            prop_assert!(part == tensor.raw[start as usize..end as usize]);
        }
    }
}
