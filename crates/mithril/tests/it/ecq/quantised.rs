//! Weights that came quantised decode to the values of their plain blocks, whole and by rows, and multiply as those do.

use super::models::{GGUF_TYPES, gguf_blocks, gguf_of, mlx_module, safetensors_of};
use super::{Numbers, encode};
use crate::folder::Folder;
use mithril::Dtype;
use mithril::convert::ecq::{EcqFile, NewPart, bit_packing};
use mithril::inference::{QuantisedMatrix, block_values, multiply_blocks, multiply_singles};

/// All tensors of a matrix.
fn parts(file: &EcqFile, name: &str) -> Vec<NewPart> {
    let tensors = file.tensors().iter().filter(|tensor| tensor.name.starts_with(&format!("{name}.")));
    let part = |name: &String| NewPart {
        bytes: file.read(name).unwrap(),
        dtype: Dtype::U8,
        shape: Vec::new(),
        name: name.clone(),
    };
    tensors.map(|tensor| part(&tensor.name)).collect()
}

fn bits(weights: &[f32]) -> Vec<u32> {
    weights.iter().map(|weight| weight.to_bits()).collect()
}

/// The matrix gives these weights, whole and by rows, and its parts give it again.
fn check(matrix: &QuantisedMatrix, name: &str, wanted: &[f32]) {
    let (rows, columns) = (matrix.rows(), matrix.columns());
    let mut numbers = Numbers::new(4);
    for (start, end) in [(0, rows), (0, 0), (rows - 1, rows)]
        .into_iter()
        .chain((0..10).map(|_| (numbers.next(rows as u64 / 2) as usize, rows / 2 + numbers.next(9) as usize)))
    {
        let end = end.min(rows);
        let mut out = vec![0.0; (end - start) * columns];
        matrix.decode_rows(start..end, &mut out, 2).unwrap();
        assert!(bits(&out) == bits(&wanted[start * columns..end * columns]), "{name}, rows {start} to {end}");
    }
    assert!(matrix.decode_rows(0..rows + 1, &mut vec![0.0; (rows + 1) * columns], 1).is_err());
    assert!(matrix.decode_rows(0..1, &mut [0.0; 3], 1).is_err());
    for n in [1, 3, 6] {
        let x = vectors(n, columns);
        let (mut products, mut from_singles) = (vec![0.0; n * rows], vec![1.0; n * rows]);
        multiply_singles(wanted, columns, &x, &mut from_singles, 1).unwrap();
        for threads in [1, 2] {
            products.fill(0.0);
            matrix.multiply(&x, &mut products, threads).unwrap();
            assert!(bits(&products) == bits(&from_singles), "{name}, {n} vectors, {threads} threads");
        }
    }
    assert!(matrix.multiply(&[0.0; 5], &mut vec![0.0; rows], 1).is_err());
    assert!(matrix.multiply(&[], &mut [], 1).is_err());
    let again = QuantisedMatrix::from_parts(name, matrix.to_parts()).unwrap();
    assert_eq!(again.resident_len(), matrix.resident_len());
}

fn vectors(n: usize, columns: usize) -> Vec<f32> {
    (0..n * columns).map(|at| (at * 37 % 101) as f32 / 50.0 - 1.0).collect()
}

#[test]
fn blocks_of_gguf_decode_to_their_values() {
    let folder = Folder::new("ecq-values-gguf");
    let mut n_checked = 0;
    for (dtype, kind) in GGUF_TYPES {
        let blocks = gguf_blocks(dtype, 70);
        let mut wanted = vec![0.0; 70 * 512];
        if block_values(dtype, &blocks, &mut wanted).is_err() {
            continue;
        }
        let name = format!("{}.gguf", dtype.name());
        folder.write(&name, &gguf_of(&[("m", dtype, kind, blocks.clone())]));
        let coded = folder.join(dtype.name());
        encode(&folder.join(&name), &coded, 1).unwrap();
        let file = EcqFile::open(&coded.join(format!("{}.safetensors", dtype.name()))).unwrap().unwrap();
        let matrix = QuantisedMatrix::from_parts("m", parts(&file, "m")).unwrap();
        assert!(matrix.resident_len() < blocks.len(), "{dtype:?}");
        check(&matrix, "m", &wanted);
        n_checked += 1;
        let x = vectors(2, 512);
        let (mut products, mut from_singles) = (vec![0.0; 2 * 70], vec![1.0; 2 * 70]);
        multiply_singles(&wanted, 512, &x, &mut from_singles, 1).unwrap();
        multiply_blocks(dtype, &blocks, 512, &x, &mut products, 2).unwrap();
        assert!(bits(&products) == bits(&from_singles), "{dtype:?}");
        assert!(multiply_blocks(dtype, &blocks[1..], 512, &x, &mut products, 1).is_err());
        assert!(multiply_blocks(dtype, &blocks, 511, &x, &mut products, 1).is_err());
        assert!(block_values(dtype, &blocks[1..], &mut wanted).is_err());
    }
    assert_eq!(n_checked, 10);
}

#[test]
fn groups_of_mlx_decode_to_their_values() {
    let folder = Folder::new("ecq-values-mlx");
    for (width, group) in [(4u8, 64), (3, 32), (8, 128), (2, 64), (5, 32), (6, 64)] {
        let tensors = mlx_module("m", "affine", width, group, 60, 384);
        let name = format!("m{width}.safetensors");
        folder.write(&format!("in{width}/{name}"), &safetensors_of(&tensors));
        let config = format!(r#"{{"quantization": {{"group_size": {group}, "bits": {width}}}}}"#);
        folder.write(&format!("in{width}/config.json"), config.as_bytes());
        let coded = folder.join(&format!("out{width}"));
        encode(&folder.join(&format!("in{width}")), &coded, 1).unwrap();
        let file = EcqFile::open(&coded.join(&name)).unwrap().unwrap();
        let matrix = QuantisedMatrix::from_parts("m", parts(&file, "m")).unwrap();
        let mut codes = vec![0; 60 * 384];
        bit_packing::unpack(width, &tensors[0].3, &mut codes);
        let float = |plane: usize, at: usize| {
            let bytes = &tensors[plane].3[2 * at..2 * at + 2];
            f32::from_bits(u32::from(u16::from_le_bytes([bytes[0], bytes[1]])) << 16)
        };
        let value = |(at, code): (usize, &u8)| float(1, at / group) * f32::from(*code) + float(2, at / group);
        check(&matrix, "m", &codes.iter().enumerate().map(value).collect::<Vec<_>>());
    }
}

#[test]
fn damaged_parts_are_refused() {
    let folder = Folder::new("ecq-values-damaged");
    folder.write("m.gguf", &gguf_of(&[("m", Dtype::Q5_1, 7, gguf_blocks(Dtype::Q5_1, 40))]));
    encode(&folder.join("m.gguf"), &folder.join("coded"), 1).unwrap();
    let file = EcqFile::open(&folder.join("coded/m.safetensors")).unwrap().unwrap();
    let whole = parts(&file, "m");
    assert_eq!(whole.len(), 6);
    let mut numbers = Numbers::new(8);
    for round in 0..200 {
        let mut damaged = whole.clone();
        let part = &mut damaged[round % 6];
        if round % 5 == 0 {
            part.bytes.truncate(numbers.next(part.bytes.len() as u64) as usize);
        } else {
            let at = numbers.next(part.bytes.len() as u64) as usize;
            part.bytes[at] ^= 1 << numbers.next(8);
        }
        let name = part.name.clone();
        // A frame may have bits that nothing depends on; then the weights are as they were.
        if let Ok(matrix) = QuantisedMatrix::from_parts("m", damaged) {
            let mut out = vec![0.0; 40 * 512];
            matrix.decode_rows(0..40, &mut out, 1).unwrap();
            let mut wanted = vec![0.0; 40 * 512];
            block_values(Dtype::Q5_1, &gguf_blocks(Dtype::Q5_1, 40), &mut wanted).unwrap();
            assert!(bits(&out) == bits(&wanted), "round {round}: `{name}` gives other weights");
        }
    }
    for missing in 0..6 {
        let mut some = whole.clone();
        some.remove(missing);
        assert!(QuantisedMatrix::from_parts("m", some).is_err(), "without part {missing}");
    }
}
