//! What the fuzz targets do with their input: functions of bytes that panic when a promise is broken.
//!
//! The targets in `fuzz/` call these; `fuzz_corpus` replays the committed corpus through them.

mod container;
mod delta;
mod df11;
mod dictionary;
mod ecq;
mod foreign;
mod manifest;

pub use container::read_container;
pub use delta::apply_delta;
pub use df11::df11_decode;
pub use dictionary::dictionary_load;
pub use ecq::{ecq_decode, gguf_blocks};
pub use foreign::{archive, read_gguf, read_pt, read_safetensors};
pub use manifest::read_manifest;

use mithril::block::{Scratch, Shared, decode_block};
use mithril::entropy::{huffman, rans12};
use mithril::{DecodeOptions, Decoder, Dtype, Effort, Encoder, FrameOptions};
use mithril_codec::{kernel_sets, with_kernels, without_kernels};
use mithril_format::frame::FrameHeader;
use std::io::{Read, Write};

/// A function of an input.
pub type Body = fn(&[u8]);

/// Every body by the name of its target.
pub const BODIES: &[(&str, Body)] = &[
    ("decode_frame", decode_frame),
    ("round_trip", round_trip),
    ("huffman_decode", huffman_decode),
    ("rans_decode", rans_decode),
    ("against_scalar", against_scalar),
    ("read_container", read_container),
    ("read_safetensors", read_safetensors),
    ("read_pt", read_pt),
    ("read_gguf", read_gguf),
    ("df11_decode", df11_decode),
    ("apply_delta", apply_delta),
    ("dictionary_load", dictionary_load),
    ("ecq_decode", ecq_decode),
    ("gguf_blocks", gguf_blocks),
    ("read_manifest", read_manifest),
];

/// Raw bytes that a frame may decode to here: fuzzing wants many small inputs.
const MAX_RAW_LEN: u64 = 1 << 17;

/// Reading a frame in one piece and as a stream gives the same, or an error both ways.
///
/// An odd first byte asks for checksums to be made right first, which lets the rest of the input reach the blocks.
pub fn decode_frame(input: &[u8]) {
    let Some((mode, frame)) = input.split_first() else { return };
    let mut frame = frame.to_vec();
    if mode % 2 == 1 {
        mend_checksums(&mut frame);
    }
    let options = DecodeOptions::default().with_threads(1).with_max_output_len(MAX_RAW_LEN);
    let whole = mithril::decompress_with(&frame, &options);
    let streamed = Decoder::with_options(&frame[..], &options).map_err(|_| ()).and_then(|mut decoder| {
        let mut raw = Vec::new();
        decoder.read_to_end(&mut raw).map_err(|_| ())?;
        Ok(raw)
    });
    assert_eq!(
        whole.as_ref().map_err(|_| ()),
        streamed.as_ref().map_err(|_| ()),
        "one piece and stream differ"
    );
    if let (Ok(raw), Ok(info)) = (&whole, mithril::inspect(&frame)) {
        assert_eq!(info.raw_len, raw.len() as u64);
        let (start, end) = (raw.len() / 3, raw.len() - raw.len() / 4);
        let part = mithril::decompress_range(&frame, start as u64..end as u64, &options);
        assert_eq!(part.ok().as_deref(), Some(&raw[start..end]), "range and whole differ");
    }
}

/// Makes the checksums of header and trailer right, and does without those of blocks.
fn mend_checksums(frame: &mut [u8]) {
    if let Some(flags) = frame.get_mut(5) {
        *flags &= !1;
    }
    if let Ok(Some(len)) = FrameHeader::len(frame)
        && len <= frame.len()
    {
        let sum = mithril::checksum(&frame[..len - 8]);
        frame[len - 8..len].copy_from_slice(&sum.to_le_bytes());
    }
    let Some(fixed) = frame.len().checked_sub(24) else { return };
    let mut n_blocks = [0; 4];
    n_blocks.copy_from_slice(&frame[fixed + 8..fixed + 12]);
    if let Some(start) = fixed.checked_sub(4 * u32::from_le_bytes(n_blocks) as usize) {
        let sum = mithril::checksum(&frame[start..fixed + 12]);
        frame[fixed + 12..fixed + 20].copy_from_slice(&sum.to_le_bytes());
    }
    frame[fixed + 20..].copy_from_slice(b"MTHE");
}

/// Options from two bytes and the data behind them.
fn options_and_data(input: &[u8]) -> Option<(FrameOptions, &[u8])> {
    let ([a, b], data) = input.split_first_chunk()?;
    let dtype = Dtype::ALL[usize::from(*a) % Dtype::ALL.len()];
    let effort = [Effort::Fast, Effort::Balanced, Effort::Max][usize::from(*b) % 3];
    let checksum = b & 0x40 == 0;
    let mut options =
        FrameOptions::default().with_dtype(dtype).with_effort(effort).with_checksum(checksum).with_threads(1);
    let columns = u64::from(b >> 2 & 15);
    let n = dtype.elements_in(data.len() as u64);
    if columns > 0 && n.is_multiple_of(columns) && dtype.len_of(n) == Some(data.len() as u64) {
        options = options.with_shape([n / columns, columns]);
    }
    Some((options, data))
}

/// What is compressed comes back, in one piece and as a stream, and takes no more than the bound.
pub fn round_trip(input: &[u8]) {
    let Some((options, data)) = options_and_data(input) else { return };
    let frame = mithril::compress(data, &options).expect("options fit the data");
    assert!(frame.len() <= mithril::compress_bound(data.len(), &options), "larger than the bound");
    let decode = DecodeOptions::default().with_threads(1);
    assert!(mithril::decompress_with(&frame, &decode).expect("decodes") == data, "other bytes came back");
    let mut encoder = Encoder::new(Vec::new(), &options).expect("options fit");
    for piece in data.chunks(97) {
        encoder.write_all(piece).expect("a vector takes everything");
    }
    let streamed = encoder.finish().expect("a vector takes everything");
    let mut raw = Vec::new();
    let mut decoder = Decoder::with_options(&streamed[..], &decode).expect("decodes");
    decoder.read_to_end(&mut raw).expect("decodes");
    assert!(raw == data, "other bytes came back from a stream");
}

/// Any bytes decode or are refused; what was encoded comes back.
pub fn huffman_decode(input: &[u8]) {
    let Some((len, rest)) = input.split_first_chunk::<2>() else { return };
    let n = usize::from(u16::from_le_bytes(*len));
    let mut symbols = vec![0; n];
    if huffman::decode_into(rest, &mut symbols).is_ok() {
        let mut again = Vec::new();
        huffman::encode(&symbols, &mut again);
        let mut back = vec![0; n];
        huffman::decode_into(&again, &mut back).expect("decodes");
        assert_eq!(back, symbols);
    }
    let mut coded = Vec::new();
    huffman::encode(rest, &mut coded);
    let mut histogram = [0; 256];
    rest.iter().for_each(|&symbol| histogram[usize::from(symbol)] += 1);
    assert!(coded.len() <= huffman::coded_len(&histogram), "longer than stated");
    let mut back = vec![0; rest.len()];
    huffman::decode_into(&coded, &mut back).expect("decodes");
    assert_eq!(back, rest);
}

/// Any bytes decode or are refused by both rANS coders, as streams and as bit fields.
///
/// Two bytes give the raw length, one where the rest goes: a plane of rANS8 or rANS12, a whole block, or the words of
/// rANS12 with a table made from the input itself.
pub fn rans_decode(input: &[u8]) {
    let Some(([a, b, place], rest)) = input.split_first_chunk::<3>() else { return };
    let raw_len = usize::from(u16::from_le_bytes([*a, *b]));
    let plane = |coder: u8| {
        let len = u32::try_from(rest.len()).expect("inputs are small").to_le_bytes();
        [&[3, 1, coder], &len[..], rest].concat()
    };
    let block = match place % 4 {
        0 => plane(2),
        1 => plane(4),
        2 => rest.to_vec(),
        _ => return rans12_words(raw_len, rest),
    };
    let (with, without) = (decode_one(&block, raw_len), without_kernels(|| decode_one(&block, raw_len)));
    assert_eq!(with.is_ok(), without.is_ok(), "kernels refuse something else");
    if let (Ok(with), Ok(without)) = (with, without) {
        assert!(with == without, "kernels decode to something else");
    }
}

fn decode_one(block: &[u8], raw_len: usize) -> Result<Vec<u8>, mithril::CodecError> {
    let mut raw = vec![0; raw_len];
    decode_block(block.into(), &Shared::default(), &mut raw, &mut Scratch::new())?;
    Ok(raw)
}

fn rans12_words(n: usize, rest: &[u8]) {
    let mut counts = [0; 256];
    rest.iter().for_each(|&symbol| counts[usize::from(symbol)] += 1);
    let Some(table) = rans12::FrequencyTable::from_counts(&counts) else { return };
    let decode_table = [rans12::DecodeTable::new(&table)];
    let runs = [rans12::Run { len: n, table_idx: 0 }];
    let decode = || {
        let mut symbols = vec![0; n];
        rans12::decode_into(rest, &runs, &decode_table, &mut symbols).map(|()| symbols).ok()
    };
    assert_eq!(decode(), without_kernels(decode), "kernels decode to something else");
    let mut coded = Vec::new();
    let runs = [rans12::Run { len: rest.len(), table_idx: 0 }];
    rans12::encode(rest, &runs, std::slice::from_ref(&table), &mut coded);
    let mut back = vec![0; rest.len()];
    rans12::decode_into(&coded, &runs, &decode_table, &mut back).expect("decodes");
    assert_eq!(back, rest);
}

/// Kernels and their scalar definitions write the same bytes and read the same bytes.
pub fn against_scalar(input: &[u8]) {
    let Some((mode, rest)) = input.split_first() else { return };
    let Some((options, data)) = options_and_data(rest) else { return };
    // Some kernels start at 16384 elements, which inputs rarely reach: repeat them, with a change each time.
    let n_repeats = [1, 1, 3, 40][usize::from(mode % 4)].min((1 << 17) / data.len().max(1) + 1);
    let mut long = Vec::with_capacity(data.len() * n_repeats);
    for repeat in 0..n_repeats {
        let step = u8::try_from(repeat % 4).unwrap_or(0);
        long.extend(
            data.iter()
                .enumerate()
                .map(|(at, byte)| if at % 5 == 0 { byte.wrapping_add(step) } else { *byte }),
        );
    }
    let mut options = options;
    if n_repeats > 1 {
        options.shape = None;
        // The search of the highest effort is too slow for long inputs.
        let effort = &mut options.coding.effort;
        *effort = if *effort == Effort::Max { Effort::Fast } else { *effort };
    }
    let decode_options = DecodeOptions::default().with_threads(1);
    let frame = mithril::compress(&long, &options).expect("options fit the data");
    for kernels in kernel_sets() {
        let written =
            with_kernels(kernels, || mithril::compress(&long, &options)).expect("options fit the data");
        assert!(frame == written, "{kernels:?} writes something else");
        let raw =
            with_kernels(kernels, || mithril::decompress_with(&frame, &decode_options)).expect("decodes");
        assert!(raw == long, "{kernels:?} reads something else");
    }
    assert_eq!(mithril::checksum(data), without_kernels(|| mithril::checksum(data)));
}
