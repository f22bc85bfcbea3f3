//! Damage of an entropy-coded file is found, and never gives other bytes.

use super::{Numbers, decode, encode, mlx_module, safetensors_of};
use crate::folder::Folder;
use mithril::convert::ecq::{EcqFile, SourceFormat};

#[test]
fn a_flipped_bit_is_refused_or_changes_nothing() {
    let folder = Folder::new("ecq-flips");
    let original = safetensors_of(&mlx_module("a", "affine", 6, 64, 64, 256));
    folder.write("model.safetensors", &original);
    encode(&folder.join("model.safetensors"), &folder.join("coded"), 1).unwrap();
    let coded = std::fs::read(folder.join("coded/model.safetensors")).unwrap();
    let mut numbers = Numbers::new(11);
    let mut n_refused = 0;
    for round in 0..400 {
        let bit = numbers.next(8 * coded.len() as u64) as usize;
        let mut damaged = coded.clone();
        damaged[bit / 8] ^= 1 << (bit % 8);
        folder.write("damaged/model.safetensors", &damaged);
        let back = folder.join(&format!("back{round}"));
        match decode(&folder.join("damaged"), &back, SourceFormat::Safetensors) {
            Err(_) => {
                n_refused += 1;
                assert!(!back.exists(), "bit {bit} leaves something behind");
            }
            Ok(()) => {
                assert!(std::fs::read(back.join("model.safetensors")).unwrap() == original, "bit {bit}");
            }
        }
    }
    assert!(n_refused > 350, "only {n_refused} of 400 flips were found");
}

#[test]
fn a_file_cut_off_anywhere_is_refused() {
    let folder = Folder::new("ecq-cut");
    folder.write("model.safetensors", &safetensors_of(&mlx_module("a", "mxfp8", 8, 32, 64, 256)));
    encode(&folder.join("model.safetensors"), &folder.join("coded"), 1).unwrap();
    let coded = std::fs::read(folder.join("coded/model.safetensors")).unwrap();
    for len in (0..coded.len()).step_by(173) {
        folder.write("cut.safetensors", &coded[..len]);
        let cut = folder.join("cut.safetensors");
        assert!(!matches!(EcqFile::open(&cut), Ok(Some(_))), "{len} of {} bytes", coded.len());
        assert!(decode(&cut, &folder.join("back"), SourceFormat::Safetensors).is_err());
    }
}
