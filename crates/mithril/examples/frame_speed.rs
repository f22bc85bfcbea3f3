//! Times one-shot compression of a file, for comparison with the Python package:
//! `cargo run --release -p mithril --example frame_speed -- FILE DTYPE THREADS REPEAT`
//!
//! Prints the least CPU seconds of `compress`, `decompress` and `decompress_into`, as JSON.

use mithril::{DecodeOptions, Dtype, FrameOptions};
use rustix::time::{ClockId, clock_gettime};
use std::time::Duration;

/// CPU time of all threads of this process.
fn cpu() -> Result<Duration, std::num::TryFromIntError> {
    let now = clock_gettime(ClockId::ProcessCPUTime);
    Ok(Duration::new(now.tv_sec.try_into()?, now.tv_nsec.try_into()?))
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [path, dtype, threads, repeat] = arguments.as_slice() else {
        return Err("usage: frame_speed FILE DTYPE THREADS REPEAT".into());
    };
    let (threads, repeat): (usize, usize) = (threads.parse()?, repeat.parse()?);
    let raw = std::fs::read(path)?;
    let dtype = Dtype::from_name(dtype).ok_or("unknown dtype")?;
    let options = FrameOptions::default().with_dtype(dtype).with_threads(threads);
    let decode_options = DecodeOptions::default().with_threads(threads);
    let frame = mithril::compress(&raw, &options)?;
    let mut out = vec![0; raw.len()];
    let [mut compress, mut decompress, mut into] = [f64::INFINITY; 3];
    for _ in 0..repeat {
        let start = cpu()?;
        let again = mithril::compress(&raw, &options)?;
        compress = compress.min((cpu()? - start).as_secs_f64());
        assert_eq!(again.len(), frame.len());
        drop(again);
        let start = cpu()?;
        let back = mithril::decompress_with(&frame, &decode_options)?;
        decompress = decompress.min((cpu()? - start).as_secs_f64());
        assert_eq!(back.len(), raw.len());
        drop(back);
        let start = cpu()?;
        mithril::decompress_into(&frame, &mut out, &decode_options)?;
        into = into.min((cpu()? - start).as_secs_f64());
    }
    assert_eq!(out, raw);
    println!(r#"{{"compress": {compress}, "decompress": {decompress}, "decompress_into": {into}}}"#);
    Ok(())
}
