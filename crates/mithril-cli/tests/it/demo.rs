//! `mithril demo`.

use crate::{check_done, run};
use serde_json::Value;

#[test]
fn demo_restores_every_tensor_and_says_what_to_run_next() {
    let output = run(&["demo"]);
    let stdout = check_done(&output);
    let tensors: Vec<&str> = stdout.lines().filter(|line| line.ends_with("  yes")).collect();
    assert_eq!(tensors.len(), 10, "nine tensors and the total:\n{stdout}");
    for dtype in ["F32", "BF16", "F8_E4M3", "I8", "I64"] {
        assert!(tensors.iter().any(|line| line.split_whitespace().nth(1) == Some(dtype)), "{dtype}");
    }
    assert!(!stdout.contains("NO"));
    assert!(stdout.ends_with("next: mithril bench your-model.safetensors\n"));
    assert!(output.stderr.is_empty());
}

#[test]
fn demo_as_json_agrees_with_itself_at_every_effort() {
    for effort in ["fast", "balanced", "max"] {
        let output = run(&["demo", "--effort", effort, "--json"]);
        let report: Value = serde_json::from_str(check_done(&output)).unwrap();
        assert_eq!(report["effort"], effort);
        assert_eq!(report["exact"], true);
        let sum = |key: &str| {
            report["tensors"].as_array().unwrap().iter().map(|t| t[key].as_u64().unwrap()).sum::<u64>()
        };
        assert_eq!(report["raw_bytes"], sum("raw_bytes"));
        assert_eq!(report["compressed_bytes"], sum("compressed_bytes"));
        assert!(report["ratio"].as_f64().unwrap() < 0.8);
        assert!(report["decode"]["thread_cpu_gb_s"].as_f64().unwrap() > 0.0);
    }
}
