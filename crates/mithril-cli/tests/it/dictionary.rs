//! `mithril dictionary`: whole commands.

use crate::{Directory, check_done, check_refused, run, run_with_stdin, text};
use std::io::Write;

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
    // Without its end it starts like a frame, and is none.
    let bytes = std::fs::read(&packed).unwrap();
    let cut = directory.write("cut.mrec", &bytes[..bytes.len() / 2]);
    let cut = run(&["dictionary", "decompress", &dictionary, &cut, "-o", "-"]);
    check_refused(&cut, 1, "packed records are damaged");
}

#[test]
fn a_frame_of_one_file_comes_back_alone_and_its_damage_is_told() {
    let directory = Directory::new("dictionary-each");
    let dictionary = trained(&directory);
    let record = directory.write("record.json", &lines(1, 5));
    check_done(&run(&["dictionary", "compress", &dictionary, &record, "--each"]));
    let frame = format!("{record}.zst");
    let alone = run(&["dictionary", "decompress", &dictionary, &frame, "-o", "-"]);
    assert_eq!(check_done(&alone).as_bytes(), lines(1, 5));
    let bytes = std::fs::read(&frame).unwrap();
    let cut = directory.write("cut.zst", &bytes[..bytes.len() - 1]);
    check_refused(&run(&["dictionary", "decompress", &dictionary, &cut, "-o", "-"]), 1, "zstd frame");
}

#[test]
fn frames_of_any_zstd_come_back_as_one_record() {
    let directory = Directory::new("dictionary-frames");
    let dictionary = trained(&directory);
    let bytes = directory.read("my.dict");
    let frame = |seed: u32, states_size: bool| {
        let mut encoder = zstd::stream::Encoder::with_dictionary(Vec::new(), 3, &bytes).unwrap();
        encoder.include_contentsize(states_size).unwrap();
        let record = lines(3, seed);
        encoder.set_pledged_src_size(states_size.then_some(record.len() as u64)).unwrap();
        encoder.write_all(&record).unwrap();
        encoder.finish().unwrap()
    };
    let skipped = b"\x5f\x2a\x4d\x18\x02\0\0\0no".to_vec();
    for (what, frames, seeds) in [
        ("no size", vec![frame(1, false)], &[1][..]),
        ("two", vec![frame(1, true), frame(2, true)], &[1, 2]),
        ("two, no size", vec![frame(1, true), frame(2, false)], &[1, 2]),
        ("skippable first", vec![skipped.clone(), frame(1, true)], &[1]),
        ("skippable between", vec![frame(1, true), skipped, frame(2, true)], &[1, 2]),
    ] {
        let file = directory.write("frames.zst", &frames.concat());
        let done = run(&["dictionary", "decompress", &dictionary, &file, "-o", "-"]);
        check_done(&done);
        assert_eq!(done.stdout, seeds.iter().flat_map(|&seed| lines(3, seed)).collect::<Vec<_>>(), "{what}");
    }
    // What ends like a packed file is one, and damaged.
    let file =
        directory.write("frames.zst", &[frame(1, true), b"\x5f\x2a\x4d\x18\x04\0\0\0MREC".to_vec()].concat());
    let refused = run(&["dictionary", "decompress", &dictionary, &file, "-o", "-"]);
    check_refused(&refused, 1, "packed records are damaged");
}

#[test]
fn newer_samples_that_take_turns_in_kind_are_judged_by_both_kinds() {
    let directory = Directory::new("dictionary-turns");
    let dictionary = trained(&directory);
    // Every other line is of a kind that the dictionary does not know, and says the same words each time.
    let pairs = text(&lines(1000, 1)).lines().enumerate().fold(String::new(), |all, (idx, line)| {
        all + line
            + "\n"
            + &format!("06:{:02} host-{} kernel: eth0: link is up, full duplex\n", idx % 60, idx)
    });
    let newer = directory.write("newer.txt", pairs.as_bytes());
    let known = directory.write("known.jsonl", &lines(300, 1));
    let explain =
        ["dictionary", "explain", &dictionary, &known, "--split", "lines", "--newer", &newer, "--json"];
    let report: serde_json::Value = serde_json::from_str(check_done(&run(&explain))).unwrap();
    assert_eq!(report["drift"]["retrain"], true, "{}", report["drift"]);
}

#[test]
fn nothing_to_measure_is_refused() {
    let directory = Directory::new("dictionary-nothing");
    let dictionary = trained(&directory);
    let empty = directory.write("empty.json", b"");
    for verb in ["evaluate", "explain"] {
        check_refused(&run(&["dictionary", verb, &dictionary, &empty]), 1, "no record");
    }
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

#[test]
fn groups_are_trained_inspected_and_used_like_one_dictionary() {
    let directory = Directory::new("dictionary-groups");
    let json = directory.write("samples.jsonl", &lines(1500, 1));
    let log: String = (0..1500u32)
        .map(|idx| {
            format!("06:{:02} host-{} kernel: eth0: link is up, full duplex\n", idx % 60, idx * 7919 % 997)
        })
        .collect();
    let log = directory.write("samples.log", log.as_bytes());
    let dictionaries = directory.path("both.mdic");
    let train = ["dictionary", "train", &json, &log, "--split", "lines", "--group-by", "argument", "-o"];
    let sizes = ["--size", "2K", "--group-size", "1K", "--no-search", "--test-fraction", "0.1", "--json"];
    let report = |arguments: &[&str]| -> serde_json::Value {
        serde_json::from_str(check_done(&run(arguments))).unwrap()
    };
    let trained = report(&[&train[..], &[dictionaries.as_str()], &sizes].concat());
    assert_eq!(trained["members"].as_array().unwrap().len(), 3);
    assert!(trained["test"]["ratio"].as_f64() > trained["test"]["plain_ratio"].as_f64());
    // What is mixed is parted again.
    let found = directory.path("found.mdic");
    let train = ["dictionary", "train", &json, &log, "--split", "lines", "--groups", "2", "-o", &found];
    assert_eq!(report(&[&train[..], &sizes].concat())["members"].as_array().unwrap().len(), 3);

    let packed = directory.path("both.mrec");
    check_done(&run(&[
        "dictionary",
        "compress",
        &dictionaries,
        &json,
        &log,
        "--split",
        "lines",
        "-o",
        &packed,
    ]));
    let whole = run(&["dictionary", "decompress", &dictionaries, &packed, "-o", "-"]);
    check_done(&whole);
    assert_eq!(whole.stdout, [std::fs::read(&json).unwrap(), std::fs::read(&log).unwrap()].concat());
    check_refused(&run(&["dictionary", "decompress", &found, &packed, "-o", "-"]), 1, "another dictionary");

    let members = directory.path("members");
    let inspected = report(&["dictionary", "inspect", &dictionaries, "--extract", &members, "--json"]);
    for member in inspected["members"].as_array().unwrap() {
        let alone = format!("{members}/{}.dict", member["id"]);
        assert_eq!(report(&["dictionary", "inspect", &alone, "--json"])["id"], member["id"]);
    }
    check_done(&run(&["dictionary", "inspect", &dictionaries]));
    check_done(&run(&["dictionary", "evaluate", &dictionaries, &log, "--split", "lines"]));
    check_refused(&run(&["dictionary", "explain", &dictionaries, &log]), 1, "--extract");
}
