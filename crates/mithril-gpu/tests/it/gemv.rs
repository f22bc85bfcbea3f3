//! Products with coded matrices equal those of the CPU, and what the CPU refuses is refused.

use crate::{GPU, random, weights};
use mithril::convert::ecq::{Coding, Escape, MatrixParts, MatrixPlan, NewPart, SideSum, matrix_parts};
use mithril::inference::{EntropyCodedLinear, WeightClass};
use mithril_codec::ecq::Coded;
use mithril_codec::ecq::gemv::{Activations, Exponents};
use mithril_codec::quantised::Layout;

fn held(parts: Vec<NewPart>) -> MatrixParts {
    let mut held = MatrixParts::default();
    for part in parts {
        match part.name.as_str() {
            "m.compressed" => held.compressed = part.bytes,
            "m.stream_offsets" => held.stream_offsets = part.bytes,
            "m.freq" => held.freq = part.bytes,
            "m.low_bits" => held.low_bits = part.bytes,
            _ => {}
        }
    }
    held
}

/// A matrix of codes: a bell, or one code everywhere.
pub(crate) fn matrix(
    bits: u8,
    rows: usize,
    columns: usize,
    rows_per_block: usize,
    coding: Coding,
    seed: u64,
) -> MatrixParts {
    let mut random = random(seed);
    let most = (1u64 << bits) - 1;
    let mut code =
        || u8::try_from((0..4).map(|_| random() % (most + 1)).sum::<u64>() / 4).expect("eight bits");
    // The first rows are one code alone: a constant block, where low bits allow it.
    let codes: Vec<u8> =
        (0..rows * columns).map(|at| if at < rows_per_block * columns { 5 } else { code() }).collect();
    let escapes = [Escape { row: rows - 1, column: 0, value: 3.0 }];
    let plan = MatrixPlan {
        layout: Layout::Levels,
        bits,
        group_size: 0,
        scale_dtype: None,
        size: (rows, columns),
        rows_per_block: Some(rows_per_block),
        escapes: &escapes,
        coding,
        side_sum: SideSum::default(),
    };
    held(matrix_parts("m", &plan, &codes).expect("a matrix"))
}

fn levels_and_vector(bits: u8, columns: usize, seed: u64) -> (Vec<i8>, Vec<i8>) {
    let mut random = random(seed);
    let mut byte = || i8::from_le_bytes([random().to_le_bytes()[5]]).max(-127);
    ((0..1 << bits).map(|_| byte()).collect(), (0..columns).map(|_| byte()).collect())
}

fn on_cpu(coded: &Coded<'_>, levels: &[i8], x: &[i8]) -> Option<Vec<i32>> {
    let mut padded = x.to_vec();
    padded.resize(coded.shape().padded_columns(), 0);
    let mut sums = vec![0; coded.shape().rows()];
    coded.dot_levels(0..coded.shape().n_blocks(), levels, &padded, &mut sums).ok()?;
    Some(sums)
}

#[test]
fn sums_of_levels_are_those_of_the_cpu() {
    let shapes = [(1, 1, 1), (1, 5000, 1), (700, 1, 64), (37, 100, 4), (129, 256, 16), (300, 192, 7)];
    for bits in [4u8, 5, 6, 8] {
        for (rows, columns, rows_per_block) in shapes {
            for coding in [Coding::Entropy, Coding::Fixed] {
                let parts =
                    matrix(bits, rows, columns, rows_per_block, coding, rows as u64 + u64::from(bits));
                let (_, coded) = parts.read("m").expect("reads");
                let (levels, x) = levels_and_vector(bits, columns, 3);
                let wanted = on_cpu(&coded, &levels, &x).expect("multiplies");
                let sums = GPU.dot_levels(&coded, &levels, &x).expect("multiplies");
                assert_eq!(sums, wanted, "{bits} bits, {rows} x {columns}, {coding:?}");
            }
        }
    }
}

#[test]
fn products_of_12_bits_are_those_of_the_cpu() {
    for (rows, columns) in [(1, 1), (1, 3000), (530, 1), (50, 100), (260, 576)] {
        let mut bytes: Vec<u8> = weights(rows * columns, columns as u64)
            .iter()
            .flat_map(|x| [x.to_le_bytes()[2], x.to_le_bytes()[3]])
            .collect();
        // An escape, and a zero.
        if rows * columns > 9 {
            bytes[8..12].copy_from_slice(&[0x80, 0x7f, 0, 0]);
        }
        let Ok(layer) = EntropyCodedLinear::from_bf16("m", &bytes, rows, columns, WeightClass::Fixed12)
        else {
            panic!("{rows} x {columns} is not coded");
        };
        let parts = layer.to_parts();
        let first = parts.iter().find(|part| part.name == "m.levels").expect("an exponent").bytes[0];
        let parts = held(parts);
        let (_, coded) = parts.read("m").expect("reads");
        let x = weights(columns, 77);
        let mut wanted = vec![0.0; rows];
        let arranged = Activations::new(&x, coded.shape().padded_columns());
        coded
            .dot_bf16(0..coded.shape().n_blocks(), &Exponents::new(first), &arranged, &mut wanted)
            .expect("multiplies");
        let products = GPU.dot_fixed12(&coded, first, &x).expect("multiplies");
        let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
        assert_eq!(bits(&products), bits(&wanted), "{rows} x {columns}");
    }
}

#[test]
fn damaged_matrices_are_refused_or_multiplied_as_on_the_cpu() {
    let parts = matrix(5, 200, 128, 16, Coding::Entropy, 9);
    let (header, _) = parts.read("m").expect("reads");
    let (levels, x) = levels_and_vector(5, 128, 4);
    let mut random = random(5);
    let (mut n_refused, mut n_other) = (0, 0);
    for round in 0..300 {
        let mut damaged = parts.clone();
        let part = match round % 8 {
            0 => &mut damaged.low_bits,
            1 => &mut damaged.stream_offsets,
            2 => &mut damaged.freq,
            _ => &mut damaged.compressed,
        };
        let at = usize::try_from(random() % part.len() as u64).expect("fits");
        part[at] ^= 1 << (random() % 8);
        // Sums of header and blocks are left out: what only they find must not harm the kernel either.
        let Ok(coded) = Coded::new(header.shape, damaged.parts()) else { continue };
        let on_gpu = GPU.dot_levels(&coded, &levels, &x).ok();
        let wanted = on_cpu(&coded, &levels, &x);
        n_refused += usize::from(on_gpu.is_none());
        n_other += usize::from(on_gpu.is_some());
        assert_eq!(on_gpu, wanted, "round {round}, byte {at}");
    }
    assert!(n_refused > 60 && n_other > 20, "{n_refused} refused, {n_other} not");
}

#[test]
fn vectors_and_levels_that_do_not_fit_are_refused() {
    let parts = matrix(4, 20, 100, 8, Coding::Entropy, 1);
    let (_, coded) = parts.read("m").expect("reads");
    let (levels, x) = levels_and_vector(4, 100, 4);
    assert!(GPU.dot_levels(&coded, &levels, &x[1..]).is_err());
    assert!(GPU.dot_levels(&coded, &levels[1..], &x).is_err());
    assert!(GPU.dot_fixed12(&coded, 100, &vec![1.0; 100]).is_err(), "levels are no bf16 weights");
}
