//! The table of `docs/failures.md`, done.

mod cases;
mod shelf;

use crate::{check_done, closed_pipe, json, run, text};
use cases::{Case, Stdout, Writes, cases};
use shelf::{Cell, Found, OUT, Shelf, is_temporary, put_link, set_mode};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, symlink};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

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

/// How often a command is started at most, until the change of an input falls between its opening and the end of the work.
const MAX_TRIES: usize = 20;

/// What of a directory that is filled file by file is not of its content.
const JOURNAL: &str = "out/.mithril-journal";

/// The checkpoints that a store has acknowledged, and the file of each.
const ACKNOWLEDGED: [(&str, &str); 2] = [("step_1", "base.safetensors"), ("step_2", "tuned.safetensors")];

/// How a command is made to fail.
struct Try<'a> {
    line: &'a str,
    /// What the message says, if it has to be one of these.
    reasons: &'a [&'a str],
    prepare: &'a dyn Fn(&Cell),
    command: &'a dyn Fn(&Cell, &str) -> Command,
}

/// Does one cell of the table. Returns what is in it: an exit code, or what is left; nothing where it cannot happen.
fn happens(shelf: &Shelf, case: &Case, event: &str) -> Option<String> {
    let plain = Try { line: case.line, reasons: &[], prepare: &|_| (), command: &Cell::command };
    let full = ["o space left", "oo large"];
    let denied = Try { reasons: &["ermission denied"], command: &Cell::command_of_other_user, ..plain };
    let writes = case.writes != Writes::Nothing;
    match (event, case.input) {
        ("kill", _) if case.writes == Writes::Store => Some(killed_store(shelf, case)),
        ("kill", _) if writes => Some(killed(shelf, case)),
        // No file may grow; the signal that comes with it is ignored, as it is by services.
        ("full disk", _) if writes => {
            let limited =
                |cell: &Cell, line: &str| cell.shell("trap '' XFSZ; ulimit -f 0; exec \"$0\" \"$@\"", line);
            Some(refused(shelf, case, &Try { reasons: &full, command: &limited, ..plain }))
        }
        ("full disk", _) => {
            let to_full = |cell: &Cell, line: &str| {
                let mut command = cell.command(line);
                command.stdout(File::options().write(true).open("/dev/full").unwrap());
                command
            };
            Some(refused(shelf, case, &Try { reasons: &full, command: &to_full, ..plain }))
        }
        ("no permission to read", Some(input)) => {
            let prepare = |cell: &Cell| {
                cell.set_modes(0o777, 0o666);
                set_mode(&cell.path(input), 0o000);
            };
            Some(refused(shelf, case, &Try { prepare: &prepare, ..denied }))
        }
        ("no permission to write", _) if writes => {
            let prepare = |cell: &Cell| cell.set_modes(0o555, 0o444);
            Some(refused(shelf, case, &Try { prepare: &prepare, ..denied }))
        }
        ("bad file" | "empty input", Some(input)) => {
            let prepare = |cell: &Cell| {
                let path = cell.path(input);
                let len = if event == "bad file" { fs::metadata(&path).unwrap().len() * 2 / 3 } else { 0 };
                File::options().write(true).open(path).unwrap().set_len(len).unwrap();
            };
            Some(refused(shelf, case, &Try { prepare: &prepare, ..plain }))
        }
        ("wrong base", _) => case.wrong_base.map(|line| refused(shelf, case, &Try { line, ..plain })),
        ("closed pipe", _) => unread(shelf, case),
        ("symbolic link", Some(input)) => Some(linked(shelf, case, input)),
        ("changed input", _) => case.changes.map(|(line, input)| changed(shelf, case, line, input)),
        _ => None,
    }
}

fn code(output: &Output) -> String {
    output.status.code().map_or_else(|| "a signal".to_owned(), |code| code.to_string())
}

/// Runs a command that may fail. If it does, there is no part of an output, and an old output has not changed.
fn refused(shelf: &Shelf, case: &Case, how: &Try<'_>) -> String {
    let once = |force: bool| {
        let cell = shelf.cell(how.line);
        if force {
            old_output(&cell, case);
        }
        (how.prepare)(&cell);
        let before = cell.found();
        let line = if force { format!("{} --force", how.line) } else { how.line.to_owned() };
        let output = (how.command)(&cell, &line).output().unwrap();
        let said = format!("{line}: {}{}", text(&output.stdout), text(&output.stderr));
        assert!(!said.contains("Usage: "), "{said}");
        cell.set_modes(0o755, 0o644);
        if output.status.success() {
            check_restores(&cell, case);
        } else {
            check_nothing_happened(&cell, case, &before, &said);
            let is_clear = how.reasons.is_empty() || how.reasons.iter().any(|reason| said.contains(reason));
            assert!(is_clear, "another reason is expected: {said}");
        }
        code(&output)
    };
    let said = once(false);
    if matches!(case.writes, Writes::File | Writes::Directory) {
        assert_eq!(once(true), said, "{}, with an output that exists and `--force`", how.line);
    }
    said
}

/// An output of an earlier run.
fn old_output(cell: &Cell, case: &Case) {
    let out = cell.path(OUT);
    match case.writes {
        Writes::File => fs::write(out, b"old").unwrap(),
        _ => {
            fs::create_dir(&out).unwrap();
            fs::write(out.join("old.txt"), b"old").unwrap();
        }
    }
}

/// What `compress` makes of any bytes gives them back.
fn check_restores(cell: &Cell, case: &Case) {
    if case.command() == "compress" {
        check_done(&cell.command("decompress @out -o @back").output().unwrap());
        let found = cell.found();
        let below = |top: &str| -> BTreeMap<String, Found> {
            let of =
                |(path, what): (&String, &Found)| Some((path.strip_prefix(top)?.to_owned(), what.clone()));
            found.iter().filter_map(of).collect()
        };
        let input = case.input.unwrap().split('/').next().unwrap();
        assert!(below(input) == below("back"), "{}: something else comes back", case.line);
    }
}

/// All is as it was, but for whole files where a command writes one for each of several inputs, or goes on the next time. A
/// store may have changed as long as nothing is lost.
fn check_nothing_happened(cell: &Cell, case: &Case, before: &BTreeMap<String, Found>, said: &str) {
    let is_kept = |path: &String| matches!(case.writes, Writes::Files | Writes::Each) && !is_temporary(path);
    let mut after = cell.found();
    after.retain(|path, _| before.contains_key(path) || !is_kept(path));
    if case.writes == Writes::Store && after != *before {
        check_store(cell, case);
        return;
    }
    let names = |found: &BTreeMap<String, Found>| found.keys().cloned().collect::<BTreeSet<_>>();
    assert_eq!(names(&after), names(before), "{said}");
    assert!(after == *before, "the content of a file has changed: {said}");
}

/// What a command leaves that is not disturbed.
fn done(shelf: &Shelf, line: &str) -> BTreeMap<String, Found> {
    let cell = shelf.cell(line);
    check_done(&cell.command(line).output().unwrap());
    cell.found()
}

/// Starts a command, and ends it by a signal when something has changed in its directory.
fn end_by(signal: &str, cell: &Cell, line: &str) {
    let names = cell.names();
    let mut child = cell.command(line).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    while cell.names() == names && child.try_wait().unwrap().is_none() {
        std::thread::yield_now();
    }
    let pid = child.id().to_string();
    // It may have ended, but is waited for only now, so that the number is still its own.
    Command::new("kill").args([signal, &pid]).stderr(Stdio::null()).status().unwrap();
    child.wait().unwrap();
}

/// Killed when something of the output is there, or before: it is not there or whole, and the next run leaves nothing else.
fn killed(shelf: &Shelf, case: &Case) -> String {
    let whole = done(shelf, case.line);
    for signal in ["-KILL", "-KILL", "-TERM"] {
        let cell = shelf.cell(case.line);
        let before = cell.found();
        end_by(signal, &cell, case.line);
        let mut left = cell.found();
        left.retain(|path, _| !before.contains_key(path));
        let told = format!("{}, {signal}: {:?}", case.line, left.keys());
        // Only this signal leaves no time to clean up.
        assert!(signal == "-KILL" || !left.keys().any(|path| is_temporary(path)), "{told}");
        left.retain(|path, _| !is_temporary(path) && path != JOURNAL);
        assert!(left.iter().all(|(path, what)| whole.get(path) == Some(what)), "{told}");
        let is_whole = before.len() + left.len() == whole.len();
        let (may_be_some, is_forced) = match case.writes {
            Writes::Files => (true, is_whole),
            Writes::Each | Writes::Together => (true, true),
            _ => (false, is_whole && !left.is_empty()),
        };
        assert!(may_be_some || left.is_empty() || is_whole, "{told}");
        let again = if is_forced { format!("{} --force", case.line) } else { case.line.to_owned() };
        check_done(&cell.command(&again).output().unwrap());
        assert!(cell.found() == whole, "{again}: it leaves what an undisturbed run does");
    }
    match case.writes {
        Writes::Files => "goes on",
        Writes::Each | Writes::Together => "whole files",
        _ => "no output",
    }
    .to_owned()
}

/// Killed when something of the store has changed: what was acknowledged is there, and the command can be given again.
fn killed_store(shelf: &Shelf, case: &Case) -> String {
    for signal in ["-KILL", "-KILL", "-TERM"] {
        let cell = shelf.cell(case.line);
        end_by(signal, &cell, case.line);
        check_store(&cell, case);
        let again = cell.command(case.line).output().unwrap();
        let is_done =
            ["exists already", "no checkpoint"].iter().any(|done| text(&again.stderr).contains(done));
        assert!(again.status.success() || is_done, "{}: {}", case.line, text(&again.stderr));
        check_store(&cell, case);
    }
    "nothing lost".to_owned()
}

/// What was acknowledged can be loaded, and `gc` leaves nothing that no checkpoint needs.
fn check_store(cell: &Cell, case: &Case) {
    let store = case.line.split(' ').nth(1).unwrap();
    let on_store = |line: &str| cell.command(&format!("store {store} {line}")).output().unwrap();
    check_done(&on_store("verify --deep"));
    for (key, file) in ACKNOWLEDGED {
        let loaded = on_store(&format!("load {key} -o @loaded --force"));
        if case.row == "store delete" && key == "step_1" && !loaded.status.success() {
            assert!(text(&loaded.stderr).contains("no checkpoint `step_1`"), "{}", text(&loaded.stderr));
            continue;
        }
        check_done(&loaded);
        assert!(cell.directory.read("loaded") == shelf_file(cell, file), "{}: {key} is another", case.line);
    }
    check_done(&on_store("gc --min-age 0"));
    let again = json(&on_store("gc --min-age 0 --dry-run --json"));
    assert!(again["removed"].as_array().unwrap().is_empty(), "{again}");
    let found = cell.found();
    let garbage: Vec<&String> =
        found.keys().filter(|path| is_temporary(path) || path.contains("/removed/")).collect();
    assert!(garbage.is_empty(), "{}: gc leaves {garbage:?}", case.line);
}

/// The reader of the output has gone before the command starts.
fn unread(shelf: &Shelf, case: &Case) -> Option<String> {
    let line = match case.stdout {
        Stdout::Output => case.line.replace("@out", "-"),
        Stdout::Json => format!("{} --json", case.line),
        Stdout::Report | Stdout::Nothing => case.line.to_owned(),
    };
    let cell = shelf.cell(&line);
    let before = cell.found();
    let output = cell.command(&line).stdout(closed_pipe()).output().unwrap();
    assert!(!text(&output.stderr).contains("stdout"), "{line}: {}", text(&output.stderr));
    match case.writes {
        Writes::Store => check_store(&cell, case),
        _ if case.stdout == Stdout::Output => assert!(cell.found() == before, "{line}"),
        // Only the report has no reader.
        _ => assert!(cell.found() == done(shelf, case.line), "{line}: the output is there"),
    }
    // Where nothing goes to stdout, it is not missed.
    let is_silent = case.stdout == Stdout::Nothing;
    assert_eq!(is_silent, output.status.success(), "{line}");
    (!is_silent).then(|| code(&output))
}

/// The input is reached through a link, and the output is one.
fn linked(shelf: &Shelf, case: &Case, input: &str) -> String {
    let cell = shelf.cell(case.line);
    let is_all_of_it = case.row.starts_with("store") || case.row.ends_with("DIR");
    put_link(&cell.path(if is_all_of_it { input.split('/').next().unwrap() } else { input }));
    let output = cell.command(case.line).output().unwrap();
    if matches!(case.writes, Writes::File | Writes::Directory) && output.status.success() {
        let (out, target) = (cell.path(OUT), cell.path("target"));
        let below = |top: &str| -> Vec<Found> {
            cell.found().into_iter().filter(|(path, _)| path.starts_with(top)).map(|(_, what)| what).collect()
        };
        let made = below(OUT);
        fs::rename(&out, cell.path("first")).unwrap();
        old_output(&cell, case);
        fs::rename(&out, &target).unwrap();
        symlink(&target, &out).unwrap();
        let again = cell.command(case.line).output().unwrap();
        assert_eq!(again.status.code(), Some(2), "{}: it exists already", case.line);
        check_done(&cell.command(&format!("{} --force", case.line)).output().unwrap());
        assert!(fs::symlink_metadata(&out).unwrap().is_symlink(), "{}: a link stays one", case.line);
        let _ = fs::remove_file(target.join("old.txt"));
        assert!(below("target") == made, "{}", case.line);
    }
    code(&output)
}

/// A byte of a large input becomes another when the command has opened it.
fn changed(shelf: &Shelf, case: &Case, line: &str, input: &str) -> String {
    let mut last = String::new();
    for _ in 0..MAX_TRIES {
        let cell = shelf.cell(line);
        let path = cell.path(input);
        let child = cell.command(line).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let (is_open, child) = wait_until_open(child, &path);
        if is_open {
            let file = File::options().read(true).write(true).open(&path).unwrap();
            let (mut byte, middle) = ([0], file.metadata().unwrap().len() / 2);
            file.read_exact_at(&mut byte, middle).unwrap();
            file.write_all_at(&[byte[0] ^ 1], middle).unwrap();
        }
        let mut before = cell.found();
        before.retain(|path, _| !is_temporary(path) && !path.starts_with(OUT));
        let output = child.wait_with_output().unwrap();
        last = code(&output);
        if last != "0" {
            check_nothing_happened(&cell, case, &before, text(&output.stderr));
            break;
        }
    }
    last
}

fn wait_until_open(mut child: Child, path: &Path) -> (bool, Child) {
    let files = PathBuf::from(format!("/proc/{}/fd", child.id()));
    while child.try_wait().unwrap().is_none() {
        let open = fs::read_dir(&files).into_iter().flatten().flatten();
        if open.filter_map(|file| fs::read_link(file.path()).ok()).any(|open| open == path) {
            return (true, child);
        }
        std::thread::yield_now();
    }
    (false, child)
}

fn shelf_file(cell: &Cell, name: &str) -> Vec<u8> {
    fs::read(cell.shelf.join(name)).unwrap()
}

/// All commands that have no commands below them, by the words that call them.
fn commands(words: &[&str]) -> Vec<String> {
    let output = run(&[&["help"], words].concat());
    let help = check_done(&output);
    let Some((_, list)) = help.split_once("\nCommands:\n") else { return vec![words.join(" ")] };
    let names =
        list.lines().take_while(|line| !line.is_empty()).filter_map(|line| line.split_whitespace().next());
    names.filter(|name| *name != "help").flat_map(|name| commands(&[words, &[name]].concat())).collect()
}

/// Whether the document says why this cannot happen to a command, which its help shows or the data of its rows.
fn cannot_happen(case: &Case, event: &str, rows_of_command: &[&Case], help: &str) -> bool {
    let has = |options: &[&str]| options.iter().any(|option| help.contains(option));
    let writes = rows_of_command.iter().any(|case| case.writes != Writes::Nothing);
    match event {
        // One that writes nothing, and whose options name no output, but for those of another row.
        "kill" | "no permission to write" => {
            case.writes == Writes::Nothing
                && (writes || !has(&["--output", "--html", "--extract", "--scratch"]))
        }
        // One that takes no file.
        "no permission to read" | "bad file" | "empty input" | "symbolic link" => {
            let usage = help.lines().find(|line| line.starts_with("Usage: ")).unwrap();
            case.input.is_none() && !usage.replace("<SHELL>", "").contains('<')
        }
        // One that takes no base, or has it in another row.
        "wrong base" => {
            rows_of_command.iter().any(|case| case.wrong_base.is_some()) || !has(&["--base", "--previous"])
        }
        // One that says nothing on stdout, which is looked at when it is tried.
        "closed pipe" => case.stdout == Stdout::Nothing,
        // One that writes nothing of what it reads, reads what has checksums, or reads small files at once.
        "changed input" => {
            let line = case.line;
            case.writes == Writes::Nothing
                || case.writes == Writes::Scratch
                || [".mckp", "store @", "dictionary "].iter().any(|word| line.contains(word))
        }
        _ => false,
    }
}

/// The rows of the table: name and cells. Those of commands that this build does not have are left out.
fn rows(document: &str) -> Vec<Vec<&str>> {
    let mut rows: Vec<Vec<&str>> = document
        .lines()
        .filter(|line| line.starts_with("| "))
        .map(|line| line.trim_matches('|').split('|').map(str::trim).collect())
        .collect();
    rows.retain(|row| cfg!(feature = "gpu") || !row[0].starts_with("gpu "));
    rows
}

#[test]
fn the_table_of_failures_says_what_happens() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/failures.md");
    let document = fs::read_to_string(path).unwrap();
    let rows = rows(&document);
    assert_eq!(rows[0][1..], EVENTS);
    let cases = cases();
    assert_eq!(
        rows[1..].iter().map(|row| row[0]).collect::<Vec<_>>(),
        cases.iter().map(|case| case.row).collect::<Vec<_>>(),
        "the rows of the table, and what is tried"
    );
    let has_row: BTreeSet<String> = cases.iter().map(Case::command).collect();
    assert_eq!(has_row, commands(&[]).into_iter().collect(), "commands with rows, and those of the program");

    for (case, row) in cases.iter().zip(&rows[1..]) {
        let command = case.command();
        let of_command: Vec<&Case> = cases.iter().filter(|other| other.command() == command).collect();
        let help = run(&[&["help"], &command.split(' ').collect::<Vec<_>>()[..]].concat());
        for (event, _) in EVENTS.into_iter().zip(&row[1..]).filter(|(_, said)| **said == "-") {
            let has_reason = cannot_happen(case, event, &of_command, check_done(&help));
            assert!(has_reason, "{}, {event}: no rule says that it cannot happen", case.row);
        }
    }

    let shelf = Shelf::new();
    let (next, wrong) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let work = || {
        while let Some((case, row)) = {
            let at = next.fetch_add(1, Ordering::Relaxed);
            cases.get(at).zip(rows.get(at + 1))
        } {
            for (event, said) in EVENTS.into_iter().zip(&row[1..]) {
                // Every cell that is wrong is named, whatever is wrong with it.
                let happened = catch_unwind(AssertUnwindSafe(|| happens(&shelf, case, event)));
                let happened = happened.map_or_else(
                    |_| "a broken promise".to_owned(),
                    |happened| happened.unwrap_or_else(|| "-".to_owned()),
                );
                if happened != *said {
                    let what = format!("{}, {event}: the table says {said}, and it was {happened}", case.row);
                    wrong.lock().unwrap_or_else(PoisonError::into_inner).push(what);
                }
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(work);
        }
    });
    let wrong = wrong.into_inner().unwrap();
    assert!(wrong.is_empty(), "{wrong:#?}");
}
