//! How much is read: requests and bytes, counted by the source.

use super::forge::{U8, stored_frame};
use super::{Tensor, packed, safetensors};
use crate::samples::{Random, pattern};
use mithril::container::{Bases, Entry, Reader};
use mithril::{Dtype, FrameOptions, ReadAt, compress};
use mithril_format::container::{ContainerWriter, Header};
use std::io::{self, Write};
use std::sync::atomic::{AtomicU64, Ordering};

/// A source that counts, and does not show its memory.
struct Counting<S> {
    source: S,
    n_reads: AtomicU64,
    n_bytes: AtomicU64,
}

impl<S> Counting<S> {
    fn new(source: S) -> Self {
        Self { source, n_reads: AtomicU64::new(0), n_bytes: AtomicU64::new(0) }
    }

    /// Requests and bytes since the last time.
    fn take(&self) -> (u64, u64) {
        (self.n_reads.swap(0, Ordering::Relaxed), self.n_bytes.swap(0, Ordering::Relaxed))
    }
}

impl<S: ReadAt> ReadAt for Counting<S> {
    fn size(&self) -> io::Result<u64> {
        self.source.size()
    }

    fn read_exact_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.n_reads.fetch_add(1, Ordering::Relaxed);
        self.n_bytes.fetch_add(out.len() as u64, Ordering::Relaxed);
        self.source.read_exact_at(offset, out)
    }
}

/// A file that is zero except for some pieces: what a file system makes of a sparse file.
#[derive(Default)]
struct Sparse {
    pieces: Vec<(u64, Vec<u8>)>,
    len: u64,
}

impl Write for Sparse {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if bytes.iter().any(|&byte| byte != 0) {
            self.pieces.push((self.len, bytes.to_vec()));
        }
        self.len += bytes.len() as u64;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl ReadAt for Sparse {
    fn size(&self) -> io::Result<u64> {
        Ok(self.len)
    }

    fn read_exact_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let end = offset.checked_add(out.len() as u64).filter(|&end| end <= self.len);
        let end = end.ok_or(io::ErrorKind::UnexpectedEof)?;
        out.fill(0);
        for (start, piece) in &self.pieces {
            let (from, to) = (offset.max(*start), end.min(start + piece.len() as u64));
            if from < to {
                let source = &piece[(from - start) as usize..(to - start) as usize];
                out[(from - offset) as usize..(to - offset) as usize].copy_from_slice(source);
            }
        }
        Ok(())
    }
}

/// A container of 1 GiB in which one tensor of 1 MiB is real.
fn gibibyte(raw: &[u8]) -> Sparse {
    let mut writer = ContainerWriter::new(Sparse::default(), &Header::default(), 6).unwrap();
    let zeros = vec![0; 1 << 20];
    for i in 0..1024 {
        let is_real = i == 700;
        let name =
            if is_real { "wanted".to_owned() } else { format!("model.layers.{i}.self_attn.q_proj.weight") };
        let mut frame = writer.start_frame(Entry::full(name, Dtype::U8, [1 << 20])).unwrap();
        if is_real {
            let options = FrameOptions::default().with_dtype(Dtype::U8).with_shape([1 << 20]);
            frame.write_all(&compress(raw, &options).unwrap()).unwrap();
        } else {
            frame.write_all(&zeros).unwrap();
        }
        frame.finish();
    }
    writer.finish().unwrap().writer
}

#[test]
fn one_tensor_of_a_gibibyte_takes_three_requests_at_most() {
    // Noise, so that the frame is as long as the tensor.
    let raw = Random::new(5).bytes(1 << 20);
    let source = Counting::new(gibibyte(&raw));
    assert!(source.size().unwrap() > 1 << 30);
    let reader = Reader::open(&source).unwrap();
    let read = reader.read(reader.find("wanted").unwrap(), &Bases::none()).unwrap();
    let (n_reads, n_bytes) = source.take();
    assert!(read == raw);
    assert!(n_reads <= 3 && n_bytes <= 3 << 19, "{n_reads} requests of {n_bytes} bytes");
}

#[test]
fn a_large_index_takes_one_request_more() {
    let mut writer = ContainerWriter::new(Vec::new(), &Header::default(), 6).unwrap();
    let mut random = Random::new(8);
    for i in 0..8000u32 {
        let raw = random.bytes(8);
        let mut frame = writer.start_frame(Entry::full(format!("tensor {i}"), Dtype::U8, [8])).unwrap();
        frame.write_all(&stored_frame(U8, &[8], &raw)).unwrap();
        frame.finish();
    }
    let finished = writer.finish().unwrap();
    let source = Counting::new(finished.writer);
    let reader = Reader::open(&source).unwrap();
    assert!(reader.directory().file_len() - reader.directory().index_offset() > 64 << 10);
    assert_eq!(source.take().0, 2);
}

#[test]
fn rows_of_a_large_tensor_take_only_the_blocks_that_hold_them() {
    let shape = [8192, 512];
    let raw = pattern("weights", Dtype::F32, 4 * 8192 * 512, 11);
    let file = safetensors(&[
        Tensor::weights("before", Dtype::F32, 1000, 1),
        Tensor::new("large", Dtype::F32, &shape, raw.clone()),
    ]);
    let (container, _) = packed(&file);
    let source = Counting::new(container);
    let reader = Reader::open(&source).unwrap();
    let bases = Bases::none();
    let tensor = reader.open_tensor(reader.find("large").unwrap(), &bases).unwrap();
    let (n_reads, n_bytes) = source.take();
    assert!(n_reads <= 3 && n_bytes <= 100 << 10, "opening takes {n_reads} requests of {n_bytes} bytes");
    let row_len = 4 * 512;
    for rows in [0..1, 100..200, 5000..5064, 8191..8192, 77..77] {
        let range = rows.start * row_len..rows.end * row_len;
        let mut out = vec![0; (range.end - range.start) as usize];
        tensor.read_range(range.clone(), &mut out, 1).unwrap();
        assert!(out == raw[range.start as usize..range.end as usize], "{rows:?}");
        let (n_reads, n_bytes) = source.take();
        // Blocks are not cut: at most one more at each end.
        let most = out.len() as u64 + 2 * tensor.block_len() + 100;
        let n_expected = u64::from(!rows.is_empty());
        assert!(n_reads == n_expected && n_bytes <= most, "{rows:?}: {n_reads} requests of {n_bytes} bytes");
    }
}

#[test]
fn the_header_takes_one_request() {
    let (container, _) = packed(&safetensors(&[Tensor::weights("a", Dtype::F32, 1000, 1)]));
    let source = Counting::new(container);
    let reader = Reader::open(&source).unwrap();
    source.take();
    assert!(reader.header().unwrap().original.is_some());
    assert_eq!(source.take().0, 1);
}
