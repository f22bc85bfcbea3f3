//! The table of `docs/failures.md`, done.

use crate::{Directory, base_and_tuned, bf16_bytes, check_done, command, f32_bytes, run, safetensors, text};
use std::fs::File;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

const EVENTS: [&str; 10] = [
    "kill",
    "full disk",
    "no permission to read",
    "no permission to write",
    "bad file",
    "wrong base",
    "empty input",
    "closed pipe",
    "symbolic link",
    "changed input",
];

/// The name of the output in commands that write one.
const OUT: &str = "out";

/// A command on its usual input; `out` is where it writes, if it writes a file.
fn arguments<'a>(verb: &'a str, input: &'a str, out: &'a str) -> Vec<&'a str> {
    match verb {
        "compress" | "decompress" | "repair" => vec![verb, input, "-o", out],
        "extract" => vec![verb, input, "layer.0.matrix", "-o", out],
        "convert" => vec![verb, input, "--to", "df11", "-o", out],
        "compare" => vec![verb, input, input],
        _ => vec![verb, input],
    }
}

/// The usual input of a command: a model, or what `compress` made of one.
fn input(directory: &Directory, verb: &str) -> String {
    let model = directory.write("base.safetensors", &base_and_tuned_bytes(directory).0);
    std::fs::remove_file(directory.path("tuned.safetensors")).unwrap();
    match verb {
        "compress" | "estimate" => model,
        "convert" => {
            let matrix = bf16_bytes(64 * 48, 5);
            directory.write("base.safetensors", &safetensors(&[("up.weight", "BF16", &[64, 48], &matrix)]))
        }
        _ => {
            check_done(&run(&["compress", &model, "-o", &directory.path("input.mckp")]));
            std::fs::remove_file(model).unwrap();
            directory.path("input.mckp")
        }
    }
}

fn base_and_tuned_bytes(directory: &Directory) -> (Vec<u8>, Vec<u8>) {
    let (base, tuned) = base_and_tuned(directory);
    (std::fs::read(base).unwrap(), std::fs::read(tuned).unwrap())
}

fn shell(line: &str, arguments: &[&str]) -> Output {
    Command::new("sh")
        .arg("-c")
        .arg(line)
        .arg(env!("CARGO_BIN_EXE_mithril"))
        .args(arguments)
        .output()
        .unwrap()
}

/// Does one cell of the table. Returns what is in it: an exit code, or what is left.
fn happens(verb: &str, event: &str) -> Option<String> {
    let directory = Directory::new(&format!("failures-{verb}-{}", event.replace(' ', "-")));
    let writes_file = matches!(verb, "compress" | "decompress" | "extract" | "repair" | "convert");
    let needs_base = matches!(verb, "compress" | "decompress" | "extract" | "repair" | "verify" | "compare");
    let has_stdout = !matches!(verb, "repair" | "convert");
    let input = input(&directory, verb);
    let out = directory.path(OUT);
    let usual = arguments(verb, &input, &out);
    let names = directory.names();
    let output = match event {
        "kill" if writes_file => {
            killed(&directory, verb, &usual);
            return Some("no output".to_owned());
        }
        "full disk" if writes_file => shell("trap '' XFSZ; ulimit -f 1; \"$0\" \"$@\"", &usual),
        "full disk" => {
            let full = File::options().write(true).open("/dev/full").unwrap();
            command(&usual).stdout(full).output().unwrap()
        }
        "no permission to read" => unreadable(&directory, &usual, &input),
        // A place where not even root can make files.
        "no permission to write" if writes_file => run(&arguments(verb, &input, "/proc/nowhere")),
        "bad file" => {
            let whole = std::fs::read(&input).unwrap();
            std::fs::write(&input, &whole[..whole.len() - whole.len() / 3]).unwrap();
            run(&usual)
        }
        "wrong base" if needs_base => {
            let usual = wrong_base(&directory, verb, &out);
            let output = run(&usual.iter().map(String::as_str).collect::<Vec<_>>());
            assert!(!Path::new(&out).exists(), "{verb}: an output");
            return Some(code(&output));
        }
        "empty input" => {
            std::fs::write(&input, b"").unwrap();
            let output = run(&usual);
            if output.status.success() {
                check_done(&run(&["decompress", &out, "-o", &directory.path("back")]));
                assert_eq!(directory.read("back"), b"");
                return Some(code(&output));
            }
            output
        }
        "closed pipe" if has_stdout => {
            // Closed before the program starts: a process that another test starts meanwhile holds the end for a moment.
            let (reader, writer) = std::io::pipe().unwrap();
            drop(reader);
            let output = command(&arguments(verb, &input, "-")).stdout(writer).output().unwrap();
            assert!(!text(&output.stderr).contains("error: "), "{}", text(&output.stderr));
            output
        }
        "symbolic link" => return Some(linked(&directory, verb, &input, writes_file)),
        "changed input" if matches!(verb, "compress" | "decompress") => changed(&directory, verb),
        _ => return None,
    };
    let code = code(&output);
    if code != "0" {
        let mut left = directory.names();
        left.retain(|name| !matches!(name.as_str(), "fifo" | "large" | "mithril"));
        assert_eq!(left, names, "{verb}, {event}: {}", text(&output.stderr));
    }
    Some(code)
}

fn code(output: &Output) -> String {
    output.status.code().map_or_else(|| "a signal".to_owned(), |code| code.to_string())
}

/// Killed when its temporary file is there, or before: the output is not there or whole, and the next run leaves it alone.
fn killed(directory: &Directory, verb: &str, usual: &[&str]) {
    let names = directory.names();
    for _ in 0..3 {
        let mut child = command(usual).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        while directory.names() == names && child.try_wait().unwrap().is_none() {
            std::thread::yield_now();
        }
        child.kill().unwrap();
        child.wait().unwrap();
        let left = directory.names();
        let mut new = left.iter().filter(|name| !names.contains(name));
        assert!(new.all(|name| name == OUT || name.starts_with(".out.")), "{verb}: {left:?}");
        let _ = std::fs::remove_file(directory.path(OUT));
        let _ = std::fs::remove_dir_all(directory.path(OUT));
    }
    check_done(&run(usual));
    let mut left = directory.names();
    left.retain(|name| name != OUT);
    assert_eq!(left, names, "{verb}: the next run removes what is left");
}

/// The input cannot be read. Root can read everything, so the command is run as nobody then, from a copy of the program
/// in a place that everybody can look into.
fn unreadable(directory: &Directory, usual: &[&str], input: &str) -> Output {
    std::fs::set_permissions(input, std::fs::Permissions::from_mode(0o000)).unwrap();
    if File::open(input).is_err() {
        return run(usual);
    }
    let open =
        Directory(std::env::temp_dir().join(format!("mithril-failures-{}-{}", std::process::id(), usual[0])));
    std::fs::create_dir_all(&open.0).unwrap();
    std::fs::set_permissions(&open.0, std::fs::Permissions::from_mode(0o755)).unwrap();
    std::fs::copy(env!("CARGO_BIN_EXE_mithril"), open.path("mithril")).unwrap();
    std::fs::copy(input, open.path("input")).unwrap();
    std::fs::set_permissions(open.path("input"), std::fs::Permissions::from_mode(0o600)).unwrap();
    let copied = open.path("input");
    let usual: Vec<&str> =
        usual.iter().map(|word| if *word == input { copied.as_str() } else { word }).collect();
    let output = Command::new(open.path("mithril")).args(usual).uid(65534).gid(65534).output().unwrap();
    assert!(text(&output.stderr).contains("permission denied"), "{}", text(&output.stderr));
    let _ = directory;
    output
}

/// A file that is stored against a base, and another base than that.
fn wrong_base(directory: &Directory, verb: &str, out: &str) -> Vec<String> {
    let (base, tuned) = base_and_tuned(directory);
    check_done(&run(&["compress", &tuned, "--base", &base]));
    let packed = directory.path("tuned.safetensors.mckp");
    let numbers = f32_bytes(512, 77);
    let other =
        directory.write("other.safetensors", &safetensors(&[("layer.0.bias", "F32", &[512], &numbers)]));
    std::fs::remove_file(base).unwrap();
    let words = match verb {
        // For it a base is wrong that cannot be read.
        "compress" => vec!["compress", &tuned, "-o", out, "--base", "missing.safetensors"],
        "repair" => vec!["repair", &packed, "-o", out, "--to", "safetensors", "--base", &other],
        "verify" => vec!["verify", &packed, "--deep", "--base", &other],
        "compare" => vec!["compare", &packed, &tuned, "--base", &other],
        "extract" => vec!["extract", &packed, "layer.0.matrix", "-o", out, "--base", &other],
        _ => vec![verb, &packed, "-o", out, "--base", &other],
    };
    words.into_iter().map(str::to_owned).collect()
}

/// The input is reached through a link, and the output is one.
fn linked(directory: &Directory, verb: &str, input: &str, writes_file: bool) -> String {
    let link = directory.path(&format!("link.{}", input.rsplit('.').next().unwrap()));
    std::os::unix::fs::symlink(input, &link).unwrap();
    let output = run(&arguments(verb, &link, &directory.path(OUT)));
    if writes_file && verb != "convert" {
        let made = directory.read(OUT);
        let (target, to) = (directory.write("target", b"old"), directory.path("link-out"));
        std::os::unix::fs::symlink(&target, &to).unwrap();
        let mut again = arguments(verb, &link, &to);
        assert_eq!(run(&again).status.code(), Some(2), "{verb}: it exists already");
        again.push("--force");
        check_done(&run(&again));
        assert!(std::fs::symlink_metadata(&to).unwrap().is_symlink());
        assert!(directory.read("target") == made, "{verb}");
    }
    code(&output)
}

/// The input is cut off while a pipe that takes the output makes the program wait.
fn changed(directory: &Directory, verb: &str) -> Output {
    let data = f32_bytes(1_000_000, 7);
    let large = directory.write("large", &safetensors(&[("w", "F32", &[1000, 1000], &data)]));
    if verb == "decompress" {
        check_done(&run(&["compress", &large, "-o", &directory.path("packed")]));
        std::fs::rename(directory.path("packed"), &large).unwrap();
    }
    let fifo = directory.path("fifo");
    assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    let child =
        command(&[verb, &large, "-o", &fifo, "--threads", "1"]).stderr(Stdio::piped()).spawn().unwrap();
    // Opening the other end returns once the program has opened its own, which is after it looked at the file.
    let reader = File::open(&fifo).unwrap();
    File::options().write(true).open(&large).unwrap().set_len(1_000_000).unwrap();
    std::io::copy(&mut &reader, &mut std::io::sink()).unwrap();
    child.wait_with_output().unwrap()
}

#[test]
fn the_table_of_failures_says_what_happens() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/failures.md");
    let document = std::fs::read_to_string(path).unwrap();
    let rows: Vec<Vec<&str>> = document
        .lines()
        .filter(|line| line.starts_with("| "))
        .map(|line| line.trim_matches('|').split('|').map(str::trim).collect())
        .collect();
    assert_eq!(rows[0][1..], EVENTS);
    assert!(rows.len() > 9, "a row for every command");
    let mut wrong = Vec::new();
    for row in &rows[1..] {
        let verb = row[0];
        for (event, said) in EVENTS.into_iter().zip(&row[1..]) {
            let happened = happens(verb, event).unwrap_or_else(|| "-".to_owned());
            if happened != *said {
                wrong.push(format!("{verb}, {event}: the table says {said}, and it was {happened}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}
