//! Containers against a base: copies, deltas, renamed tensors, and bases that are not the right ones.

use super::forge::{self, Forge, Forged};
use super::{Tensor, packed_with, safetensors, salvaged};
use crate::folder::{Folder, contents};
use mithril::container::{Bases, EntryKind, Model, Reader};
use mithril::pack::{PackOptions, PackSummary, pack_file, unpack, unpack_file};
use mithril::{Digest, Dtype, ErrorKind};
use std::fs;

fn model(name: &str, file: Vec<u8>) -> Model {
    Model::open(name, Box::new(file), Bases::none()).unwrap()
}

/// Some weights, and the same after a little training.
fn pair(name: &str, dtype: Dtype, n: u64, seed: u64) -> (Tensor, Tensor) {
    let before = Tensor::weights(name, dtype, n, seed);
    let mut after = before.clone();
    for (at, byte) in after.raw.iter_mut().enumerate().filter(|(at, _)| at % 14 == 0) {
        *byte ^= 1 + u8::try_from(at % 3).unwrap();
    }
    (before, after)
}

fn kinds(summary: &PackSummary) -> Vec<(&str, EntryKind)> {
    summary.tensors.iter().map(|tensor| (tensor.name.as_str(), tensor.kind)).collect()
}

fn restored(container: &[u8], bases: &Bases) -> Result<Vec<u8>, mithril::Error> {
    Ok(unpack(&Reader::open(container)?, Vec::new(), bases, 1, &|_| ())?.0)
}

#[test]
fn changed_tensors_are_deltas_and_unchanged_ones_cost_nothing() {
    let (a0, a1) = pair("a", Dtype::Bf16, 60_000, 1);
    let (b0, b1) = pair("b", Dtype::F32, 20_000, 2);
    let same = Tensor::weights("same", Dtype::F16, 30_000, 3);
    let new = Tensor::weights("new", Dtype::Bf16, 10_000, 4);
    let base = safetensors(&[a0, same.clone(), b0]);
    let tuned = safetensors(&[a1, b1, new, same]);
    let bases = || Bases::new([model("base", base.clone())]);
    let (container, summary) = packed_with(&tuned, &PackOptions::default().with_bases(bases()));
    let expected = [
        ("a", EntryKind::Delta),
        ("b", EntryKind::Delta),
        ("new", EntryKind::Full),
        ("same", EntryKind::Copy),
    ];
    assert_eq!(kinds(&summary), expected);
    let alone = packed_with(&tuned, &PackOptions::default()).0.len();
    assert!(container.len() * 2 < alone, "{} against {alone}", container.len());
    assert!(restored(&container, &bases()).unwrap() == tuned);
}

#[test]
fn a_model_of_a_hundred_tensors_takes_at_most_16_kib_against_itself_and_is_saved_without_its_index() {
    let tensors: Vec<_> = (0..100)
        .map(|i| {
            let name = format!("encoder.layer.{}.attention.self.query.weight.{}", i / 16, i % 16);
            Tensor::weights(&name, Dtype::Bf16, 1000, i)
        })
        .collect();
    let file = safetensors(&tensors);
    let bases = Bases::new([model("base", file.clone())]);
    let (container, _) = packed_with(&file, &PackOptions::default().with_bases(bases.clone()));
    assert!(container.len() <= 16 << 10, "{}", container.len());
    let (saved, lost) = salvaged(&container[..container.len() - 1]);
    assert_eq!(lost, [""; 0]);
    assert!(restored(&saved, &bases).unwrap() == file);
}

#[test]
fn renamed_tensors_are_found_by_content_and_by_gain() {
    let (a0, mut a1) = pair("old.a", Dtype::Bf16, 60_000, 1);
    let decoy = Tensor::weights("old.decoy", Dtype::Bf16, 60_000, 9);
    let same = Tensor::weights("old.same", Dtype::F16, 30_000, 3);
    let mut moved = same.clone();
    (a1.name, moved.name) = ("new.a".to_owned(), "new.same".to_owned());
    let bases = || Bases::new([model("base", safetensors(&[decoy.clone(), a0.clone(), same.clone()]))]);
    let tuned = safetensors(&[moved, a1]);
    let (container, summary) = packed_with(&tuned, &PackOptions::default().with_bases(bases()));
    assert_eq!(kinds(&summary), [("new.same", EntryKind::Copy), ("new.a", EntryKind::Delta)]);
    assert!(restored(&container, &bases()).unwrap() == tuned);
}

#[test]
fn wrong_base_is_refused_before_any_output_and_other_edits_do_not_matter() {
    let folder = Folder::new("wrong-base");
    let (a0, a1) = pair("a", Dtype::Bf16, 60_000, 1);
    let unrelated = Tensor::weights("unrelated", Dtype::Bf16, 5_000, 2);
    let base = folder.write("base.safetensors", &safetensors(&[a0.clone(), unrelated]));
    let tuned = folder.write("tuned.safetensors", &safetensors(&[a1]));
    let (packed, out) = (folder.join("tuned.mckp"), folder.join("out"));
    let options = PackOptions::default().with_bases(Bases::open_paths(&[&base]).unwrap());
    pack_file(&tuned, &packed, &options, false, &|_| ()).unwrap();

    let mut wrong = a0.clone();
    wrong.raw[100_001] ^= 1;
    let other = folder.write("other.safetensors", &safetensors(&[wrong]));
    for bases in [Bases::none(), Bases::open_paths(&[&other]).unwrap()] {
        let error = unpack_file(&packed, &out, &bases, 1, false, &|_| ()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Base);
        assert!(error.to_string().contains("tensor `a`: its base tensor `a` with digest"), "{error}");
        assert!(!out.exists());
    }
    // The base was edited elsewhere, and the tensor moved to another name.
    let mut renamed = a0;
    renamed.name = "elsewhere".to_owned();
    let edited =
        folder.write("edited.safetensors", &safetensors(&[Tensor::weights("x", Dtype::I8, 9, 1), renamed]));
    unpack_file(&packed, &out, &Bases::open_paths(&[&edited]).unwrap(), 1, false, &|_| ()).unwrap();
    assert!(fs::read(&out).unwrap() == fs::read(&tuned).unwrap());
    let temporary = contents(&folder.join("")).into_iter().filter(|(place, ..)| place.starts_with('.'));
    assert_eq!(temporary.count(), 0);
}

#[test]
fn chains_of_packed_bases_are_followed_and_cycles_end() {
    let folder = Folder::new("chain");
    let (first, second) = pair("a", Dtype::Bf16, 60_000, 1);
    let mut third = second.clone();
    third.raw.iter_mut().step_by(30).for_each(|byte| *byte ^= 2);
    let files: Vec<_> = [("1", &first), ("2", &second), ("3", &third)]
        .map(|(name, tensor)| {
            folder.write(&format!("{name}.safetensors"), &safetensors(std::slice::from_ref(tensor)))
        })
        .to_vec();
    let packed: Vec<_> = files.iter().map(|file| file.with_extension("safetensors.mckp")).collect();
    pack_file(&files[0], &packed[0], &PackOptions::default(), false, &|_| ()).unwrap();
    for step in 1..3 {
        let bases = Bases::open_paths(&[&packed[step - 1]]).unwrap();
        pack_file(&files[step], &packed[step], &PackOptions::default().with_bases(bases), false, &|_| ())
            .unwrap();
    }
    files[..2].iter().for_each(|file| fs::remove_file(file).unwrap());
    let last = Model::open_path(&packed[2]).unwrap();
    assert_eq!(last.container().unwrap().entries()[1].kind(), EntryKind::Delta);
    assert!(last.read(0).unwrap() == third.raw);

    // The first in the chain now claims to be based on the last.
    fs::copy(&packed[2], &packed[0]).unwrap();
    fs::copy(&packed[1], folder.join("3.safetensors.mckp")).unwrap();
    let error = Model::open_path(&packed[2]).unwrap().read(0).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Base, "{error}");
}

#[test]
fn every_file_is_opened_once_however_many_others_name_it() {
    // Each file names all others as its bases: 20 files have more than 10^17 ways through them.
    let folder = Folder::new("many ways");
    let names: Vec<String> = (0..20).map(|i| format!("{i}.safetensors")).collect();
    let tensor = |seed| Tensor::weights("a", Dtype::Bf16, 20_000, seed);
    let base = |name: &String| model(name, safetensors(&[tensor(7)]));
    for (i, name) in names.iter().enumerate() {
        let tuned =
            folder.write("tuned", &safetensors(&[tensor(7), Tensor::weights("b", Dtype::I8, 90, i as u64)]));
        let bases = Bases::new(names.iter().map(base));
        let packed = folder.join(&format!("{name}.mckp"));
        pack_file(&tuned, &packed, &PackOptions::default().with_bases(bases), false, &|_| ()).unwrap();
    }
    let error = Model::open_path(&folder.join("3.safetensors.mckp")).unwrap().read(0).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Base, "{error}");
}

#[test]
fn shards_with_the_names_of_their_base_are_bases_where_that_is_given_too() {
    let folder = Folder::new("shards of one name");
    let shards = ["model-1-of-2.safetensors", "model-2-of-2.safetensors"];
    let (base, tuned) = (folder.join("base"), folder.join("tuned"));
    [&base, &tuned].iter().for_each(|directory| fs::create_dir(directory).unwrap());
    let mut finals = Vec::new();
    for (i, shard) in shards.iter().enumerate() {
        let (first, second) = pair(&format!("tensor {i}"), Dtype::Bf16, 60_000, i as u64);
        fs::write(base.join(shard), safetensors(&[first])).unwrap();
        let mut last = second.clone();
        last.raw.iter_mut().step_by(50).for_each(|byte| *byte ^= 1);
        finals.push(folder.write(shard, &safetensors(&[last])));
        let plain = folder.write("plain", &safetensors(&[second]));
        let options = PackOptions::default().with_bases(Bases::open_paths(&[&base]).unwrap());
        pack_file(&plain, &tuned.join(format!("{shard}.mckp")), &options, false, &|_| ()).unwrap();
    }
    for paths in [[&tuned, &base], [&base, &tuned]] {
        for file in &finals {
            let options = PackOptions::default().with_bases(Bases::open_paths(&paths).unwrap());
            let packed = folder.join("packed.mckp");
            let summary = pack_file(file, &packed, &options, true, &|_| ()).unwrap();
            assert_eq!(summary.tensors[0].kind, EntryKind::Delta);
            let out = folder.join("restored");
            unpack_file(&packed, &out, &Bases::open_paths(&paths).unwrap(), 1, true, &|_| ()).unwrap();
            assert!(fs::read(&out).unwrap() == fs::read(file).unwrap());
        }
    }
    // Alone they say what is missing.
    let error = Bases::open_paths(&[&tuned]).unwrap().models()[0].read(0).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Base, "{error}");
}

#[test]
fn a_base_that_records_a_false_digest_is_found_out() {
    let same = Tensor::weights("same", Dtype::Bf16, 400_000, 3);
    let tuned = safetensors(std::slice::from_ref(&same));
    let bases = Bases::new([model("base", safetensors(std::slice::from_ref(&same)))]);
    let (container, summary) = packed_with(&tuned, &PackOptions::default().with_bases(bases));
    assert_eq!(kinds(&summary), [("same", EntryKind::Copy)]);
    let base_with = |raw: &[u8]| {
        let mut entry = Forged::full("same", forge::BF16, &[400_000], raw);
        entry.tag |= forge::DIGEST;
        entry.content = Digest::of(&same.raw).0.to_vec();
        Bases::new([model("base.mckp", Forge::of(vec![entry]).build())])
    };
    assert!(restored(&container, &base_with(&same.raw)).unwrap() == tuned);
    let mut other = same.raw.clone();
    other[123_456] ^= 1;
    let error = restored(&container, &base_with(&other)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Base, "{error}");
    assert!(error.to_string().contains("same"), "{error}");
}
