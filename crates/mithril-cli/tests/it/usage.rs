//! The command line itself.

use crate::{check_done, check_refused, run, text};

#[test]
fn every_verb_has_help_with_examples() {
    let verbs = [
        "bench",
        "demo",
        "compress",
        "decompress",
        "inspect",
        "verify",
        "extract",
        "compare",
        "diff",
        "estimate",
        "repair",
        "store",
        "completions",
        "man",
        "convert",
        "merge",
        "diagnose",
        "quantize",
    ];
    for verb in verbs {
        let output = run(&[verb, "--help"]);
        let help = check_done(&output);
        assert!(help.contains("Usage: ") && help.contains(&format!("Examples:\n  mithril {verb}")), "{help}");
        assert!(!help.contains('\x1b'), "no colour");
    }
}

#[test]
fn wrong_command_lines_exit_with_2_and_a_hint() {
    let cases: [(&[&str], &str); 14] = [
        (&["pack"], "unrecognized subcommand 'pack'"),
        (&["bench"], "required"),
        (&["bench", "x", "--dtype", "f128"], "unknown dtype; known are bytes, bool,"),
        (&["bench", "x", "--effort", "best"], "[possible values: fast, balanced, max]"),
        (&["bench", "x", "--against", "gzip"], "expected `zstd`, `lz4` or `brotli`"),
        (&["bench", "x", "--seconds", "-1"], "-1"),
        (&["bench", "x", "--repeat", "0"], "0"),
        (&["compress", "x", "--level", "23"], "23"),
        (&["compress", "x", "--alignment", "100"], "100"),
        (&["compress", "x", "--dry-run", "-o", "y"], "cannot be used with"),
        (&["extract", "x", "y", "--rows", "3"], "expected two numbers as in `100:200`"),
        (&["inspect", "x", "--sort", "colour"], "colour"),
        (&["repair", "x"], "--output"),
        (&["completions", "tcsh"], "tcsh"),
    ];
    for (arguments, message) in cases {
        let output = run(arguments);
        check_refused(&output, 2, message);
        assert!(text(&output.stderr).contains("\nhint: "), "{}", text(&output.stderr));
    }
}

#[test]
fn version_is_the_package_version() {
    assert_eq!(check_done(&run(&["--version"])), concat!("mithril ", env!("CARGO_PKG_VERSION"), "\n"));
}

#[test]
fn completions_and_manual_know_every_verb_and_option() {
    for shell in ["bash", "zsh", "fish"] {
        let output = run(&["completions", shell]);
        let script = check_done(&output);
        for word in ["compress", "repair", "verify", "effort", "dry-run", "alignment"] {
            assert!(script.contains(word), "{word} in the completions of {shell}");
        }
    }
    let output = run(&["man"]);
    let page = check_done(&output);
    assert!(page.contains(".TH mithril 1"));
    for word in ["MITHRIL COMPRESS", "MITHRIL REPAIR", "\\-\\-dry\\-run", "Examples:"] {
        assert!(page.contains(word), "{word} in the manual");
    }
}
