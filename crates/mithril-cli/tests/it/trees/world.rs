//! The model: what lies at every place below a directory, and what it is. Whatever else is there is wrong.

use super::content::{Content, Leaf, Link};
use crate::Directory;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// What lies at a place.
#[derive(Debug, Clone)]
pub(super) enum Node {
    Directory,
    File { file: File, mode: u32 },
    Link(String),
}

/// A file, and what its bytes are.
#[derive(Clone)]
pub(super) struct File {
    pub(super) bytes: Arc<[u8]>,
    pub(super) what: Arc<What>,
}

impl File {
    pub(super) fn new(bytes: Vec<u8>, what: What) -> Self {
        Self { bytes: bytes.into(), what: Arc::new(what) }
    }
}

// The bytes of a file would be too much for a message.
impl std::fmt::Debug for File {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            formatter,
            "{} bytes, {}",
            self.bytes.len(),
            match &*self.what {
                What::Model(_) => "a model",
                What::Broken => "the start of a model",
                What::Packed => "packed",
                What::Other => "no model",
            }
        )
    }
}

/// What a file is.
pub(super) enum What {
    /// A model of a known kind, and its tensors where the test made them.
    Model(Option<Vec<Tensor>>),
    /// The first part of a model.
    Broken,
    Packed,
    Other,
}

pub(super) struct Tensor {
    pub(super) name: String,
    pub(super) dtype: &'static str,
    pub(super) shape: Vec<u64>,
    pub(super) bytes: Vec<u8>,
}

/// What `compress` wrote.
#[derive(Debug, Clone)]
pub(super) struct Packed {
    pub(super) place: String,
    /// What it was made of.
    pub(super) of: File,
    /// The base that was named.
    pub(super) base: Option<String>,
    /// Whether it is a safetensors file with frames.
    pub(super) is_framed: bool,
}

/// A directory, and what must be in it.
pub(super) struct World {
    pub(super) directory: Directory,
    pub(super) nodes: BTreeMap<String, Node>,
    pub(super) packed: Vec<Packed>,
    n_names: Cell<usize>,
}

/// The two trees, and where other things are written.
const ROOTS: [&str; 4] = ["in", "tuned", "packed", "out"];

impl World {
    /// A tree, and below `tuned` a second one that was made of it.
    pub(super) fn new(test: &str, tree: &[Leaf]) -> Self {
        let directory = Directory::new(test);
        let mut world = Self { directory, nodes: BTreeMap::new(), packed: Vec::new(), n_names: Cell::new(0) };
        for root in ROOTS {
            world.make_directory(root);
        }
        for (names, content, mode, change) in tree {
            let place = names.join("/");
            // A place may be taken, or lie below a file.
            if (1..=names.len()).any(|n| match world.nodes.get(&format!("in/{}", names[..n].join("/"))) {
                None => false,
                Some(node) => n == names.len() || !matches!(node, Node::Directory),
            }) {
                continue;
            }
            for root in ["in", "tuned"] {
                for n in 1..names.len() {
                    world.make_directory(&format!("{root}/{}", names[..n].join("/")));
                }
                world.make(root, &place, content, *mode, content.tuned(*change));
            }
        }
        world
    }

    fn make(&mut self, root: &str, place: &str, content: &Content, mode: u32, tuned: Option<File>) {
        let at = format!("{root}/{place}");
        let file = if root == "tuned" { tuned } else { content.file() };
        match (content, file) {
            (_, Some(file)) => {
                self.directory.write(&at, &file.bytes);
                fs::set_permissions(self.path(&at), fs::Permissions::from_mode(mode)).unwrap();
                self.nodes.insert(at, Node::File { file, mode });
            }
            (Content::Link(to, link), _) => {
                let files: Vec<&str> = self
                    .below(root)
                    .filter(|(_, node)| matches!(node, Node::File { .. }))
                    .map(|(place, _)| place)
                    .collect();
                let up = "../".repeat(place.matches('/').count());
                let target = match (link, files.is_empty()) {
                    (Link::Dangling, _) | (_, true) => format!("{up}no/where"),
                    (Link::Relative, _) => format!("{up}{}", to.get(&files)),
                    (Link::Absolute, _) => self.path(&format!("{root}/{}", to.get(&files))),
                };
                symlink(&target, self.path(&at)).unwrap();
                self.nodes.insert(at, Node::Link(target));
            }
            _ => self.make_directory(&at),
        }
    }

    /// A directory that only its owner may look into.
    fn make_directory(&mut self, place: &str) {
        fs::create_dir_all(self.path(place)).unwrap();
        fs::set_permissions(self.path(place), fs::Permissions::from_mode(0o700)).unwrap();
        self.nodes.insert(place.to_owned(), Node::Directory);
    }

    pub(super) fn path(&self, place: &str) -> String {
        self.directory.path(place)
    }

    /// A name that nothing has yet.
    pub(super) fn new_name(&self) -> String {
        self.n_names.set(self.n_names.get() + 1);
        format!("{} new", self.n_names.get())
    }

    /// Everything below a place, and what it is called from there on.
    pub(super) fn below<'a>(&'a self, root: &'a str) -> impl Iterator<Item = (&'a str, &'a Node)> {
        self.nodes
            .iter()
            .filter_map(move |(place, node)| Some((place.strip_prefix(root)?.strip_prefix('/')?, node)))
    }

    pub(super) fn file(&self, place: &str) -> (&File, u32) {
        match &self.nodes[place] {
            Node::File { file, mode } => (file, *mode),
            node => panic!("{place}: {node:?}"),
        }
    }

    /// Takes note of a file that was written, with the mode that it has.
    pub(super) fn learn(&mut self, place: &str, what: What) -> File {
        let file = File::new(self.directory.read(place), what);
        let mode = mode(Path::new(&self.path(place)));
        self.nodes.insert(place.to_owned(), Node::File { file: file.clone(), mode });
        file
    }

    /// A file that is in the way of an output.
    pub(super) fn put(&mut self, place: &str, bytes: &[u8]) {
        self.directory.write(place, bytes);
        self.learn(place, What::Other);
    }

    pub(super) fn remove(&mut self, place: &str) {
        let path = PathBuf::from(self.path(place));
        if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) }.unwrap();
        let below = format!("{place}/");
        self.nodes.retain(|at, _| at != place && !at.starts_with(&below));
        self.packed.retain(|packed| packed.place != place);
    }

    /// Nothing is there but what must be, and that is as it must be.
    pub(super) fn check(&self, doing: &str) {
        let root = &self.directory.0;
        let found = list(root);
        let is = |place: &&String| found.contains_key(*place);
        let missing: Vec<&String> = self.nodes.keys().filter(|place| !is(place)).collect();
        let new: Vec<&String> = found.keys().filter(|place| !self.nodes.contains_key(*place)).collect();
        assert!(missing.is_empty() && new.is_empty(), "{doing}: missing {missing:?}, new {new:?}");
        for (place, node) in &self.nodes {
            let path = root.join(place);
            match node {
                Node::Directory => assert!(found[place].is_dir(), "{doing}: {place:?}"),
                Node::Link(target) => {
                    assert_eq!(fs::read_link(path).ok(), Some(target.into()), "{doing}: {place:?}");
                }
                Node::File { file, mode: expected } => {
                    assert!(found[place].is_file(), "{doing}: {place:?} is no file");
                    assert!(fs::read(&path).unwrap() == *file.bytes, "{doing}: other bytes in {place:?}");
                    assert_eq!(mode(&path), *expected, "{doing}: {place:?}");
                }
            }
        }
    }
}

/// All that lies below a directory.
pub(super) fn list(root: &Path) -> BTreeMap<String, fs::FileType> {
    let mut found = BTreeMap::new();
    let mut open = vec![root.to_owned()];
    while let Some(directory) = open.pop() {
        for entry in fs::read_dir(directory).unwrap() {
            let entry = entry.unwrap();
            let file_type = entry.file_type().unwrap();
            if file_type.is_dir() {
                open.push(entry.path());
            }
            let place = entry.path().strip_prefix(root).unwrap().to_str().unwrap().to_owned();
            found.insert(place, file_type);
        }
    }
    found
}

pub(super) fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}
