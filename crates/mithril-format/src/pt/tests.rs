use super::*;
use crate::zip::tests::archive;

/// A pickle, written opcode by opcode.
#[derive(Default)]
struct Pickle(Vec<u8>);

impl Pickle {
    fn new() -> Self {
        Self(vec![0x80, 2])
    }

    fn op(mut self, bytes: &[u8]) -> Self {
        self.0.extend(bytes);
        self
    }

    fn text(self, text: &str) -> Self {
        let len = u32::try_from(text.len()).unwrap().to_le_bytes();
        self.op(b"X").op(&len).op(text.as_bytes())
    }

    fn int(self, value: i32) -> Self {
        self.op(b"J").op(&value.to_le_bytes())
    }

    fn global(self, module: &str, name: &str) -> Self {
        self.op(format!("c{module}\n{name}\n").as_bytes())
    }

    fn ints(self, values: &[i32]) -> Self {
        values.iter().fold(self.op(b"("), |pickle, &value| pickle.int(value)).op(b"t")
    }

    fn storage(self, kind: &str, key: &str, n: i32) -> Self {
        self.op(b"(").text("storage").global("torch", kind).text(key).text("cpu").int(n).op(b"tQ")
    }

    /// A call of `_rebuild_tensor_v2`.
    fn tensor(self, kind: &str, key: &str, n: i32, offset: i32, (size, stride): (&[i32], &[i32])) -> Self {
        self.global("torch._utils", "_rebuild_tensor_v2")
            .op(b"(")
            .storage(kind, key, n)
            .int(offset)
            .ints(size)
            .ints(stride)
            .op(b"\x89")
            .global("collections", "OrderedDict")
            .op(b")RtR")
    }

    fn end(self) -> Vec<u8> {
        self.op(b".").0
    }
}

fn check_refused(pickle: &[u8], reason: &str) {
    let file = archive(&[("m/data.pkl", pickle), ("m/data/0", &[1; 24]), ("m/data/1", &[2; 8])]);
    let error = read(&file).unwrap_err().to_string();
    assert!(error.contains(reason), "{error}");
}

#[test]
fn tensors_are_named_by_their_keys() {
    let pickle = Pickle::new()
        .op(b"}(")
        .text("model")
        .op(b"}(")
        .text("a.weight")
        .tensor("FloatStorage", "0", 6, 0, (&[2, 3], &[3, 1]))
        .text("list")
        .op(b"](")
        .op(b"N")
        .tensor("FloatStorage", "0", 6, 3, (&[3], &[1]))
        .tensor("FloatStorage", "0", 6, 0, (&[3, 2], &[1, 3]))
        .op(b"e")
        .op(b"u")
        .int(7)
        .tensor("BFloat16Storage", "1", 4, 1, (&[3], &[1]))
        .op(b"u")
        .end();
    let file = archive(&[
        ("m/data.pkl", &pickle),
        ("m/byteorder", b"little"),
        ("m/data/0", &[1; 24]),
        ("m/data/1", &[2; 8]),
    ]);
    let checkpoint = read(&file).unwrap();
    let views: Vec<_> = checkpoint
        .tensors
        .iter()
        .map(|t| (t.name.as_str(), t.dtype, t.shape.as_slice(), t.bytes.as_ref().map(|b| b.end - b.start)))
        .collect();
    let expected = [
        ("model.a.weight", Dtype::F32, &[2, 3][..], Some(24)),
        ("model.list.1", Dtype::F32, &[3], Some(12)),
        ("model.list.2", Dtype::F32, &[3, 2], None),
        ("7", Dtype::Bf16, &[3], Some(6)),
    ];
    assert_eq!(views, expected);
    // The first storage is filled by a tensor, the second is not.
    let storages: Vec<_> =
        checkpoint.storages.iter().map(|t| (t.name.as_str(), t.dtype, t.shape.as_slice())).collect();
    assert_eq!(storages, [("model.a.weight", Dtype::F32, &[2, 3][..]), ("data/1", Dtype::Bf16, &[4])]);
    assert_eq!(file.slice(checkpoint.storages[1].bytes.clone()), Some(&[2; 8][..]));
}

#[test]
fn big_endian_numbers_are_bytes() {
    let pickle = Pickle::new().tensor("FloatStorage", "0", 6, 0, (&[6], &[1])).end();
    let file = archive(&[("m/data.pkl", &pickle), ("m/byteorder", b"big"), ("m/data/0", &[1; 24])]);
    let storages = read(&file).unwrap().storages;
    assert_eq!((storages[0].dtype, storages[0].shape.as_slice()), (Dtype::Bytes, &[6, 4][..]));
    let file = archive(&[("m/data.pkl", &pickle), ("m/byteorder", b"middle"), ("m/data/0", &[1; 24])]);
    assert!(read(&file).unwrap_err().to_string().contains("neither `little` nor `big`"));
}

#[test]
fn a_storage_without_a_type_holds_what_its_tensors_do() {
    let file = |storage_len: i32, data: &[u8]| {
        let pickle = Pickle::new()
            .global("torch._utils", "_rebuild_tensor_v3")
            .op(b"((")
            .text("storage")
            .global("torch.storage", "UntypedStorage")
            .text("0")
            .text("cpu")
            .int(storage_len)
            .op(b"tQ")
            .int(1)
            .ints(&[2])
            .ints(&[1])
            .op(b"\x89}")
            .global("torch", "uint16")
            .op(b"tR");
        archive(&[("m/data.pkl", &pickle.end()), ("m/data/0", data)])
    };
    let storage = |file: &Vec<u8>| {
        let storage = read(file).unwrap().storages.remove(0);
        (storage.name, storage.dtype, storage.shape)
    };
    assert_eq!(storage(&file(8, &[1; 8])), ("data/0".to_owned(), Dtype::U16, vec![4]));
    assert_eq!(storage(&file(7, &[1; 7])), ("data/0".to_owned(), Dtype::Bytes, vec![7]));
}

#[test]
fn layers_are_what_they_were_made_of() {
    // A layer with a tensor in its state, one made of a tensor, and one that is a list.
    let pickle = Pickle::new()
        .op(b"}(")
        .text("model")
        .global("__torch__.nets", "Net")
        .op(b")\x81}")
        .text("weight")
        .tensor("FloatStorage", "0", 6, 0, (&[2, 3], &[3, 1]))
        .op(b"sb")
        .text("made")
        .text("torch.nn.modules.linear")
        .text("Linear")
        .op(b"\x93")
        .tensor("BFloat16Storage", "1", 4, 0, (&[4], &[1]))
        .op(b"\x85R")
        .text("list")
        .global("__torch__", "List")
        .op(b")\x81")
        .tensor("BFloat16Storage", "1", 4, 0, (&[2], &[1]))
        .op(b"a")
        .op(b"u")
        .end();
    let file = archive(&[("m/data.pkl", &pickle), ("m/data/0", &[1; 24]), ("m/data/1", &[2; 8])]);
    let checkpoint = read(&file).unwrap();
    let names: Vec<_> = checkpoint.tensors.iter().map(|tensor| tensor.name.as_str()).collect();
    assert_eq!(names, ["model.weight", "made.0", "list"]);
    let storages: Vec<_> = checkpoint.storages.iter().map(|storage| storage.name.as_str()).collect();
    assert_eq!(storages, ["model.weight", "made.0"]);
}

#[test]
fn globals_that_could_run_code_are_refused_by_name_and_place() {
    for (module, name) in
        [("os", "system"), ("builtins", "eval"), ("posix", "system"), ("torch", "load"), ("nets", "Net")]
    {
        let pickle = Pickle::new().global(module, name).text("echo").op(b"\x85R").end();
        check_refused(&pickle, &format!("global `{module}.{name}` is refused"));
        check_refused(&pickle, "pickle at offset 45");
        let by_stack = Pickle::new().text(module).text(name).op(b"\x93").end();
        check_refused(&by_stack, &format!("global `{module}.{name}` is refused"));
    }
    check_refused(&Pickle::new().op(b"(").global("os", "system").op(b"o").end(), "os.system");
    check_refused(b"\x80\x02(ios\nsystem\n.", "opcode 0x69 is refused");
    check_refused(b"\x80\x02P0\n.", "opcode 0x50 is refused");
    check_refused(b"\x80\x02\x82\x01.", "opcode 0x82 is refused");
    check_refused(&Pickle::new().text("x").op(b")R").end(), "call of something that is no function");
    let inner = Pickle::new()
        .global("torch._tensor", "_rebuild_from_type_v2")
        .op(b"(")
        .global("torch._tensor", "_rebuild_from_type_v2")
        .global("torch", "Tensor")
        .op(b")}tR");
    check_refused(&inner.end(), "arguments that do not fit");
}

#[test]
fn files_without_an_archive_are_read() {
    let objects = Pickle::new()
        .op(b"}")
        .text("w")
        .global("torch._utils", "_rebuild_tensor_v2")
        .op(b"((")
        .text("storage")
        .global("torch", "FloatStorage")
        .text("94")
        .text("cpu")
        .int(6)
        .op(b"NtQ")
        .int(0)
        .ints(&[2, 3])
        .ints(&[3, 1])
        .op(b"\x89}tRs")
        .end();
    let file = |keys: &str, n: u64, data: &[u8]| {
        let keys = Pickle::new().op(b"](").text(keys).op(b"e").end();
        let version = Pickle::new().int(1001).end();
        let machine = Pickle::new().op(b"}").end();
        [LEGACY_MAGIC, &version, &machine, &objects, &keys, &n.to_le_bytes(), data].concat()
    };
    let whole = file("94", 6, &[3; 24]);
    let checkpoint = read(&whole).unwrap();
    let storage = &checkpoint.storages[0];
    assert_eq!(
        (storage.name.as_str(), storage.dtype, storage.shape.as_slice()),
        ("w", Dtype::F32, &[2, 3][..])
    );
    assert_eq!(storage.bytes, whole.len() as u64 - 24..whole.len() as u64);
    let reason = |file: Vec<u8>| read(&file).unwrap_err().to_string();
    assert!(reason(file("94", 7, &[3; 28])).contains("has 7 elements"));
    assert!(reason(file("95", 6, &[3; 24])).contains("`95` is not in its pickle"));
    for len in LEGACY_MAGIC.len()..whole.len() {
        assert!(read(&whole[..len].to_vec()).is_err(), "{len}");
    }
}

#[test]
fn tensors_outside_of_their_storage_are_refused() {
    let tensor = |n, offset, size: &[i32], stride: &[i32]| {
        Pickle::new().tensor("FloatStorage", "0", n, offset, (size, stride)).end()
    };
    check_refused(&tensor(6, 1, &[6], &[1]), "does not lie in its storage");
    check_refused(&tensor(6, 0, &[2, 3], &[i32::MAX, i32::MAX]), "does not lie in its storage");
    check_refused(&tensor(6, 7, &[0], &[1]), "does not lie in its storage");
    check_refused(&tensor(6, -1, &[1], &[1]), "negative offset");
    check_refused(&tensor(6, 0, &[-6], &[1]), "something else than numbers");
    check_refused(&tensor(6, 0, &[6], &[]), "strides that do not fit");
    check_refused(&tensor(5, 0, &[5], &[1]), "has 24 bytes, its pickle says 20");
    check_refused(&tensor(-1, 0, &[1], &[1]), "names no storage");
    check_refused(&tensor(6, 0, &[1; 65], &[1; 65]), "too many dimensions");
    let huge = Pickle::new().tensor("DoubleStorage", "9", 1, 0, (&[1], &[1])).end();
    check_refused(&huge, "storage `data/9` is not in the archive");
    let two_types = Pickle::new()
        .op(b"(")
        .tensor("FloatStorage", "0", 6, 0, (&[6], &[1]))
        .tensor("IntStorage", "0", 6, 0, (&[6], &[1]))
        .op(b"t");
    check_refused(&two_types.end(), "storage `0` with two types");
}

#[test]
fn damaged_pickles_are_refused() {
    check_refused(b"", "cut off");
    check_refused(b"\x80\x02", "cut off");
    check_refused(b"\x80\x02.", "value that is not there");
    check_refused(b"\x80\x02(0.", "value that is not there");
    check_refused(b"\x80\x02t.", "mark that is not there");
    check_refused(b"\x80\x02h\x00.", "memo that was never put");
    check_refused(b"\x80\x02}(Nu.", "key without a value");
    check_refused(b"\x80\x02K\x01(NNu.", "items for something that takes none");
    check_refused(b"\x80\x02K\x01Q.", "storage without a name");
    check_refused(b"\x80\x02)Q.", "names no storage");
    check_refused(b"\x80\x02\x8b\xff\xff\xff\x7f", "cut off");
    check_refused(b"\x80\x02X\xff\xff\xff\xff", "cut off");
    check_refused(b"\x80\x02\x8e\xff\xff\xff\xff\xff\xff\xff\xff", "cut off");
    check_refused(b"\x80\x02K\x01}b.", "state for something that has none");
    let long_global = Pickle::new().global(&"m".repeat(1000), "x").end();
    check_refused(&long_global, "too long");
}

#[test]
fn pickles_that_share_without_end_take_bounded_time_and_memory() {
    // Each list holds the one before it twice: followed naively, 2^50 lists.
    let mut laughs = Pickle::new().op(b"]q\x00");
    for i in 0..50u8 {
        laughs = laughs.op(&[b']', b'q', i + 1, b'(', b'h', i, b'h', i, b'e']);
    }
    let file = archive(&[("m/data.pkl", &laughs.op(b".").0)]);
    assert!(read(&file).unwrap().tensors.is_empty());
    let cycle = archive(&[("m/data.pkl", b"\x80\x02]q\x00h\x00a.")]);
    assert!(read(&cycle).unwrap().tensors.is_empty());
    let deep: Vec<u8> = [&b"\x80\x02"[..], &[b']'; 300], &[b'a'; 299], b"."].concat();
    check_refused(&deep, "nested more than 100 deep");
    // A million numbers of the memo, and a long key above many tensors.
    let mut wide =
        Pickle::new().tensor("FloatStorage", "0", 6, 0, (&[6], &[1])).op(b"q\x01}").text(&"k".repeat(60_000));
    wide = wide.op(b"](");
    for _ in 0..2000 {
        wide = wide.op(b"h\x01");
    }
    check_refused(&wide.op(b"es").end(), "names of tensors take more than");
}

#[test]
fn archives_without_a_readable_pickle_are_refused() {
    let none = archive(&[("m/other", b"")]);
    assert!(read(&none).unwrap_err().to_string().contains("no `data.pkl`"));
    let mut cut = archive(&[("m/data.pkl", &Pickle::new().op(b"N").end())]);
    assert!(read(&cut).unwrap().storages.is_empty());
    cut.pop();
    assert!(read(&cut).is_err());
}

#[test]
fn equal_paths_get_different_names() {
    let mut taken = HashMap::new();
    let names: Vec<_> =
        ["a", "a", "a#2", "a", "b"].into_iter().map(|name| unique(name.to_owned(), &mut taken)).collect();
    assert_eq!(names, ["a", "a#2", "a#2#2", "a#3", "b"]);
}
