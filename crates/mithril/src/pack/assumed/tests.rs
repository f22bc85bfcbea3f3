//! Sources that change while they are packed: what is written is what was read, or nothing is.

use super::super::{PackOptions, pack, unpack};
use crate::Error;
use crate::container::{Bases, EntryKind, Model, Reader};
use mithril_format::{Digest, ReadAt};
use std::collections::BTreeSet;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A file that is another one from a certain read on.
struct Changing<'a> {
    states: [&'a [u8]; 2],
    reads: AtomicUsize,
    change_at: usize,
}

impl ReadAt for Changing<'_> {
    fn size(&self) -> io::Result<u64> {
        Ok(self.states[0].len() as u64)
    }

    fn read_exact_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let has_changed = self.reads.fetch_add(1, Ordering::Relaxed) >= self.change_at;
        self.states[usize::from(has_changed)].read_exact_at(offset, out)
    }
}

/// As `Changing`, for a source that lends its memory unless it is copied.
struct Lending<'a>(Changing<'a>);

impl ReadAt for Lending<'_> {
    fn size(&self) -> io::Result<u64> {
        self.0.size()
    }

    fn read_exact_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.0.read_exact_at(offset, out)
    }

    fn slice(&self, _: std::ops::Range<u64>) -> Option<&[u8]> {
        panic!("memory that may change is not lent")
    }
}

fn noise(seed: u64, n: usize) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut uniform = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1 << 24) as f32 - 0.5
    };
    (0..n).map(|_| (0..4).map(|_| uniform()).sum::<f32>() * 0.02).collect()
}

fn singles(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

fn rounded(values: &[f32]) -> Vec<u8> {
    let mut out = vec![0; 2 * values.len()];
    crate::container::round_to(mithril_codec::Dtype::Bf16, &singles(values), &mut out);
    out
}

/// Name, number type and bytes of a tensor in both states of a file.
type Tensor = (&'static str, &'static str, [Vec<u8>; 2]);

/// Both states of a safetensors file.
fn files(tensors: &[Tensor]) -> [Vec<u8>; 2] {
    [0, 1].map(|state| {
        let (mut header, mut data) = (Vec::new(), Vec::new());
        for (name, dtype, states) in tensors {
            let (bytes, start) = (&states[state], data.len());
            let n = bytes.len() / if *dtype == "F32" { 4 } else { 2 };
            data.extend(bytes);
            let end = data.len();
            header.push(format!(
                r#""{name}":{{"dtype":"{dtype}","shape":[{n}],"data_offsets":[{start},{end}]}}"#
            ));
        }
        let header = format!("{{{}}}", header.join(","));
        [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &data].concat()
    })
}

/// Packs a file that changes at every read that there is, one after the other: what is acknowledged decodes, by blocks and
/// by digests, and every element is one that the tensor had. Returns which kinds of entries there were, and how often it
/// was refused.
fn changed_at_every_read(tensors: &[Tensor], options: &PackOptions) -> (BTreeSet<EntryKind>, usize) {
    let [before, after] = files(tensors);
    assert_eq!(before.len(), after.len());
    let (mut kinds, mut n_refused) = (BTreeSet::new(), 0);
    let mut change_at = 0;
    loop {
        let changing = Changing { states: [&before, &after], reads: AtomicUsize::new(0), change_at };
        let lending = Lending(changing);
        let changing = &lending.0;
        let source: &dyn ReadAt = if options.changing { &lending } else { changing };
        match pack(source, Vec::new(), options, &|_| ()) {
            Ok((packed, summary)) => {
                kinds.extend(summary.tensors.iter().map(|tensor| tensor.kind));
                let model = Model::open("packed", Box::new(packed.clone()), options.bases.clone()).unwrap();
                let reader = Reader::open(packed).unwrap();
                let (restored, _) = unpack(&reader, Vec::new(), &options.bases, 1, &|_| ())
                    .unwrap_or_else(|error| panic!("changed at read {change_at}: {error}"));
                for (tensor_idx, tensor) in model.tensors().iter().enumerate() {
                    let (_, dtype, states) = tensors.iter().find(|(name, ..)| *name == tensor.name).unwrap();
                    let mut bytes = vec![0; states[0].len()];
                    model
                        .open_tensor(tensor_idx)
                        .unwrap()
                        .read_range(0..bytes.len() as u64, &mut bytes, 1)
                        .unwrap();
                    assert_eq!(model.digest(tensor_idx).unwrap(), Digest::of(&bytes), "read {change_at}");
                    let width = if *dtype == "F32" { 4 } else { 2 };
                    let had = bytes.chunks(width).zip(states[0].chunks(width).zip(states[1].chunks(width)));
                    assert!(
                        had.into_iter().all(|(now, (before, after))| now == before || now == after),
                        "changed at read {change_at}: `{}` never had that",
                        tensor.name
                    );
                }
                assert_eq!(restored.len(), before.len());
            }
            Err(Error::Tensor { source, .. }) if matches!(*source, Error::Changed) => n_refused += 1,
            Err(error) => panic!("changed at read {change_at}: {error}"),
        }
        if changing.reads.load(Ordering::Relaxed) <= change_at {
            return (kinds, n_refused);
        }
        change_at += 1;
    }
}

fn packed(tensors: &[Tensor], state: usize) -> Bases {
    let options = PackOptions::default().with_digests(true);
    let (packed, _) = pack(&files(tensors)[state], Vec::new(), &options, &|_| ()).unwrap();
    Bases::new([Model::open("base", Box::new(packed), Bases::none()).unwrap()])
}

/// Enough elements that a tensor is no small one.
const N: usize = 140_000;

/// Large and small tensors of which some become equal, and some are roundings of others that come before or after.
fn tensors() -> Vec<Tensor> {
    let (x, y, small, wide) = (noise(1, N), noise(2, N), noise(3, 300), noise(4, 2000));
    let [x, y] = [singles(&x), singles(&y)];
    let changed: Vec<f32> = small.iter().map(|value| value * 0.75).collect();
    let other: Vec<f32> = wide.iter().map(|value| value * 1.5).collect();
    vec![
        ("a.large", "F32", [x.clone(), y.clone()]),
        ("b.twin", "F32", [y.clone(), y.clone()]),
        ("c.same", "F32", [x.clone(), y]),
        ("d.small", "F32", [singles(&small), singles(&changed)]),
        ("e.equal", "F32", [singles(&changed), singles(&changed)]),
        ("f.narrow", "BF16", [rounded(&wide), rounded(&other)]),
        ("g.wide", "F32", [singles(&wide), singles(&other)]),
        ("h.narrow", "BF16", [rounded(&other), rounded(&other)]),
    ]
}

#[test]
fn a_source_that_changes_at_any_read_is_packed_as_what_was_read_or_refused() {
    let tensors = tensors();
    let options = PackOptions::default().with_threads(1);
    for options in [options.clone().with_digests(true), options.clone().with_changing(true)] {
        let (kinds, _) = changed_at_every_read(&tensors, &options);
        assert!(
            kinds.is_superset(&[EntryKind::Full, EntryKind::Ref, EntryKind::Derived].into()),
            "{kinds:?}"
        );
    }
}

#[test]
fn a_source_that_changes_is_stored_against_a_base_as_what_was_read() {
    let tensors = tensors();
    for in_memory_len in [64 << 20, 64 << 10] {
        for state in [0, 1] {
            let mut options = PackOptions::default().with_threads(1).with_digests(true);
            options.bases = packed(&tensors, state);
            options.in_memory_len = in_memory_len;
            let (kinds, _) = changed_at_every_read(&tensors, &options);
            assert!(kinds.contains(&EntryKind::Copy), "{kinds:?}");
        }
    }
}

#[test]
fn weights_whose_moments_change_are_refused_or_come_back() {
    let n = 20_000;
    let (w, m, v) = (noise(5, n), noise(6, n), noise(7, n));
    let v: Vec<f32> = v.iter().map(|v| v * v).collect();
    let stepped: Vec<f32> =
        w.iter().zip(m.iter().zip(&v)).map(|(w, (m, v))| w - 1e-3 * (m / (v.sqrt() + 1e-8))).collect();
    let old: Vec<f32> = m.iter().zip(noise(8, n)).map(|(m, g)| (m - 0.1 * g) / 0.9).collect();
    let moved: Vec<f32> = m.iter().map(|m| m * 0.5).collect();
    let moments = |first: &[f32], second: &[f32]| {
        vec![
            ("exp_avg.w", "F32", [singles(first), singles(second)]),
            ("exp_avg_sq.w", "F32", [singles(&v), singles(&v)]),
        ]
    };
    let mut base = moments(&old, &old);
    base.push(("w", "F32", [singles(&w), singles(&w)]));
    let mut tensors = moments(&m, &moved);
    tensors.push(("w", "F32", [singles(&stepped), singles(&stepped)]));
    for in_memory_len in [64 << 20, 16 << 10] {
        let mut options = PackOptions::default().with_threads(1).with_digests(true);
        options.from_moments = true;
        options.bases = packed(&base, 0);
        options.in_memory_len = in_memory_len;
        let (kinds, n_refused) = changed_at_every_read(&tensors, &options);
        assert!(kinds.contains(&EntryKind::Delta), "{kinds:?}");
        assert!(n_refused > 0, "moments were read again, and had changed");
    }
}
