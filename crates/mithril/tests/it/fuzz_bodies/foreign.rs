//! Foreign files: whatever the bytes, tensors lie in the file, in order, each in bytes of its own.

use mithril_format::source::{self, Kind};
use mithril_format::{ReadAt, gguf, pt, safetensors};

/// A safetensors file, an array or anything else by its own bytes.
pub fn read_safetensors(input: &[u8]) {
    check(Kind::Safetensors, input);
    check(Kind::Npy, input);
    check(Kind::Onnx, input);
    if let Some(kind) = source::detect(&input) {
        check(kind, input);
    }
    let _ = safetensors::metadata(input);
}

/// A PyTorch file, or after an odd first byte its pickle alone, so that the input reaches the machine that reads it.
pub fn read_pt(input: &[u8]) {
    let Some((mode, rest)) = input.split_first() else { return };
    let wrapped = archive(&[("m/data.pkl", rest), ("m/data/0", &[1; 64]), ("m/data/1", &[2; 16])]);
    let file = if mode % 2 == 1 { &wrapped } else { rest };
    check(Kind::Torch, file);
    check(Kind::TorchLegacy, file);
    check(Kind::Npz, file);
    let Ok(checkpoint) = pt::read(&file) else { return };
    for tensor in checkpoint.tensors {
        let Some(bytes) = tensor.bytes else { continue };
        let n: u64 = tensor.shape.iter().product();
        assert_eq!(tensor.dtype.len_of(n), Some(bytes.end - bytes.start), "a shape of another size");
        assert!(bytes.end <= file.len() as u64, "a view behind the end");
    }
}

/// A GGUF file.
pub fn read_gguf(input: &[u8]) {
    check(Kind::Gguf, input);
    let _ = gguf::metadata(&input);
}

fn check(kind: Kind, file: &[u8]) {
    let Ok(tensors) = source::tensors(kind, &file) else { return };
    let mut end = 0;
    for tensor in &tensors {
        assert!(tensor.bytes.start >= end && tensor.bytes.end >= tensor.bytes.start, "tensors overlap");
        end = tensor.bytes.end;
        assert!(file.slice(tensor.bytes.clone()).is_some(), "a tensor behind the end");
        let n = tensor.shape.iter().try_fold(1u64, |n, &dimension| n.checked_mul(dimension));
        let len = n.and_then(|n| tensor.dtype.len_of(n));
        assert_eq!(len, Some(end - tensor.bytes.start), "a shape of another size");
    }
    let mut names: Vec<&str> = tensors.iter().map(|tensor| tensor.name.as_str()).collect();
    names.sort_unstable();
    assert!(names.windows(2).all(|pair| pair[0] != pair[1]), "a name twice");
}

/// A zip archive of stored entries.
pub fn archive(entries: &[(&str, &[u8])]) -> Vec<u8> {
    let (mut bytes, mut directory) = (Vec::new(), Vec::new());
    let u32 = |len: usize| u32::try_from(len).unwrap_or(u32::MAX).to_le_bytes();
    for (name, content) in entries {
        let (offset, len, name_len) = (u32(bytes.len()), u32(content.len()), &u32(name.len())[..2]);
        bytes.extend([b"PK\x03\x04\x14\0\0\0\0\0", &[0; 8][..], &len, &len, name_len, &[0, 0]].concat());
        bytes.extend([name.as_bytes(), content].concat());
        directory.extend([b"PK\x01\x02\x14\0\x14\0\0\0\0\0", &[0; 8][..], &len, &len, name_len].concat());
        directory.extend([&[0; 12][..], &offset, name.as_bytes()].concat());
    }
    let (start, n) = (u32(bytes.len()), &u32(entries.len())[..2]);
    bytes.extend(&directory);
    bytes.extend([b"PK\x05\x06\0\0\0\0", n, n, &u32(directory.len()), &start, &[0, 0]].concat());
    bytes
}
