use super::*;
use crate::ReadAt;

/// An archive of stored entries, as plain as the format allows.
pub(crate) fn archive(files: &[(&str, &[u8])]) -> Vec<u8> {
    let mut zip = Zip::default();
    for (name, content) in files {
        zip.add(name, content, 0);
    }
    zip.finish(b"")
}

#[derive(Default)]
struct Zip {
    bytes: Vec<u8>,
    directory: Vec<u8>,
    n_entries: u16,
}

impl Zip {
    fn add(&mut self, name: &str, content: &[u8], method: u16) {
        let offset = u32::try_from(self.bytes.len()).unwrap();
        let len = u32::try_from(content.len()).unwrap().to_le_bytes();
        let name_len = u16::try_from(name.len()).unwrap().to_le_bytes();
        let method = method.to_le_bytes();
        self.bytes.extend([MAGIC, &[20, 0, 0, 0], &method, &[0; 8], &len, &len, &name_len, &[3, 0]].concat());
        self.bytes.extend([name.as_bytes(), &[9; 3], content].concat());
        self.directory.extend([b"PK\x01\x02", &[20, 0, 20, 0, 0, 0][..], &method, &[0; 8]].concat());
        self.directory.extend([&len[..], &len, &name_len, &[0; 12], &offset.to_le_bytes()].concat());
        self.directory.extend(name.as_bytes());
        self.n_entries += 1;
    }

    fn finish(self, comment: &[u8]) -> Vec<u8> {
        let mut bytes = self.bytes;
        let (start, len) = (u32::try_from(bytes.len()), u32::try_from(self.directory.len()));
        let n = self.n_entries.to_le_bytes();
        bytes.extend(&self.directory);
        bytes.extend([b"PK\x05\x06\0\0\0\0", &n[..], &n].concat());
        bytes.extend([len.unwrap().to_le_bytes(), start.unwrap().to_le_bytes()].concat());
        bytes.extend(u16::try_from(comment.len()).unwrap().to_le_bytes());
        bytes.extend(comment);
        bytes
    }
}

fn read(bytes: &[u8]) -> Result<Vec<Entry>, String> {
    let reader = CheckedReader::new(&bytes, "zip").map_err(|error| error.to_string())?;
    entries(&reader).map_err(|error| error.to_string())
}

fn check_refused(bytes: &[u8], reason: &str) {
    let error = read(bytes).unwrap_err();
    assert!(error.contains(reason), "{error}");
}

/// The position of the `n`-th occurrence of a signature.
fn find(bytes: &[u8], signature: &[u8], n: usize) -> usize {
    bytes.windows(4).enumerate().filter(|(_, window)| *window == signature).nth(n).unwrap().0
}

#[test]
fn entries_are_found_with_their_bytes() {
    let mut zip = Zip::default();
    zip.add("a.npy", b"hello", 0);
    zip.add("empty", b"", 0);
    zip.add("deflated", b"\x03\0", 8);
    let bytes = zip.finish(b"a comment that holds PK\x05\x06 and more than twenty-two bytes");
    let found = read(&bytes).unwrap();
    let names: Vec<_> = found.iter().map(|entry| (entry.name.as_str(), entry.is_stored)).collect();
    assert_eq!(names, [("a.npy", true), ("empty", true), ("deflated", false)]);
    assert_eq!(bytes.slice(found[0].bytes.clone()), Some(&b"hello"[..]));
    assert_eq!(first_name(&bytes), Some(&b"a.npy"[..]));
    assert_eq!(first_name(&bytes[..32]), None);
}

#[test]
fn archives_that_are_cut_off_are_refused_at_every_length() {
    let bytes = archive(&[("a", b"hello"), ("b", b"world")]);
    for len in 0..bytes.len() {
        assert!(read(&bytes[..len]).is_err(), "{len}");
    }
}

#[test]
fn directories_that_lie_are_refused_with_the_reason() {
    let good = archive(&[("a", b"hello"), ("b", b"world")]);
    let changed = |at: usize, value: u8| {
        let mut bytes = good.clone();
        bytes[at] = value;
        bytes
    };
    let (central, end) = (find(&good, b"PK\x01\x02", 0), find(&good, b"PK\x05\x06", 0));
    let second = find(&good, b"PK\x01\x02", 1);
    check_refused(&changed(central + 20, 6), "stored, with two different lengths");
    check_refused(&changed(central + 10, 8), "is not what the directory says");
    check_refused(&changed(second + 42, 0), "overlaps the one before it");
    check_refused(&changed(second + 43, 9), "lies behind the directory");
    check_refused(&changed(second + 28, 200), "name is cut off");
    check_refused(&changed(second + 34, 1), "another disk");
    check_refused(&changed(end + 10, 3), "several disks");
    check_refused(&changed(end + 12, 1), "its end record stands at");
    check_refused(&changed(end + 16, 1), "its end record stands at");
    check_refused(&changed(0, b'Q'), "is not what the directory says");
    let mut both_counts = changed(end + 10, 7);
    both_counts[end + 8] = 7;
    check_refused(&both_counts, "has 2 entries and says 7");
    let mut long = changed(second + 20, 200);
    long[second + 24] = 200;
    check_refused(&long, "reaches into the directory");
    check_refused(&[&b"prefix"[..], &good].concat(), "its end record stands at");
    check_refused(&[&good[..], b"trailing"].concat(), "cut off, or bytes follow");
    check_refused(&archive(&[("a", b"hello"), ("a", b"world")]), "`a` is there twice");
    let mut no_64 = good.clone();
    no_64[end + 16..end + 20].fill(0xff);
    check_refused(&no_64, "no zip64 directory");
}
