//! Directories: packed file by file, restored exactly, resumed after an interruption.

use crate::container::forge::{Forge, Forged};
use crate::container::{Tensor, file_of, safetensors};
use crate::folder::{Folder, contents};
use mithril::container::{Bases, EntryKind, Model, PackedFile};
use mithril::pack::PackOptions;
use mithril::repository::{
    MANIFEST, is_framed_repository, measure_repository, pack_framed_repository, pack_repository,
    unpack_framed_repository, unpack_repository,
};
use mithril::{Dtype, ErrorKind};
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::sync::atomic::{AtomicU64, Ordering};

/// Two shards that share a tensor, texts, a large file of bytes, a script, a link inside and one to a cache outside.
fn model(folder: &Folder) {
    let shared = Tensor::weights("shared", Dtype::Bf16, 40_000, 1);
    let mut again = shared.clone();
    again.name = "again".to_owned();
    let first = safetensors(&[shared, Tensor::weights("a", Dtype::Bf16, 30_000, 2)]);
    let second = safetensors(&[Tensor::weights("b", Dtype::F32, 20_000, 3), again]);
    folder.write("in/model-00001-of-00002.safetensors", &first);
    folder.write("in/model-00002-of-00002.safetensors", &second);
    folder.write("in/model.safetensors.index.json", br#"{"weight_map":{}}"#);
    folder.write("in/config.json", br#"{"hidden_size":384}"#);
    folder.write("in/empty.txt", b"");
    folder.write("in/tokenizer/vocab.bin", &b"word ".repeat(1_000_000));
    let script = folder.write("in/run.sh", b"#!/bin/sh\n");
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    symlink("config.json", folder.join("in/link.json")).unwrap();
    let blob = folder.write("cache/blob", b"from the cache");
    symlink(blob, folder.join("in/cached.txt")).unwrap();
}

#[test]
fn directory_comes_back_with_names_modes_and_links() {
    let folder = Folder::new("repository");
    model(&folder);
    let (input, packed, output) = (folder.join("in"), folder.join("packed"), folder.join("out"));
    let done = AtomicU64::new(0);
    let progress = |len| {
        done.fetch_add(len, Ordering::Relaxed);
    };
    let summary = pack_repository(&input, &packed, &PackOptions::default(), false, &progress).unwrap();
    assert_eq!(done.into_inner(), summary.raw_len);
    let on_disk: u64 = contents(&packed).iter().map(|(_, _, bytes)| bytes.len() as u64).sum();
    assert_eq!(summary.packed_len, on_disk);
    let restored = unpack_repository(&packed, &output, &Bases::none(), 0, false, &|_| ()).unwrap();
    assert_eq!(restored.raw_len, summary.raw_len);
    let mut expected = contents(&input);
    // The link out of the directory was followed.
    let cached = expected.iter_mut().find(|(place, ..)| place == "cached.txt").unwrap();
    let mode = fs::metadata(folder.join("cache/blob")).unwrap().permissions().mode() & 0o777;
    *cached = ("cached.txt".to_owned(), mode, b"from the cache".to_vec());
    assert_eq!(contents(&output), expected);
}

#[test]
fn tensor_of_two_shards_is_stored_once() {
    let folder = Folder::new("shared");
    model(&folder);
    let packed = folder.join("packed");
    pack_repository(&folder.join("in"), &packed, &PackOptions::default(), false, &|_| ()).unwrap();
    let second = Model::open_path(&packed.join("model-00002-of-00002.safetensors.mckp")).unwrap();
    let entry = second.container().unwrap().entries().iter().find(|entry| entry.name == "again").unwrap();
    assert_eq!(entry.kind(), EntryKind::Copy);
    // Its base is found beside it.
    let again = second.read(second.find("again").unwrap()).unwrap();
    assert_eq!(again.len(), 80_000);
}

#[test]
fn shards_of_a_fine_tune_that_have_the_names_of_those_of_its_base_come_back() {
    let folder = Folder::new("shards");
    for shard in 1..=3u64 {
        let name = format!("model-{shard}.safetensors");
        let mut weights = Tensor::weights(&format!("w{shard}"), Dtype::F32, 20_000, shard);
        folder.write(&format!("base/{name}"), &safetensors(std::slice::from_ref(&weights)));
        weights.raw.iter_mut().step_by(700).for_each(|byte| *byte ^= 1);
        // What is stored against the base in one shard is copied from there in the others.
        let shared = Tensor::weights("shared", Dtype::F32, 5_000, 9);
        folder.write(&format!("in/{name}"), &safetensors(&[weights, shared]));
    }
    let mut old = Tensor::weights("shared", Dtype::F32, 5_000, 9);
    old.raw.iter_mut().step_by(70).for_each(|byte| *byte ^= 1);
    folder.write("base/model-4.safetensors", &safetensors(&[old]));
    let bases = Bases::open_paths(&[folder.join("base")]).unwrap();
    let (packed, output) = (folder.join("packed"), folder.join("out"));
    let options = PackOptions::default().with_bases(bases.clone());
    let summary = pack_repository(&folder.join("in"), &packed, &options, false, &|_| ()).unwrap();
    assert!(summary.packed_len < summary.raw_len / 4, "{summary:?}");
    unpack_repository(&packed, &output, &bases, 0, false, &|_| ()).unwrap();
    assert_eq!(contents(&output), contents(&folder.join("in")));
    let alone = unpack_repository(&packed, &folder.join("alone"), &Bases::none(), 0, false, &|_| ());
    assert_eq!(alone.unwrap_err().kind(), ErrorKind::Base);
}

#[test]
fn a_directory_is_written_over_what_is_there_only_when_asked() {
    let folder = Folder::new("over");
    model(&folder);
    let (input, packed, framed, output) =
        (folder.join("in"), folder.join("packed"), folder.join("framed"), folder.join("out"));
    let options = PackOptions::default();
    let pack = |replace| pack_repository(&input, &packed, &options, replace, &|_| ());
    let frame = |replace| pack_framed_repository(&input, &framed, &options, replace, &|_| ());
    let unpack = |replace| unpack_repository(&packed, &output, &Bases::none(), 0, replace, &|_| ());
    let unframe = |replace| unpack_framed_repository(&framed, &output, 0, replace, &|_| ());
    let refused = |done: Result<_, mithril::Error>| {
        let error = done.unwrap_err().to_string();
        assert!(error.contains("exist"), "{error}");
    };
    // The last of all files that are written: nothing is written before it is found.
    folder.write("packed/tokenizer/vocab.bin.mthf", b"the user's own");
    folder.write("framed/tokenizer/vocab.bin", b"the user's own");
    let before = [&packed, &framed].map(|root| contents(root));
    refused(pack(false));
    refused(frame(false));
    assert_eq!([&packed, &framed].map(|root| contents(root)), before);
    pack(true).unwrap();
    frame(true).unwrap();
    folder.write("out/tokenizer/vocab.bin", b"the user's own");
    let before = contents(&output);
    refused(unpack(false));
    refused(unframe(false));
    assert_eq!(contents(&output), before);
    unpack(true).unwrap();
    let restored = contents(&output);
    unframe(true).unwrap();
    assert_eq!(contents(&output), restored);
}

#[test]
fn no_two_files_of_a_packed_directory_have_one_name() {
    let folder = Folder::new("names");
    let file = |name: &str| safetensors(&[Tensor::weights(name, Dtype::Bf16, 3000, name.len() as u64)]);
    // What would become the manifest, what would become a directory, and what would become another file.
    for place in ["files", "a", "a.mckp/b", "c", "c.mckp/d.txt"] {
        folder.write(&format!("in/{place}"), &file(place));
    }
    folder.write("in/c.mckp/d.txt", b"words");
    let (input, packed, output) = (folder.join("in"), folder.join("packed"), folder.join("out"));
    let measured = measure_repository(&input, &PackOptions::default(), &|_| ()).unwrap();
    let summary = pack_repository(&input, &packed, &PackOptions::default(), false, &|_| ()).unwrap();
    assert_eq!(measured, summary);
    let names: Vec<String> = contents(&packed).into_iter().map(|(place, ..)| place).collect();
    assert_eq!(names, ["a.1.mckp", "a.mckp/b.mckp", "c.1.mckp", "files.1.mckp", "files.mckp"]);
    unpack_repository(&packed, &output, &Bases::none(), 0, false, &|_| ()).unwrap();
    assert_eq!(contents(&output), contents(&input));
    // What must have the name of the manifest is refused before anything is written.
    for place in ["files.mckp", "files.mckp/a.txt", ".mithril-journal"] {
        let root = format!("refused {}", place.replace('/', " "));
        folder.write(&format!("{root}/{place}"), b"words");
        let packed = folder.join(&format!("{root} packed"));
        let refused = pack_repository(&folder.join(&root), &packed, &PackOptions::default(), true, &|_| ());
        assert!(refused.unwrap_err().to_string().contains("which packed directories need"), "{place}");
        assert!(contents(&packed).is_empty());
    }
}

#[test]
fn private_directories_of_texts_and_links_stay_private() {
    let folder = Folder::new("private");
    for place in ["in/texts/a.txt", "in/weights/model.safetensors"] {
        folder.write(place, &safetensors(&[Tensor::weights("w", Dtype::Bf16, 3000, 1)]));
    }
    folder.write("in/texts/a.txt", b"words");
    fs::create_dir(folder.join("in/links")).unwrap();
    symlink("../texts/a.txt", folder.join("in/links/a.txt")).unwrap();
    let mode = |place: &str| fs::metadata(folder.join(place)).unwrap().permissions().mode() & 0o777;
    let names = ["texts", "weights", "links"];
    for name in names {
        fs::set_permissions(folder.join(&format!("in/{name}")), fs::Permissions::from_mode(0o700)).unwrap();
    }
    let options = PackOptions::default();
    pack_repository(&folder.join("in"), &folder.join("packed"), &options, false, &|_| ()).unwrap();
    unpack_repository(&folder.join("packed"), &folder.join("out"), &Bases::none(), 0, false, &|_| ())
        .unwrap();
    pack_framed_repository(&folder.join("in"), &folder.join("framed"), &options, false, &|_| ()).unwrap();
    unpack_framed_repository(&folder.join("framed"), &folder.join("back"), 0, false, &|_| ()).unwrap();
    for root in ["packed", "out", "framed", "back"] {
        for name in names {
            assert_eq!(mode(&format!("{root}/{name}")), 0o700, "{root}/{name}");
        }
    }
}

#[test]
fn interrupted_work_goes_on_and_changed_files_are_packed_again() {
    let folder = Folder::new("resumed");
    model(&folder);
    let (input, packed) = (folder.join("in"), folder.join("packed"));
    // A file that cannot be packed stops the work after the first shards.
    let bad =
        folder.write("in/zz.safetensors", &safetensors(&[Tensor::weights("z", Dtype::F32, 2_000_000, 4)]));
    let stop = |len: u64| assert!(len < 8_000_000, "stopped");
    let interrupted = std::panic::catch_unwind(|| {
        pack_repository(&folder.join("in"), &folder.join("packed"), &PackOptions::default(), false, &stop)
    });
    assert!(interrupted.is_err());
    assert!(!packed.join(MANIFEST).exists());
    let error =
        unpack_repository(&packed, &folder.join("out"), &Bases::none(), 0, false, &|_| ()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    assert!(error.to_string().contains("interrupted"), "{error}");

    // Another length, so that the change shows whatever the clock's grain.
    folder.write(
        "in/model-00002-of-00002.safetensors",
        &safetensors(&[Tensor::weights("b", Dtype::F32, 7, 5)]),
    );
    fs::remove_file(bad).unwrap();
    let summary = pack_repository(&input, &packed, &PackOptions::default(), false, &|_| ()).unwrap();
    let resumed = |place: &str| summary.files.iter().find(|file| file.path == place).unwrap().resumed;
    assert!(resumed("model-00001-of-00002.safetensors"));
    assert!(!resumed("model-00002-of-00002.safetensors"));
    unpack_repository(&packed, &folder.join("out"), &Bases::none(), 0, false, &|_| ()).unwrap();
    let names = |root| contents(root).into_iter().map(|(place, ..)| place).collect::<Vec<_>>();
    assert_eq!(names(&folder.join("out")), names(&input));
}

#[test]
fn finished_directory_is_replaced_only_when_asked() {
    let folder = Folder::new("finished");
    folder.write("in/config.json", b"{}");
    let (input, packed) = (folder.join("in"), folder.join("packed"));
    pack_repository(&input, &packed, &PackOptions::default(), false, &|_| ()).unwrap();
    let error = pack_repository(&input, &packed, &PackOptions::default(), false, &|_| ()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Io);
    pack_repository(&input, &packed, &PackOptions::default(), true, &|_| ()).unwrap();
    let inside = pack_repository(&input, &input.join("packed"), &PackOptions::default(), false, &|_| ());
    assert!(inside.unwrap_err().to_string().contains("inside"));
}

/// Writes a manifest that our own writer would refuse to write.
fn forge_manifest(folder: &Folder, files: &[PackedFile], small: &[u8]) {
    let header = serde_json::json!({ "files": files }).to_string();
    let manifest = Forge { header, ..Forge::of(vec![Forged::glue(small)]) };
    folder.write(&format!("packed/{MANIFEST}"), &manifest.build());
}

#[test]
fn manifests_cannot_write_outside() {
    let folder = Folder::new("hostile");
    folder.write("victim", b"untouched");
    fs::create_dir(folder.join("out")).unwrap();
    let mut cases: Vec<PackedFile> = ["../victim", "/tmp/mithril-victim", "a/../../victim", "a\0b", ""]
        .into_iter()
        .map(|place| PackedFile::new(place, 0o644, 4))
        .collect();
    let mut link = PackedFile::new("link", 0o777, 0);
    link.link = Some("../victim".to_owned());
    cases.push(link);
    let mut packed_as = PackedFile::new("fine", 0o644, 4);
    packed_as.packed_as = Some("../victim".to_owned());
    cases.push(packed_as);
    for case in cases {
        forge_manifest(&folder, std::slice::from_ref(&case), b"evil");
        let result =
            unpack_repository(&folder.join("packed"), &folder.join("out"), &Bases::none(), 0, true, &|_| ());
        assert!(result.is_err(), "{case:?}");
        assert_eq!(fs::read(folder.join("victim")).unwrap(), b"untouched");
        let written = folder.join("out");
        assert!(!written.exists() || contents(&written).is_empty(), "{case:?}");
    }
    // A link that was there before must not lead out either.
    fs::create_dir_all(folder.join("out")).unwrap();
    symlink(folder.join("."), folder.join("out/way")).unwrap();
    forge_manifest(&folder, &[PackedFile::new("way/victim", 0o644, 4)], b"evil");
    let result =
        unpack_repository(&folder.join("packed"), &folder.join("out"), &Bases::none(), 0, true, &|_| ());
    assert!(result.unwrap_err().to_string().contains("through a link"));
    assert_eq!(fs::read(folder.join("victim")).unwrap(), b"untouched");
}

fn link_to(place: &str, target: &str) -> PackedFile {
    let mut link = PackedFile::new(place, 0o777, 0);
    link.link = Some(target.to_owned());
    link
}

#[test]
fn links_lead_out_neither_alone_nor_together() {
    let folder = Folder::new("links-together");
    let home = folder.write("home/.bashrc", b"the user's own");
    let (packed, output) = (folder.join("packed"), folder.join("home/models/m"));
    let unpack = || unpack_repository(&packed, &output, &Bases::none(), 0, true, &|_| ());
    // Each of them stays inside by its text, and the second leads out through the first.
    let first = [
        PackedFile::new("x/y/z/a.txt", 0o644, 2),
        link_to("x/y/z/l", "../../.."),
        link_to("config.json", "x/y/z/l/../../.bashrc"),
    ];
    forge_manifest(&folder, &first, b"hi");
    let refused = unpack().unwrap_err().to_string();
    assert!(refused.contains("`config.json` is a link to") && refused.contains("outside"), "{refused}");
    assert!(contents(&output).is_empty());
    // The name of a directory that only some file systems take for another one is the name of a link as well.
    let cased = [PackedFile::new("x/a.txt", 0o644, 2), link_to("l", "x"), link_to("out", "L/../../.bashrc")];
    forge_manifest(&folder, &cased, b"hi");
    assert!(unpack().unwrap_err().to_string().contains("outside"));
    // A journal is written while the directory is made.
    forge_manifest(&folder, &[PackedFile::new(".mithril-journal", 0o644, 2)], b"hi");
    assert!(unpack().unwrap_err().to_string().contains(".mithril-journal"));
    assert_eq!(fs::read(home).unwrap(), b"the user's own");
}

#[test]
fn unpacking_replaces_links_and_never_writes_through_them() {
    let folder = Folder::new("links-replaced");
    let (packed, output) = (folder.join("packed"), folder.join("out"));
    let own = folder.write("own", b"evil, but the user's own");
    let exact = folder.write("exact", b"evil");
    fs::set_permissions(&exact, fs::Permissions::from_mode(0o600)).unwrap();
    let unpack = |replace| unpack_repository(&packed, &output, &Bases::none(), 0, replace, &|_| ());
    fs::create_dir(&output).unwrap();
    // One leads to other bytes, one to the same, whose mode must stay, and one to nothing.
    let names = ["config.json", "same.json", "new.json"];
    for (name, target) in names.iter().zip([&own, &exact, &folder.join("nothing")]) {
        symlink(target, output.join(name)).unwrap();
    }
    symlink(&own, output.join(".mithril-journal")).unwrap();
    let files = names.map(|name| PackedFile::new(name, 0o644, 4));
    forge_manifest(&folder, &files, b"evilevilevil");
    assert_eq!(unpack(false).unwrap_err().kind(), ErrorKind::Io, "links are not replaced unless asked");
    unpack(true).unwrap();
    for name in names {
        assert!(!output.join(name).is_symlink(), "{name}");
        assert_eq!(fs::read(output.join(name)).unwrap(), b"evil", "{name}");
    }
    assert_eq!(fs::read(&own).unwrap(), b"evil, but the user's own");
    assert_eq!(fs::metadata(&exact).unwrap().permissions().mode() & 0o777, 0o600);
    assert!(!folder.join("nothing").exists());
}

#[test]
fn links_that_lead_out_through_others_are_packed_as_what_they_lead_to() {
    let folder = Folder::new("links-through");
    folder.write("in/x/y/a.txt", b"inside");
    folder.write("outside.txt", b"outside");
    symlink("../..", folder.join("in/x/y/up")).unwrap();
    symlink("x/y/up/../outside.txt", folder.join("in/out.txt")).unwrap();
    symlink("x/y/../y/a.txt", folder.join("in/around.txt")).unwrap();
    let (packed, output) = (folder.join("packed"), folder.join("out"));
    pack_repository(&folder.join("in"), &packed, &PackOptions::default(), false, &|_| ()).unwrap();
    unpack_repository(&packed, &output, &Bases::none(), 0, false, &|_| ()).unwrap();
    assert!(!output.join("out.txt").is_symlink(), "it would lead out of its new place as well");
    assert_eq!(fs::read(output.join("out.txt")).unwrap(), b"outside");
    assert_eq!(fs::read_link(output.join("around.txt")).unwrap().to_str(), Some("x/y/../y/a.txt"));
    assert_eq!(fs::read(output.join("around.txt")).unwrap(), b"inside");
}

#[test]
fn conversions_take_nothing_from_directories_outside() {
    let folder = Folder::new("links-converted");
    let weights = Tensor::weights("weight", Dtype::Bf16, 4096, 1);
    let blob = folder.write("blobs/1", &safetensors(std::slice::from_ref(&weights)));
    folder.write("blobs/2", b"{}");
    folder.write("secrets/id_rsa", b"secret");
    fs::create_dir_all(folder.join("model/inner")).unwrap();
    folder.write("model/inner/text.txt", b"text");
    symlink(&blob, folder.join("model/model.safetensors")).unwrap();
    symlink("../blobs/2", folder.join("model/config.json")).unwrap();
    let model = folder.join("model");
    let open = || mithril::convert::Repository::open(&model).map(|model| model.others().to_vec());
    // As a download cache has it, and a link to a directory inside.
    symlink("inner", model.join("again")).unwrap();
    let others: Vec<String> = open().unwrap().iter().map(|path| path.display().to_string()).collect();
    assert_eq!(others, ["again/text.txt", "config.json", "inner/text.txt"]);
    symlink(".", model.join("inner/self")).unwrap();
    let refused = open().unwrap_err().to_string();
    assert!(refused.contains("/self` is a link to a directory that holds it"), "{refused}");
    fs::remove_file(model.join("inner/self")).unwrap();
    symlink("../secrets", model.join("assets")).unwrap();
    let refused = open().unwrap_err().to_string();
    assert!(refused.contains("assets") && refused.contains("is a link to a directory outside"), "{refused}");
}

#[test]
fn measuring_a_directory_gives_the_sizes_of_packing_it() {
    let folder = Folder::new("measured");
    model(&folder);
    let input = folder.join("in");
    let measured = measure_repository(&input, &PackOptions::default(), &|_| ()).unwrap();
    let packed =
        pack_repository(&input, &folder.join("packed"), &PackOptions::default(), false, &|_| ()).unwrap();
    assert_eq!(measured, packed);
}

#[test]
fn framed_directory_keeps_every_name_and_comes_back() {
    let folder = Folder::new("framed-tree");
    model(&folder);
    // A file with a hole cannot hold frames, and stays as it is.
    let holey = Tensor::weights("holey", Dtype::Bf16, 3_000, 9);
    let header = format!("{{{}}}", holey.json(8));
    folder.write("in/holey.safetensors", &file_of(&header, &[&[0; 8], holey.raw.as_slice()].concat()));
    let (input, framed, output) = (folder.join("in"), folder.join("framed"), folder.join("out"));
    assert!(!is_framed_repository(&input));
    let options = PackOptions::default();
    let summary = pack_framed_repository(&input, &framed, &options, false, &|_| ()).unwrap();
    assert!(is_framed_repository(&framed));
    let names = |path| contents(path).into_iter().map(|(place, ..)| place).collect::<Vec<_>>();
    assert_eq!(names(&framed), names(&input));
    assert!(summary.packed_len < summary.raw_len);
    let shard = "model-00001-of-00002.safetensors";
    let [plain, packed] = [&input, &framed].map(|folder| fs::read(folder.join(shard)).unwrap());
    assert!(packed.len() < plain.len());
    for unchanged in ["config.json", "holey.safetensors"] {
        let [plain, packed] = [&input, &framed].map(|folder| fs::read(folder.join(unchanged)).unwrap());
        assert!(plain == packed, "{unchanged}");
    }
    unpack_framed_repository(&framed, &output, 1, false, &|_| ()).unwrap();
    let of = |folder| contents(folder).into_iter().filter(|(place, ..)| place != "cached.txt");
    assert!(of(&output).eq(of(&input)));
    let again = pack_framed_repository(&input, &framed, &options, false, &|_| ()).unwrap_err();
    assert_eq!(again.kind(), ErrorKind::Io, "{again}");
}
