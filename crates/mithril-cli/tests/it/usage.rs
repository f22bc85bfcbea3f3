//! The command line itself.

use crate::{check_done, check_refused, run, text};

#[test]
fn every_verb_has_help_with_examples() {
    for verb in ["bench", "demo", "compress", "decompress", "inspect"] {
        let output = run(&[verb, "--help"]);
        let help = check_done(&output);
        assert!(help.contains("Usage: ") && help.contains(&format!("Examples:\n  mithril {verb}")), "{help}");
        assert!(!help.contains('\x1b'), "no colour");
    }
}

#[test]
fn wrong_command_lines_exit_with_2_and_a_hint() {
    let cases: [(&[&str], &str); 8] = [
        (&["pack"], "unrecognized subcommand 'pack'"),
        (&["bench"], "required"),
        (&["bench", "x", "--dtype", "f128"], "unknown dtype; known are bytes, bool,"),
        (&["bench", "x", "--effort", "best"], "expected `fast`, `balanced` or `max`"),
        (&["bench", "x", "--against", "gzip"], "expected `zstd`, `lz4` or `brotli`"),
        (&["bench", "x", "--seconds", "-1"], "-1"),
        (&["bench", "x", "--repeat", "0"], "0"),
        (&["compress", "x", "--level", "23"], "23"),
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
