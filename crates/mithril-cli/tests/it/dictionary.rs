//! `mithril dictionary`: whole commands.

use crate::{Directory, check_done, check_refused, run, run_with_stdin, text};

/// Lines of JSON: the same for the same seed.
fn lines(n: u32, seed: u32) -> Vec<u8> {
    let words = ["alpha", "beta", "gamma", "delta"];
    (0..n)
        .map(|idx| {
            let number = (idx + seed * 7919).wrapping_mul(2_654_435_761) >> 8;
            let word = words[number as usize % 4];
            format!("{{\"id\":{number},\"name\":\"{word}-{}\",\"state\":\"active\"}}\n", number % 77)
        })
        .collect::<String>()
        .into_bytes()
}

fn trained(directory: &Directory) -> String {
    let samples = directory.write("samples.jsonl", &lines(1500, 1));
    let dictionary = directory.path("my.dict");
    let arguments = ["dictionary", "train", &samples, "--split", "lines", "-o", &dictionary, "--size", "4K"];
    check_done(&run(&arguments));
    dictionary
}

#[test]
fn every_verb_has_help_with_examples() {
    for verb in ["train", "update", "inspect", "evaluate", "explain", "compress", "decompress"] {
        let output = run(&["dictionary", verb, "--help"]);
        let help = check_done(&output);
        assert!(help.contains(&format!("Examples:\n  mithril dictionary {verb}")), "{help}");
    }
}

#[test]
fn records_of_a_packed_file_come_back_alone_and_together() {
    let directory = Directory::new("dictionary-records");
    let dictionary = trained(&directory);
    let records = directory.write("others.jsonl", &lines(200, 2));
    let packed = directory.path("others.mrec");
    let compress = ["dictionary", "compress", &dictionary, &records, "--split", "lines", "-o", &packed];
    check_done(&run(&compress));
    check_refused(&run(&compress), 2, "exists");
    let whole = run(&["dictionary", "decompress", &dictionary, &packed, "-o", "-"]);
    assert_eq!(check_done(&whole).as_bytes(), lines(200, 2));
    let one = run(&["dictionary", "decompress", &dictionary, &packed, "--record", "17", "-o", "-"]);
    assert_eq!(Some(check_done(&one).trim_end()), text(&lines(200, 2)).lines().nth(17));
    let none = run(&["dictionary", "decompress", &dictionary, &packed, "--record", "200", "-o", "-"]);
    check_refused(&none, 1, "no record 200");
}

#[test]
fn reports_are_json_when_asked() {
    let directory = Directory::new("dictionary-json");
    let dictionary = trained(&directory);
    let records = directory.write("others.jsonl", &lines(300, 3));
    let report = |arguments: &[&str]| -> serde_json::Value {
        serde_json::from_str(check_done(&run(arguments))).unwrap()
    };
    let inspected = report(&["dictionary", "inspect", &dictionary, "--json"]);
    assert!(inspected["id"].as_u64().unwrap() >= 32768 && inspected["bytes"].as_u64().unwrap() <= 4096);
    let evaluated = report(&["dictionary", "evaluate", &dictionary, &records, "--split", "jsonl", "--json"]);
    assert!(evaluated["ratio"].as_f64() > evaluated["plain_ratio"].as_f64());
    let explained = report(&["dictionary", "explain", &dictionary, &records, "--split", "lines", "--json"]);
    assert!(!explained["segments"].as_array().unwrap().is_empty());
    let new = directory.path("new.dict");
    let updated =
        report(&["dictionary", "update", &dictionary, &records, "--split", "lines", "-o", &new, "--json"]);
    assert!(updated["bytes"].as_u64().unwrap() <= 4096);
}

#[test]
fn training_that_cannot_work_exits_with_1_and_a_hint() {
    let directory = Directory::new("dictionary-few");
    let samples = directory.write("one.json", b"{}");
    let output = directory.path("out.dict");
    let refused = run(&["dictionary", "train", &samples, "-o", &output]);
    check_refused(&refused, 1, "too few samples");
    assert!(text(&refused.stderr).contains("\nhint: "));
    assert_eq!(directory.names(), ["one.json"]);
}

#[test]
fn what_is_no_record_or_no_dictionary_is_refused() {
    let directory = Directory::new("dictionary-wrong");
    let dictionary = trained(&directory);
    let other = directory.write("other.dict", b"\x37\xa4\x30\xec damaged");
    check_refused(&run(&["dictionary", "inspect", &other]), 1, "dictionary header");
    let file = directory.write("no.mrec", b"not packed");
    check_refused(&run(&["dictionary", "decompress", &dictionary, &file, "-o", "-"]), 1, "packed records");
    let sizes = run_with_stdin(&["dictionary", "train", &file, "-o", &other, "--size", "x"], b"");
    check_refused(&sizes, 2, "expected a number of bytes");
}
