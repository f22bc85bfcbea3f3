//! What the system refuses: memory.

use crate::{Directory, check_done, run, safetensors, text};
use std::process::{Command, Output};

/// Runs with an address space of this many KiB.
fn run_within(kib: u64, arguments: &[&str]) -> Output {
    let script = format!("ulimit -v {kib} && exec \"$0\" \"$@\"");
    Command::new("sh").args(["-c", &script, env!("CARGO_BIN_EXE_mithril")]).args(arguments).output().unwrap()
}

#[test]
fn memory_that_is_refused_is_a_failure_of_the_environment() {
    let directory = Directory::new("limits-memory");
    let names: Vec<String> = (0..20_000).map(|idx| format!("layer.{idx}.weight")).collect();
    let tensors: Vec<_> = names.iter().map(|name| (name.as_str(), "U8", &[4u64][..], &b"data"[..])).collect();
    let model = directory.write("model.safetensors", &safetensors(&tensors));
    check_done(&run(&["compress", &model]));
    let packed = directory.path("model.safetensors.mckp");
    // The least with which the program starts, to 256 KiB: how much that is depends on the system.
    let starts = |kib: u64| run_within(kib, &["--version"]).status.success();
    let (mut too_little, mut enough) = (0, 1 << 20);
    assert!(starts(enough));
    while enough - too_little > 256 {
        let middle = (too_little + enough) / 2;
        *(if starts(middle) { &mut enough } else { &mut too_little }) = middle;
    }
    let before = directory.names();
    for more in [256, 1024, 4096] {
        for verb in ["inspect", "verify"] {
            let output = run_within(enough + more, &[verb, &packed]);
            let said = text(&output.stderr);
            assert_eq!(output.status.code(), Some(2), "{verb} with {more} KiB: {said}");
            assert!(said.contains("memory"), "{verb} with {more} KiB: {said}");
        }
        assert_eq!(directory.names(), before);
    }
}
