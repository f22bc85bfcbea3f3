//! Replays the committed fuzz corpus, so that what fuzzing found stays fixed.

use crate::fuzz_bodies::BODIES;
use std::path::PathBuf;

#[test]
fn the_committed_fuzz_corpus_keeps_every_promise() {
    let corpus = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus");
    for (target, body) in BODIES {
        let mut paths: Vec<PathBuf> =
            std::fs::read_dir(corpus.join(target)).unwrap().map(|entry| entry.unwrap().path()).collect();
        paths.sort();
        assert!(!paths.is_empty(), "no corpus of {target}");
        for path in paths {
            let input = std::fs::read(&path).unwrap();
            if std::panic::catch_unwind(|| body(&input)).is_err() {
                panic!("{target} fails on {}", path.display());
            }
        }
    }
}

#[test]
fn the_committed_fuzz_corpus_is_small() {
    let corpus = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus");
    let mut total = 0;
    for target in std::fs::read_dir(corpus).unwrap() {
        for file in std::fs::read_dir(target.unwrap().path()).unwrap() {
            total += file.unwrap().metadata().unwrap().len();
        }
    }
    assert!(total < 200_000, "{total} bytes");
}
