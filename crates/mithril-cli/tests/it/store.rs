//! `mithril store`: a run from its first checkpoint to its report.

use crate::{
    Directory, base_and_tuned, check_done, check_refused, f32_bytes, json, npy, run, safetensors, text,
};

#[test]
fn a_run_is_saved_listed_restored_and_cleaned_up() {
    let directory = Directory::new("store-run");
    let (base, tuned) = base_and_tuned(&directory);
    let store = directory.path("store");
    let on_store = |arguments: &[&str]| run(&[&["store", &store], arguments].concat());

    let saved = json(&on_store(&["save", "step_1", &base, "--json"]));
    assert_eq!((saved["step"].as_u64(), saved["kinds"]["full"]["n"].as_u64()), (Some(1), Some(2)));
    let saved = json(&on_store(&["save", "step_2", &tuned, "--previous", "latest", "--json"]));
    assert_eq!(saved["base"], "step_1");
    assert_eq!(saved["kinds"]["copy"]["n"], 1);
    assert_eq!(saved["kinds"]["delta"]["n"], 1);
    check_refused(&on_store(&["save", "step_2", &tuned]), 2, "`step_2` exists already");
    check_refused(
        &on_store(&["save", "step_3", &tuned, "--previous", "step_9"]),
        1,
        "no checkpoint `step_9`",
    );
    check_refused(&on_store(&["save", "../x", &tuned]), 2, "no safe name");

    let listed = json(&on_store(&["list", "--json"]));
    assert_eq!(listed["checkpoints"].as_array().unwrap().len(), 2);
    let output = on_store(&["list"]);
    assert!(check_done(&output).contains("step_2  step_1"), "{}", text(&output.stdout));
    let output = on_store(&["log"]);
    let log = check_done(&output);
    assert!(log.find("step_2").unwrap() < log.rfind("step_1").unwrap());
    let output = on_store(&["show", "step_2"]);
    let shown = check_done(&output);
    assert!(
        shown.contains("layer.0.matrix") && shown.contains("delta") && shown.contains("needs"),
        "{shown}"
    );
    let diff = json(&on_store(&["diff", "step_1", "step_2", "--json"]));
    assert_eq!((&diff["n_equal"], &diff["tensors"][0]["difference"]), (&1.into(), &"changed".into()));

    let restored = directory.path("restored.safetensors");
    check_done(&on_store(&["load", "latest", "-o", &restored]));
    assert_eq!(directory.read("restored.safetensors"), directory.read("tuned.safetensors"));
    check_refused(&on_store(&["load", "step_1", "-o", &restored]), 2, "exists already");
    let exported = directory.path("exported.safetensors");
    check_done(&on_store(&["export", "step_2", "--to", "safetensors", "-o", &exported]));
    check_done(&run(&["compare", &exported, &tuned]));
    let bias = directory.path("bias.npy");
    check_done(&on_store(&["extract", "step_2", "layer.0.bias", "-o", &bias]));
    assert_eq!(directory.read("bias.npy").len(), 128 + 512 * 4);
    check_refused(&on_store(&["extract", "step_2", "nothing", "-o", "-"]), 1, "has no tensor `nothing`");

    check_done(&on_store(&["verify", "--deep"]));
    check_done(&on_store(&["delete", "step_1"]));
    check_done(&on_store(&["verify", "--deep"]));
    let rebased = json(&on_store(&["rebase", "step_2", "--json"]));
    assert_eq!((&rebased["depth"], &rebased["base"]), (&0.into(), &serde_json::Value::Null));
    assert_eq!(json(&on_store(&["gc", "--min-age", "0", "--json"]))["removed_len"], 0);
    let stats = json(&on_store(&["stats", "--json"]));
    assert_eq!((&stats["n_checkpoints"], &stats["n_objects"]), (&1.into(), &1.into()));
    let page = directory.path("run.html");
    check_done(&on_store(&["stats", "--html", &page]));
    assert!(text(&directory.read("run.html")).contains("\"n_checkpoints\":1"));
}

#[test]
fn weights_start_from_their_moments() {
    let directory = Directory::new("store-moments");
    let store = directory.path("store");
    let wave = |i: u32, speed: f32| (i as f32 * speed).sin();
    let state = |behind: bool| {
        let mut tensors = [(); 3].map(|()| Vec::new());
        for i in 0..4000 {
            let (mut weight, mut first, second) =
                (0.1 * wave(i, 0.7), 1e-3 * wave(i, 1.3), 1e-6 + 1e-7 * wave(i, 0.3));
            if behind {
                first = 0.9 * first + 1e-5 * wave(i, 2.9);
                weight -= 1e-3 * first / (second.sqrt() + 1e-8);
            }
            let numbers = [weight, first, second];
            tensors.iter_mut().zip(numbers).for_each(|(bytes, number)| bytes.extend(number.to_le_bytes()));
        }
        let entry = |name: &str, at: usize| {
            format!(
                r#""{name}":{{"dtype":"F32","shape":[4000],"data_offsets":[{},{}]}}"#,
                16000 * at,
                16000 * (at + 1)
            )
        };
        let header = format!("{{{},{},{}}}", entry("w", 0), entry("exp_avg.w", 1), entry("exp_avg_sq.w", 2));
        [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &tensors.concat()].concat()
    };
    let (before, behind) = (
        directory.write("before.safetensors", &state(false)),
        directory.write("behind.safetensors", &state(true)),
    );
    let on_store = |arguments: &[&str]| run(&[&["store", &store], arguments].concat());
    check_done(&on_store(&["save", "step_1", &before]));
    let size = |key: &str, more: &[&str]| {
        let save = [&["save", key, &behind, "--previous", "step_1", "--json"], more].concat();
        json(&on_store(&save))["kinds"]["delta"]["stored_len"].as_u64().unwrap()
    };
    let (alone, from_moments) = (size("step_2", &[]), size("step_3", &["--from-moments"]));
    assert!(from_moments + 4000 < alone, "{from_moments} and {alone} bytes");
    let restored = directory.path("restored.safetensors");
    check_done(&on_store(&["load", "step_3", "-o", &restored]));
    assert_eq!(directory.read("restored.safetensors"), state(true));
}

#[test]
fn several_files_and_retention() {
    let directory = Directory::new("store-files");
    let (base, tuned) = base_and_tuned(&directory);
    let store = directory.path("store");
    for step in 0..5 {
        let key = format!("step_{step}");
        let mut arguments =
            vec!["store", &store, "save", &key, &base, &tuned, "--keep-last", "2", "--keep", "step_0"];
        if step > 0 {
            arguments.extend(["--previous", "latest"]);
        }
        check_done(&run(&arguments));
    }
    let listed = json(&run(&["store", &store, "list", "--json"]));
    let keys: Vec<_> = listed["checkpoints"].as_array().unwrap().iter().map(|found| &found["key"]).collect();
    assert_eq!(keys, ["step_0", "step_3", "step_4"]);
    let saved = listed["checkpoints"][1]["saved"].as_str().unwrap();
    for command in [&["list"][..], &["show", "step_3"]] {
        let shown = run(&[&["store", &store], command].concat());
        assert!(String::from_utf8(shown.stdout).unwrap().contains(saved), "{command:?}");
    }
    let out = directory.path("out");
    check_done(&run(&["store", &store, "load", "step_4", "-o", &out]));
    for name in ["base.safetensors", "tuned.safetensors"] {
        assert_eq!(directory.read(&format!("out/{name}")), directory.read(name));
    }
}

#[test]
fn a_failure_restores_none_of_several_files() {
    let directory = Directory::new("store-all-or-none");
    let (base, _) = base_and_tuned(&directory);
    let other = directory.write("other.safetensors", &safetensors(&[("w", "F32", &[3], &f32_bytes(3, 9))]));
    let store = directory.path("store");
    check_done(&run(&["store", &store, "save", "step_1", &other, &base]));
    let load = |out: &str| run(&["store", &store, "load", "step_1", "-o", out]);
    let (taken, new) = (directory.path("taken"), directory.path("new"));
    std::fs::create_dir(&taken).unwrap();
    directory.write("taken/base.safetensors", b"mine");
    check_refused(&load(&taken), 2, "base.safetensors` exists already");
    let names = |path: &str| -> Vec<_> {
        std::fs::read_dir(path).unwrap().map(|entry| entry.unwrap().file_name()).collect()
    };
    assert_eq!(names(&taken), ["base.safetensors"]);
    assert_eq!(directory.read("taken/base.safetensors"), b"mine");
    // The second file is the larger one, and is damaged.
    let data = std::fs::read_dir(directory.path("store/data")).unwrap().map(|entry| entry.unwrap().path());
    let largest = data.max_by_key(|path| path.metadata().unwrap().len()).unwrap();
    let mut bytes = std::fs::read(&largest).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 4;
    std::fs::write(&largest, &bytes).unwrap();
    check_refused(&load(&new), 1, "layer.0.matrix");
    assert!(!std::fs::exists(&new).unwrap(), "nor is the directory there");
    std::fs::create_dir(&new).unwrap();
    check_refused(&load(&new), 1, "layer.0.matrix");
    assert!(names(&new).is_empty(), "{:?}", names(&new));
}

#[test]
fn what_is_restored_is_compared_with_the_limit_and_with_the_room_before_anything_is_written() {
    let directory = Directory::new("store-bomb");
    // Constant numbers: small in the store, and large when restored.
    let files = ["a.npy", "b.npy"].map(|name| directory.write(name, &npy(&vec![0; 3_000_000])));
    let store = directory.path("store");
    check_done(&run(&["store", &store, "save", "both", &files[0], &files[1]]));
    check_done(&run(&["store", &store, "save", "one", &files[0]]));
    let shown = json(&run(&["store", &store, "show", "one", "--json"]));
    let tensor = shown["tensors"][0]["name"].as_str().unwrap();
    let out = directory.path("out");
    let before = directory.names();
    for (arguments, len) in [
        (&["load", "both"][..], 6_000_256),
        (&["load", "one"], 3_000_128),
        (&["extract", "one", tensor], 3_000_000),
        (&["export", "one", "--to", "safetensors"], 3_000_000),
    ] {
        let on_store = |limit: u64| {
            let limit = limit.to_string();
            run(&[&["store", &store], arguments, &["-o", &out, "--max-output", &limit]].concat())
        };
        let refused = on_store(len - 1);
        check_refused(&refused, 1, &format!("above the limit of {}", len - 1));
        assert!(text(&refused.stderr).contains("hint: `--max-output` allows more"));
        assert_eq!(directory.names(), before, "{arguments:?}");
        check_done(&on_store(len));
        let _ = std::fs::remove_file(&out).or_else(|_| std::fs::remove_dir_all(&out));
    }
    // More than any disk has, by what the manifest says.
    let mut claimed = shown.clone();
    claimed["tensors"][0]["raw_len"] = (1u64 << 50).into();
    let claimed = claimed.to_string();
    let sum = mithril::Digest::of(claimed.as_bytes());
    directory.write("store/manifests/one.json", format!("{claimed}\nblake3 {sum}\n").as_bytes());
    for arguments in [&["extract", "one", tensor][..], &["export", "one", "--to", "safetensors"]] {
        let refused = run(&[&["store", &store], arguments, &["-o", &out]].concat());
        check_refused(&refused, 2, "1125899906842624 bytes are to be written, and ");
        assert_eq!(directory.names(), before, "{arguments:?}");
    }
}

#[test]
fn damage_is_named_and_the_exit_code_says_so() {
    let directory = Directory::new("store-damage");
    let (base, tuned) = base_and_tuned(&directory);
    let store = directory.path("store");
    check_done(&run(&["store", &store, "save", "step_1", &base]));
    let data = std::fs::read_dir(directory.path("store/data")).unwrap().next().unwrap().unwrap().path();
    let mut bytes = std::fs::read(&data).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 4;
    std::fs::write(&data, &bytes).unwrap();
    let output = run(&["store", &store, "verify", "--json"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(json(&output)["damaged"][0]["problems"][0].as_str().unwrap().contains("layer.0.matrix"));
    check_refused(
        &run(&["store", &store, "load", "step_1", "-o", &directory.path("x")]),
        1,
        "layer.0.matrix",
    );
    assert!(!directory.names().contains(&"x".to_owned()), "nothing is written");
    // What is stored against it is named as well, though only deep checks read that.
    bytes[middle] ^= 4;
    std::fs::write(&data, &bytes).unwrap();
    check_done(&run(&["store", &store, "save", "step_2", &tuned, "--previous", "step_1"]));
    bytes[middle] ^= 4;
    std::fs::write(&data, &bytes).unwrap();
    let output = run(&["store", &store, "verify"]);
    assert_eq!(output.status.code(), Some(1));
    let said = text(&output.stdout);
    assert!(
        said.contains("step_2: ") && said.contains("of checkpoint `step_1`, in which it is damaged"),
        "{said}"
    );
    assert!(said.contains("0 checkpoints intact, 2 damaged; "), "{said}");
    check_refused(&run(&["store", "ftp://x", "list"]), 2, "cannot open `ftp://x`: its scheme");
    check_refused(&run(&["store", &directory.path("empty"), "show", "latest"]), 1, "there is no store at");
}

#[test]
fn a_save_says_how_far_it_was_verified() {
    let directory = Directory::new("store-verify");
    let (base, tuned) = base_and_tuned(&directory);
    let store = directory.path("store");
    let save = |arguments: &[&str]| run(&[&["store", &store, "save", "--json"], arguments].concat());
    assert_eq!(json(&save(&["step_1", &base]))["verified"], "chain");
    assert_eq!(json(&save(&["step_2", &tuned, "--previous", "step_1", "--verify"]))["verified"], "full");
    check_done(&run(&["store", &store, "verify", "--deep"]));
}

#[test]
fn what_cannot_be_read_is_told_and_can_be_deleted() {
    let directory = Directory::new("store-unreadable");
    let (base, tuned) = base_and_tuned(&directory);
    let store = directory.path("store");
    let on_store = |arguments: &[&str]| run(&[&["store", &store], arguments].concat());
    check_done(&on_store(&["save", "step_1", &base]));
    check_done(&on_store(&["save", "step_2", &tuned]));
    let shown = on_store(&["show", "step_1"]);
    assert!(check_done(&shown).contains(" bytes, no deltas"), "{}", text(&shown.stdout));
    check_refused(&on_store(&["extract", "step_1", "nothing", "-o", "-"]), 1, "`store show step_1`");
    directory.write("store/manifests/step_1.json", b"{");
    for arguments in [&["list"][..], &["stats"], &["stats", "--json"]] {
        let output = on_store(arguments);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}");
        assert!(text(&output.stdout).contains("step_2") || arguments[0] == "stats");
    }
    assert!(text(&on_store(&["stats"]).stderr).contains("`step_1` cannot be read"));
    check_refused(&on_store(&["gc"]), 1, "nothing is removed while");
    check_done(&on_store(&["delete", "step_1"]));
    let output = on_store(&["gc", "--min-age", "0"]);
    assert!(check_done(&output).starts_with("removed 1 object, "), "{}", text(&output.stdout));
    let listed = on_store(&["verify"]);
    assert!(check_done(&listed).starts_with("1 checkpoint intact, 0 damaged"), "{}", text(&listed.stdout));
}

#[test]
fn a_store_that_is_not_there_is_an_error_for_every_command_but_the_first_save() {
    let directory = Directory::new("store-missing");
    let (base, _) = base_and_tuned(&directory);
    let store = directory.path("runn7");
    let out = directory.path("out");
    let on_store = |arguments: &[&str]| run(&[&["store", &store], arguments].concat());
    for arguments in [
        &["list"][..],
        &["list", "--json"],
        &["log"],
        &["show", "step_1"],
        &["show", "latest"],
        &["load", "step_1", "-o", &out],
        &["load", "latest", "-o", &out],
        &["extract", "step_1", "w", "-o", &out],
        &["diff", "step_1", "step_2"],
        &["verify"],
        &["verify", "--deep"],
        &["verify", "step_1"],
        &["gc"],
        &["gc", "--dry-run"],
        &["rebase", "step_1"],
        &["delete", "step_1"],
        &["export", "step_1", "--to", "safetensors", "-o", &out],
        &["stats"],
    ] {
        let output = on_store(arguments);
        check_refused(&output, 1, "there is no store at `local://");
        assert!(text(&output.stderr).contains("hint: "), "{arguments:?}");
    }
    check_refused(&on_store(&["save", "step_2", &base, "--previous", "latest"]), 1, "there is no store at");
    assert_eq!(directory.names(), ["base.safetensors", "tuned.safetensors"], "nothing was made");
    check_done(&on_store(&["save", "final", &base]));
    let listed = on_store(&["list"]);
    assert!(check_done(&listed).contains("final  -"), "{}", text(&listed.stdout));
    // What is none of the store's is told, and stops nothing.
    directory.write("runn7/manifests/Thumbs.db", b"x");
    let listed = on_store(&["list"]);
    check_done(&listed);
    assert!(text(&listed.stderr).contains("warning: `manifests/Thumbs.db`"), "{}", text(&listed.stderr));
    check_done(&on_store(&["gc", "--min-age", "0"]));
    // The order that everyone types first.
    let swapped = run(&["store", "list", "runn7", "--json"]);
    assert_eq!(swapped.status.code(), Some(2));
    let said = text(&swapped.stderr);
    assert!(said.contains("hint: the store comes first: `mithril store runn7 list --json`"), "{said}");
}

#[test]
fn exit_codes_say_whether_the_input_or_the_environment_is_at_fault() {
    let directory = Directory::new("store-exit-codes");
    let (base, _) = base_and_tuned(&directory);
    let store = directory.path("store");
    let on_store = |arguments: &[&str]| run(&[&["store", &store], arguments].concat());
    check_done(&on_store(&["save", "step_1", &base]));
    // The input.
    let wrong = directory.write("notes.txt", b"no model");
    check_refused(&on_store(&["save", "step_2", &wrong]), 1, "no model file of a known kind");
    check_refused(&on_store(&["save", "step_2", &directory.path("nothing")]), 1, "no such file");
    check_refused(&on_store(&["save", "step_2", &directory.path("store")]), 1, "it is a directory");
    check_refused(&on_store(&["load", "step_9", "-o", "-"]), 1, "no checkpoint `step_9`");
    // The command line or the environment.
    check_refused(&on_store(&["save", "step_1", &base]), 2, "exists already");
    check_refused(&on_store(&["save", "latest", &base]), 2, "stands for the newest");
    let file = directory.path("notes.txt");
    check_refused(&run(&["store", &file, "save", "step_1", &base]), 2, "cannot ");
}
