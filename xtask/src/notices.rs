//! The licenses of everything that the command and the wheel contain, in one file that goes with them.

use crate::{Outcome, repository};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

/// Where the notices are, from the root of the repository.
const FILE: &str = "THIRD-PARTY-NOTICES.txt";

/// What users get: everything that these need, with all features and on all platforms.
const PRODUCTS: [&str; 2] = ["mithril-cli", "mithril-python"];

/// How the names of files with a license begin.
const LICENSE_FILES: [&str; 5] = ["license", "licence", "copying", "notice", "unlicense"];

/// A directory of C sources keeps its license below the root of its package.
const MAX_DEPTH: usize = 2;

/// Writes the file.
pub(crate) fn write() -> Outcome {
    Ok(std::fs::write(repository(FILE), text()?)?)
}

/// Fails if the file is not what `write` would write.
pub(crate) fn check() -> Outcome {
    if std::fs::read_to_string(repository(FILE))? == text()? {
        return Ok(());
    }
    Err(format!("{FILE} is not that of Cargo.lock; write it anew: cargo xtask notices").into())
}

/// One package of somebody else.
struct Package {
    /// Name, version, license and where its sources are.
    title: String,
    license: String,
    /// What its license files say.
    texts: BTreeSet<String>,
}

fn text() -> Result<String, Box<dyn std::error::Error>> {
    let packages = packages()?;
    let mut by_text: BTreeMap<&str, Vec<&Package>> = BTreeMap::new();
    for package in &packages {
        for text in &package.texts {
            by_text.entry(text).or_default().push(package);
        }
    }
    let mut out = format!(
        "The `mithril` command and Python package contain {} packages of others, under these licenses.\n\
         Where a package offers a choice, mithril takes the first that it accepts in deny.toml.\n\n",
        packages.len()
    );
    for package in &packages {
        writeln!(out, "{}: {}", package.title, package.license)?;
        if package.texts.is_empty() {
            writeln!(out, "    (its package has no license text)")?;
        }
    }
    let mut sections: Vec<_> = by_text.into_iter().collect();
    sections.sort_by(|a, b| a.1[0].title.cmp(&b.1[0].title).then_with(|| a.0.cmp(b.0)));
    for (text, packages) in sections {
        writeln!(out, "\n{}", "=".repeat(80))?;
        for package in packages {
            writeln!(out, "{}", package.title)?;
        }
        writeln!(out, "{}\n\n{text}", "-".repeat(80))?;
    }
    Ok(out)
}

/// The packages that the products need, in the order of their names.
fn packages() -> Result<Vec<Package>, Box<dyn std::error::Error>> {
    let cargo = std::env::var_os("CARGO").unwrap_or("cargo".into());
    let output = Command::new(cargo)
        .args(["metadata", "--format-version", "1", "--locked", "--all-features"])
        .current_dir(repository(""))
        .output()?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned().into());
    }
    let metadata: Value = serde_json::from_slice(&output.stdout)?;
    let by_id = |list: &Value| -> BTreeMap<String, Value> {
        let list = list.as_array().into_iter().flatten();
        list.map(|value| (value["id"].as_str().unwrap_or_default().to_owned(), value.clone())).collect()
    };
    let (packages, nodes) = (by_id(&metadata["packages"]), by_id(&metadata["resolve"]["nodes"]));
    let is_product = |package: &&Value| package["name"].as_str().is_some_and(|name| PRODUCTS.contains(&name));
    let mut open: Vec<String> = packages
        .values()
        .filter(is_product)
        .filter_map(|package| package["id"].as_str().map(ToOwned::to_owned))
        .collect();
    let mut reached = BTreeSet::new();
    while let Some(id) = open.pop() {
        let needs = nodes.get(&id).map(|node| &node["deps"]).and_then(Value::as_array);
        // Tests and build scripts are not part of what users get.
        let is_linked = |need: &&Value| {
            let kinds = need["dep_kinds"].as_array();
            kinds.is_some_and(|kinds| kinds.iter().any(|kind| kind["kind"].is_null()))
        };
        if reached.insert(id) {
            let linked = needs.into_iter().flatten().filter(is_linked);
            open.extend(linked.filter_map(|need| need["pkg"].as_str().map(ToOwned::to_owned)));
        }
    }
    let mut found = Vec::new();
    for package in reached.iter().filter_map(|id| packages.get(id)) {
        // What has no source is ours.
        if package["source"].is_null() {
            continue;
        }
        let field = |name: &str| package[name].as_str().unwrap_or_default().to_owned();
        let manifest = field("manifest_path");
        let root = Path::new(&manifest).parent().ok_or("a package without a directory")?;
        let mut texts = BTreeSet::new();
        collect(root, MAX_DEPTH, &mut texts)?;
        let title = format!("{} {} {}", field("name"), field("version"), field("repository"));
        found.push(Package { title: title.trim_end().to_owned(), license: field("license"), texts });
    }
    found.sort_by(|a, b| a.title.cmp(&b.title));
    Ok(found)
}

fn collect(directory: &Path, depth: usize, texts: &mut BTreeSet<String>) -> Outcome {
    for entry in std::fs::read_dir(directory)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            if depth > 0 {
                collect(&entry.path(), depth - 1, texts)?;
            }
            continue;
        }
        let name = entry.file_name().to_string_lossy().to_lowercase();
        if LICENSE_FILES.iter().any(|start| name.starts_with(start)) {
            // Lines end as everywhere in this repository, and nothing hangs on spaces at their ends.
            let text = String::from_utf8_lossy(&std::fs::read(entry.path())?).into_owned();
            let lines: Vec<&str> = text.lines().map(str::trim_end).collect();
            texts.insert(lines.join("\n").trim().to_owned());
        }
    }
    Ok(())
}
