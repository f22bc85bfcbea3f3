//! Repositories to DFloat11 and back.

use mithril::compare::{Outcome as Compared, compare};
use mithril::convert::df11::{self, EncodeOptions, EncodeSummary, Files, Geometry, Outcome, PatternDict};
use mithril::convert::{OutputDirectory, Repository, open_directory};
use mithril::{Dtype, safetensors};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// A directory of one test, removed at its end.
struct Folder(PathBuf);

impl Folder {
    fn new(test: &str) -> Self {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("df11-{test}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    fn write(&self, name: &str, bytes: &[u8]) {
        let path = self.path(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, bytes).unwrap();
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

type Tensors = BTreeMap<String, (Dtype, Vec<u64>, Vec<u8>)>;

/// A safetensors file of tensors.
fn file_of(tensors: &Tensors) -> Vec<u8> {
    let mut header = serde_json::Map::new();
    let mut data = Vec::new();
    for (name, (dtype, shape, bytes)) in tensors {
        let offsets = [data.len(), data.len() + bytes.len()];
        let entry = serde_json::json!({"dtype": dtype.name(), "shape": shape, "data_offsets": offsets});
        header.insert(name.clone(), entry);
        data.extend(bytes);
    }
    let header = serde_json::to_vec(&header).unwrap();
    [&(header.len() as u64).to_le_bytes()[..], &header, &data].concat()
}

/// The tensors of a safetensors file.
fn read_file(path: &Path) -> Tensors {
    let file = std::fs::read(path).unwrap();
    let tensors = safetensors::tensors(&file, file.len() as u64).unwrap();
    let bytes = |range: std::ops::Range<u64>| file[range.start as usize..range.end as usize].to_vec();
    tensors.into_iter().map(|t| (t.name, (t.dtype, t.shape, bytes(t.bytes)))).collect()
}

/// All files below a directory.
fn files(directory: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut open = vec![directory.to_owned()];
    while let Some(path) = open.pop() {
        for entry in std::fs::read_dir(path).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                open.push(path);
            } else {
                found.insert(path.strip_prefix(directory).unwrap().to_owned(), std::fs::read(&path).unwrap());
            }
        }
    }
    found
}

/// Weights that look trained, the same for the same seed.
fn weights(shape: &[u64], seed: u64) -> (Dtype, Vec<u64>, Vec<u8>) {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut uniform = move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1u64 << 24) as f32
    };
    let n: u64 = shape.iter().product();
    let number = |_| ((0..8).map(|_| uniform()).sum::<f32>() - 4.0) * 0.05;
    let bytes = (0..n).map(number).flat_map(|value: f32| value.to_le_bytes()[2..].to_vec()).collect();
    (Dtype::Bf16, shape.to_vec(), bytes)
}

/// A small language model.
fn model() -> Tensors {
    let mut tensors = Tensors::new();
    let mut add = |name: &str, shape: &[u64]| {
        let seed = tensors.len() as u64 + 1;
        tensors.insert(name.to_owned(), weights(shape, seed));
    };
    add("embed.weight", &[300, 64]);
    for layer in 0..11 {
        add(&format!("layers.{layer}.q.weight"), &[64, 64]);
        add(&format!("layers.{layer}.q.bias"), &[64]);
        add(&format!("layers.{layer}.up.weight"), &[130, 64]);
        add(&format!("layers.{layer}.norm.weight"), &[64]);
    }
    tensors.insert("step".to_owned(), (Dtype::I64, vec![], 5i64.to_le_bytes().to_vec()));
    tensors
}

/// The model as a repository of two shards, with files beside them.
fn repository(folder: &Folder) -> PathBuf {
    let tensors = model();
    let (first, second): (Tensors, Tensors) =
        tensors.into_iter().partition(|(name, _)| !name.starts_with("layers.1"));
    folder.write("model/model-00001-of-00002.safetensors", &file_of(&first));
    folder.write("model/model-00002-of-00002.safetensors", &file_of(&second));
    folder.write("model/model.safetensors.index.json", b"{}");
    folder.write("model/config.json", b"{\n  \"model_type\": \"tiny\"\n}\n");
    folder.write("model/tokenizer/vocab.txt", b"a b c");
    folder.write("model/.gitattributes", b"*.safetensors filter=lfs");
    folder.path("model")
}

fn encode(from: &Path, to: &Path, options: &EncodeOptions) -> Result<EncodeSummary, mithril::Error> {
    df11::encode(&Repository::open(from)?, OutputDirectory::create(to, false)?, options, &|_| ())
}

fn decode(from: &Path, to: &Path) -> Result<df11::DecodeSummary, mithril::Error> {
    df11::decode(&df11::Model::open(from)?, OutputDirectory::create(to, false)?, 2, &|_| ())
}

fn per_module() -> EncodeOptions {
    let mut options = EncodeOptions::default();
    options.files = Files::PerModule;
    options
}

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../golden/df11").join(name)
}

#[test]
fn directory_of_the_official_encoder_is_written_byte_for_byte() {
    let folder = Folder::new("golden");
    let summary =
        encode(&golden("linear_input.safetensors"), &folder.path("coded"), &EncodeOptions::default());
    assert!(matches!(summary.unwrap().modules[0].outcome, Outcome::Coded { .. }));
    let mut ours = files(&folder.path("coded"));
    ours.remove(Path::new("df11_shapes.json")).unwrap();
    ours.remove(Path::new("df11_source.json")).unwrap();
    assert!(ours == files(&golden("linear")));
}

#[test]
fn directory_of_the_official_encoder_comes_back() {
    let folder = Folder::new("official");
    // No shapes beside it: the bias tells how many rows the weight has.
    let summary = decode(&golden("linear"), &folder.path("plain")).unwrap();
    assert!(summary.flat.is_empty());
    assert!(
        read_file(&folder.path("plain/model.safetensors")) == read_file(&golden("linear_input.safetensors"))
    );
}

#[test]
fn repositories_come_back_with_all_their_files() {
    let folder = Folder::new("repository");
    let model_path = repository(&folder);
    for (name, options) in [("single", EncodeOptions::default()), ("several", per_module())] {
        let (coded, plain) = (folder.path(name), folder.path(&format!("{name}-plain")));
        let summary = encode(&model_path, &coded, &options).unwrap();
        assert_eq!(summary.modules.len(), 23);
        assert_eq!(summary.modules[3].name, "layers.1.q", "layers are counted as numbers");
        let stored: u64 =
            files(&coded).iter().filter(|(path, _)| is_weights(path)).map(|(_, b)| b.len() as u64).sum();
        assert!(stored > summary.coded_len && summary.coded_len < summary.raw_len, "{stored}");
        assert_eq!(files(&coded)[Path::new("tokenizer/vocab.txt")], b"a b c");
        assert!(!files(&coded).contains_key(Path::new("model.safetensors.index.json")));
        assert_eq!(decode(&coded, &plain).unwrap().n_files, 2);
        assert!(files(&plain) == files(&model_path), "{name}: shards, index and all else, byte for byte");
        std::fs::remove_file(coded.join("df11_source.json")).unwrap();
        let single = folder.path(&format!("{name}-in-one-file"));
        assert_eq!(decode(&coded, &single).unwrap().n_files, 1);
        assert!(read_file(&single.join("model.safetensors")) == model(), "{name}");
        assert_eq!(files(&single).len(), 4);
    }
    let several = files(&folder.path("several"));
    let bias = read_file(&folder.path("several/layers_0_q.safetensors"));
    assert!(bias.contains_key("layers.0.q.bias") && bias.len() == 7);
    assert_eq!(several.keys().filter(|path| is_weights(path)).count(), 24);
}

fn is_weights(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "safetensors")
}

#[test]
fn threads_give_identical_directories() {
    let folder = Folder::new("threads");
    let model_path = repository(&folder);
    let mut first = None;
    for threads in [1, 2, 7] {
        let path = folder.path(&format!("coded-{threads}"));
        let mut options = per_module();
        options.threads = threads;
        encode(&model_path, &path, &options).unwrap();
        assert!(*first.get_or_insert_with(|| files(&path)) == files(&path), "{threads} threads");
    }
}

#[test]
fn parts_of_several_machines_make_the_same_directory() {
    let folder = Folder::new("parts");
    let model_path = repository(&folder);
    encode(&model_path, &folder.path("whole"), &per_module()).unwrap();
    encode(&model_path, &folder.path("whole-single"), &EncodeOptions::default()).unwrap();
    let mut parts = Vec::new();
    for (idx, blocks) in [(0, 0..9), (1, 9..20), (2, 20..1000)] {
        let path = folder.path(&format!("part-{idx}"));
        let mut options = per_module();
        options.blocks = Some(blocks);
        encode(&model_path, &path, &options).unwrap();
        parts.push(Repository::open(&path).unwrap());
    }
    let merge = |parts: &[Repository], name: &str, files: Files| {
        let output = OutputDirectory::create(&folder.path(name), false).unwrap();
        df11::merge(parts, output, files, 2, &|_| ())
    };
    merge(&parts, "merged", Files::PerModule).unwrap();
    merge(&parts, "merged-single", Files::Single).unwrap();
    let weights = |name: &str| -> BTreeMap<PathBuf, Vec<u8>> {
        // Each part lists the shapes of its own weights.
        let is_shapes = |path: &Path| path.to_string_lossy().starts_with("df11_shapes");
        files(&folder.path(name)).into_iter().filter(|(path, _)| !is_shapes(path)).collect()
    };
    assert!(weights("merged") == weights("whole"));
    assert!(weights("merged-single") == weights("whole-single"));
    decode(&folder.path("merged-single"), &folder.path("plain")).unwrap();
    assert!(files(&folder.path("plain")) == files(&model_path));

    let refused = |parts: &[Repository], reason: &str| {
        let error = merge(parts, "refused", Files::PerModule).unwrap_err().to_string();
        assert!(error.contains(reason), "{error}");
        assert!(!folder.path("refused").exists());
    };
    refused(&parts[..2], "the part with the last module is missing");
    refused(&parts[1..], "no part holds what the pattern");
    let again = Repository::open(&folder.path("part-1")).unwrap();
    parts.push(again);
    refused(&parts, "two parts hold");
    let mut options = EncodeOptions::default();
    options.blocks = Some(0..3);
    assert!(encode(&model_path, &folder.path("refused"), &options).is_err(), "one file cannot hold parts");
}

#[test]
fn parts_agree_on_threads_and_on_what_is_kept() {
    let folder = Folder::new("parts-agree");
    let mut tensors = model();
    // The first module asks for fewer threads, the second cannot be coded: other parts must know of both.
    let mut bytes = [0x80, 0x3f].repeat(400_000);
    bytes[..600].copy_from_slice(&weights(&[300], 3).2);
    tensors.insert("a_even.weight".to_owned(), (Dtype::Bf16, vec![1000, 400], bytes));
    tensors.insert("b_constant.weight".to_owned(), (Dtype::Bf16, vec![8, 8], [0x80, 0x3f].repeat(64)));
    folder.write("model.safetensors", &file_of(&tensors));
    let path = folder.path("model.safetensors");
    let encode_part = |name: &str, blocks: Option<std::ops::Range<usize>>, limit: Option<u64>| {
        let mut options = per_module();
        (options.blocks, options.shared_memory) = (blocks, limit);
        encode(&path, &folder.path(name), &options).unwrap();
    };
    encode_part("whole", None, Some(49152));
    encode_part("one", Some(0..2), Some(49152));
    encode_part("two", Some(2..1000), Some(49152));
    let merge = |parts: [&str; 2], name: &str| {
        let parts = parts.map(|part| Repository::open(&folder.path(part)).unwrap());
        let output = OutputDirectory::create(&folder.path(name), false).unwrap();
        df11::merge(&parts, output, Files::PerModule, 2, &|_| ())
    };
    merge(["one", "two"], "merged").unwrap();
    let read = |name: &str| std::fs::read_to_string(folder.path(name)).unwrap();
    assert_eq!(read("merged/config.json"), read("whole/config.json"));
    assert!(read("merged/config.json").contains("256") && !read("merged/config.json").contains("constant"));
    decode(&folder.path("merged"), &folder.path("plain")).unwrap();
    assert!(read_file(&folder.path("plain/model.safetensors")) == tensors);

    encode_part("unlimited", Some(0..2), None);
    let error = merge(["unlimited", "two"], "refused").unwrap_err().to_string();
    assert!(error.contains("`a_even` was coded for another number of threads than 256"), "{error}");
    assert!(!folder.path("refused").exists());
}

#[test]
fn what_cannot_be_coded_is_kept_and_named() {
    let folder = Folder::new("kept");
    let mut tensors = model();
    let infinite = &mut tensors.get_mut("layers.2.q.weight").unwrap().2;
    infinite[100..102].copy_from_slice(&[0x80, 0x7f]);
    tensors.insert("one.weight".to_owned(), (Dtype::Bf16, vec![1, 1], vec![0x80, 0x3f]));
    tensors.insert("constant.weight".to_owned(), (Dtype::Bf16, vec![8, 8], [0x80, 0x3f].repeat(64)));
    folder.write("model.safetensors", &file_of(&tensors));
    let path = folder.path("model.safetensors");
    for (name, options) in [("single", EncodeOptions::default()), ("several", per_module())] {
        let coded = folder.path(name);
        let summary = encode(&path, &coded, &options).unwrap();
        let kept = summary.modules.iter().filter(|module| matches!(module.outcome, Outcome::Kept(_)));
        let kept: Vec<&str> = kept.map(|module| module.name.as_str()).collect();
        assert_eq!(kept, ["constant", "layers.2.q", "one"]);
        let config = std::fs::read_to_string(coded.join("config.json")).unwrap();
        assert!(config.contains(r"layers\\.3\\.q") && !config.contains(r"layers\\.2\\.q"));
        assert_eq!(
            read_file(&coded.join("model.safetensors"))["layers.2.q.weight"],
            tensors["layers.2.q.weight"]
        );
        decode(&coded, &folder.path(&format!("{name}-plain"))).unwrap();
        assert!(read_file(&folder.path(&format!("{name}-plain/model.safetensors"))) == tensors);
    }
}

#[test]
fn patterns_code_several_weights_together() {
    let folder = Folder::new("patterns");
    let model_path = repository(&folder);
    let patterns = |list: &[(&str, &[&str])]| {
        let entry = |(pattern, names): &(&str, &[&str])| {
            ((*pattern).to_owned(), names.iter().map(|&name| name.to_owned()).collect())
        };
        let mut options = per_module();
        options.patterns = Some(PatternDict(list.iter().map(entry).collect()));
        options
    };
    let options = patterns(&[(r"layers\.\d+", &["up", "q"]), ("embed", &[])]);
    let summary = encode(&model_path, &folder.path("coded"), &options).unwrap();
    let names: Vec<&str> = summary.modules.iter().map(|module| module.name.as_str()).collect();
    assert_eq!(names[..3], ["layers.0", "layers.1", "layers.2"]);
    assert_eq!((names.len(), names[11]), (12, "embed"));
    let layer = read_file(&folder.path("coded/layers_3.safetensors"));
    assert_eq!(
        layer["layers.3.split_positions"],
        (Dtype::I64, vec![1], (130 * 64i64).to_le_bytes().to_vec())
    );
    assert!(layer.contains_key("layers.3.norm.weight") && layer.contains_key("layers.3.q.bias"));
    decode(&folder.path("coded"), &folder.path("plain")).unwrap();
    assert!(files(&folder.path("plain")) == files(&model_path));

    let refused = |list: &[(&str, &[&str])], reason: &str| {
        let error = encode(&model_path, &folder.path("refused"), &patterns(list)).unwrap_err().to_string();
        assert!(error.contains(reason), "{error}");
    };
    refused(&[("(", &[])], "pattern `(`");
    refused(&[("nothing", &[])], "nothing that the patterns match");
    refused(&[(r"layers\.1", &["missing"])], "no `layers.1.missing.weight`");
    refused(&[(r"layers\.1", &[])], "no Linear or Embedding");
    refused(&[("embed", &[]), ("emb.*", &[])], "twice");
}

#[test]
fn single_tensors_are_read_by_name() {
    let folder = Folder::new("tensors");
    let model_path = repository(&folder);
    encode(&model_path, &folder.path("coded"), &EncodeOptions::default()).unwrap();
    let opened = df11::Model::open(&folder.path("coded")).unwrap();
    let tensors = model();
    assert_eq!(opened.tensors().len(), tensors.len());
    for (idx, tensor) in opened.tensors().iter().enumerate() {
        let (dtype, shape, bytes) = &tensors[&tensor.name];
        assert_eq!((&tensor.dtype, &tensor.shape), (dtype, shape), "{}", tensor.name);
        assert!(opened.read(idx, 1 + idx % 3).unwrap() == *bytes, "{}", tensor.name);
    }
}

#[test]
fn workgroups_fit_the_shared_memory_that_is_asked_for() {
    let folder = Folder::new("shared-memory");
    // Nearly all exponents equal: codes of about one bit, and so the fullest workgroups that there can be.
    let mut tensors = model();
    let mut bytes = [0x80, 0x3f].repeat(400_000);
    bytes[..600].copy_from_slice(&weights(&[300], 3).2);
    tensors.insert("even.weight".to_owned(), (Dtype::Bf16, vec![1000, 400], bytes));
    folder.write("model.safetensors", &file_of(&tensors));
    let demand = |name: &str| {
        let opened = df11::Model::open(&folder.path(name)).unwrap();
        let diagnosis = df11::diagnose(&opened).unwrap();
        (diagnosis.shared_memory(), diagnosis.modules[0].name.clone(), diagnosis.threads_per_block)
    };
    encode(&folder.path("model.safetensors"), &folder.path("usual"), &EncodeOptions::default()).unwrap();
    let (usual, worst, threads) = demand("usual");
    assert!(usual > 49152 && worst == "even" && threads == 512, "{usual} {worst}");
    for (limit, expected) in [(49152, 256), (20_000, 128), (5000, 32), (100_000, 512)] {
        let mut options = EncodeOptions::default();
        options.shared_memory = Some(limit);
        let name = format!("limit-{limit}");
        let summary = encode(&folder.path("model.safetensors"), &folder.path(&name), &options).unwrap();
        let (found, _, threads) = demand(&name);
        assert!(found <= limit, "{found}");
        assert_eq!((threads, summary.geometry), (expected, Geometry::new(expected, 8).unwrap()));
        decode(&folder.path(&name), &folder.path(&format!("{name}-plain"))).unwrap();
        assert!(read_file(&folder.path(&format!("{name}-plain/model.safetensors"))) == tensors);
    }
    let mut options = EncodeOptions::default();
    options.shared_memory = Some(1000);
    assert!(encode(&folder.path("model.safetensors"), &folder.path("refused"), &options).is_err());
    assert!(!folder.path("refused").exists());
}

#[test]
fn pipelines_are_done_component_by_component() {
    let folder = Folder::new("pipeline");
    let file = file_of(&model());
    folder.write("pipe/model_index.json", b"{}");
    folder.write("pipe/transformer/diffusion_pytorch_model.safetensors", &file);
    folder.write("pipe/transformer/config.json", b"{\n  \"n\": 1\n}\n");
    folder.write("pipe/text_encoder/model.safetensors", &file);
    let mut convolutions = Tensors::new();
    convolutions.insert("conv.weight".to_owned(), weights(&[32, 16, 3, 3], 5));
    convolutions.insert("attention.q.weight".to_owned(), weights(&[32, 32], 6));
    let convolutions = file_of(&convolutions);
    folder.write("pipe/vae/diffusion_pytorch_model.safetensors", &convolutions);
    folder.write("pipe/vae_of_matrices/diffusion_pytorch_model.safetensors", &file);
    folder.write("pipe/scheduler/scheduler_config.json", b"{}");
    let output = |name: &str| OutputDirectory::create(&folder.path(name), false).unwrap();
    let summaries =
        df11::encode_pipeline(&folder.path("pipe"), output("coded"), &EncodeOptions::default(), &|_| ())
            .unwrap();
    assert_eq!(
        summaries.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(),
        ["text_encoder", "transformer", "vae_of_matrices"]
    );
    let coded = files(&folder.path("coded"));
    assert_eq!(coded[Path::new("vae/diffusion_pytorch_model.safetensors")], convolutions);
    assert!(coded[Path::new("transformer/model.safetensors")].len() < file.len());
    assert!(coded.contains_key(Path::new("scheduler/scheduler_config.json")));
    df11::decode_pipeline(&folder.path("coded"), output("plain"), 2, &|_| ()).unwrap();
    assert!(files(&folder.path("plain")) == files(&folder.path("pipe")));

    let open = |name: &str| mithril::convert::open_directory(&folder.path(name), None).unwrap();
    let pairs = mithril::compare::compare(&open("pipe"), &open("coded"), 2, &|_| ()).unwrap();
    assert!(pairs.iter().any(|pair| pair.name == "transformer/embed.weight"));
    assert!(pairs.iter().all(|pair| pair.outcome == mithril::compare::Outcome::Same));

    let whole = df11::diagnose_pipeline(&folder.path("coded")).unwrap();
    let one = df11::diagnose(&df11::Model::open(&folder.path("coded/transformer")).unwrap()).unwrap();
    assert_eq!((whole.modules.len(), whole.shared_memory()), (3 * one.modules.len(), one.shared_memory()));
    assert!(whole.modules.iter().any(|module| module.name == "text_encoder/embed"));
    assert_eq!(whole.buffer_len, one.buffer_len);
    assert_eq!(whole.stored_len, 3 * one.stored_len + 2 * (32 * 16 * 9 + 32 * 32));
    assert!(df11::diagnose_pipeline(&folder.path("pipe")).is_err());
}

#[test]
fn existing_directories_are_not_lost() {
    let folder = Folder::new("existing");
    let model_path = repository(&folder);
    folder.write("coded/notes.txt", b"mine");
    assert!(OutputDirectory::create(&folder.path("coded"), false).is_err());
    let output = OutputDirectory::create(&folder.path("coded"), true).unwrap();
    df11::encode(&Repository::open(&model_path).unwrap(), output, &EncodeOptions::default(), &|_| ())
        .unwrap();
    assert_eq!(files(&folder.path("coded"))[Path::new("notes.txt")], b"mine");
    // Weights that would stay would be read with the new ones.
    folder.write("other/old.safetensors", b"old");
    let output = OutputDirectory::create(&folder.path("other"), true).unwrap();
    let repository = Repository::open(&model_path).unwrap();
    let error = df11::encode(&repository, output, &EncodeOptions::default(), &|_| ()).unwrap_err();
    assert!(error.to_string().contains("old.safetensors"), "{error}");
    assert_eq!(files(&folder.path("other")).len(), 1);
    let left: Vec<_> =
        std::fs::read_dir(&folder.0).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(left.iter().all(|name| !name.to_string_lossy().ends_with(".tmp")), "{left:?}");
}

#[test]
fn weights_that_nobody_knows_the_shape_of_are_named() {
    let folder = Folder::new("shapes");
    let model_path = repository(&folder);
    encode(&model_path, &folder.path("coded"), &EncodeOptions::default()).unwrap();
    std::fs::remove_file(folder.path("coded/df11_shapes.json")).unwrap();
    std::fs::remove_file(folder.path("coded/df11_source.json")).unwrap();
    let summary = decode(&folder.path("coded"), &folder.path("flat")).unwrap();
    // Those with a bias have as many rows as it is long.
    assert_eq!(summary.flat.len(), 12);
    assert!(summary.flat.contains(&"embed.weight".to_owned()));
    assert_eq!(read_file(&folder.path("flat/model.safetensors"))["embed.weight"].1, [300 * 64]);
    let source = Repository::open(&model_path).unwrap();
    let opened = df11::Model::open_with(
        &folder.path("coded"),
        &df11::ShapeSource { repository: Some(&source), model: None },
    );
    let output = OutputDirectory::create(&folder.path("plain"), false).unwrap();
    df11::decode(&opened.unwrap(), output, 1, &|_| ()).unwrap();
    assert!(read_file(&folder.path("plain/model.safetensors")) == model());
}

#[test]
fn language_models_have_the_shapes_of_their_configuration() {
    let folder = Folder::new("config-shapes");
    let mut tensors = Tensors::new();
    for (idx, (name, shape)) in [
        ("q_proj", [96, 64]),
        ("k_proj", [32, 64]),
        ("o_proj", [64, 96]),
        ("up_proj", [160, 64]),
        ("down_proj", [64, 160]),
    ]
    .into_iter()
    .enumerate()
    {
        tensors.insert(format!("model.layers.0.{name}.weight"), weights(&shape, idx as u64 + 9));
    }
    tensors.insert("model.embed_tokens.weight".to_owned(), weights(&[500, 64], 4));
    folder.write("model/model.safetensors", &file_of(&tensors));
    let config =
        br#"{"hidden_size": 64, "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 16}"#;
    folder.write("model/config.json", config);
    encode(&folder.path("model"), &folder.path("coded"), &EncodeOptions::default()).unwrap();
    std::fs::remove_file(folder.path("coded/df11_shapes.json")).unwrap();
    std::fs::remove_file(folder.path("coded/df11_source.json")).unwrap();
    assert!(decode(&folder.path("coded"), &folder.path("plain")).unwrap().flat.is_empty());
    assert!(read_file(&folder.path("plain/model.safetensors")) == tensors);
}

#[test]
fn damaged_directories_are_refused_by_the_name_of_the_module() {
    let folder = Folder::new("damaged");
    let model_path = repository(&folder);
    let coded = folder.path("coded");
    encode(&model_path, &coded, &EncodeOptions::default()).unwrap();
    let intact = read_file(&coded.join("model.safetensors"));
    let config = std::fs::read_to_string(coded.join("config.json")).unwrap();
    let check = |damage: &dyn Fn(&mut Tensors)| {
        let mut tensors = intact.clone();
        damage(&mut tensors);
        std::fs::write(coded.join("model.safetensors"), file_of(&tensors)).unwrap();
        let error = decode(&coded, &folder.path("plain")).unwrap_err().to_string();
        assert!(error.contains("layers.4.up"), "{error}");
        assert!(!folder.path("plain").exists());
    };
    let part = |tensors: &mut Tensors, part: &str, change: &dyn Fn(&mut Vec<u8>)| {
        let tensor = tensors.get_mut(&format!("layers.4.up.{part}")).unwrap();
        change(&mut tensor.2);
        let row = if part == "luts" { 256 } else { 1 };
        let n = tensor.2.len() as u64 / tensor.0.len_of(1).unwrap();
        tensor.1 = if part == "luts" { vec![n / row, row] } else { vec![n] };
    };
    check(&|tensors| part(tensors, "gaps", &|bytes| bytes[0] = 0xff));
    check(&|tensors| part(tensors, "gaps", &|bytes| bytes.truncate(319)));
    check(&|tensors| part(tensors, "output_positions", &|bytes| bytes[0] = 9));
    check(&|tensors| part(tensors, "output_positions", &|bytes| bytes.extend([1, 0, 0, 0])));
    check(&|tensors| part(tensors, "luts", &|bytes| bytes[..256].fill(255)));
    check(&|tensors| part(tensors, "luts", &|bytes| bytes.truncate(256)));
    check(&|tensors| part(tensors, "encoded_exponent", &|bytes| bytes.truncate(100)));
    check(&|tensors| part(tensors, "sign_mantissa", &|bytes| bytes.truncate(100)));
    check(&|tensors| part(tensors, "split_positions", &|bytes| bytes.extend((-1i64).to_le_bytes())));
    check(&|tensors| drop(tensors.remove("layers.4.up.gaps")));
    check(&|tensors| tensors.get_mut("layers.4.up.luts").unwrap().0 = Dtype::I8);
    check(&|tensors| drop(tensors.insert("layers.4.up.weight".to_owned(), weights(&[130, 64], 1))));

    std::fs::write(coded.join("model.safetensors"), file_of(&intact)).unwrap();
    for (right, wrong) in
        [("512", "1"), ("512", "4294967296"), ("\"bytes_per_thread\": 8", "\"bytes_per_thread\": 7")]
    {
        std::fs::write(coded.join("config.json"), config.replacen(right, wrong, 1)).unwrap();
        assert!(df11::Model::open(&coded).unwrap_err().to_string().contains("config.json"));
    }
}

#[test]
fn models_without_bf16_matrices_are_refused() {
    let folder = Folder::new("nothing");
    let tensors = Tensors::from([("a.weight".to_owned(), (Dtype::F32, vec![2, 2], vec![0; 16]))]);
    folder.write("model.safetensors", &file_of(&tensors));
    let error = encode(&folder.path("model.safetensors"), &folder.path("coded"), &EncodeOptions::default());
    assert!(error.unwrap_err().to_string().contains("its tensors are F32"));
    assert!(Repository::open(&folder.path("missing")).is_err() && Repository::open(&folder.0).is_ok());
    std::fs::create_dir(folder.path("empty")).unwrap();
    assert!(
        Repository::open(&folder.path("empty")).unwrap_err().to_string().contains("no safetensors files")
    );
}

#[test]
fn lists_of_source_files_that_lie_are_refused() {
    let folder = Folder::new("source");
    let model_path = repository(&folder);
    let coded = folder.path("coded");
    encode(&model_path, &coded, &EncodeOptions::default()).unwrap();
    let text = std::fs::read_to_string(coded.join("df11_source.json")).unwrap();
    for (right, wrong) in [
        ("model-00001-of", "../model-00001-of"),
        ("model-00001-of-00002.safetensors", "model-00001-of-00002.txt"),
        ("model.safetensors.index.json", "index.json"),
        ("embed.weight", "other.weight"),
        (r#"\"shape\":[300,64]"#, r#"\"shape\":[300,32]"#),
        (r#"\"dtype\":\"I64\""#, r#"\"dtype\":\"F64\""#),
        ("{", "["),
    ] {
        let damaged = text.replacen(right, wrong, 1);
        assert!(damaged != text, "{right}");
        std::fs::write(coded.join("df11_source.json"), damaged).unwrap();
        let error = decode(&coded, &folder.path("plain")).unwrap_err().to_string();
        assert!(error.contains("df11_source.json"), "{error}");
        assert!(!folder.path("plain").exists());
    }
}

#[test]
fn directories_are_compared_as_the_models_that_they_stand_for() {
    let folder = Folder::new("compare");
    let model_path = repository(&folder);
    encode(&model_path, &folder.path("single"), &EncodeOptions::default()).unwrap();
    let mut other = per_module();
    other.geometry = Geometry::new(64, 8).unwrap();
    encode(&model_path, &folder.path("several"), &other).unwrap();
    // Shapes that a directory lacks are those of the other one.
    for lacks in ["df11_shapes.json", "df11_source.json"] {
        std::fs::remove_file(folder.path("several").join(lacks)).unwrap();
    }
    let mut changed = model();
    changed.get_mut("layers.3.up.weight").unwrap().2[1001] ^= 1;
    changed.remove("step").unwrap();
    folder.write("changed/model.safetensors", &file_of(&changed));
    let unlike = |a: &str, b: &str| -> Vec<(String, Compared)> {
        let (a, b) = (folder.path(a), folder.path(b));
        let open = |path: &Path, other: &Path| open_directory(path, Some(other)).unwrap();
        let pairs = compare(&open(&a, &b), &open(&b, &a), 2, &|_| ()).unwrap();
        assert_eq!(pairs.len(), 46);
        let unlike = pairs.into_iter().filter(|pair| pair.outcome != Compared::Same);
        unlike.map(|pair| (pair.name, pair.outcome)).collect()
    };
    for (a, b) in [("model", "single"), ("several", "single"), ("several", "model"), ("model", "model")] {
        assert_eq!(unlike(a, b), [], "{a} {b}");
    }
    for a in ["single", "several", "model"] {
        let expected = [
            ("layers.3.up.weight".to_owned(), Compared::Different { first_offset: 1001 }),
            ("step".to_owned(), Compared::OnlyInA),
        ];
        assert_eq!(unlike(a, "changed"), expected, "{a}");
    }
    assert!(open_directory(&folder.path("model/tokenizer"), None).is_err());
}

#[test]
fn rows_are_decoded_alone() {
    let folder = Folder::new("rows");
    folder.write(
        "model.safetensors",
        &file_of(&Tensors::from([("a.weight".to_owned(), weights(&[5000, 48], 3))])),
    );
    let mut options = EncodeOptions::default();
    options.geometry = Geometry::new(16, 8).unwrap();
    encode(&folder.path("model.safetensors"), &folder.path("coded"), &options).unwrap();
    let opened = df11::Model::open(&folder.path("coded")).unwrap();
    let (bytes, all) = (opened.read_module(0).unwrap(), opened.read(0, 1).unwrap());
    let coded = df11::coded("a", bytes.parts(), opened.geometry()).unwrap();
    let decode = |rows: &[u64], len: usize, threads: usize| {
        let mut out = vec![0; len];
        df11::decode_rows_into(&coded, "a", (rows, 48), &mut out, threads).map(|()| out)
    };
    let everything: Vec<u64> = (0..5000).collect();
    for rows in [&[][..], &[0], &[4999], &[0, 1, 2, 700, 701, 4998, 4999], &everything] {
        for threads in [1, 3] {
            let expected: Vec<u8> = rows
                .iter()
                .flat_map(|&row| all[96 * row as usize..96 * (row as usize + 1)].to_vec())
                .collect();
            assert!(decode(rows, 96 * rows.len(), threads).unwrap() == expected);
        }
    }
    for (rows, len) in [(&[5000][..], 96), (&[2, 1], 192), (&[1, 1], 192), (&[1], 95), (&[u64::MAX], 96)] {
        assert!(decode(rows, len, 1).is_err(), "{rows:?}");
    }
    assert!(df11::decode_into(&coded, "a", &mut vec![0; all.len() - 2], 1).is_err());
}
