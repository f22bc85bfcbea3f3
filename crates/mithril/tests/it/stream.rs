//! `Encoder` and `Decoder`: what goes in comes out, whatever the size of the pieces.

use crate::samples::{Random, every_kind, packed, pattern, with_header};
use mithril::{
    DecodeOptions, Decoder, Dtype, Effort, Encoder, Error, ErrorKind, FrameOptions, compress, decompress,
};
use std::io::{self, Read, Write};

/// Larger than what an encoder plans from.
const LONG: usize = (18 << 20) + 12_345;

pub(crate) fn encode_stream(raw: &[u8], piece_len: usize, options: &FrameOptions) -> Result<Vec<u8>, Error> {
    let mut encoder = Encoder::new(Vec::new(), options)?;
    for piece in raw.chunks(piece_len) {
        encoder.write_all(piece).map_err(inner)?;
    }
    encoder.finish()
}

/// Decodes on one thread.
pub(crate) fn decode_stream(frame: &[u8]) -> Result<Vec<u8>, Error> {
    let mut decoder = Decoder::with_options(frame, &DecodeOptions::default().with_threads(1))?;
    let mut raw = Vec::new();
    decoder.read_to_end(&mut raw).map_err(inner)?;
    Ok(raw)
}

/// Our error out of an `io::Error`.
fn inner(error: io::Error) -> Error {
    *error.into_inner().expect("wraps an error").downcast::<Error>().expect("wraps an error of ours")
}

/// A reader that gives pieces of changing size and is interrupted now and then.
struct Dribble<'a> {
    rest: &'a [u8],
    random: Random,
}

impl Read for Dribble<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if self.random.below(5) == 0 {
            return Err(io::ErrorKind::Interrupted.into());
        }
        let n = (1 + self.random.below(700) as usize).min(out.len()).min(self.rest.len());
        out[..n].copy_from_slice(&self.rest[..n]);
        self.rest = &self.rest[n..];
        Ok(n)
    }
}

#[test]
fn short_data_gives_the_one_shot_frame() {
    for effort in [Effort::Fast, Effort::Balanced] {
        for len in [0, 1, 3, 1000, 100_001] {
            let raw = pattern("weights", Dtype::F32, len, 1);
            let options = FrameOptions::default().with_dtype(Dtype::F32).with_effort(effort);
            for piece_len in [1, 7, 4096, 1 << 20] {
                assert_eq!(
                    encode_stream(&raw, piece_len, &options).unwrap(),
                    compress(&raw, &options).unwrap()
                );
            }
        }
    }
}

#[test]
fn long_data_comes_back_whatever_the_pieces() {
    let raw = pattern("weights", Dtype::F32, LONG, 2);
    for effort in [Effort::Fast, Effort::Balanced] {
        let options = FrameOptions::default().with_dtype(Dtype::F32).with_effort(effort);
        let frame = encode_stream(&raw, 65_537, &options).unwrap();
        assert!(frame == encode_stream(&raw, LONG, &options).unwrap());
        assert!(decompress(&frame).unwrap() == raw);
        assert!(decode_stream(&frame).unwrap() == raw);
        let mut decoder = Decoder::new(&frame[..]).unwrap();
        assert_eq!((decoder.header().dtype, decoder.header().raw_len), (Dtype::F32, None));
        let mut back: Vec<u8> = Vec::new();
        let mut piece = vec![0; 99_991];
        loop {
            let n = decoder.read(&mut piece).unwrap();
            if n == 0 {
                break;
            }
            back.extend(&piece[..n]);
        }
        assert!(back == raw);
        assert_eq!(decoder.read(&mut piece).unwrap(), 0, "the end stays the end");
    }
}

#[test]
fn elements_of_every_size_stream() {
    use Dtype::{Bf16, Bytes, F4, F6E2m3, F8E4m3, F32, F64, I32};
    for dtype in [Bytes, F4, F6E2m3, F8E4m3, Bf16, F32, I32, F64] {
        let raw = pattern("weights", dtype, (8 << 20) + 77_777, 3);
        let options = FrameOptions::default().with_dtype(dtype).with_checksum(false);
        let frame = encode_stream(&raw, 1 << 20, &options).unwrap();
        assert!(decode_stream(&frame).unwrap() == raw, "{}", dtype.name());
        assert!(decompress(&frame).unwrap() == raw, "{}", dtype.name());
    }
}

#[test]
fn single_bytes_go_through() {
    for sample in every_kind() {
        let mut decoder = Decoder::new(&sample.frame[..]).unwrap();
        let mut back = Vec::new();
        let mut byte = [0];
        while decoder.read(&mut byte).unwrap() == 1 {
            back.push(byte[0]);
        }
        assert_eq!(back, sample.raw, "{}", sample.name);
    }
}

#[test]
fn readers_may_dribble_and_be_interrupted() {
    for sample in every_kind().into_iter().chain([packed()]) {
        // `Decoder::new` and `read` both have to go on after an interruption.
        let mut decoder = Decoder::new(Dribble { rest: &sample.frame, random: Random::new(1) }).unwrap();
        let mut back = Vec::new();
        decoder.read_to_end(&mut back).unwrap();
        assert_eq!(back, sample.raw, "{}", sample.name);
    }
}

#[test]
fn a_shape_is_stored_and_its_length_is_kept() {
    let raw = pattern("weights", Dtype::Bf16, 1000 * 5000 * 2, 4);
    let options = FrameOptions::default().with_dtype(Dtype::Bf16).with_shape([1000, 5000]);
    let frame = encode_stream(&raw, 1 << 20, &options).unwrap();
    let decoder = Decoder::new(&frame[..]).unwrap();
    assert_eq!(decoder.header().shape, Some(vec![1000, 5000]));
    assert_eq!(decoder.header().raw_len, Some(raw.len() as u64));
    assert!(decompress(&frame).unwrap() == raw);
    for len in [0, 1000, raw.len() - 1] {
        let error = encode_stream(&raw[..len], 1 << 20, &options).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{len} bytes: {error}");
    }
    let error = encode_stream(&[&raw[..], &[0]].concat(), 1 << 20, &options).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
}

#[test]
fn impossible_shapes_are_refused() {
    for (dtype, shape) in [(Dtype::F32, vec![u64::MAX, 2]), (Dtype::F4, vec![3]), (Dtype::F32, vec![1; 65])] {
        let options = FrameOptions::default().with_dtype(dtype).with_shape(shape);
        let error = Encoder::new(Vec::new(), &options).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert_eq!(compress(&[0; 4], &options).unwrap_err().kind(), ErrorKind::InvalidArgument);
    }
}

/// Takes some bytes, then fails.
struct Full {
    room: usize,
}

impl Write for Full {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let n = bytes.len().min(self.room);
        self.room -= n;
        if n == 0 { Err(io::ErrorKind::StorageFull.into()) } else { Ok(n) }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_writer_that_fails_fails_the_encoder_for_good() {
    let raw = pattern("random", Dtype::Bytes, 1 << 20, 5);
    for room in [0, 10, 1000, 12 << 20] {
        let mut encoder = Encoder::new(Full { room }, &FrameOptions::default()).unwrap();
        let error = loop {
            if let Err(error) = encoder.write_all(&raw) {
                break error;
            }
        };
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
        assert_eq!(inner(error).kind(), ErrorKind::Io);
        assert_eq!(inner(encoder.write_all(&raw).unwrap_err()).kind(), ErrorKind::InvalidArgument);
        assert_eq!(encoder.finish().map(|_| ()).unwrap_err().kind(), ErrorKind::InvalidArgument);
    }
    let mut encoder = Encoder::new(Full { room: 100 }, &FrameOptions::default()).unwrap();
    encoder.write_all(&raw).unwrap();
    assert_eq!(encoder.finish().map(|_| ()).unwrap_err().kind(), ErrorKind::Io);
}

#[test]
fn a_decoder_that_failed_does_not_report_an_end() {
    let raw = pattern("weights", Dtype::Bf16, 5000, 6);
    let frame = compress(&raw, &FrameOptions::default().with_dtype(Dtype::Bf16)).unwrap();
    let mut decoder = Decoder::new(&frame[..frame.len() - 1]).unwrap();
    let mut out = [0; 100];
    let error = decoder.read(&mut out).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
    assert_eq!(inner(error).kind(), ErrorKind::Truncated);
    assert!(decoder.read(&mut out).is_err());
}

#[test]
fn an_output_limit_holds_for_streams() {
    let raw = vec![0; 1 << 20];
    let frame = compress(&raw, &FrameOptions::default()).unwrap();
    let read = |limit: u64| {
        let options = DecodeOptions::default().with_max_output_len(limit);
        let mut out = Vec::new();
        Decoder::with_options(&frame[..], &options).unwrap().read_to_end(&mut out).map_err(inner)
    };
    assert_eq!(read(1 << 20).unwrap(), 1 << 20);
    assert_eq!(read((1 << 20) - 1).unwrap_err().kind(), ErrorKind::TooLarge);
}

/// Whether readers take what a frame holds without being asked to take more.
fn is_taken_by_default(frame: &[u8]) -> bool {
    mithril::inspect(frame).unwrap().raw_len <= DecodeOptions::default().output_limit(frame.len())
}

#[test]
fn constant_data_is_within_the_default_limit_of_its_own_frame() {
    // More than readers take for next to no bytes.
    let raw = vec![0; 80 << 20];
    for dtype in [Dtype::U16, Dtype::I64, Dtype::Bool] {
        let frame = compress(&raw, &FrameOptions::default().with_dtype(dtype)).unwrap();
        assert!(is_taken_by_default(&frame), "{dtype:?}: {} bytes", frame.len());
        assert!(frame.len() < 20_000, "{dtype:?}: {} bytes", frame.len());
    }
    let streamed = |parts: &[&[u8]], dtype: Dtype| {
        let mut encoder = Encoder::new(Vec::new(), &FrameOptions::default().with_dtype(dtype)).unwrap();
        parts.iter().for_each(|part| encoder.write_all(part).unwrap());
        encoder.finish().unwrap()
    };
    let frame = streamed(&[&raw], Dtype::U16);
    assert!(is_taken_by_default(&frame) && frame.len() < 20_000, "{} bytes", frame.len());
    // What the beginning does not tell.
    let text = b"zeros come after this; ".repeat((8 << 20) / 23 + 1);
    let frame = streamed(&[&text, &raw, &raw], Dtype::U16);
    assert!(is_taken_by_default(&frame), "{} bytes", frame.len());
    assert!(frame.len() < 5 << 20, "one block as it is: {} bytes", frame.len());
    let decoded = decompress(&frame).unwrap();
    assert!(decoded[..text.len()] == text && decoded[text.len()..].iter().all(|&byte| byte == 0));
}

#[test]
fn a_stream_whose_shape_is_not_its_length_is_refused() {
    let samples = every_kind();
    let sample = samples.iter().find(|sample| sample.name == "shared_rans8").unwrap();
    // Without the raw length in the header only the end of the frame tells.
    let unknown_len = with_header(&sample.frame, |header| {
        header[5] &= !4;
        header[16..24].fill(0);
    });
    assert_eq!(decompress(&unknown_len).unwrap(), sample.raw);
    assert_eq!(decode_stream(&unknown_len).unwrap(), sample.raw);
    let wrong = with_header(&unknown_len, |header| header[24] += 1);
    assert_eq!(decompress(&wrong).unwrap_err().kind(), ErrorKind::Corrupt);
    assert_eq!(decode_stream(&wrong).unwrap_err().kind(), ErrorKind::Corrupt);
}

#[test]
fn a_source_that_is_not_read_to_its_end_is_an_error() {
    let options = FrameOptions::default().with_dtype(Dtype::U8).with_threads(1);
    for len in [0, 7, LONG] {
        let encoder = |raw: &[u8]| {
            let mut encoder = Encoder::new(Vec::new(), &options).unwrap();
            encoder.write_all(raw).unwrap();
            encoder
        };
        let raw = vec![3; len];
        let frame = encoder(&raw).finish_whole(len as u64).unwrap();
        assert!(decode_stream(&frame).unwrap() == raw);
        for source_len in [len as u64 + 1, (len as u64).wrapping_sub(1)] {
            let error = encoder(&raw).finish_whole(source_len).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Io);
            assert!(error.to_string().contains(&format!("{len} of its {source_len} bytes")), "{error}");
        }
    }
}
