use super::*;
use std::fmt::Write as _;

fn file(header: &str, data_len: usize) -> Vec<u8> {
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header.as_bytes());
    file.resize(file.len() + data_len, 7);
    file
}

fn check_refused(header: &str, data_len: usize, reason: &str) {
    let file = file(header, data_len);
    let error = read(&file).unwrap_err().to_string();
    assert!(error.contains(reason), "{error}");
}

fn names(tensors: &[TensorInfo]) -> Vec<&str> {
    tensors.iter().map(|tensor| tensor.name.as_str()).collect()
}

#[test]
fn tensors_are_found_in_the_order_of_their_bytes() {
    let file = file(
        r#"{"__metadata__":{"a":"b"},"late":{"dtype":"F32","shape":[2],"data_offsets":[4,12]},"early":{"dtype":"BF16","shape":[1,2],"data_offsets":[0,4]}}   "#,
        12,
    );
    let found = read(&file).unwrap();
    assert_eq!(names(&found), ["early", "late"]);
    assert_eq!(found[1].shape, [2]);
    assert_eq!(found[1].bytes.end, file.len() as u64);
    assert_eq!(tensors(&file, file.len() as u64).unwrap(), found);
    assert_eq!(metadata(&file).unwrap(), BTreeMap::from([("a".to_owned(), "b".to_owned())]));
}

#[test]
fn no_metadata_may_be_null() {
    let file = file(r#"{"__metadata__":null,"a":{"dtype":"U8","shape":[3],"data_offsets":[0,3]}}"#, 3);
    assert_eq!(names(&read(&file).unwrap()), ["a"]);
    assert!(metadata(&file).unwrap().is_empty());
}

#[test]
fn odd_files_are_read_to_be_packed() {
    let header = r#" {
        "hole before": {"dtype":"U8","shape":[3],"data_offsets":[5,8], "extra": {"x":[1,2,{}]}},
        "scalar": {"shape":[],"data_offsets":[0,4],"dtype":"F32"},
        "empty": {"dtype":"F64","shape":[7,0,2],"data_offsets":[8,8]},
        "": {"dtype":"F4","shape":[2,2],"data_offsets":[8,10]},
        "caf\u00e9": {"dtype":"I64","shape":[1],"data_offsets":[12,20]}
    }"#;
    let file = file(header, 25);
    let found = read_to_pack(&file).unwrap();
    assert_eq!(names(&found), ["scalar", "hole before", "empty", "", "café"]);
    assert!(found[0].shape.is_empty());
    assert_eq!(found[2].shape, [7, 0, 2]);
    assert!(found[2].bytes.is_empty());
    assert!(is_plausible(&file[..40], file.len() as u64));
    assert!(metadata(&file).unwrap().is_empty());
    let nothing = self::file("{}", 3);
    assert!(read_to_pack(&nothing).unwrap().is_empty());
    let twice = self::file(
        r#"{"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[1],"data_offsets":[2,3]},"a":{"dtype":"U8","shape":[1],"data_offsets":[3,4]},"a":{"dtype":"I8","shape":[4],"data_offsets":[1,5]}}"#,
        5,
    );
    let overlap = read_to_pack(&twice).unwrap_err().to_string();
    assert!(overlap.contains("`a` and `b` overlap"), "the last `a` counts: {overlap}");
    let twice = self::file(
        r#"{"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"a":{"dtype":"I8","shape":[2],"data_offsets":[2,4]}}"#,
        4,
    );
    let found = read_to_pack(&twice).unwrap();
    assert_eq!((names(&found), found[0].dtype), (vec!["a"], Dtype::I8));
}

#[test]
fn bytes_that_belong_to_no_tensor_are_refused() {
    let header = r#"{"a":{"dtype":"U8","shape":[3],"data_offsets":[0,3]},"b":{"dtype":"U8","shape":[1],"data_offsets":[3,4]}}"#;
    assert_eq!(names(&read(&file(header, 4)).unwrap()), ["a", "b"]);
    check_refused(header, 5, "1 bytes behind the last tensor belong to no tensor");
    check_refused(&header.replace("[0,3]", "[1,4]").replace("[3,4]", "[4,5]"), 5, "bytes before tensor `a`");
    check_refused(&header.replace("[3,4]", "[4,5]"), 5, "bytes before tensor `b`");
    check_refused("{}", 3, "3 bytes behind the last tensor");
}

#[test]
fn headers_that_lie_are_refused_with_the_reason() {
    let one = |dtype: &str, shape: &str, offsets: &str| {
        format!(r#"{{"a":{{"dtype":"{dtype}","shape":{shape},"data_offsets":{offsets}}}}}"#)
    };
    check_refused("[]", 0, "a JSON object of tensors");
    check_refused("{", 0, "EOF");
    check_refused("{} x", 0, "trailing characters");
    check_refused(r#"{"a":1}"#, 0, "tensor `a`: invalid type");
    check_refused(&one("F32", "[2]", "[0,4]"), 8, "shape takes 8 bytes");
    check_refused(&one("F32", "[2]", "[8,0]"), 8, "shape takes 8 bytes");
    check_refused(&one("F32", "[2]", "[0,8]"), 4, "behind the end");
    check_refused(&one("F33", "[2]", "[0,8]"), 8, "tensor `a`: unknown dtype `F33`");
    check_refused(&one("f32", "[2]", "[0,8]"), 8, "unknown dtype");
    check_refused(&one("BYTES", "[8]", "[0,8]"), 8, "unknown dtype");
    check_refused(&one("Q4_0", "[32]", "[0,18]"), 18, "unknown dtype");
    check_refused(&one("F64", "[4611686018427387904,8]", "[0,8]"), 8, "too large");
    check_refused(&one("F64", "[4611686018427387904,8,0]", "[0,0]"), 8, "too large");
    check_refused(&one("F4", "[3]", "[0,1]"), 8, "whole bytes");
    check_refused(&one("F32", "[-1]", "[0,8]"), 8, "integer `-1`");
    check_refused(&one("F32", "[2.0]", "[0,8]"), 8, "floating point");
    check_refused(&one("F32", "[2]", "[0,8,9]"), 8, "trailing characters");
    check_refused(&one("F32", "[2]", "[0]"), 8, "array of length 2");
    check_refused(&one("U8", &format!("[{}1]", "1,".repeat(64)), "[0,1]"), 1, "more than 64 dimensions");
    check_refused(&one("U8", "[1]", "[18446744073709551615,0]"), 1, "shape takes 1 bytes");
    check_refused(r#"{"a":{"dtype":"U8","shape":[1]}}"#, 1, "no `data_offsets`");
    check_refused(r#"{"__metadata__":{"a":1}}"#, 1, "`__metadata__`: invalid type");
    check_refused(r#"{"__metadata__":{"a":"1","a":"2"}}"#, 1, "`a` is there twice");
    check_refused(r#"{"__metadata__":{},"__metadata__":{}}"#, 1, "`__metadata__` is there twice");
    check_refused(
        r#"{"a":{"dtype":"U8","dtype":"I8","shape":[1],"data_offsets":[0,1]}}"#,
        1,
        "`dtype` is there twice",
    );
    let two = |name: &str, offsets: &str| {
        format!(
            r#"{{"a":{{"dtype":"U8","shape":[4],"data_offsets":[0,4]}},"{name}":{{"dtype":"U8","shape":[4],"data_offsets":{offsets}}}}}"#
        )
    };
    check_refused(&two("a", "[4,8]"), 8, "tensor `a` is there twice");
    check_refused(&two("b", "[3,7]"), 8, "tensors `a` and `b` overlap at offset");
    check_refused(&two("b", "[0,4]"), 8, "overlap");
    check_refused(&format!(r#"{{"a":{}"#, "[".repeat(100_000)), 0, "invalid type");
    let deep = format!(r#"{{"a":{{"x":{}"#, "[".repeat(100_000));
    check_refused(&deep, 0, "EOF while parsing a list");
}

#[test]
fn headers_longer_than_the_file_or_the_limit_are_refused() {
    let huge = u64::MAX.to_le_bytes().to_vec();
    assert!(read(&huge).unwrap_err().to_string().contains("above the limit"));
    let cut = vec![100, 0, 0, 0, 0, 0, 0, 0, b'{'];
    assert!(read(&cut).unwrap_err().to_string().contains("header at offset 0 is cut off"));
    assert!(tensors(&cut, 9).unwrap_err().to_string().contains("cut off"));
    assert!(read(&vec![1, 2, 3]).unwrap_err().to_string().contains("no room"));
    assert!(!is_plausible(&cut, 9));
    assert!(!is_plausible(b"{\"a\": 1}{", 9));
}

#[test]
fn many_tensors_are_read_in_linear_time() {
    let n = 200_000u64;
    let mut header = String::from("{");
    for i in (0..n).rev() {
        let comma = if i == 0 { "" } else { "," };
        let _ = write!(
            header,
            r#""layers.{i}.weight":{{"dtype":"U8","shape":[1],"data_offsets":[{i},{}]}}{comma}"#,
            i + 1
        );
    }
    header.push('}');
    let file = file(&header, 200_000);
    let found = read(&file).unwrap();
    assert_eq!(found.len() as u64, n);
    assert_eq!(found[777].name, "layers.777.weight");
}
