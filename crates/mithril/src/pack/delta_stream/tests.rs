//! Large tensors against their bases, where what fits memory is set low.

use super::super::budget::{DeltaBudget, Expected};
use super::super::{PackOptions, PackSummary, pack, unpack};
use crate::Effort;
use crate::container::{Bases, EntryKind, Model, Reader};

/// Elements of a large tensor: more than is coded in a group, and than fits memory here.
const N: usize = 300_000;

/// Numbers about zero that look like noise, the same for the same seed.
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

fn file(tensors: &[(&str, &[f32])]) -> Vec<u8> {
    let (mut header, mut data) = (serde_json::Map::new(), Vec::new());
    for (name, values) in tensors {
        let start = data.len();
        data.extend(values.iter().flat_map(|value| value.to_le_bytes()));
        let entry =
            serde_json::json!({"dtype": "F32", "shape": [values.len()], "data_offsets": [start, data.len()]});
        header.insert((*name).to_owned(), entry);
    }
    let header = serde_json::Value::Object(header).to_string();
    [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &data].concat()
}

/// How everything is packed here: tensors of more than 64 KiB are large, and are not held either.
fn options() -> PackOptions {
    let mut options = PackOptions::default().with_threads(2).with_digests(true);
    options.in_memory_len = 64 << 10;
    options
}

/// Packs a file against another, and restores it.
fn pack_against(base: &[u8], file: &[u8], mut options: PackOptions) -> (Vec<u8>, PackSummary) {
    let (packed_base, _) = pack(&base, Vec::new(), &options, &|_| ()).unwrap();
    let bases = Bases::new([Model::open("base", Box::new(packed_base), Bases::none()).unwrap()]);
    options.bases = bases.clone();
    let (packed, summary) = pack(&file, Vec::new(), &options, &|_| ()).unwrap();
    let reader = Reader::open(packed.clone()).unwrap();
    let (restored, _) = unpack(&reader, Vec::new(), &bases, 2, &|_| ()).unwrap();
    assert!(restored == file, "another file comes back");
    (packed, summary)
}

#[test]
fn a_large_delta_comes_back_whether_it_was_held_or_coded_twice() {
    let before = noise(1, N);
    let after: Vec<f32> = before.iter().zip(noise(2, N)).map(|(w, x)| w + x * 1e-4).collect();
    let (before, after) = (file(&[("w", &before)]), file(&[("w", &after)]));
    let mut holding = options();
    let (coded_twice, summary) = pack_against(&before, &after, holding.clone());
    assert_eq!(summary.tensors[0].kind, EntryKind::Delta);
    // Large still, as it is longer than this, but its delta is shorter.
    holding.in_memory_len = 4 * N as u64 - 1;
    assert!(summary.tensors[0].stored_len < holding.in_memory_len);
    let (held, _) = pack_against(&before, &after, holding);
    assert!(held == coded_twice, "the same bytes");
}

#[test]
fn a_large_tensor_against_a_base_is_never_larger_than_alone() {
    let sparse = |seed: u64| -> Vec<f32> {
        noise(seed, N).into_iter().enumerate().map(|(i, x)| if i % 9 == 0 { x } else { 0.0 }).collect()
    };
    let halves = |seed: u64| -> Vec<f32> {
        noise(seed, N).into_iter().map(|x| f32::from_bits(x.to_bits() & 0xffff_0000)).collect()
    };
    // Unlike in the first part that plans are made from, alike in the rest, and the other way round.
    let mixed = |seed: u64| [noise(seed, N / 2), halves(7)].concat();
    for effort in [Effort::Fast, Effort::Balanced] {
        for (what, before, after) in [
            ("unrelated", noise(1, N), noise(2, N)),
            ("unrelated zeros", sparse(3), sparse(4)),
            ("unrelated short mantissas", halves(5), halves(6)),
            ("unrelated at first", mixed(8), mixed(9)),
            ("dense against zeros", sparse(3), noise(2, N)),
            ("zeros against dense", noise(2, N), sparse(3)),
        ] {
            let (before, after) = (file(&[("w", &before)]), file(&[("w", &after)]));
            let options = options().with_effort(effort);
            let (_, alone) = pack(&after, Vec::new(), &options, &|_| ()).unwrap();
            let (_, against) = pack_against(&before, &after, options);
            let (alone, against) = (&alone.tensors[0], &against.tensors[0]);
            assert!(
                against.stored_len <= alone.stored_len,
                "{what}: {} and {}",
                against.stored_len,
                alone.stored_len
            );
        }
    }
}

#[test]
fn a_large_delta_is_counted_against_the_budget() {
    let before = noise(1, N);
    let after: Vec<f32> = before.iter().zip(noise(2, N)).map(|(w, x)| w + x * 1e-4).collect();
    let (before, after) = (file(&[("a", &before)]), file(&[("a", &after)]));
    let (_, unbounded) = pack_against(&before, &after, options());
    let len = i64::try_from(unbounded.tensors[0].stored_len).unwrap();
    for (spare, kind) in [(len, EntryKind::Delta), (len - 1, EntryKind::Full)] {
        let mut options = options();
        options.delta_budget = DeltaBudget::new(1.0);
        options.delta_budget.plan("a", spare, 0, Expected::Delta(spare));
        let (_, summary) = pack_against(&before, &after, options);
        assert_eq!(summary.tensors[0].kind, kind);
    }
}

#[test]
fn a_large_delta_starts_where_the_moments_say() {
    let (weights, firsts, seconds) = (noise(1, N), noise(2, N), noise(3, N));
    let seconds: Vec<f32> = seconds.iter().map(|x| x * x * 1e-3 + 1e-9).collect();
    let moved: Vec<f32> = weights
        .iter()
        .zip(firsts.iter().zip(&seconds))
        .map(|(w, (m, v))| w - 1e-5 * (0.9 * m / (v.sqrt() + 1e-8)) - 1e-6 * w)
        .collect();
    let firsts_behind: Vec<f32> = firsts.iter().map(|m| 0.9 * m).collect();
    let before = file(&[("exp_avg.w", &firsts), ("exp_avg_sq.w", &seconds), ("w", &weights)]);
    let after = file(&[("exp_avg.w", &firsts_behind), ("exp_avg_sq.w", &seconds), ("w", &moved)]);
    let (_, plain) = pack_against(&before, &after, options());
    let mut from_moments = options();
    from_moments.from_moments = true;
    let (packed, stepped) = pack_against(&before, &after, from_moments);
    let reader = Reader::open(packed).unwrap();
    assert!(reader.entries()[reader.find("w").unwrap()].step().is_some());
    assert!(stepped.tensors[2].stored_len * 3 < plain.tensors[2].stored_len, "{stepped:?}\n{plain:?}");
}
