//! Bases that are missing, or cannot be read.

use crate::{Directory, base_and_tuned, check_done, check_refused, json, run, text};

#[test]
fn a_missing_base_is_called_so_once_with_its_name() {
    let directory = Directory::new("missing-base");
    let (base, tuned) = base_and_tuned(&directory);
    check_done(&run(&["compress", &tuned, "--base", &base]));
    let packed = directory.path("tuned.safetensors.mckp");
    std::fs::create_dir(directory.path("elsewhere")).unwrap();
    std::fs::rename(&base, directory.path("elsewhere/model.safetensors")).unwrap();
    let needs =
        "needs base `base.safetensors`: 2 of its tensors are stored against it, and 2 cannot be restored";
    let hint = "hint: `--base PATH` names the model that it was made against";

    let refused = run(&["decompress", &packed, "-o", &directory.path("back")]);
    check_refused(&refused, 1, needs);
    check_refused(&refused, 1, hint);
    assert!(text(&refused.stderr).contains("with digest "), "{}", text(&refused.stderr));
    assert_eq!(text(&refused.stderr).matches("tuned.safetensors.mckp").count(), 1);
    let verified = run(&["verify", "--deep", &packed]);
    assert_eq!(verified.status.code(), Some(1));
    let stdout = text(&verified.stdout);
    assert!(stdout.contains(needs) && !stdout.contains("damaged") && stdout.lines().count() == 1, "{stdout}");
    assert!(text(&verified.stderr).contains(hint));
    let report = json(&run(&["verify", "--deep", &packed, "--json"]));
    let file = &report["files"][0];
    assert_eq!(
        (&file["intact"], &report["intact"]),
        (&serde_json::Value::Null, &serde_json::Value::Bool(false))
    );
    assert!(file["problems"].as_array().unwrap().is_empty());
    assert!(file["missing_base"].as_str().unwrap().starts_with(needs), "{file}");
    check_done(&run(&["verify", &packed]));
    check_done(&run(&["verify", "--deep", &packed, "--base", &directory.path("elsewhere")]));

    // Damage is damage still.
    let mut bytes = directory.read("tuned.safetensors.mckp");
    let middle = bytes.len() / 2;
    bytes[middle] ^= 0x40;
    let damaged = directory.write("damaged.mckp", &bytes);
    let verified = run(&["verify", "--deep", &damaged]);
    assert!(text(&verified.stdout).contains("damaged, 1 problem"), "{}", text(&verified.stdout));
}

#[test]
fn of_a_directory_of_bases_the_file_that_cannot_be_read_is_named() {
    let directory = Directory::new("missing-directory");
    let (base, tuned) = base_and_tuned(&directory);
    check_done(&run(&["compress", &tuned, "--base", &base]));
    let packed = directory.path("tuned.safetensors.mckp");
    let bases = directory.path("bases");
    std::fs::create_dir(&bases).unwrap();
    std::fs::rename(&base, format!("{bases}/base.safetensors")).unwrap();
    let whole = directory.read("tuned.safetensors.mckp");
    std::fs::write(format!("{bases}/other.mckp"), &whole[..whole.len() / 2]).unwrap();
    for arguments in [
        &["decompress", &packed, "-o", &directory.path("back"), "--base", &bases][..],
        &["verify", "--deep", &packed, "--base", &bases],
    ] {
        let refused = run(arguments);
        check_refused(&refused, 1, "bases/other.mckp`: ");
        check_refused(&refused, 1, "hint: the file is incomplete");
        assert_eq!(text(&refused.stderr).matches("other.mckp").count(), 1, "{}", text(&refused.stderr));
    }
    std::fs::remove_file(format!("{bases}/other.mckp")).unwrap();
    check_done(&run(&["decompress", &packed, "-o", &directory.path("back"), "--base", &bases]));
    assert!(directory.read("back") == directory.read("tuned.safetensors"));
}
