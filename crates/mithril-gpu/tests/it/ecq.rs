//! Entropy-coded matrices decode to the symbols of the CPU, and what the CPU refuses is refused.

use crate::{GPU, gemv::matrix, random, repository};
use mithril::convert::ecq::{Coding, EcqFile};
use mithril_codec::ecq::Coded;

fn on_cpu(coded: &Coded<'_>) -> Option<Vec<u8>> {
    let mut symbols = vec![0; coded.shape().rows() * coded.shape().padded_columns()];
    coded.decode_symbols(0..coded.shape().n_blocks(), &mut symbols).ok()?;
    Some(symbols)
}

#[test]
fn every_shape_width_and_kind_of_block_decodes() {
    let shapes = [(1, 1, 1), (1, 5000, 1), (700, 1, 64), (37, 100, 4), (129, 256, 16), (5000, 64, 2)];
    for bits in [2u8, 4, 5, 8] {
        for (rows, columns, rows_per_block) in shapes {
            for coding in [Coding::Entropy, Coding::Fixed] {
                let parts =
                    matrix(bits, rows, columns, rows_per_block, coding, rows as u64 + u64::from(bits));
                let (_, coded) = parts.read("m").expect("reads");
                let symbols = GPU.decode_symbols(&coded).expect("decodes");
                assert!(Some(symbols) == on_cpu(&coded), "{bits} bits, {rows} x {columns}, {coding:?}");
            }
        }
    }
}

#[test]
fn golden_matrices_of_every_layout_decode() {
    let mut n_matrices = 0;
    for entry in std::fs::read_dir(repository("golden/ecq")).expect("the golden files are there") {
        let path = entry.expect("readable").path();
        let file = EcqFile::open(&path).expect("opens").expect("is entropy-coded");
        for name in file.matrices() {
            let parts = file.matrix(name).expect("reads");
            let (_, coded) = parts.read(name).expect("reads");
            let symbols = GPU.decode_symbols(&coded).expect("decodes");
            assert!(Some(symbols) == on_cpu(&coded), "{}: {name}", path.display());
            n_matrices += 1;
        }
    }
    assert!(n_matrices > 25, "only {n_matrices} matrices");
}

#[test]
fn damaged_matrices_are_refused() {
    let parts = matrix(5, 200, 128, 16, Coding::Entropy, 9);
    let (header, _) = parts.read("m").expect("reads");
    let mut random = random(5);
    let mut n_refused = 0;
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
        // The sum of the header is left out: what only it finds must not harm the kernel either.
        let Ok(coded) = Coded::new(header.shape, damaged.parts()) else { continue };
        let on_gpu = GPU.decode_symbols(&coded).ok();
        n_refused += usize::from(on_gpu.is_none());
        assert_eq!(on_gpu, on_cpu(&coded), "round {round}, byte {at}");
    }
    assert!(n_refused > 150, "only {n_refused} refused");
}
