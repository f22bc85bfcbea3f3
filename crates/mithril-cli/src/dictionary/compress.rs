//! `mithril dictionary compress` and `decompress`.

use super::arguments::{CompressArguments, DecompressArguments};
use super::train::write;
use super::{Loaded, ratio, records, refused};
use crate::failure::{Failure, tell};
use mithril::dictionary::{PackedRecords, Samples, are_frames, frame_len, pack};
use std::collections::HashSet;
use std::path::{Path, PathBuf};

/// How a frame of zstd starts.
const ZSTD_MAGIC: [u8; 4] = 0xFD2F_B528u32.to_le_bytes();

/// Runs `mithril dictionary compress`.
pub(crate) fn compress(arguments: &CompressArguments) -> Result<(), Failure> {
    let loaded = Loaded::open(&arguments.dictionary, arguments.level)?;
    let dictionary = loaded.codec();
    let name = arguments.dictionary.display();
    let failed = |error| refused(&name, &error);
    let Some(output) = &arguments.output else {
        let (mut raw_len, mut coded_len) = (0, 0);
        let files = records::files(&arguments.records)?;
        let frames: HashSet<PathBuf> = files.iter().map(|path| with_suffix(path)).collect();
        // What an earlier run made of one of these files is no record.
        for path in files.iter().filter(|path| !frames.contains(*path)) {
            let record = std::fs::read(path).map_err(|error| Failure::read(path.display(), &error))?;
            let frame = dictionary.compress(&record).map_err(failed)?;
            (raw_len, coded_len) = (raw_len + record.len() as u64, coded_len + frame.len() as u64);
            write(&with_suffix(path), arguments.force, &frame)?;
        }
        tell(&summary("files", raw_len, coded_len));
        return Ok(());
    };
    let set = records::read(&arguments.records, arguments.split, usize::MAX)?;
    let samples = set.samples();
    let (frames, ends) =
        dictionary.compress_slices(&samples.iter().collect::<Vec<_>>(), arguments.threads).map_err(failed)?;
    let frames = Samples::new(&frames, &ends).expect("ends of frames rise");
    let packed = pack(&frames, dictionary).map_err(failed)?;
    write(output, arguments.force, &packed)?;
    let what = format!("{}: {} records", output.display(), samples.n_samples());
    tell(&summary(&what, samples.total_len() as u64, packed.len() as u64));
    Ok(())
}

/// Runs `mithril dictionary decompress`.
pub(crate) fn decompress(arguments: &DecompressArguments) -> Result<(), Failure> {
    let loaded = Loaded::open(&arguments.dictionary, 3)?;
    let dictionary = loaded.codec();
    let name = arguments.file.display();
    let failed = |error| refused(&name, &error);
    let file = std::fs::read(&arguments.file).map_err(|error| Failure::read(&name, &error))?;
    let packed = PackedRecords::parse(&file);
    if let Ok(packed) = &packed {
        packed.check_dictionary(dictionary).map_err(failed)?;
    }
    let bytes = match (&packed, arguments.record) {
        (Ok(packed), Some(record_idx)) => {
            let frame = packed.frame(record_idx).map_err(failed)?.ok_or_else(|| {
                Failure::input(format!("`{name}` has no record {record_idx}, only {}", packed.n_records()))
            })?;
            dictionary.decompress(frame).map_err(failed)?
        }
        (Ok(packed), None) => {
            let frames: Vec<&[u8]> = packed.frames().map_err(failed)?.iter().collect();
            dictionary.decompress_slices(&frames, arguments.threads).map_err(failed)?.0
        }
        // Frames without an index are one record, however many they are, as they are to zstd. One that is cut off is a
        // frame still, and several are a packed file without its end.
        (Err(_), None | Some(0)) if !PackedRecords::is_packed(&file) && is_record(&file) => {
            dictionary.decompress(&file).map_err(failed)?
        }
        (Err(error), _) => return Err(failed(error.clone())),
    };
    write(&arguments.output, arguments.force, &bytes)?;
    if arguments.output.as_os_str() != "-" {
        tell(&format!("{name} -> {}: {} bytes", arguments.output.display(), bytes.len()));
    }
    Ok(())
}

/// Whether a file without an index holds frames, or the start of one.
fn is_record(file: &[u8]) -> bool {
    are_frames(file) || file.starts_with(&ZSTD_MAGIC) && frame_len(file).is_none()
}

fn summary(what: &str, raw_len: u64, coded_len: u64) -> String {
    format!("{what}, {raw_len} -> {coded_len} bytes, {:.3} times smaller", ratio(raw_len, coded_len))
}

fn with_suffix(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".zst");
    name.into()
}
