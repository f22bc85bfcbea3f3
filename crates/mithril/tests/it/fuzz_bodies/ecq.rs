//! Entropy-coded matrices and blocks of GGUF from any bytes.

use mithril::Dtype;
use mithril::convert::ecq::{Coded, Coding, Layout, MatrixHeader, Parts, Shape, gguf, low_bits, zero_codes};
use mithril_codec::ecq::{Escape, encode};
use mithril_codec::without_kernels;

/// Any parts decode, with kernels and without alike, or are refused; what was encoded comes back.
///
/// Two bytes give rows and columns, one the rows of a block, one the low bits and whether sums are made right, one each
/// the number of tables and of escapes; then come offsets, tables, low bits and blocks.
pub fn ecq_decode(input: &[u8]) {
    let Some(([rows, columns, per_block, mode, n_tables, n_offsets], rest)) = input.split_first_chunk::<6>()
    else {
        return;
    };
    let low = [0, 1, 2, 4, 8][usize::from(mode % 5)];
    let (rows, columns) = (usize::from(*rows % 16), usize::from(*columns));
    let Ok(shape) = Shape::of_blocks(rows, columns, usize::from(*per_block), low) else { return };
    let mut rest = rest;
    let mut take = |len: usize| rest.split_off(..len.min(rest.len())).unwrap_or_default().to_vec();
    let stream_offsets = take(4 * usize::from(*n_offsets));
    let freq = take(16 * usize::from(n_tables % 18));
    let low_plane = take(rows * shape.low_row_len());
    let compressed = take(usize::MAX);
    let parts =
        Parts { compressed: &compressed, stream_offsets: &stream_offsets, freq: &freq, low_bits: &low_plane };
    let _ = MatrixHeader::read("fuzzed", parts);
    if let Ok(coded) = Coded::new(shape, parts) {
        for block in 0..shape.n_blocks() {
            let decode = || {
                let mut symbols = vec![0; shape.n_symbols(block)];
                coded.decode_symbols(block..block + 1, &mut symbols).map(|()| symbols).ok()
            };
            assert_eq!(decode(), without_kernels(decode), "kernels decode to something else");
            let _ = coded.escapes(block);
        }
    }
    round_trip(&shape, input);
}

/// Symbols from the nibbles of the input, with escapes where its bytes say.
fn round_trip(shape: &Shape, input: &[u8]) {
    let n = shape.rows() * shape.padded_columns();
    let byte = |at: usize| input[at % input.len()];
    let symbols: Vec<u8> = (0..n).map(|at| (byte(at / 2) >> (4 * (at % 2))) & 15).collect();
    let low_plane: Vec<u8> = (0..shape.rows() * shape.low_row_len()).map(byte).collect();
    let escape = |row: usize| Escape { row, column: usize::from(byte(row)) % shape.columns(), value: 1.5 };
    let escapes: Vec<Escape> =
        (0..shape.rows()).filter(|&row| byte(row).is_multiple_of(3)).map(escape).collect();
    for coding in [Coding::Entropy, Coding::Fixed] {
        let encoded = encode(shape, &symbols, &low_plane, &escapes, coding);
        assert_eq!(encoded, without_kernels(|| encode(shape, &symbols, &low_plane, &escapes, coding)));
        let parts = Parts {
            compressed: &encoded.compressed,
            stream_offsets: &encoded.stream_offsets,
            freq: &encoded.freq,
            low_bits: &low_plane,
        };
        let coded = Coded::new(*shape, parts).expect("what was encoded fits together");
        let mut back = vec![0; n];
        coded.decode_symbols(0..shape.n_blocks(), &mut back).expect("decodes");
        assert!(back == symbols, "other symbols came back");
        let listed: Vec<Escape> =
            (0..shape.n_blocks()).flat_map(|block| coded.escapes(block).expect("in place")).collect();
        assert!(listed == escapes, "other escapes came back");
    }
}

/// Blocks of every type come apart and together; so do scales and biases of any bits, and planes of any width.
pub fn gguf_blocks(input: &[u8]) {
    let Some((kind, rest)) = input.split_first() else { return };
    let types: Vec<Dtype> =
        Dtype::ALL.iter().copied().filter(|dtype| !Layout::Gguf(*dtype).sides().is_empty()).collect();
    let dtype = types[usize::from(*kind) % types.len()];
    let layout = Layout::Gguf(dtype);
    let blocks = &rest[..rest.len() / dtype.unit_len() * dtype.unit_len()];
    let n = blocks.len() / dtype.unit_len() * dtype.elements_per_unit() as usize;
    let mut codes = vec![0; n];
    let mut sides = vec![Vec::new(); layout.sides().len()];
    gguf::split(dtype, blocks, &mut codes, &mut sides);
    let bits = layout.bits().expect("a width");
    assert!(codes.iter().all(|&code| u32::from(code) < 1 << bits), "a code of more bits");
    let sides: Vec<&[u8]> = sides.iter().map(Vec::as_slice).collect();
    let mut back = vec![0; blocks.len()];
    gguf::join(dtype, &codes, &sides, &mut back);
    assert!(back == blocks, "other blocks came back");

    let float = [Dtype::F16, Dtype::Bf16, Dtype::F32][usize::from(*kind) % 3];
    let half = rest.len() / 8 * 4;
    let (scales, biases) = (&rest[..half], &rest[half..2 * half]);
    let coded = zero_codes::split(float, scales, biases);
    assert!(zero_codes::join(float, scales, &coded) == biases, "other biases came back");

    let bits = [1, 2, 4, 8][usize::from(*kind) % 4];
    let values: Vec<u8> = rest[..rest.len() / 64 * 64].iter().map(|byte| byte >> (8 - bits)).collect();
    let mut plane = vec![0; values.len() / 8 * usize::from(bits)];
    low_bits::pack(bits, &values, &mut plane);
    let mut back = vec![0; values.len()];
    low_bits::unpack(bits, &plane, &mut back);
    assert!(back == values, "other low bits came back");
}
