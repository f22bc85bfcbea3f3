//! Writes the seeds of the fuzz corpus: a small frame of every kind, inputs of every coder, and golden containers.
//!
//! ```text
//! cargo run -p mithril --example seed_fuzz_corpus
//! ```
//! Files are named for what they hold. Inputs that fuzzing finds are added beside them by hand.

#[path = "../tests/it/samples.rs"]
#[allow(dead_code, reason = "shared with the tests")]
mod samples;

use mithril::Dtype;
use mithril::entropy::huffman;
use samples::{every_kind, first_block, pattern};
use std::io;
use std::path::PathBuf;

/// Samples that say nothing new to a fuzzer, or take too much of a small corpus.
const LEFT_OUT: &[&str] = &["constant_2", "constant_4", "fields_tail", "planes_tail", "planes_rans12"];

fn main() -> io::Result<()> {
    let corpus = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus");
    let write = |target: &str, name: &str, parts: &[&[u8]]| {
        let folder = corpus.join(target);
        std::fs::create_dir_all(&folder)?;
        std::fs::write(folder.join(name), parts.concat())
    };
    let samples: Vec<_> =
        every_kind().into_iter().filter(|sample| !LEFT_OUT.contains(&sample.name)).collect();
    for sample in &samples {
        write("decode_frame", sample.name, &[&[0], &sample.frame])?;
        if sample.name.starts_with("fields") {
            let [a, b, ..] = sample.raw.len().to_le_bytes();
            write("rans_decode", sample.name, &[&[a, b, 2], first_block(&sample.frame)])?;
        }
    }
    // The same with checksums to be mended.
    write(
        "decode_frame",
        "mended_several_blocks",
        &[&[1], &samples.last().ok_or(io::ErrorKind::NotFound)?.frame],
    )?;
    for sample in samples.iter().filter(|sample| ["planes_rans8", "planes_huffman"].contains(&sample.name)) {
        let [a, b, ..] = sample.raw.len().to_le_bytes();
        let coded = &first_block(&sample.frame)[7..];
        match sample.name {
            "planes_huffman" => write("huffman_decode", "short", &[&[a, b], coded])?,
            _ => write("rans_decode", "plane_rans8", &[&[a, b, 0], coded])?,
        }
    }
    let skewed: Vec<u8> = pattern("weights", Dtype::I8, 1500, 1).iter().map(|byte| byte >> 3).collect();
    let mut coded = Vec::new();
    huffman::encode(&skewed, &mut coded);
    write("huffman_decode", "four_streams", &[&1500u16.to_le_bytes(), &coded])?;
    write("huffman_decode", "one_symbol", &[&9u16.to_le_bytes(), &[7, 7]])?;
    write("rans_decode", "rans12_words", &[&700u16.to_le_bytes(), &[3], &skewed])?;
    for (id, &dtype) in (0u8..).zip(Dtype::ALL) {
        for (name, content, effort) in
            [("weights", "weights", 0u8), ("rows", "rows", 1 | 8 << 2), ("special", "special", 2)]
        {
            // Few lengths are enough: one short and odd, one of whole rows.
            let len = if content == "rows" { 64 * dtype.unit_len().min(8) } else { 61 };
            let data = pattern(content, dtype, len, u64::from(id));
            write("round_trip", &format!("{}_{name}", dtype.name().to_lowercase()), &[&[id, effort], &data])?;
        }
        let data = pattern("weights", dtype, 420, u64::from(id));
        write("against_scalar", &format!("{}_long", dtype.name().to_lowercase()), &[&[3, id, 0], &data])?;
    }
    // Golden containers, as they are and with sums to be mended.
    let golden = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../golden");
    for name in ["empty", "glue_only", "tensors_only"] {
        let container = std::fs::read(golden.join(format!("v0_1_0_{name}.mckp")))?;
        write("read_container", name, &[&[0], &container])?;
        write("read_container", &format!("mended_{name}"), &[&[1], &container])?;
    }
    let odd = std::fs::read(golden.join("v0_1_0_safetensors_odd.mckp"))?;
    write("read_container", "safetensors_odd", &[&[1], &odd])?;
    // Manifests of the golden store, as they are and with digests to be mended.
    let manifest = std::fs::read(golden.join("stores/v0_1_0/manifests/step_2.json"))?;
    write("read_manifest", "delta", &[&[0], &manifest])?;
    write("read_manifest", "mended_delta", &[&[1], &manifest])?;
    for content in ["few", "sparse", "repeats", "narrow", "constant"] {
        let data = pattern(content, Dtype::F32, 600, 3);
        write("round_trip", content, &[&[Dtype::F32.id(), 1], &data])?;
        write("against_scalar", content, &[&[2, Dtype::F32.id(), 1], &data])?;
    }
    Ok(())
}
