use super::*;

fn text(text: &str) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat()
}

fn tensor(name: &str, dimensions: &[u64], kind: u32, offset: u64) -> Vec<u8> {
    let mut bytes = text(name);
    bytes.extend(u32::try_from(dimensions.len()).unwrap().to_le_bytes());
    bytes.extend(dimensions.iter().flat_map(|d| d.to_le_bytes()));
    bytes.extend(kind.to_le_bytes());
    bytes.extend(offset.to_le_bytes());
    bytes
}

fn file(version: u32, metadata: &[Vec<u8>], tensors: &[Vec<u8>], data_len: usize) -> Vec<u8> {
    let mut bytes = [MAGIC, &version.to_le_bytes()].concat();
    bytes.extend((tensors.len() as u64).to_le_bytes());
    bytes.extend((metadata.len() as u64).to_le_bytes());
    bytes.extend(metadata.concat());
    bytes.extend(tensors.concat());
    let start = bytes.len().next_multiple_of(32);
    bytes.resize(start + data_len, 5);
    bytes
}

fn value(key: &str, kind: u32, content: &[u8]) -> Vec<u8> {
    [&text(key)[..], &kind.to_le_bytes(), content].concat()
}

fn array(kind: u32, n: u64, content: &[u8]) -> Vec<u8> {
    [&kind.to_le_bytes()[..], &n.to_le_bytes(), content].concat()
}

fn check_refused(file: &[u8], reason: &str) {
    let error = read(&file).unwrap_err().to_string();
    assert!(error.contains(reason), "{error}");
}

fn sample() -> Vec<u8> {
    let metadata = [
        value("general.name", 8, &text("tiny")),
        value("tokens", 9, &array(8, 2, &[text("a"), text("")].concat())),
        value("scores", 9, &array(6, 3, &[0; 12])),
        value("nested", 9, &array(9, 1, &array(1, 2, &[1, 0xff]))),
        value("nan", 12, &f64::NAN.to_le_bytes()),
        value("flag", 7, &[1]),
    ];
    let tensors = [tensor("q", &[64, 3], 3, 32), tensor("norm", &[4], 0, 0), tensor("scalar", &[], 30, 160)];
    file(3, &metadata, &tensors, 162)
}

#[test]
fn tensors_and_metadata_are_read() {
    let file = sample();
    let tensors = read(&file).unwrap();
    let names: Vec<_> = tensors.iter().map(|t| (t.name.as_str(), t.dtype, t.shape.as_slice())).collect();
    let expected =
        [("norm", Dtype::F32, &[4][..]), ("q", Dtype::Q4_1, &[3, 64]), ("scalar", Dtype::Bf16, &[])];
    assert_eq!(names, expected);
    assert_eq!(tensors[1].bytes.end - tensors[1].bytes.start, 120);
    assert_eq!(tensors[2].bytes.end, file.len() as u64);
    let metadata = metadata(&file).unwrap();
    let json = serde_json::json!({
        "general.name": "tiny", "tokens": ["a", ""], "scores": [0.0, 0.0, 0.0],
        "nested": [[1, -1]], "nan": null, "flag": true,
    });
    assert_eq!(Value::Object(metadata), json);
}

#[test]
fn the_alignment_is_followed() {
    let aligned = value("general.alignment", 4, &8u32.to_le_bytes());
    let mut file = file(2, &[aligned], &[tensor("a", &[8], 24, 8)], 0);
    let header_len = file.len();
    file.resize(header_len + 16, 0);
    let found = read(&file).unwrap();
    assert!(found[0].bytes.start.is_multiple_of(8) && found[0].bytes.start >= 8);
    for bad in [0u32, 24] {
        let metadata = [value("general.alignment", 4, &bad.to_le_bytes())];
        check_refused(&self::file(3, &metadata, &[], 0), "no power of two");
    }
    check_refused(&self::file(3, &[value("general.alignment", 8, &text("x"))], &[], 0), "no power of two");
}

#[test]
fn files_that_are_cut_off_are_refused_at_every_length() {
    let file = sample();
    for len in 0..file.len() {
        assert!(read(&&file[..len]).is_err(), "{len}");
    }
}

#[test]
fn tables_that_lie_are_refused_with_the_reason() {
    let one = |tensor: Vec<u8>| file(3, &[], &[tensor], 64);
    check_refused(b"GGML\x03\0\0\0", "does not start with `GGUF`");
    check_refused(&file(1, &[], &[], 0), "version 1 is not supported");
    check_refused(&file(3u32.swap_bytes(), &[], &[], 0), "big-endian");
    check_refused(&file(4, &[], &[], 0), "unknown version 4");
    check_refused(&one(tensor("a", &[33], 2, 0)), "no whole blocks of Q4_0");
    check_refused(&one(tensor("a", &[32], 4, 0)), "tensor type 4 before offset");
    check_refused(&one(tensor("a", &[32], 24, 1)), "not aligned to 32");
    check_refused(&one(tensor("a", &[65], 24, 0)), "behind the end");
    check_refused(&one(tensor("a", &[1 << 40, 1 << 40], 0, 0)), "impossible shape");
    check_refused(&one(tensor("a", &[1], 24, u64::MAX - 31)), "behind the end");
    check_refused(&one(tensor("a", &[1; 5], 24, 0)), "5 dimensions");
    check_refused(&one(tensor(&"a".repeat(5000), &[1], 24, 0)), "above the limit");
    let two =
        |name: &str, offset| file(3, &[], &[tensor("a", &[64], 24, 0), tensor(name, &[32], 24, offset)], 128);
    check_refused(&two("b", 32), "tensors `a` and `b` overlap");
    check_refused(&two("a", 64), "`a` is there twice");
    check_refused(&file(3, &[value("k", 13, &[])], &[], 0), "metadata type 13");
    check_refused(&file(3, &[value("k", 9, &array(12, u64::MAX, &[]))], &[], 0), "cut off");
    check_refused(&file(3, &[value("k", 9, &array(8, u64::MAX, &[]))], &[], 0), "cut off");
    check_refused(&file(3, &[value("k", 8, &u64::MAX.to_le_bytes())], &[], 0), "cut off");
    let deep: Vec<u8> = (0..20).flat_map(|_| array(9, 1, &[])).collect();
    check_refused(&file(3, &[value("k", 9, &deep)], &[], 0), "nested more than");
    let mut many = file(3, &[], &[], 0);
    many[8..16].copy_from_slice(&u64::MAX.to_le_bytes());
    check_refused(&many, "cut off");
    let twice = file(3, &[value("k", 7, &[0]), value("k", 7, &[1])], &[], 0);
    assert!(metadata(&twice).unwrap_err().to_string().contains("there twice"));
}
