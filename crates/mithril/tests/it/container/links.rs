//! Tensors that need no bytes of their own: references, roundings, and copies of a base.

use super::{Tensor, check_restored, master_and_copy, packed, packed_with, safetensors};
use mithril::container::{Bases, EntryKind, Model, Reader};
use mithril::pack::{PackOptions, unpack};
use mithril::{Dtype, ErrorKind};

fn model(file: Vec<u8>) -> Model {
    Model::open("base.safetensors", Box::new(file), Bases::none()).unwrap()
}

#[test]
fn equal_tensors_are_stored_once() {
    let a = Tensor::weights("a", Dtype::F32, 500, 1);
    let again = Tensor { name: "again".into(), shape: vec![20, 25], ..a.clone() };
    let other = Tensor::weights("other", Dtype::F32, 500, 2);
    let third = Tensor { name: "third".into(), ..a.clone() };
    let tensors = [a, other, again, third];
    let kinds = check_restored("tied weights", &safetensors(&tensors), &tensors);
    assert_eq!(kinds, [EntryKind::Full, EntryKind::Full, EntryKind::Ref, EntryKind::Ref]);
}

#[test]
fn rounded_copies_of_a_master_cost_nothing() {
    for dtype in [Dtype::Bf16, Dtype::F16] {
        let (wide, narrow) = master_and_copy(dtype, 3000, 7);
        let master = Tensor::new("master", Dtype::F32, &[30, 100], wide.clone());
        let copy = Tensor::new("copy", dtype, &[30, 100], narrow.clone());
        for tensors in [[master.clone(), copy.clone()], [copy.clone(), master.clone()]] {
            let kinds = check_restored(dtype.name(), &safetensors(&tensors), &tensors);
            let derived = usize::from(tensors[0].name == "master");
            assert_eq!(kinds[derived], EntryKind::Derived, "{}", dtype.name());
            assert_eq!(kinds[1 - derived], EntryKind::Full, "{}", dtype.name());
        }
        let mut wrong = copy.clone();
        wrong.raw[2999] ^= 1;
        let kinds =
            check_restored("no rounding", &safetensors(&[master.clone(), wrong.clone()]), &[master, wrong]);
        assert_eq!(kinds, [EntryKind::Full, EntryKind::Full]);
    }
}

#[test]
fn a_copy_of_a_master_that_is_a_reference_is_derived_from_what_it_refers_to() {
    let (wide, narrow) = master_and_copy(Dtype::Bf16, 3000, 7);
    let first = Tensor::new("first", Dtype::F32, &[3000], wide.clone());
    let copy = Tensor::new("copy", Dtype::Bf16, &[30, 100], narrow);
    // Of the copy's shape, which is looked for, and with the bytes of the first.
    let master = Tensor::new("master", Dtype::F32, &[30, 100], wide);
    let tied = Tensor { name: "tied copy".into(), ..copy.clone() };
    for tensors in [[first.clone(), copy.clone(), master.clone(), tied.clone()], [first, master, copy, tied]]
    {
        let kinds = check_restored("reference and rounding", &safetensors(&tensors), &tensors);
        let count = |kind| kinds.iter().filter(|&&found| found == kind).count();
        assert_eq!([EntryKind::Full, EntryKind::Ref, EntryKind::Derived].map(count), [1, 2, 1], "{kinds:?}");
    }
}

#[test]
fn equal_bytes_of_another_type_are_no_master() {
    // Zeros of three types: the master equals an integer tensor that nothing can be derived from.
    let zeros = |name: &str, dtype: Dtype, n: u64| {
        Tensor::new(name, dtype, &[n], vec![0; dtype.len_of(n).unwrap() as usize])
    };
    for tensors in [
        [zeros("i", Dtype::I32, 64), zeros("master", Dtype::F32, 64), zeros("copy", Dtype::Bf16, 64)],
        [zeros("copy", Dtype::Bf16, 64), zeros("i", Dtype::I32, 64), zeros("master", Dtype::F32, 64)],
        [zeros("long", Dtype::Bf16, 128), zeros("copy", Dtype::Bf16, 64), zeros("master", Dtype::F32, 64)],
    ] {
        check_restored("zeros", &safetensors(&tensors), &tensors);
    }
}

#[test]
fn parts_of_a_rounded_tensor_are_read_alone() {
    let (wide, narrow) = master_and_copy(Dtype::F16, 4000, 3);
    let tensors = [
        Tensor::new("master", Dtype::F32, &[4000], wide),
        Tensor::new("copy", Dtype::F16, &[4000], narrow.clone()),
    ];
    let (container, _) = packed(&safetensors(&tensors));
    let reader = Reader::open(container.as_slice()).unwrap();
    let bases = Bases::none();
    let tensor = reader.open_tensor(reader.find("copy").unwrap(), &bases).unwrap();
    for range in [0..8000, 1..2, 1..8000, 4001..4001, 7999..8000, 33..92, 34..91, 0..1] {
        let mut out = vec![0; range.len()];
        tensor.read_range(range.start as u64..range.end as u64, &mut out, 1).unwrap();
        assert!(out == narrow[range.clone()], "{range:?}");
    }
    assert_eq!(tensor.read_range(0..8001, &mut [0; 8001], 1).unwrap_err().kind(), ErrorKind::InvalidArgument);
}

#[test]
fn tensors_of_a_base_are_copied_by_digest() {
    let base = [Tensor::weights("a", Dtype::F32, 900, 1), Tensor::weights("b", Dtype::Bf16, 700, 2)];
    let renamed = Tensor { name: "layers/b".into(), ..base[1].clone() };
    let file = safetensors(&[base[0].clone(), renamed]);
    let base_file = safetensors(&base);
    let bases = Bases::new([model(base_file.clone())]);
    let (container, summary) = packed_with(&file, &PackOptions::default().with_bases(bases.clone()));
    assert!(summary.tensors.iter().all(|tensor| tensor.kind == EntryKind::Copy));
    let reader = Reader::open(container.as_slice()).unwrap();
    assert!(unpack(&reader, Vec::new(), &bases, 1, &|_| ()).unwrap().0 == file);

    // Packed, with other tensors beside, and under other names, it is the same base.
    let mut more = base.to_vec();
    more.insert(0, Tensor::weights("new", Dtype::F32, 900, 9));
    more[1].name = "other".into();
    for digests in [false, true] {
        let (packed, _) = packed_with(&safetensors(&more), &PackOptions::default().with_digests(digests));
        let bases = Bases::new([model(packed)]);
        assert!(unpack(&reader, Vec::new(), &bases, 1, &|_| ()).unwrap().0 == file);
    }

    // Without it, or with one that differs in a bit, nothing is written.
    let mut wrong = base_file;
    *wrong.last_mut().unwrap() ^= 1;
    for bases in [Bases::none(), Bases::new([model(wrong)])] {
        let mut written = Vec::new();
        let error = unpack(&reader, &mut written, &bases, 1, &|_| ()).map(|_| ()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Base, "{error}");
        assert!(error.to_string().contains("tensor `"), "{error}");
        assert!(written.is_empty());
    }
}
