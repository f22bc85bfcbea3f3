//! Safetensors files whose tensors are frames: valid as files, and restored exactly.

use crate::container::{Tensor, file_of, safetensors};
use crate::folder::{Folder, contents};
use mithril::Dtype;
use mithril::container::Model;
use mithril::pack::{PackOptions, is_framed, pack_framed, unpack_framed};
use std::fs;

fn tensors() -> Vec<Tensor> {
    vec![
        Tensor::weights("layer.weight", Dtype::Bf16, 50_000, 1),
        Tensor::weights("layer.bias", Dtype::F32, 3, 2),
        Tensor::weights("embedding", Dtype::F16, 100_000, 3),
        Tensor::new("scalar", Dtype::F32, &[], vec![0, 0, 128, 63]),
        Tensor::new("empty", Dtype::F32, &[0, 4], Vec::new()),
    ]
}

#[test]
fn framed_file_is_smaller_valid_and_restored_exactly() {
    let folder = Folder::new("framed");
    let original = safetensors(&tensors());
    let input = folder.write("model.safetensors", &original);
    let (packed, restored) = (folder.join("packed.safetensors"), folder.join("restored.safetensors"));
    let summary = pack_framed(&input, &packed, &PackOptions::default(), false, &|_| ()).unwrap();
    let bytes = fs::read(&packed).unwrap();
    assert_eq!(summary.packed_len, bytes.len() as u64);
    assert!(bytes.len() < original.len() * 9 / 10, "{} of {}", bytes.len(), original.len());
    assert!(is_framed(&bytes) && !is_framed(&original));

    let end = 8 + u64::from_le_bytes(*bytes.first_chunk().unwrap());
    let head = &bytes[..end as usize];
    let listed = mithril::safetensors::tensors(head, bytes.len() as u64).unwrap();
    let weight = listed.iter().find(|tensor| tensor.name == "layer.weight").unwrap();
    assert_eq!((weight.dtype, weight.shape.len()), (Dtype::U8, 1));
    assert_eq!(listed.iter().find(|tensor| tensor.name == "layer.bias").unwrap().dtype, Dtype::F32);

    unpack_framed(&packed, &restored, 0, false, &|_| ()).unwrap();
    assert!(fs::read(&restored).unwrap() == original);
    let model = Model::open_path(&packed).unwrap();
    for tensor in tensors() {
        assert_eq!(model.read(model.find(&tensor.name).unwrap()).unwrap(), tensor.raw, "{}", tensor.name);
    }
    let names: Vec<_> = contents(&folder.join("")).into_iter().map(|(place, ..)| place).collect();
    assert_eq!(names, ["model.safetensors", "packed.safetensors", "restored.safetensors"]);
}

#[test]
fn metadata_of_the_original_stays_readable() {
    let folder = Folder::new("framed-metadata");
    let tensor = Tensor::weights("w", Dtype::F32, 10_000, 1);
    let header = format!(r#"{{"__metadata__":{{"format":"pt","quote":"\"ü\""}},{}}}   "#, tensor.json(0));
    let original = file_of(&header, &tensor.raw);
    let input = folder.write("model.safetensors", &original);
    let packed = folder.join("packed.safetensors");
    pack_framed(&input, &packed, &PackOptions::default(), false, &|_| ()).unwrap();
    let bytes = fs::read(&packed).unwrap();
    let end = 8 + u64::from_le_bytes(*bytes.first_chunk().unwrap()) as usize;
    let metadata = mithril::safetensors::metadata(&bytes[..end]).unwrap();
    assert_eq!((metadata["format"].as_str(), metadata["quote"].as_str()), ("pt", "\"ü\""));
    let restored = folder.join("restored.safetensors");
    unpack_framed(&packed, &restored, 1, false, &|_| ()).unwrap();
    assert!(fs::read(&restored).unwrap() == original);
    // Twice would hide the original header.
    let twice = pack_framed(&packed, &folder.join("twice"), &PackOptions::default(), false, &|_| ());
    assert!(twice.unwrap_err().to_string().contains("holds frames already"));
}

#[test]
fn files_with_holes_are_refused_with_the_reason() {
    let folder = Folder::new("framed-holes");
    let tensor = Tensor::weights("w", Dtype::F32, 1000, 1);
    let mut original = file_of(&format!("{{{}}}", tensor.json(0)), &tensor.raw);
    original.extend(b"tail");
    let input = folder.write("model.safetensors", &original);
    let error =
        pack_framed(&input, &folder.join("out"), &PackOptions::default(), false, &|_| ()).unwrap_err();
    assert!(error.to_string().contains("belong to no tensor"), "{error}");
    assert_eq!(contents(&folder.join("")).len(), 1);
}

#[test]
fn damaged_frames_are_named() {
    let folder = Folder::new("framed-damaged");
    let input = folder.write("model.safetensors", &safetensors(&tensors()));
    let packed = folder.join("packed.safetensors");
    pack_framed(&input, &packed, &PackOptions::default(), false, &|_| ()).unwrap();
    let mut bytes = fs::read(&packed).unwrap();
    let at = bytes.len() - 1000;
    bytes[at] ^= 1;
    fs::write(&packed, bytes).unwrap();
    let error = unpack_framed(&packed, &folder.join("out"), 1, false, &|_| ()).unwrap_err();
    assert!(error.to_string().contains("`embedding`"), "{error}");
    assert!(!folder.join("out").exists());
}
