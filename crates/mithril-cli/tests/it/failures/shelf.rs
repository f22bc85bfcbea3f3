//! The files that commands are tried on, made once, and copied for every try.

use crate::{Directory, base_and_tuned, bf16_bytes, check_done, command, f32_bytes, json, run, safetensors};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The name of what is written.
pub(super) const OUT: &str = "out";

/// Who runs a command instead of root, who can read and write everything, whatever the modes say.
const OTHER_USER: u32 = 65534;

/// All files there are.
pub(super) struct Shelf {
    directory: Directory,
    n_cells: AtomicUsize,
}

impl Shelf {
    pub(super) fn new() -> Self {
        // Everybody may look into it, which is not so where the program is built.
        let path = std::env::temp_dir().join(format!("mithril-failures-{}", std::process::id()));
        fs::create_dir_all(path.join("shelf/scratch")).unwrap();
        let directory = Directory(path.join("shelf"));
        base_and_tuned(&directory);
        let file = |name: &str, tensors: &[(&str, &str, &[u64], &[u8])]| {
            directory.write(name, &safetensors(tensors));
        };
        file("other.safetensors", &[("layer.0.bias", "F32", &[512], &f32_bytes(512, 77))]);
        let (up, down) = (bf16_bytes(128 * 256, 5), bf16_bytes(128 * 256, 6));
        let matrices: [(&str, &str, &[u64], &[u8]); 2] =
            [("down.weight", "BF16", &[256, 128], &down), ("up.weight", "BF16", &[128, 256], &up)];
        file("matrices.safetensors", &matrices);
        let lines: String = (0..2000)
            .map(|n| format!("{{\"user\": \"u{}\", \"event\": \"click\", \"at\": {n}}}\n", n % 37))
            .collect();
        directory.write("lines.jsonl", lines.as_bytes());
        directory.write("others.jsonl", lines.replace("click", "press").replace("user", "who").as_bytes());
        for (tree, model) in [("tree", "base"), ("tuned-tree", "tuned")] {
            fs::create_dir_all(directory.path(&format!("{tree}/inner"))).unwrap();
            fs::copy(
                directory.path(&format!("{model}.safetensors")),
                directory.path(&format!("{tree}/model.safetensors")),
            )
            .unwrap();
            directory.write(&format!("{tree}/inner/notes.txt"), b"plain words");
            directory.write(&format!("{tree}/raw.bin"), &f32_bytes(100_000, 9));
        }
        fs::create_dir(directory.path("records")).unwrap();
        for record in 0..3 {
            directory.write(&format!("records/{record}.json"), &lines.as_bytes()[record * 100..][..500]);
        }
        fs::create_dir(directory.path("large")).unwrap();
        let large = bf16_bytes(2_000_000, 8);
        file("large/model.safetensors", &[("w.weight", "BF16", &[1000, 2000], &large)]);

        let shelf = Self { directory, n_cells: AtomicUsize::new(0) };
        for line in [
            "compress @base.safetensors -o @base.mckp",
            "compress @tuned.safetensors --base @base.safetensors -o @tuned.mckp",
            "compress @tree -o @tree.mckp",
            "compress @tuned-tree --base @base.safetensors -o @tuned-tree.mckp",
            "compress @large/model.safetensors -o @large.mckp",
            "compress @large -o @large-tree.mckp",
            "convert @matrices.safetensors --to df11 --blocks 0:1 -o @part-1",
            "convert @matrices.safetensors --to df11 --blocks 1:2 -o @part-2",
            "convert @matrices.safetensors --to df11 -o @coded",
            "convert @large/model.safetensors --to df11 --blocks 0:1 -o @large-part",
            "dictionary train @lines.jsonl --split jsonl --size 4K --no-search -o @one.dict",
            "dictionary train @others.jsonl --split jsonl --size 4K --no-search -o @other.dict",
            "dictionary train @lines.jsonl @others.jsonl --split jsonl --size 4K --no-search --group-by argument -o @groups.mdic",
            "dictionary compress @one.dict @lines.jsonl --split jsonl -o @lines.mrec",
            "store @single save step_1 @base.safetensors",
            "store @several save step_1 @base.safetensors @tuned.safetensors",
            "store @chain save step_1 @base.safetensors",
            "store @chain save step_2 @tuned.safetensors --previous step_1",
        ] {
            check_done(&command(&words(line)).current_dir(&shelf.directory.0).output().unwrap());
        }
        for name in ["broken", "littered"] {
            copy(&shelf.directory.0.join("chain"), &shelf.directory.0.join(name));
        }
        let garbage = format!("littered/data/{:032x}.mckp", 1);
        fs::copy(shelf.directory.path("base.mckp"), shelf.directory.path(&garbage)).unwrap();
        // The second checkpoint is there, and what it is stored against has other bytes.
        let shown = json(&run(&["store", &shelf.directory.path("broken"), "show", "step_1", "--json"]));
        let object = format!("broken/{}", shown["objects"][0]["object"].as_str().unwrap());
        fs::copy(shelf.directory.path("base.mckp"), shelf.directory.path(&object)).unwrap();
        fs::copy(env!("CARGO_BIN_EXE_mithril"), path.join("mithril")).unwrap();
        shelf
    }

    /// A new directory with copies of the files of a line.
    pub(super) fn cell(&self, line: &str) -> Cell {
        let top = self.directory.0.parent().unwrap();
        let path = top.join(self.n_cells.fetch_add(1, Ordering::Relaxed).to_string());
        fs::create_dir(&path).unwrap();
        let directory = Directory(path);
        for name in line.split(' ').filter_map(|word| word.strip_prefix('@')) {
            let name = name.split('/').next().unwrap();
            let (from, to) = (self.directory.0.join(name), directory.0.join(name));
            if from.exists() && !to.exists() {
                copy(&from, &to);
            }
        }
        Cell { directory, shelf: self.directory.0.clone(), program: top.join("mithril") }
    }
}

impl Drop for Shelf {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(self.directory.0.parent().unwrap());
    }
}

/// A place to try a command in.
pub(super) struct Cell {
    pub(super) directory: Directory,
    /// Where the files come from.
    pub(super) shelf: PathBuf,
    program: PathBuf,
}

/// A file by its content, a link by its target, a directory by nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Found {
    File(Vec<u8>),
    Link(PathBuf),
    Directory,
}

impl Cell {
    /// The command of a line, to be run here.
    pub(super) fn command(&self, line: &str) -> Command {
        let mut command = command(&words(line));
        command.current_dir(&self.directory.0);
        command
    }

    /// The same, run by a user whom modes of files concern.
    pub(super) fn command_of_other_user(&self, line: &str) -> Command {
        let mut command = Command::new(&self.program);
        command.args(words(line)).current_dir(&self.directory.0);
        if fs::metadata(&self.directory.0).unwrap().uid() == 0 {
            command.uid(OTHER_USER).gid(OTHER_USER);
        }
        command
    }

    /// The same, by a shell line in which `"$0" "$@"` is the command.
    pub(super) fn shell(&self, shell: &str, line: &str) -> Command {
        let mut command = Command::new("sh");
        command.arg("-c").arg(shell).arg(env!("CARGO_BIN_EXE_mithril"));
        command.args(words(line)).current_dir(&self.directory.0);
        command
    }

    /// Where a file is; `*` is the only one of its directory that is needed.
    pub(super) fn path(&self, name: &str) -> PathBuf {
        match name.strip_suffix("/*") {
            Some(name) => fs::read_dir(self.directory.0.join(name)).unwrap().next().unwrap().unwrap().path(),
            None => self.directory.0.join(name),
        }
    }

    /// All that is here, by its path.
    pub(super) fn found(&self) -> BTreeMap<String, Found> {
        let mut found = BTreeMap::new();
        walk(&self.directory.0, &mut |path, is_directory| {
            let name = path.strip_prefix(&self.directory.0).unwrap().to_str().unwrap().to_owned();
            let what = match fs::read_link(path) {
                Ok(target) => Some(Found::Link(target)),
                Err(_) if is_directory => Some(Found::Directory),
                // What is being written may be gone when it is looked at.
                Err(_) => fs::read(path).ok().map(Found::File),
            };
            found.extend(what.map(|what| (name, what)));
        });
        found
    }

    /// The paths of all that is here.
    pub(super) fn names(&self) -> BTreeSet<PathBuf> {
        let mut names = BTreeSet::new();
        walk(&self.directory.0, &mut |path, _| {
            names.insert(path.to_owned());
        });
        names
    }

    /// Gives all directories and files these modes.
    pub(super) fn set_modes(&self, directories: u32, files: u32) {
        set_mode(&self.directory.0, 0o755);
        walk(&self.directory.0, &mut |path, is_directory| {
            set_mode(path, if is_directory { 0o755 } else { files });
        });
        walk(&self.directory.0, &mut |path, is_directory| {
            if is_directory {
                set_mode(path, directories);
            }
        });
        set_mode(&self.directory.0, directories);
    }
}

pub(super) fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

/// Names are those of files where the command is run, so that reports do not depend on the place.
fn words(line: &str) -> Vec<&str> {
    line.split(' ').map(|word| word.strip_prefix('@').unwrap_or(word)).collect()
}

/// All paths below a directory, each directory before what is in it; links are not followed.
fn walk(directory: &Path, each: &mut dyn FnMut(&Path, bool)) {
    let Ok(entries) = fs::read_dir(directory) else { return };
    for entry in entries.flatten() {
        let is_directory = entry.file_type().is_ok_and(|kind| kind.is_dir());
        each(&entry.path(), is_directory);
        if is_directory {
            walk(&entry.path(), each);
        }
    }
}

fn copy(from: &Path, to: &Path) {
    if !from.is_dir() {
        fs::copy(from, to).unwrap();
        return;
    }
    fs::create_dir(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let name = entry.unwrap().file_name();
        copy(&from.join(&name), &to.join(&name));
    }
}

/// Moves a file aside, and leaves a link to it.
pub(super) fn put_link(path: &Path) {
    let mut aside = path.as_os_str().to_owned();
    aside.push(".aside");
    fs::rename(path, &aside).unwrap();
    symlink(&aside, path).unwrap();
}

/// Whether a path is, or lies in, something of a temporary name.
pub(super) fn is_temporary(path: &str) -> bool {
    Path::new(path).iter().filter_map(OsStr::to_str).any(|name| {
        let random = name.strip_suffix(".tmp").and_then(|name| name.rsplit_once('.'));
        random.is_some_and(|(start, random)| {
            start.starts_with('.')
                && random.len() == 32
                && random.bytes().all(|digit| digit.is_ascii_hexdigit())
        })
    })
}
