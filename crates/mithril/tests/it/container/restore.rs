//! Odd but legal safetensors files come back byte for byte; illegal ones are refused with the reason.

use super::{Tensor, check_restored, file_of, packed, packed_with, safetensors, unpacked};
use mithril::Dtype;
use mithril::container::{Bases, EntryKind, Model, Reader};
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
    assert!(kinds.iter().all(|&kind| kind == EntryKind::Inline));
}

#[test]
fn names_that_look_like_paths_are_names() {
    let longest = "n".repeat(65_535);
    let names = [
        "../up",
        "/params/dense/kernel",
        "a/../b",
        "..",
        "nul\0",
        "back\\..\\slash",
        &"n".repeat(4097),
        &longest,
    ];
    let tensors: Vec<Tensor> = names.iter().zip(30..).map(|(name, n)| weights(name, n)).collect();
    let kinds = check_restored("names like paths", &safetensors(&tensors), &tensors);
    assert!(kinds.iter().all(|&kind| kind == EntryKind::Full));
}

#[test]
fn a_name_that_no_entry_can_have_stays_inside_the_file() {
    let tensors = [weights(&"n".repeat(65_536), 30), weights("short", 40)];
    let file = safetensors(&tensors);
    let kinds = check_restored("a long name", &file, &tensors[1..]);
    assert_eq!(kinds.len(), 1, "a tensor with such a name is no entry");
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
    assert!(refused(b"PK\x03\x04 not a model").contains("known kind"));
    assert!(refused(b"").contains("known kind"));
}

#[test]
fn files_that_are_no_safetensors_to_the_package_come_back() {
    let (a, other) = (weights("a", 60), Tensor::weights("b", Dtype::F32, 60, 99));
    let twice = [&a.raw[..], &other.raw].concat();
    let twice = file_of(&format!("{{{},{}}}", a.json(0), a.json(a.raw.len())), &twice);
    // As the package reads it: the last one.
    check_restored("a name twice", &twice, &[Tensor { name: "a".to_owned(), ..other }]);
    let behind = [&safetensors(std::slice::from_ref(&a))[..], b"more"].concat();
    check_restored("bytes behind the last tensor", &behind, std::slice::from_ref(&a));
    for (file, reason) in [(twice, "`a` is there twice"), (behind, "4 bytes behind the last tensor")] {
        let error = Model::open("odd", Box::new(file), Bases::none()).unwrap_err().to_string();
        assert!(error.contains(reason), "{error}");
    }
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

#[test]
fn constant_and_unchanged_tensors_are_read_whole_by_default() {
    // More bytes than readers take for next to none.
    let zeros = Tensor::new("zeros", Dtype::U16, &[36 << 20], vec![0; 72 << 20]);
    let (container, _) = packed(&safetensors(&[zeros]));
    assert!(container.len() < 20_000);
    let read = Reader::open(container).unwrap().read(1, &Bases::none()).unwrap();
    assert!(read.len() == 72 << 20 && read.iter().all(|&byte| byte == 0));

    let n = (66u64 << 20) / 8;
    let mixed =
        |i: u64| i.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mut raw: Vec<u8> = (0..n).flat_map(|i| mixed(i).to_le_bytes()).collect();
    let file = |raw: &[u8]| safetensors(&[Tensor::new("numbers", Dtype::I64, &[n], raw.to_vec())]);
    let base = Model::open("base", Box::new(packed(&file(&raw)).0), Bases::none()).unwrap();
    raw[12_345_678] ^= 1;
    let options = PackOptions::default().with_bases(Bases::new([base]));
    let (container, summary) = packed_with(&file(&raw), &options);
    assert_eq!(summary.tensors[0].kind, EntryKind::Delta);
    assert!(Reader::open(container).unwrap().read(1, &options.bases).unwrap() == raw);
}
