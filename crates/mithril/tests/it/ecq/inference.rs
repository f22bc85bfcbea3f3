//! Products with coded weights are those of the weights.

use super::Numbers;
use mithril::inference::{
    Activations, EntropyCodedEmbedding, EntropyCodedLinear, WeightClass, dot_plain_bf16,
};
use mithril_codec::without_kernels;

/// bf16 weights like those of a layer, with a few far outside.
fn weights(rows: usize, columns: usize) -> Vec<u8> {
    let mut numbers = Numbers::new((rows * columns) as u64);
    let mut one = || {
        let sum: f32 = (0..4).map(|_| numbers.next(1 << 16) as f32 / 65536.0 - 0.5).sum();
        let value = match numbers.next(300) {
            0 => 1e30 * sum,
            1 => 0.0,
            2 => 1e-30 * sum,
            _ => 0.05 * sum,
        };
        ((value.to_bits() >> 16) as u16).to_le_bytes()
    };
    (0..rows * columns).flat_map(|_| one()).collect()
}

fn activations(n: usize) -> Vec<f32> {
    let mut numbers = Numbers::new(n as u64 + 1);
    (0..n).map(|_| numbers.next(2001) as f32 / 1000.0 - 1.0).collect()
}

fn singles(weights: &[u8]) -> Vec<f32> {
    let single = |bytes: &[u8; 2]| f32::from_bits(u32::from(u16::from_le_bytes(*bytes)) << 16);
    weights.as_chunks().0.iter().map(single).collect()
}

const SHAPES: [(usize, usize); 6] = [(1, 64), (7, 100), (130, 256), (64, 1024), (9, 1), (1, 1)];

#[test]
fn bf16_weights_come_back_and_their_products_are_those_of_plain_weights() {
    for (rows, columns) in SHAPES {
        let weights = weights(rows, columns);
        let x = activations(columns);
        for class in [WeightClass::Fixed12, WeightClass::EntropyCoded] {
            let layer = EntropyCodedLinear::from_bf16("layer", &weights, rows, columns, class).unwrap();
            let decoded = layer.decode_rows(0..rows).unwrap();
            let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect::<Vec<u32>>();
            assert_eq!(bits(&decoded), bits(&singles(&weights)), "{class:?}, {rows} x {columns}");
            let mut out = vec![0.0; rows];
            layer.forward(&x, &mut out, 2).unwrap();
            let mut scalar = vec![0.0; rows];
            without_kernels(|| layer.forward(&x, &mut scalar, 1)).unwrap();
            assert_eq!(bits(&out), bits(&scalar), "kernels give the bits of their definition");
            for (row, out) in singles(&weights).chunks_exact(columns).zip(&out) {
                let exact: f64 = row.iter().zip(&x).map(|(w, x)| f64::from(*w) * f64::from(*x)).sum();
                let size: f64 = row.iter().zip(&x).map(|(w, x)| (f64::from(*w) * f64::from(*x)).abs()).sum();
                assert!((f64::from(*out) - exact).abs() <= 1e-5 * size + 1e-12, "{out} and {exact}");
            }
        }
    }
}

#[test]
fn products_without_escapes_have_the_bits_of_plain_products() {
    let (rows, columns) = (70, 512);
    let mut numbers = Numbers::new(3);
    let one = |numbers: &mut Numbers| {
        let value = (numbers.next(2000) as f32 + 500.0) * if numbers.next(2) == 0 { 1e-4 } else { -1e-4 };
        ((value.to_bits() >> 16) as u16).to_le_bytes()
    };
    let weights: Vec<u8> = (0..rows * columns).flat_map(|_| one(&mut numbers)).collect();
    let x = activations(columns);
    let arranged = Activations::new(&x, columns);
    let mut plain = vec![0.0; rows];
    dot_plain_bf16(&weights, &arranged, &mut plain);
    let mut scalar = vec![0.0; rows];
    without_kernels(|| dot_plain_bf16(&weights, &arranged, &mut scalar));
    assert_eq!(plain, scalar);
    for class in [WeightClass::Fixed12, WeightClass::EntropyCoded] {
        let layer = EntropyCodedLinear::from_bf16("layer", &weights, rows, columns, class).unwrap();
        assert_eq!(layer.class(), class);
        let mut out = vec![0.0; rows];
        layer.forward(&x, &mut out, 1).unwrap();
        assert_eq!(out, plain, "{class:?}");
    }
}

#[test]
fn several_vectors_biases_and_embeddings_agree_with_single_products() {
    let (rows, columns) = (33, 192);
    let weights = weights(rows, columns);
    let layer =
        EntropyCodedLinear::from_bf16("e", &weights, rows, columns, WeightClass::EntropyCoded).unwrap();
    let embedding = EntropyCodedEmbedding::new(layer.clone());
    let looked_up = embedding.look_up(&[5, 0, 32, 5]).unwrap();
    for (at, row) in [5, 0, 32, 5].into_iter().enumerate() {
        let expected = &singles(&weights)[row * columns..(row + 1) * columns];
        assert_eq!(&looked_up[at * columns..(at + 1) * columns], expected);
    }
    assert!(embedding.look_up(&[33]).is_err());
    let x = activations(3 * columns);
    let layer = layer.with_bias((0..rows).map(|row| row as f32).collect()).unwrap();
    let mut out = vec![0.0; 3 * rows];
    layer.forward(&x, &mut out, 2).unwrap();
    for (x, out) in x.chunks_exact(columns).zip(out.chunks_exact(rows)) {
        let mut single = vec![0.0; rows];
        layer.forward(x, &mut single, 1).unwrap();
        for (a, b) in single.iter().zip(out) {
            assert!((a - b).abs() <= 1e-4 * a.abs().max(1.0), "{a} and {b}");
        }
    }
    assert!(layer.forward(&x[..columns - 1], &mut out[..rows], 1).is_err());
    assert!(layer.forward_int8(&x[..columns], &mut out[..rows], 1).is_err());
}

#[test]
fn layers_come_back_from_their_parts_and_give_their_weights_back() {
    for (rows, columns) in SHAPES {
        let weights = weights(rows, columns);
        for class in [WeightClass::Fixed12, WeightClass::EntropyCoded] {
            let layer = EntropyCodedLinear::from_bf16("layer", &weights, rows, columns, class).unwrap();
            let parts = layer.to_parts();
            let again = EntropyCodedLinear::from_parts("layer", parts.clone()).unwrap();
            assert_eq!(again.to_parts(), parts);
            let mut decoded = vec![0; weights.len()];
            again.decode_bf16(&mut decoded, 2).unwrap();
            assert_eq!(decoded, weights, "{class:?}, {rows} x {columns}");
            assert!(again.decode_bf16(&mut decoded[1..], 1).is_err());
        }
    }
}

#[test]
fn more_escapes_than_a_block_can_count_are_refused() {
    // Of a row of 2^17 weights nearly half have exponents far away: more than 65535, and not more than half.
    let columns = (1 << 17) + 2;
    let one = |at: usize| if at < columns / 2 { 1e20f32 } else { 1.0 };
    let weights: Vec<u8> =
        (0..columns).flat_map(|at| ((one(at).to_bits() >> 16) as u16).to_le_bytes()).collect();
    let error =
        EntropyCodedLinear::from_bf16("wide", &weights, 1, columns, WeightClass::Fixed12).unwrap_err();
    assert!(error.to_string().contains("wide"), "{error}");
}
