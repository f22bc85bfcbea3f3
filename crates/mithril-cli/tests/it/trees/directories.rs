//! Whole directories, and several files at once.

use super::operations::Packing;
use super::world::{File, Node, What, World, list, mode};
use crate::{check_done, check_refused, run, text};
use proptest::sample::Index;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// The list of a packed directory.
const MANIFEST: &str = "files.mckp";

fn run_all(words: &[String]) -> std::process::Output {
    run(&words.iter().map(String::as_str).collect::<Vec<_>>())
}

/// What comes back of a directory: files, and links that stay inside. Directories come back with what is in them.
fn expected(world: &World, root: &str) -> BTreeMap<String, Node> {
    let mut expected = BTreeMap::new();
    for (place, node) in world.below(root) {
        let node = match node {
            Node::Directory => continue,
            // Out of the directory: what it leads to comes back.
            Node::Link(target) if target.starts_with('/') => {
                let of = target.strip_prefix(&world.path("")).unwrap();
                world.nodes[of].clone()
            }
            node => node.clone(),
        };
        for (end, _) in place.match_indices('/') {
            expected.insert(place[..end].to_owned(), Node::Directory);
        }
        expected.insert(place.to_owned(), node);
    }
    expected
}

fn file(node: &Node) -> Option<&File> {
    match node {
        Node::File { file, .. } => Some(file),
        _ => None,
    }
}

/// What lies below a directory is all of this, or a part of it.
fn check_tree(expected: &BTreeMap<String, Node>, root: &str, is_part: bool) {
    let mut found = list(Path::new(root));
    if is_part {
        found.remove(".mithril-journal");
    }
    for (place, node) in expected {
        let path = Path::new(root).join(place);
        let Some(kind) = found.remove(place) else {
            assert!(is_part, "{place:?} is missing");
            continue;
        };
        match node {
            Node::Directory => {
                assert!(kind.is_dir(), "{place:?}");
                assert_eq!(mode(&path) & 0o077, 0, "{place:?}: others may look into it");
            }
            Node::Link(target) => assert_eq!(fs::read_link(&path).ok(), Some(target.into()), "{place:?}"),
            Node::File { file, mode: expected } => {
                assert!(kind.is_file(), "{place:?} is no file");
                assert!(fs::read(&path).unwrap() == *file.bytes, "other bytes in {place:?}");
                assert_eq!(mode(&path), *expected, "{place:?}");
            }
        }
    }
    assert!(found.is_empty(), "{found:?} were not there");
}

/// A directory is packed, restored, restored again over what is there, and damaged.
pub(super) fn pack(world: &mut World, root: &str, packing: &Packing, which: &Index, at: &Index) {
    let expected = expected(world, root);
    let files: Vec<(&String, &File)> =
        expected.iter().filter_map(|(place, node)| Some((place, file(node)?))).collect();
    let len = files.iter().map(|(_, file)| file.bytes.len()).max().unwrap_or(0);
    let is_base = packing.is_based && root == "tuned" && is_base(world, "in");
    let base = if is_base { vec!["--base".to_owned(), world.path("in")] } else { Vec::new() };
    let packed = world.path(&format!("packed/{}", world.new_name()));
    let source = world.path(root);
    let options = [&packing.options(len)[..], &base].concat();
    let compress = [&["compress".to_owned(), source, "-o".to_owned(), packed.clone()], &options[..]].concat();
    let output = run_all(&compress);
    if files.iter().any(|(place, _)| *place == MANIFEST) && !packing.is_framed {
        check_refused(&output, 1, "which packed directories need");
        fs::remove_dir_all(packed).unwrap();
        return;
    }
    let is_framed_before = |(place, file): &(&String, &File)| {
        place.ends_with(".safetensors")
            && matches!(*file.what, What::Packed)
            && file.bytes.get(8) == Some(&b'{')
    };
    if packing.is_framed && files.iter().any(is_framed_before) {
        check_refused(&output, 1, "it holds frames already");
        fs::remove_dir_all(packed).unwrap();
        return;
    }
    check_done(&output);
    let again = run_all(&compress);
    match packing.is_framed && expected.is_empty() {
        // Nothing is written over.
        true => _ = check_done(&again),
        false => check_refused(&again, 2, "exists already"),
    }
    for place in list(Path::new(&packed)).keys() {
        assert!(!place.contains(".mithril-journal") && !is_temporary(place), "{place:?}");
    }

    let back = world.path(&format!("out/{}", world.new_name()));
    let mut decompress = ["decompress", &packed, "-o", &back].map(str::to_owned).to_vec();
    decompress.extend(base);
    let output = run_all(&decompress);
    let is_framed = |(place, file): &(&String, &File)| {
        let is_safetensors = matches!(*file.what, What::Model(_)) && file.bytes.get(8) == Some(&b'{');
        place.ends_with(".safetensors") && is_safetensors
    };
    if packing.is_framed && !files.iter().any(is_framed) {
        // All of it is a copy.
        check_refused(&output, 1, "is no packed directory");
        check_tree(&expected, &packed, false);
        fs::remove_dir_all(packed).unwrap();
        return;
    }
    check_done(&output);
    check_tree(&expected, &back, false);

    // Over what is there.
    let output = run_all(&decompress);
    check_tree(&expected, &back, false);
    if !files.is_empty() {
        check_refused(&output, 2, "exists already");
        let (place, _) = which.get(&files);
        let path = format!("{back}/{place}");
        fs::remove_file(&path).unwrap();
        fs::write(&path, b"other bytes").unwrap();
    }
    decompress.push("--force".to_owned());
    check_done(&run_all(&decompress));
    check_tree(&expected, &back, false);
    decompress.pop();
    fs::remove_dir_all(&back).unwrap();

    if !packing.is_framed {
        // Some byte of some file of it.
        let places: Vec<String> = list(Path::new(&packed))
            .into_iter()
            .filter_map(|(place, kind)| kind.is_file().then_some(place))
            .collect();
        let place = which.get(&places);
        let damaged = format!("{packed}/{place}");
        let whole = fs::read(&damaged).unwrap();
        let mode = fs::metadata(&damaged).unwrap().permissions();
        let mut bytes = whole.clone();
        bytes[at.index(whole.len())] ^= 0x10;
        fs::write(&damaged, &bytes).unwrap();
        let output = run_all(&decompress);
        fs::write(&damaged, whole).unwrap();
        fs::set_permissions(&damaged, mode).unwrap();
        // Of the list, what stands between header and frame is not looked at.
        if !output.status.success() || place != MANIFEST {
            assert_eq!(output.status.code(), Some(1), "{damaged:?}: {}", text(&output.stderr));
            if Path::new(&back).exists() {
                check_tree(&expected, &back, true);
            }
            // Once it is whole again, the same command goes on.
            check_done(&run_all(&decompress));
        }
        check_tree(&expected, &back, false);
        fs::remove_dir_all(back).unwrap();
    }
    fs::remove_dir_all(packed).unwrap();
}

/// Whether models can be stored against a directory: it has one, and all can be opened.
fn is_base(world: &World, root: &str) -> bool {
    let whats: Vec<&What> = world.below(root).filter_map(|(_, node)| Some(&*file(node)?.what)).collect();
    let is_model = |what: &&What| matches!(what, What::Model(_));
    whats.iter().any(is_model) && !whats.iter().any(|what| matches!(what, What::Broken | What::Packed))
}

fn is_temporary(place: &str) -> bool {
    let name = place.rsplit('/').next().unwrap();
    name.starts_with('.') && name.ends_with(".tmp")
}

/// Several files go to one directory, and from there to another.
pub(super) fn pack_many(world: &mut World, which: &[Index]) {
    let places: Vec<(&str, &File)> = world
        .below("in")
        .filter_map(|(place, node)| Some((place, file(node)?)))
        .filter(|(_, file)| !matches!(*file.what, What::Broken | What::Packed))
        .collect();
    if places.is_empty() {
        return;
    }
    // Two of a name would have one output.
    let chosen: BTreeMap<&str, (&str, &File)> = which
        .iter()
        .map(|index| *index.get(&places))
        .map(|(place, file)| (place.rsplit('/').next().unwrap(), (place, file)))
        .collect();
    let directories = ["packed/many", "out/many"].map(|place| world.path(place));
    directories.iter().for_each(|path| fs::create_dir(path).unwrap());
    let mut compress = vec!["compress".to_owned()];
    compress.extend(chosen.values().map(|(place, _)| world.path(&format!("in/{place}"))));
    compress.extend(["-o".to_owned(), directories[0].clone()]);
    check_done(&run_all(&compress));
    let mut decompress = vec!["decompress".to_owned()];
    let packed = list(Path::new(&directories[0]));
    decompress.extend(packed.keys().map(|name| format!("{}/{name}", directories[0])));
    decompress.extend(["-o".to_owned(), directories[1].clone()]);
    check_done(&run_all(&decompress));
    let expected: BTreeMap<String, Node> = chosen
        .iter()
        .map(|(name, (place, _))| ((*name).to_owned(), world.nodes[&format!("in/{place}")].clone()))
        .collect();
    check_tree(&expected, &directories[1], false);
    assert_eq!(packed.len(), expected.len());
    directories.iter().for_each(|path| fs::remove_dir_all(path).unwrap());
}
