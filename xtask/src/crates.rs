//! Which crates may depend on which, and where `unsafe` may stand.

use crate::{Outcome, repository};
use serde_json::Value;
use std::path::Path;
use std::process::Command;

/// What a crate may depend on outside of its own tests.
struct Rule {
    name: &'static str,
    /// Our own crates that it may use.
    own: &'static [&'static str],
    /// Other packages that it may use, or any.
    others: Option<&'static [&'static str]>,
}

const RULES: &[Rule] = &[
    Rule { name: "mithril-codec", own: &[], others: Some(&["thiserror", "zstd", "lz4_flex", "brotli"]) },
    Rule {
        name: "mithril-format",
        own: &["mithril-codec"],
        others: Some(&["thiserror", "serde", "serde_json", "blake3", "hashbrown"]),
    },
    Rule { name: "mithril", own: &["mithril-codec", "mithril-format"], others: None },
    Rule { name: "mithril-gpu", own: &["mithril-codec", "mithril-format"], others: None },
    Rule { name: "mithril-cli", own: &["mithril", "mithril-gpu"], others: None },
    Rule {
        name: "mithril-python",
        own: &["mithril", "mithril-cli", "mithril-gpu"],
        others: Some(&["pyo3", "bytes"]),
    },
    Rule { name: "xtask", own: &["mithril", "mithril-codec", "mithril-format"], others: None },
];

/// The only places with `unsafe` code.
const UNSAFE: [&str; 2] = ["crates/mithril-codec/src/arch", "crates/mithril-python/src/buffer"];

/// What `mithril-codec` may not touch: files, threads, clocks, the environment, the network.
const FORBIDDEN_IN_CODEC: &[&str] =
    &["std::fs", "std::thread", "std::time", "std::env", "std::net", "std::process"];

/// Fails with every rule that is broken.
pub(crate) fn check() -> Outcome {
    let mut faults = dependency_faults()?;
    source_faults(&repository("crates"), "crates", &mut faults)?;
    source_faults(&repository("xtask/src"), "xtask/src", &mut faults)?;
    if faults.is_empty() { Ok(()) } else { Err(faults.join("\n").into()) }
}

fn dependency_faults() -> Result<Vec<String>, Box<dyn std::error::Error>> {
    let cargo = std::env::var_os("CARGO").unwrap_or("cargo".into());
    let output = Command::new(cargo)
        .args(["metadata", "--format-version", "1", "--no-deps", "--offline"])
        .current_dir(repository(""))
        .output()?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned().into());
    }
    let metadata: Value = serde_json::from_slice(&output.stdout)?;
    let packages = metadata["packages"].as_array().ok_or("cargo metadata lists no packages")?;
    let own: Vec<&str> = packages.iter().filter_map(|package| package["name"].as_str()).collect();
    let mut faults = Vec::new();
    for package in packages {
        let name = package["name"].as_str().unwrap_or_default();
        let Some(rule) = RULES.iter().find(|rule| rule.name == name) else {
            faults.push(format!("crate `{name}` has no rule in xtask/src/crates.rs"));
            continue;
        };
        for dependency in package["dependencies"].as_array().into_iter().flatten() {
            let on = dependency["name"].as_str().unwrap_or_default();
            // Tests may use what they like.
            let allowed = dependency["kind"] == "dev"
                || if own.contains(&on) {
                    rule.own.contains(&on)
                } else {
                    rule.others.is_none_or(|others| others.contains(&on))
                };
            if !allowed {
                faults.push(format!("crate `{name}` may not depend on `{on}`"));
            }
        }
    }
    Ok(faults)
}

/// Looks through the Rust files under a directory; `path` is its name from the root of the repository.
fn source_faults(directory: &Path, path: &str, faults: &mut Vec<String>) -> Outcome {
    for entry in std::fs::read_dir(directory)? {
        let entry = entry?;
        let path = format!("{path}/{}", entry.file_name().to_string_lossy());
        if entry.file_type()?.is_dir() {
            source_faults(&entry.path(), &path, faults)?;
        } else if path.ends_with(".rs") {
            let source = std::fs::read_to_string(entry.path())?;
            for (line_idx, line) in source.lines().enumerate() {
                let code = code_of(line);
                if !UNSAFE.iter().any(|place| path.starts_with(place)) && has_unsafe(&code) {
                    faults.push(format!(
                        "{path}:{}: `unsafe` outside of {}",
                        line_idx + 1,
                        UNSAFE.join(", ")
                    ));
                }
                if path.starts_with("crates/mithril-codec/src") {
                    for name in FORBIDDEN_IN_CODEC.iter().filter(|name| code.contains(**name)) {
                        faults.push(format!("{path}:{}: `{name}` in mithril-codec", line_idx + 1));
                    }
                }
            }
        }
    }
    Ok(())
}

/// A line without its strings and its comment.
fn code_of(line: &str) -> String {
    let outside_strings: String = line.split('"').step_by(2).collect::<Vec<_>>().join(" ");
    outside_strings.split("//").next().unwrap_or_default().to_owned()
}

/// Whether a line opens an unsafe block, function, implementation or trait.
fn has_unsafe(code: &str) -> bool {
    let words: Vec<&str> = code
        .split(|c: char| !(c.is_alphanumeric() || c == '_' || c == '{'))
        .filter(|w| !w.is_empty())
        .collect();
    words
        .windows(2)
        .any(|pair| pair[0] == "unsafe" && ["{", "fn", "impl", "trait", "extern"].contains(&pair[1]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crates_depend_in_one_direction_and_unsafe_stands_in_two_places() {
        check().unwrap();
    }

    #[test]
    fn unsafe_code_is_told_from_the_word() {
        assert!(has_unsafe(&code_of("let x = unsafe { f() };")));
        assert!(has_unsafe(&code_of("pub(super) unsafe fn f() {")));
        assert!(!has_unsafe(&code_of("#![expect(unsafe_code)] // unsafe { }")));
    }
}
