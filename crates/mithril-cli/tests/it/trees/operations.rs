//! What is done with the files of a tree, and what must come of it.

use super::world::{Node, Packed, Tensor, What, World};
use crate::{check_done, check_refused, command, json, run, run_with_stdin, text};
use proptest::prelude::*;
use proptest::sample::{Index, select};
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Output;

/// Files that `max` takes longer for are packed with less effort.
const MAX_EFFORT_LEN: usize = 200_000;

/// One thing that is done.
#[derive(Debug, Clone)]
pub(super) enum Operation {
    Pack { what: Index, packing: Packing, from: Way, to: Place },
    Unpack { what: Index, from: Way, to: Place, is_there: bool },
    Read { what: Index, tensor: Index, rows: (Index, Index) },
    Damage { what: Index, damage: Damage },
}

/// How a command gets its input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    File,
    /// By its name alone, from where it lies.
    Here,
    Pipe,
    Redirect,
}

/// Where its output goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    Named,
    Stdout,
    /// Where the command puts it.
    Default,
}

/// Options of `compress`.
#[derive(Debug, Clone)]
pub(super) struct Packing {
    pub(super) effort: &'static str,
    pub(super) level: Option<&'static str>,
    pub(super) threads: &'static str,
    dtype: Option<&'static str>,
    pub(super) alignment: &'static str,
    pub(super) digests: bool,
    pub(super) is_framed: bool,
    /// Against the file of the same name of the first tree.
    pub(super) is_based: bool,
}

/// What happens to a packed file.
#[derive(Debug, Clone)]
pub(super) enum Damage {
    Flip(Index, u8),
    Cut(Index),
    /// Other bytes in place of some.
    Wipe(Index),
    Longer,
}

pub(super) fn operations() -> impl Strategy<Value = Vec<Operation>> {
    let way = || select(vec![Way::File, Way::File, Way::Here, Way::Pipe, Way::Redirect]);
    let place = || select(vec![Place::Named, Place::Named, Place::Stdout, Place::Default]);
    let index = any::<Index>;
    let damage = prop_oneof![
        3 => (index(), 0..8u8).prop_map(|(at, bit)| Damage::Flip(at, bit)),
        2 => index().prop_map(Damage::Cut),
        1 => index().prop_map(Damage::Wipe),
        1 => Just(Damage::Longer),
    ];
    let operation = prop_oneof![
        6 => (index(), packing(), way(), place())
            .prop_map(|(what, packing, from, to)| Operation::Pack { what, packing, from, to }),
        4 => (index(), way(), place(), any::<bool>())
            .prop_map(|(what, from, to, is_there)| Operation::Unpack { what, from, to, is_there }),
        3 => (index(), index(), (index(), index()))
            .prop_map(|(what, tensor, rows)| Operation::Read { what, tensor, rows }),
        2 => (index(), damage).prop_map(|(what, damage)| Operation::Damage { what, damage }),
    ];
    prop::collection::vec(operation, 2..10)
}

pub(super) fn packing() -> impl Strategy<Value = Packing> {
    let dtypes =
        vec![None, None, None, None, Some("bytes"), Some("bf16"), Some("f32"), Some("i64"), Some("u8")];
    (
        select(vec!["fast", "fast", "balanced", "max"]),
        select(vec![None, None, Some("1"), Some("19")]),
        select(vec!["0", "1", "3"]),
        select(dtypes),
        select(vec!["64", "4096"]),
        any::<bool>(),
        select(vec![false, false, false, true]),
        any::<bool>(),
    )
        .prop_map(|(effort, level, threads, dtype, alignment, digests, is_framed, is_based)| Packing {
            effort,
            level,
            threads,
            dtype,
            alignment,
            digests,
            is_framed,
            is_based,
        })
}

impl Packing {
    /// The command line options for an input of this length.
    pub(super) fn options(&self, len: usize) -> Vec<String> {
        let effort = if len > MAX_EFFORT_LEN { "fast" } else { self.effort };
        let mut options = vec!["--effort", effort, "--threads", self.threads, "--alignment", self.alignment];
        options.extend(self.level.iter().flat_map(|level| ["--level", level]));
        options.extend(self.digests.then_some("--digests"));
        options.extend(self.is_framed.then_some(["--to", "safetensors"]).into_iter().flatten());
        options.into_iter().map(str::to_owned).collect()
    }
}

/// Runs a verb on a file that it gets in some way.
fn send(world: &World, verb: &str, place: &str, way: Way, options: &[String]) -> Output {
    let path = world.path(place);
    let options: Vec<&str> = options.iter().map(String::as_str).collect();
    match way {
        Way::File => run(&[&[verb, path.as_str()], &options[..]].concat()),
        Way::Here => {
            let (directory, name) = path.rsplit_once('/').unwrap();
            // A name of one dash is that of stdin.
            let name = if name == "-" { "./-" } else { name };
            command(&[&[verb], &options[..], &["--", name]].concat()).current_dir(directory).output().unwrap()
        }
        Way::Pipe => run_with_stdin(&[&[verb, "-"], &options[..]].concat(), &world.file(place).0.bytes),
        Way::Redirect => command(&[&[verb, "-"], &options[..]].concat())
            .stdin(std::fs::File::open(path).unwrap())
            .output()
            .unwrap(),
    }
}

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

impl Way {
    /// Whether the command knows what its input is called.
    fn is_named(self) -> bool {
        matches!(self, Self::File | Self::Here)
    }
}

impl Operation {
    /// Packs a file to where the command puts it: into the tree.
    pub(super) fn beside(what: Index, is_framed: bool) -> Self {
        let packing = Packing {
            effort: "fast",
            level: None,
            threads: "1",
            dtype: None,
            alignment: "64",
            digests: false,
            is_framed,
            is_based: false,
        };
        Self::Pack { what, packing, from: Way::File, to: Place::Default }
    }

    pub(super) fn run(&self, world: &mut World) {
        match self {
            Self::Pack { what, packing, from, to } => pack(world, what, packing, *from, *to),
            Self::Unpack { what, from, to, is_there } => unpack(world, what, *from, *to, *is_there),
            Self::Read { what, tensor, rows } => read(world, what, tensor, rows),
            Self::Damage { what, damage } => break_and_repair(world, what, damage),
        }
        world.check(&format!("{self:?}"));
    }
}

/// Packs any file. What comes out is the same by every way in and with any number of threads.
fn pack(world: &mut World, what: &Index, packing: &Packing, from: Way, to: Place) {
    let is_file = |(_, node): &(&String, &Node)| matches!(node, Node::File { .. });
    let places: Vec<String> = world.nodes.iter().filter(is_file).map(|(place, _)| place.clone()).collect();
    if places.is_empty() {
        return;
    }
    let place = what.get(&places).clone();
    let (file, mode) = world.file(&place);
    let (file, mode) = (file.clone(), mode);
    let mut packing = packing.clone();
    let is_model = matches!(*file.what, What::Model(_));
    let is_safetensors = matches!(*file.what, What::Model(Some(_)));
    // From a file to a file.
    packing.is_framed &= is_safetensors && from.is_named() && to != Place::Stdout;
    if packing.is_framed {
        (packing.dtype, packing.is_based) = (None, false);
    }
    let mut options = packing.options(file.bytes.len());
    let base = place.strip_prefix("tuned/").map(|place| format!("in/{place}"));
    let is_base = |place: &String| matches!(&world.nodes.get(place), Some(Node::File { file, .. }) if matches!(*file.what, What::Model(_)));
    let base = base.filter(|place| packing.is_based && is_base(place));
    match (&base, packing.dtype) {
        (Some(base), _) => options.extend(["--base".to_owned(), world.path(base)]),
        (None, Some(dtype)) => options.extend(words(&["--dtype", dtype])),
        (None, None) => {}
    }
    let dtype = if base.is_some() { None } else { packing.dtype };
    if let What::Packed = *file.what {
        let refused = send(world, "compress", &place, from, &[&options[..], &words(&["-o", "-"])].concat());
        check_refused(&refused, 1, "is packed already");
        options.push("--force".to_owned());
    }
    // A safetensors file whose tensors are frames is a model still, which `--force` packs as one.
    let is_framed_model = matches!(*file.what, What::Packed) && place.ends_with(".mithril.safetensors");
    let suffix = match ((is_model || is_framed_model) && dtype.is_none(), packing.is_framed) {
        (true, true) => "mithril.safetensors",
        (true, false) => "mckp",
        (false, _) => "mthf",
    };
    let new = match (to, from.is_named()) {
        (Place::Default, true) => format!("{place}.{suffix}"),
        _ => format!("packed/{}.{suffix}", world.new_name()),
    };
    // Also by a directory of that name.
    let is_taken = world.nodes.keys().any(|place| {
        place.strip_prefix(new.as_str()).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    });
    let to_stdout = to == Place::Stdout || to == Place::Default && !from.is_named();
    let output = match to {
        Place::Default => Vec::new(),
        Place::Stdout => words(&["-o", "-"]),
        Place::Named => vec!["-o".to_owned(), world.path(&new)],
    };
    let mut output = send(world, "compress", &place, from, &[&options[..], &output].concat());
    if matches!(*file.what, What::Broken) && dtype.is_none() && output.status.code() == Some(1) {
        check_refused(&output, 1, "hint: `--dtype bytes`");
        return;
    }
    if is_taken && !options.contains(&"--force".to_owned()) {
        check_refused(&output, 2, "exists already");
        world.check("compress over another file");
        // What was made before is made again; another file stays.
        if !world.packed.iter().any(|packed| packed.place == new) {
            return;
        }
        options.push("--force".to_owned());
        output = send(world, "compress", &place, from, &options);
    }
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let written = if to_stdout { output.stdout } else { world.directory.read(&new) };
    let said = format!(": {} -> {} bytes", file.bytes.len(), written.len());
    assert!(text(&output.stderr).contains(&said), "{said} in {}", text(&output.stderr));
    if !packing.is_framed {
        // A container has the name of its file, which a pipe has not.
        let again = match from {
            Way::File => Way::Here,
            Way::Here => Way::File,
            Way::Pipe => Way::Redirect,
            Way::Redirect => Way::Pipe,
        };
        options.retain(|option| option != "--force");
        let same = [&options[..], &words(&["--force", "-o", "-", "--threads", "2"])].concat();
        let same: Vec<String> = without_threads(&same);
        let same = send(world, "compress", &place, again, &same);
        assert_eq!(same.status.code(), Some(0), "{again:?}: {}", text(&same.stderr));
        assert!(same.stdout == written, "{place:?}: {again:?} and {from:?} give other bytes");
    }
    if to_stdout {
        world.directory.write(&new, &written);
    }
    world.learn(&new, What::Packed);
    if !to_stdout && from.is_named() {
        assert_eq!(world.file(&new).1, mode, "a file has the mode of that which it is made of");
        assert_eq!(modified(world, &new), modified(world, &place));
    }
    world.packed.retain(|packed| packed.place != new);
    world.packed.push(Packed { place: new, of: file, base, is_framed: packing.is_framed });
}

/// Options with the last number of threads that they say.
fn without_threads(options: &[String]) -> Vec<String> {
    let first = options.iter().position(|option| option == "--threads").unwrap();
    [&options[..first], &options[first + 2..]].concat()
}

fn modified(world: &World, place: &str) -> std::time::SystemTime {
    std::fs::metadata(world.path(place)).unwrap().modified().unwrap()
}

/// The options that name the base of a packed file.
fn base_options(world: &World, packed: &Packed) -> Vec<String> {
    packed.base.iter().flat_map(|base| ["--base".to_owned(), world.path(base)]).collect()
}

/// Whether tensors of a container are stored against its base, as `inspect` says.
fn needs_base(world: &World, packed: &Packed) -> bool {
    packed.base.is_some() && {
        let report = json(&run(&["inspect", &world.path(&packed.place), "--json"]));
        let mut tensors = report["tensors"].as_array().unwrap().iter();
        tensors.any(|tensor| matches!(tensor["kind"].as_str(), Some("copy" | "delta")))
    }
}

/// Restores what was packed.
fn unpack(world: &mut World, what: &Index, from: Way, to: Place, is_there: bool) {
    if world.packed.is_empty() {
        return;
    }
    let packed = what.get(&world.packed).clone();
    let (from, to) = match (packed.is_framed, to) {
        (true, Place::Stdout) => (Way::File, Place::Named),
        (true, to) => (Way::File, to),
        (false, to) => (from, to),
    };
    let mut options = base_options(world, &packed);
    let named = format!("out/{}", world.new_name());
    let own_name = packed
        .place
        .strip_suffix(".mithril.safetensors")
        .or(packed.place.rsplit_once('.').map(|(name, _)| name));
    let new = match (to, from.is_named()) {
        (Place::Default, true) => own_name.unwrap().to_owned(),
        _ => named,
    };
    let to_stdout = to == Place::Stdout || to == Place::Default && !from.is_named();
    match to {
        Place::Named => options.extend(["-o".to_owned(), world.path(&new)]),
        Place::Stdout => options.extend(words(&["-o", "-"])),
        Place::Default => {}
    }
    if needs_base(world, &packed) {
        let alone: Vec<String> = options[2..].to_vec();
        let output = send(world, "decompress", &packed.place, from, &alone);
        // Its base may lie beside it.
        if packed.place.starts_with("packed/") || !from.is_named() {
            check_refused(&output, 1, "needs base");
        }
        if output.status.success() {
            check_restored(world, &packed, &new, &output, to_stdout);
            if !to_stdout {
                std::fs::remove_file(world.path(&new)).unwrap();
            }
        }
        world.check("decompress without a base");
    }
    let before = world.nodes.get(&new).cloned();
    if is_there && !to_stdout && before.is_none() {
        world.put(&new, b"precious");
    }
    let mut output = send(world, "decompress", &packed.place, from, &options);
    if world.nodes.contains_key(&new) && !to_stdout {
        check_refused(&output, 2, "exists already");
        world.check("decompress over another file");
        if matches!(world.nodes[&new], Node::File { .. }) {
            options.push("--force".to_owned());
            output = send(world, "decompress", &packed.place, from, &options);
        } else {
            return;
        }
    }
    check_restored(world, &packed, &new, &output, to_stdout);
    if to_stdout {
        return;
    }
    let mode = world.file(&packed.place).1;
    if from.is_named() {
        assert_eq!(super::world::mode(Path::new(&world.path(&new))), mode, "the mode of what was packed");
        assert_eq!(modified(world, &new), modified(world, &packed.place));
    }
    match before {
        // A source that was restored in its place is what it was, but for its mode where that was another.
        Some(Node::File { file, .. }) => {
            assert!(file.bytes == packed.of.bytes);
            let mode = super::world::mode(Path::new(&world.path(&new)));
            world.nodes.insert(new, Node::File { file, mode });
        }
        _ => {
            std::fs::remove_file(world.path(&new)).unwrap();
            world.nodes.remove(&new);
        }
    }
}

fn check_restored(world: &World, packed: &Packed, new: &str, output: &Output, to_stdout: bool) {
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let restored = if to_stdout { output.stdout.clone() } else { world.directory.read(new) };
    assert!(restored == *packed.of.bytes, "{packed:?}: other bytes");
}

/// Looks at a packed file, checks it, and takes a tensor out of it.
fn read(world: &World, what: &Index, tensor: &Index, rows: &(Index, Index)) {
    if world.packed.is_empty() {
        return;
    }
    let packed = what.get(&world.packed);
    let path = world.path(&packed.place);
    let report = json(&run(&["inspect", &path, "--json"]));
    let shallow = run(&["verify", &path, "--json"]);
    check_done(&shallow);
    assert_eq!(json(&shallow)["intact"], true);
    let mut deep = words(&["verify", &path, "--deep"]);
    deep.extend(base_options(world, packed));
    check_done(&run(&deep.iter().map(String::as_str).collect::<Vec<_>>()));
    if report["kind"] == "frame" {
        assert_eq!(report["raw_bytes"], packed.of.bytes.len());
        assert_eq!(report["frame_bytes"], world.file(&packed.place).0.bytes.len());
        return;
    }
    let What::Model(tensors) = &*packed.of.what else { panic!("{packed:?} is a model: {report}") };
    let listed = report["tensors"].as_array().unwrap();
    let Some(tensors) = tensors else {
        // Its own reader says what the tensors of a foreign file are.
        for name in listed.iter().map(|tensor| tensor["name"].as_str().unwrap()) {
            let extracted = extract(world, packed, &packed.place, name, None);
            assert_eq!(extracted.status.code(), Some(0), "{}", text(&extracted.stderr));
            let plain = world.directory.write("plain", &packed.of.bytes);
            assert!(run(&["extract", &plain, "--raw", "--", name]).stdout == extracted.stdout, "{name}");
            std::fs::remove_file(plain).unwrap();
        }
        return;
    };
    let facts = |name: &str, dtype: &str, shape: &serde_json::Value, raw_len: u64| {
        (name.to_owned(), dtype.to_owned(), shape.to_string(), raw_len)
    };
    let mut said: Vec<_> = listed
        .iter()
        .map(|tensor| {
            let text = |key: &str| tensor[key].as_str().unwrap();
            facts(text("name"), text("dtype"), &tensor["shape"], tensor["raw_bytes"].as_u64().unwrap())
        })
        .collect();
    let mut expected: Vec<_> = tensors
        .iter()
        .map(|tensor| {
            facts(&tensor.name, tensor.dtype, &serde_json::json!(tensor.shape), tensor.bytes.len() as u64)
        })
        .collect();
    said.sort();
    expected.sort();
    assert_eq!(said, expected);
    if tensors.is_empty() {
        return;
    }
    let tensor = tensor.get(tensors);
    let whole = extract(world, packed, &packed.place, &tensor.name, None);
    check_tensor(tensor, 0..tensor.bytes.len(), &whole);
    let Some(&n_rows) = tensor.shape.first() else { return };
    let n_rows = usize::try_from(n_rows).unwrap();
    let row_len = tensor.bytes.len().checked_div(n_rows).unwrap_or(0);
    let (a, b) = (rows.0.index(n_rows + 1), rows.1.index(n_rows + 1));
    let range = a.min(b)..a.max(b);
    let some =
        extract(world, packed, &packed.place, &tensor.name, Some(&format!("{}:{}", range.start, range.end)));
    check_tensor(tensor, range.start * row_len..range.end * row_len, &some);
}

fn check_tensor(tensor: &Tensor, range: std::ops::Range<usize>, output: &Output) {
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert!(output.stdout == tensor.bytes[range.clone()], "{:?}, {range:?}", tensor.name);
}

/// A tensor of a packed file, or of another that was made of it.
fn extract(world: &World, packed: &Packed, place: &str, name: &str, rows: Option<&str>) -> Output {
    let mut words = words(&["extract", &world.path(place), "--raw"]);
    words.extend(base_options(world, packed));
    words.extend(rows.iter().flat_map(|rows| ["--rows".to_owned(), (*rows).to_owned()]));
    words.extend(["--".to_owned(), name.to_owned()]);
    run(&words.iter().map(String::as_str).collect::<Vec<_>>())
}

impl Damage {
    /// The bytes after it, and from where on they are others.
    fn apply(&self, bytes: &[u8]) -> Vec<u8> {
        let mut damaged = bytes.to_vec();
        match self {
            Self::Flip(at, bit) => damaged[at.index(bytes.len())] ^= 1 << bit,
            Self::Cut(at) => damaged.truncate(at.index(bytes.len())),
            Self::Wipe(at) => {
                damaged.iter_mut().skip(at.index(bytes.len())).take(64).for_each(|byte| *byte = !*byte)
            }
            Self::Longer => damaged.extend(b"more"),
        }
        damaged
    }
}

/// A packed file is damaged: that is found, nothing wrong is written, and what is saved is right.
fn break_and_repair(world: &mut World, what: &Index, damage: &Damage) {
    // The header of a safetensors file has no checksum, nor have tensors that became no frames.
    let candidates: Vec<&Packed> = world.packed.iter().filter(|packed| !packed.is_framed).collect();
    if candidates.is_empty() {
        return;
    }
    let packed = (*what.get(&candidates)).clone();
    let whole = world.file(&packed.place).0.bytes.clone();
    let is_container = packed.place.ends_with(".mckp");
    let at = format!("packed/damaged.{}", if is_container { "mckp" } else { "mthf" });
    world.put(&at, &damage.apply(&whole));
    let path = world.path(&at);

    let verified = run(&["verify", &path, "--json"]);
    assert_eq!(verified.status.code(), Some(1), "{}", text(&verified.stdout));
    assert_eq!(json(&verified)["intact"], false);
    let bases = base_options(world, &packed);
    let new = format!("out/{}", world.new_name());
    for is_there in [false, true] {
        if is_there {
            world.put(&new, b"precious");
        }
        let options = [&bases[..], &["-o".to_owned(), world.path(&new), "--force".to_owned()]].concat();
        check_refused(&send(world, "decompress", &at, Way::File, &options), 1, "damaged.m");
        world.check("decompress of a damaged file");
    }
    world.remove(&new);
    for way in [Way::File, Way::Pipe] {
        let output = send(world, "decompress", &at, way, &[&bases[..], &words(&["-o", "-"])].concat());
        assert_eq!(output.status.code(), Some(1), "{way:?}: {}", text(&output.stderr));
        assert!(packed.of.bytes.starts_with(&output.stdout), "{way:?}: what was written is wrong");
    }
    let names: Vec<String> = json(&run(&["inspect", &world.path(&packed.place), "--json"]))["tensors"]
        .as_array()
        .map_or_else(Vec::new, |tensors| {
            tensors.iter().map(|tensor| tensor["name"].as_str().unwrap().to_owned()).collect()
        });
    let right: BTreeMap<&str, Vec<u8>> = names
        .iter()
        .map(|name| {
            let output = extract(world, &packed, &packed.place, name, None);
            assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
            (name.as_str(), output.stdout)
        })
        .collect();
    for (name, right) in &right {
        let Output { status, stdout, .. } = extract(world, &packed, &at, name, None);
        assert!(status.success() || status.code() == Some(1));
        assert!(if status.success() { *right == stdout } else { right.starts_with(&stdout) }, "{name:?}");
    }

    let saved = format!("out/{}", world.new_name());
    let output = run(&["repair", &path, "-o", &world.path(&saved), "--json"]);
    if !is_container {
        // Or what is left of it is no frame either.
        assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
        world.remove(&at);
        return;
    }
    if text(&output.stderr).contains("nothing is left to be saved") {
        check_refused(&output, 1, "nothing is left to be saved");
        world.check("repair");
        world.remove(&at);
        return;
    }
    let report = json(&output);
    let n_lost = report["lost"].as_array().unwrap().len();
    world.learn(&saved, What::Packed);
    for name in report["saved"].as_array().unwrap().iter().map(|name| name.as_str().unwrap()) {
        let output = extract(world, &packed, &saved, name, None);
        assert_eq!(output.status.code(), Some(0), "{name:?}: {}", text(&output.stderr));
        assert!(output.stdout == right[name], "{name:?}");
    }
    check_saved(&packed, &report, &names, damage, &whole);
    if report["restores_the_original"] == true {
        assert_eq!(n_lost, 0);
        let options = [&bases[..], &words(&["-o", "-"])].concat();
        let output = send(world, "decompress", &saved, Way::File, &options);
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        assert!(output.stdout == *packed.of.bytes);
    }
    assert_eq!(
        output.status.code(),
        Some(i32::from(n_lost > 0 || report["header_lost"] == true)),
        "{report}"
    );
    world.remove(&saved);
    world.remove(&at);
}

/// What the damage did not touch is saved.
fn check_saved(packed: &Packed, report: &serde_json::Value, names: &[String], damage: &Damage, whole: &[u8]) {
    use mithril::container::{EntryKind, Reader};
    let reader = Reader::open(whole).unwrap();
    let is_saved = |name: &str| report["saved"].as_array().unwrap().iter().any(|saved| saved == name);
    let mut n_lost = 0;
    for (entry_idx, entry) in reader.entries().iter().enumerate() {
        let Some(frame) = reader.directory().frame(entry_idx) else { continue };
        if entry.glue || entry.kind() != EntryKind::Full {
            continue;
        }
        n_lost += usize::from(!is_saved(&entry.name));
        if let Damage::Cut(at) = damage {
            let is_before = frame.offset + frame.len <= at.index(whole.len()) as u64;
            assert!(!is_before || is_saved(&entry.name), "{packed:?}: {:?}: {report}", entry.name);
        }
    }
    match damage {
        Damage::Flip(..) => assert!(n_lost <= 1, "{packed:?}, {damage:?}: {report}"),
        Damage::Longer => assert!(names.iter().all(|name| is_saved(name)), "{packed:?}: {report}"),
        Damage::Cut(_) | Damage::Wipe(_) => {}
    }
}
