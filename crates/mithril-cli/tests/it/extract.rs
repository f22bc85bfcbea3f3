//! `mithril extract`.

use crate::{Directory, bf16_bytes, check_done, check_refused, f32_bytes, npy, run, safetensors, text};

fn packed_model(directory: &Directory) -> (String, Vec<u8>, Vec<u8>) {
    let (matrix, bias) = (f32_bytes(300 * 1000, 1), bf16_bytes(500, 2));
    let tensors: [(&str, &str, &[u64], &[u8]); 3] = [
        ("matrix", "F32", &[300, 1000], &matrix),
        ("bias", "BF16", &[500], &bias),
        ("scalar", "F32", &[], &matrix[..4]),
    ];
    let model = directory.write("model.safetensors", &safetensors(&tensors));
    check_done(&run(&["compress", &model]));
    (directory.path("model.safetensors.mckp"), matrix, bias)
}

#[test]
fn tensor_becomes_a_npy_file() {
    let directory = Directory::new("extract-npy");
    let (packed, matrix, _) = packed_model(&directory);
    for file in [&packed, &directory.path("model.safetensors")] {
        let output = run(&["extract", file, "matrix"]);
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        let header = text(&output.stdout[10..128]);
        assert!(
            header.starts_with("{'descr': '<f4', 'fortran_order': False, 'shape': (300, 1000), }"),
            "{header}"
        );
        assert!(output.stdout[128..] == matrix);
    }
    let output = run(&["extract", &packed, "scalar", "-o", &directory.path("scalar.npy")]);
    check_done(&output);
    assert!(text(&directory.read("scalar.npy")[10..80]).contains("'shape': ()"));
    // A file of one array has one tensor.
    let array = directory.write("one.npy", &npy(&matrix[..400]));
    let name =
        crate::json(&run(&["inspect", &array, "--json"]))["tensors"][0]["name"].as_str().unwrap().to_owned();
    assert!(run(&["extract", &array, &name, "--raw"]).stdout == matrix[..400]);
}

#[test]
fn rows_are_cut_out_exactly() {
    let directory = Directory::new("extract-rows");
    let (packed, matrix, bias) = packed_model(&directory);
    for (rows, range) in
        [("0:1", 0..1), ("100:200", 100..200), ("299:", 299..300), (":7", 0..7), ("5:5", 5..5)]
    {
        let output = run(&["extract", &packed, "matrix", "--rows", rows, "--raw"]);
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        assert!(output.stdout == matrix[range.start * 4000..range.end * 4000], "{rows}");
    }
    let output = run(&["extract", &packed, "bias", "--rows", "10:20", "-o", &directory.path("rows.bin")]);
    check_done(&output);
    assert_eq!(directory.read("rows.bin"), bias[20..40]);
    check_refused(&run(&["extract", &packed, "matrix", "--rows", "0:301"]), 2, "has 300 rows");
    check_refused(&run(&["extract", &packed, "scalar", "--rows", "0:1"]), 2, "has no rows");
}

#[test]
fn types_that_numpy_lacks_are_written_as_integers_with_a_note() {
    let directory = Directory::new("extract-bf16");
    let (packed, _, bias) = packed_model(&directory);
    let output = run(&["extract", &packed, "bias", "-o", &directory.path("bias.npy")]);
    assert_eq!(check_done(&output), "");
    assert_eq!(text(&output.stderr), "note: numpy has no BF16: written as unsigned integers of 16 bits\n");
    let file = directory.read("bias.npy");
    assert!(text(&file[10..80]).contains("'<u2'") && file.ends_with(&bias));
    let output = run(&["extract", &packed, "bias", "--raw"]);
    assert!(output.stdout == bias && output.stderr.is_empty());
}

#[test]
fn only_the_blocks_of_the_rows_are_read() {
    let directory = Directory::new("extract-blocks");
    let (packed, matrix, _) = packed_model(&directory);
    // The second half of the matrix's frame is destroyed; rows of the first half are still read.
    let mut bytes = directory.read("model.safetensors.mckp");
    let at = bytes.len() * 3 / 4;
    bytes[at..at + 1000].fill(0xee);
    std::fs::write(&packed, bytes).unwrap();
    let output = run(&["extract", &packed, "matrix", "--rows", "0:50", "--raw"]);
    assert!(output.stdout == matrix[..50 * 4000], "{}", text(&output.stderr));
    check_refused(
        &run(&["extract", &packed, "matrix", "-o", &directory.path("x.npy")]),
        1,
        "tensor `matrix`: block",
    );
    assert!(!directory.names().contains(&"x.npy".to_owned()));
}

#[test]
fn unknown_tensors_are_refused_with_a_hint() {
    let directory = Directory::new("extract-unknown");
    let (packed, ..) = packed_model(&directory);
    let output = run(&["extract", &packed, "Matrix", "-o", &directory.path("x.npy")]);
    check_refused(&output, 1, "has no tensor `Matrix`");
    check_refused(&output, 1, "hint: did you mean `matrix`?");
    check_refused(&run(&["extract", &packed, "something else"]), 1, "lists its tensors");
    assert_eq!(directory.names(), ["model.safetensors", "model.safetensors.mckp"]);
}
