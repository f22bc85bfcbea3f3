//! Odd but legal safetensors files come back byte for byte; illegal ones are refused with the reason.

use super::{Tensor, check_restored, file_of, packed, safetensors, unpacked};
use mithril::Dtype;
use mithril::container::{EntryKind, Reader};
use mithril::pack::{PackOptions, pack};

fn weights(name: &str, n: u64) -> Tensor {
    Tensor::weights(name, Dtype::F32, n, 1 + n)
}

#[test]
fn every_dtype_comes_back() {
    // Quantised blocks have no name in safetensors, and do not divide 240 elements either.
    let dtypes = Dtype::ALL.iter().filter(|dtype| **dtype != Dtype::Bytes && dtype.len_of(240).is_some());
    let tensors: Vec<Tensor> =
        dtypes.map(|&dtype| Tensor::weights(dtype.name(), dtype, 240, u64::from(dtype.id()) + 1)).collect();
    assert_eq!(tensors.len(), 22);
    check_restored("every dtype", &safetensors(&tensors), &tensors);
}

#[test]
fn files_without_tensors_come_back() {
    for header in
        ["{}", "{}      ", r#"{"__metadata__":{}}"#, r#"{"__metadata__":{"format":"pt","a":"\u0000"}}"#]
    {
        for tail in [&b""[..], b"bytes of no tensor"] {
            check_restored(header, &file_of(header, tail), &[]);
        }
    }
}

#[test]
fn holes_and_padding_come_back() {
    let (a, b) = (weights("a", 100), weights("b", 50));
    let data = [b"before", &a.raw[..], b"between", &b.raw, b"behind"].concat();
    let header = format!("{{{},{}}}", a.json(6), b.json(6 + 400 + 7));
    for header in [header.clone(), format!("{header}{}", " ".repeat(1000)), format!("\n\t {header}\r\n")] {
        let file = file_of(&header, &data);
        if mithril::source::detect(&file).is_some() {
            check_restored("holes", &file, &[a.clone(), b.clone()]);
        }
    }
}

#[test]
fn tensors_in_any_order_come_back() {
    let (a, b, c) = (weights("a", 10), weights("b", 20), weights("c", 30));
    let data = [&c.raw[..], &a.raw, &b.raw].concat();
    for entries in [
        [a.json(120), b.json(160), c.json(0)],
        [b.json(160), c.json(0), a.json(120)],
        [c.json(0), a.json(120), b.json(160)],
    ] {
        let header = format!(r#"{{"__metadata__":{{"order":"odd"}},{}}}"#, entries.join(","));
        check_restored("order", &file_of(&header, &data), &[a.clone(), b.clone(), c.clone()]);
    }
}

#[test]
fn tensors_of_no_bytes_and_of_no_dimensions_come_back() {
    let none = |name: &str, shape: &[u64]| Tensor::new(name, Dtype::F32, shape, Vec::new());
    let tensors = [
        none("first", &[0]),
        Tensor::new("scalar", Dtype::F64, &[], 1.5f64.to_le_bytes().to_vec()),
        none("middle", &[3, 0, 5]),
        none("same place", &[0, 0]),
        Tensor::new("ones", Dtype::U8, &[1, 1, 1], vec![9]),
        none("last", &[0]),
    ];
    let kinds = check_restored("no bytes", &safetensors(&tensors), &tensors);
    assert!(kinds.iter().all(|&kind| kind == EntryKind::Full));
}

#[test]
fn names_that_are_unsafe_stay_inside_the_file() {
    let long = "n".repeat(70_000);
    let unsafe_names = ["../up", "/etc/passwd", "a/../b", "nul\0", "back\\..\\slash", &long];
    let mut tensors: Vec<Tensor> = unsafe_names.iter().map(|name| weights(name, 30)).collect();
    tensors.push(weights("safe", 40));
    tensors.insert(2, weights("also.safe", 50));
    let safe: Vec<Tensor> = tensors.iter().filter(|tensor| tensor.name.contains("safe")).cloned().collect();
    let file = safetensors(&tensors);
    let kinds = check_restored("unsafe names", &file, &safe);
    assert_eq!(kinds.len(), 2, "tensors with unsafe names are no entries");
    let (container, _) = packed(&file);
    let reader = Reader::open(container.as_slice()).unwrap();
    assert!(unsafe_names.iter().all(|name| reader.find(name).is_err()));
}

#[test]
fn names_of_any_script_come_back() {
    let names =
        ["ключ", "重み", "🤗", "quote \" and \\ slash", "tab\tnew\nline", "", "__meta__", "a..b", "..."];
    let tensors: Vec<Tensor> = names.iter().map(|name| weights(name, 12)).collect();
    check_restored("names", &safetensors(&tensors), &tensors);
    let escaped = file_of(r#"{"\u0061\u00e9":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}}"#, &[1, 2]);
    check_restored("escapes", &escaped, &[Tensor::new("aé", Dtype::U8, &[2], vec![1, 2])]);
}

#[test]
fn a_header_of_megabytes_comes_back() {
    let note = "note ".repeat(700_000);
    let a = weights("a", 10);
    let header = format!(r#"{{"__metadata__":{{"note":"{note}"}},{}}}"#, a.json(0));
    check_restored("long header", &file_of(&header, &a.raw), std::slice::from_ref(&a));
}

#[test]
fn illegal_files_are_refused_with_the_reason() {
    let refused = |file: &[u8]| {
        let mut written = Vec::new();
        let result = pack(&file, &mut written, &PackOptions::default(), &|_| ());
        let error = result.map(|_| ()).unwrap_err().to_string();
        assert!(written.is_empty(), "{error}");
        error
    };
    let entry = |dtype: &str, shape: &str, offsets: &str| {
        format!(r#"{{"a":{{"dtype":"{dtype}","shape":{shape},"data_offsets":{offsets}}}}}"#)
    };
    for (header, reason) in [
        (entry("F32", "[2]", "[0,4]"), "shape takes 8 bytes"),
        (entry("F32", "[2]", "[8,0]"), "shape takes 8 bytes"),
        (entry("F32", "[3]", "[0,12]"), "behind the end of the file"),
        (entry("F32", "[4611686018427387904]", "[0,8]"), "too large"),
        (entry("F33", "[2]", "[0,8]"), "unknown dtype"),
        (r#"{"a":1}"#.to_owned(), "tensor `a`"),
        (r#"{"a":"#.to_owned(), "header"),
    ] {
        let error = refused(&file_of(&header, &[0; 8]));
        assert!(error.contains(reason), "{header}: {error}");
    }
    let (a, b) = (weights("a", 2), weights("b", 2));
    let overlapping = file_of(&format!("{{{},{}}}", a.json(0), b.json(4)), &[0; 12]);
    assert!(refused(&overlapping).contains("overlap"));
    let twice = file_of(&format!("{{{},{}}}", a.json(0), a.json(8)), &[0; 16]);
    assert!(refused(&twice).contains("twice"));
    assert!(refused(b"PK\x03\x04 not a model").contains("known kind"));
    assert!(refused(b"").contains("known kind"));
}

#[test]
fn a_container_of_tensors_is_no_file() {
    let entry = super::forge::Forged::full("a", 2, &[4], &[1, 2, 3, 4]);
    let container = super::forge::Forge::of(vec![entry]).build();
    assert!(unpacked(&container).unwrap_err().to_string().contains("no packed file"));
    let entry = super::forge::Forged::full("a", 2, &[4], &[1, 2, 3, 4]);
    let shorter = super::forge::Forge::packed(5, vec![entry]).build();
    assert!(unpacked(&shorter).unwrap_err().to_string().contains("as long together"));
}
