//! What the fuzz target of manifests does with its input.

use mithril::checkpoint::{CheckpointSignature, Manifest};
use mithril_format::Digest;

/// Any bytes are a manifest or are refused; what is accepted has sums within their types, and is written as it was read.
///
/// An odd first byte asks for the digest to be made right first, which lets the rest of the input reach the fields.
pub fn read_manifest(input: &[u8]) {
    let Some((mode, bytes)) = input.split_first() else { return };
    let mut bytes = bytes.to_vec();
    if mode % 2 == 1 && bytes.len() > 36 && bytes.starts_with(b"MMFT") {
        let digest = Digest::of(&bytes[36..]);
        bytes[4..36].copy_from_slice(&digest.0);
    } else if mode % 2 == 1 {
        let json_len = bytes.iter().position(|&byte| byte == b'\n').unwrap_or(bytes.len());
        bytes.truncate(json_len);
        let digest = Digest::of(&bytes);
        bytes.extend(format!("\nblake3 {digest}\n").into_bytes());
    }
    let Ok(manifest) = Manifest::parse("step_2", "manifests/step_2.json", &bytes) else { return };
    assert!(manifest.own().len() + manifest.needed().len() == manifest.objects.len());
    let _ = (manifest.depth(), manifest.restore_len(), manifest.stored_len());
    let signature = CheckpointSignature::of(&manifest);
    let again = Manifest::parse("step_2", "again", &manifest.write()).expect("what was read can be written");
    assert_eq!((&again.objects, &again.tensors), (&manifest.objects, &manifest.tensors));
    assert_eq!(CheckpointSignature::of(&again), signature);
}
