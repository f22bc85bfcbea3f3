//! Dictionaries through the library: training, records, packed files.

use crate::hex_blocks::hex_blocks;
use mithril::dictionary::{
    Dictionary, DictionaryError, PackedRecords, Progress, SampleSet, Samples, TrainOptions, choose_size,
    explain, pack, train, train_watched, update,
};

/// Records of one kind: the same for the same seed.
fn records(n: u64, seed: u64) -> SampleSet {
    let words = ["alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta"];
    let number = |place: u64, below: u64| {
        let mixed = (place + seed * 1_000_003).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        ((mixed ^ mixed >> 29).wrapping_mul(0xD6E8_FEB8_6659_FD93) >> 33) % below.max(1)
    };
    (0..n)
        .map(|idx| {
            let word = words[(number(3 * idx, 8) % 8) as usize];
            let (id, rest) = (number(3 * idx + 1, 100_000), number(3 * idx + 2, 90) % 90);
            format!("{{\"id\":{id},\"name\":\"{word}-{rest}\",\"state\":\"active\",\"tags\":[\"{word}\",\"common\"]}}\n")
        })
        .collect()
}

fn small() -> TrainOptions {
    TrainOptions::default().with_size(4096)
}

#[test]
fn trained_dictionaries_do_not_depend_on_threads() {
    let set = records(3000, 1);
    for search in [false, true] {
        let options = small().with_search(search);
        let one = train(&set.samples(), &options.clone().with_threads(1)).unwrap();
        for threads in [2, 3, 8] {
            let other = train(&set.samples(), &options.clone().with_threads(threads)).unwrap();
            assert_eq!(one.dictionary, other.dictionary, "{threads} threads");
        }
    }
}

#[test]
fn held_out_records_gain_and_come_back() {
    let trained = train(&records(2000, 1).samples(), &small()).unwrap();
    assert!(trained.dictionary.len() <= 4096);
    let dictionary = Dictionary::new(trained.dictionary, 3).unwrap();
    let others = records(300, 2);
    let evaluation = dictionary.evaluate(&others.samples(), 3, 0).unwrap();
    assert!(evaluation.coded_len * 2 < evaluation.plain_len, "{evaluation:?}");
    for threads in [1, 2] {
        let (frames, ends) = dictionary.compress_many(&others.samples(), threads).unwrap();
        assert_eq!(frames.len() as u64, evaluation.coded_len);
        let frames = Samples::new(&frames, &ends).unwrap();
        let (bytes, _) = dictionary.decompress_many(&frames, threads).unwrap();
        assert_eq!(bytes, others.samples().bytes());
    }
}

#[test]
fn every_size_k_and_d_gives_a_dictionary_that_fits_and_loads() {
    let records = records(60, 3);
    let plain = || records.samples().iter().map(<[u8]>::to_vec).collect::<Vec<_>>();
    let sets: [Vec<Vec<u8>>; 3] = [
        // Nothing, and one byte.
        [plain(), vec![vec![], vec![b'x']]].concat(),
        // Duplicates, and many of one byte.
        [plain(), plain(), plain(), vec![vec![b'y']; 50]].concat(),
        // All but one shorter than most k and d.
        (0..80)
            .map(|idx| format!("{idx:02}").repeat(1 + idx % 5).into_bytes())
            .chain(plain().pop())
            .collect(),
    ];
    for set in sets {
        let set: SampleSet = set.into_iter().collect();
        // The smallest has room for less than one segment, the largest for more than there are.
        for size in [256, 300, 1000, 100_000] {
            for (k, d) in [4, 5, 6, 8, 16, 64].into_iter().flat_map(|d| [d, 50, 2000].map(|k| (k.max(d), d)))
            {
                let options = TrainOptions::default().with_size(size).with_k(k).with_d(d).with_search(false);
                let trained = train(&set.samples(), &options).unwrap();
                assert!(trained.dictionary.len() <= size, "size {size}, k {k}, d {d}");
                let dictionary = Dictionary::new(trained.dictionary, 3).unwrap();
                let frame = dictionary.compress(b"{\"id\":1}").unwrap();
                assert_eq!(dictionary.decompress(&frame).unwrap(), b"{\"id\":1}");
            }
        }
    }
}

#[test]
fn training_that_cannot_work_says_why() {
    let refusal = |set: SampleSet| train(&set.samples(), &small()).unwrap_err();
    let few: SampleSet = ["one", "two", ""].into_iter().collect();
    assert!(matches!(refusal(few), DictionaryError::TooFewSamples { n_samples: 2, .. }));
    let tiny: SampleSet = (0..20).map(|idx| format!("{idx}")).collect();
    assert!(matches!(refusal(tiny), DictionaryError::TooSmall { total_len: 30, .. }));
    let alike: SampleSet = (0..100).map(|_| "the very same record again and again").collect();
    assert!(matches!(refusal(alike), DictionaryError::TooAlike { n_samples: 100, n_distinct: 1 }));
    let mut state = 1u64;
    let mut noise = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 56) as u8
    };
    let random: SampleSet = (0..200).map(|_| (0..200).map(|_| noise()).collect::<Vec<u8>>()).collect();
    assert!(matches!(refusal(random), DictionaryError::TooRandom { .. }));
    for error in [refusal(records(3, 1)), DictionaryError::TooAlike { n_samples: 9, n_distinct: 1 }] {
        assert!(error.hint().is_some());
    }
}

#[test]
fn runs_longer_than_every_sample_are_refused_by_name() {
    let short: SampleSet = (0..100).map(|idx| format!("record {idx:03}")).collect();
    let error = train(&short.samples(), &small().with_d(32).with_search(false)).unwrap_err();
    assert_eq!(error.to_string(), "d is 32, and the longest sample has 10 bytes: give a smaller d");
}

#[test]
fn options_out_of_range_are_refused() {
    let set = records(100, 1);
    let wrong = [
        small().with_size(255),
        small().with_size(usize::MAX),
        small().with_level(0),
        small().with_level(23),
        small().with_d(3),
        small().with_d(65),
        small().with_k(7).with_d(8),
        small().with_id(0),
    ];
    for options in wrong {
        let refused = train(&set.samples(), &options);
        assert!(matches!(refused, Err(DictionaryError::InvalidArgument { .. })), "{options:?}");
    }
}

#[test]
fn a_frame_of_another_dictionary_names_the_id_it_wants() {
    let make = |seed| {
        let trained = train(&records(500, seed).samples(), &small().with_search(false)).unwrap();
        Dictionary::new(trained.dictionary, 3).unwrap()
    };
    let (right, wrong) = (make(1), make(2));
    let wanted = right.id().unwrap();
    let frame = right.compress(b"{\"id\":5,\"name\":\"alpha-5\"}").unwrap();
    let expected = DictionaryError::WrongDictionary { wanted, actual: wrong.id() };
    assert_eq!(wrong.decompress(&frame), Err(expected.clone()));
    let ends = [frame.len()];
    let many = wrong.decompress_many(&Samples::new(&frame, &ends).unwrap(), 1);
    assert_eq!(many, Err(DictionaryError::Record { record_idx: 0, source: Box::new(expected) }));
}

#[test]
fn raw_content_works_without_an_id() {
    let options = small().with_raw_content(true).with_search(false);
    let trained = train(&records(500, 1).samples(), &options).unwrap();
    let dictionary = Dictionary::new(trained.dictionary, 3).unwrap();
    assert_eq!((dictionary.id(), dictionary.header().header_len), (None, 0));
    let frame = dictionary.compress(b"{\"id\":5,\"name\":\"alpha-5\"}").unwrap();
    assert_eq!(dictionary.decompress(&frame).unwrap(), b"{\"id\":5,\"name\":\"alpha-5\"}");
}

#[test]
fn an_update_fits_newer_records_better_and_keeps_the_size() {
    let old = train(&records(1000, 1).samples(), &small().with_search(false)).unwrap().dictionary;
    let newer = |seed: u64| -> SampleSet {
        (0..800u64)
            .map(|idx| format!("<event kind=\"new\" seed=\"{seed}\" at=\"{}\"/>", idx * 7919 % 5000))
            .collect()
    };
    let new = update(&old, &newer(1).samples(), &small()).unwrap();
    assert!(new.len() <= 4096);
    let len = |bytes: &[u8]| {
        let dictionary = Dictionary::new(bytes, 3).unwrap();
        dictionary.evaluate(&newer(1).samples(), 3, 1).unwrap().coded_len
    };
    assert!(len(&new) * 10 < len(&old) * 9, "{} against {}", len(&new), len(&old));
}

#[test]
fn automatic_size_grows_with_what_records_gain_from_it() {
    let words = ["alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta"];
    // Eight different records: what fits into the smallest dictionary is all there is.
    let few: SampleSet = (0..800)
        .map(|idx| format!("{{\"kind\":\"{}\",\"state\":\"active\",\"tags\":[]}}", words[idx % 8]))
        .collect();
    let (size, curve) = choose_size(&few.samples(), &TrainOptions::default()).unwrap();
    assert_eq!((size, curve.len()), (4096, 7), "{curve:?}");
    let (size, curve) = choose_size(&records(2000, 1).samples(), &TrainOptions::default()).unwrap();
    assert!(size > 4096, "{curve:?}");
}

#[test]
fn explanations_cover_the_content_and_name_samples_that_hold_it() {
    let set = records(1000, 1);
    let trained = train(&set.samples(), &small().with_search(false)).unwrap();
    let dictionary = Dictionary::new(trained.dictionary, 3).unwrap();
    let explanation = explain(&dictionary, &set.samples(), 3).unwrap();
    let mut at = 0;
    for segment in &explanation.segments {
        assert_eq!(segment.start, at);
        at += segment.len;
        if let Some(sample_idx) = segment.sample_idx {
            let part = &dictionary.content()[segment.start..at];
            assert!(set.samples().get(sample_idx).windows(part.len()).any(|run| run == part));
        }
    }
    assert_eq!(at, dictionary.content().len());
    assert!(explanation.saved_bits > 0);
}

#[test]
fn packed_records_are_found_by_number_and_damage_is_refused() {
    let dictionary = Dictionary::new(&b"{\"id\":,\"name\":\"alpha-\",\"state\":\"active\"}"[..], 3).unwrap();
    let set = records(40, 1);
    let (frames, ends) = dictionary.compress_many(&set.samples(), 1).unwrap();
    let packed = pack(&Samples::new(&frames, &ends).unwrap(), &dictionary).unwrap();
    let parsed = PackedRecords::parse(&packed).unwrap();
    assert_eq!(parsed.n_records(), 40);
    parsed.check_dictionary(&dictionary).unwrap();
    for record_idx in 0..40 {
        let record = dictionary.decompress(parsed.frame(record_idx).unwrap().unwrap()).unwrap();
        assert_eq!(record, set.samples().get(record_idx));
    }
    assert_eq!(parsed.frame(40), Ok(None));
    for len in 0..packed.len() {
        assert!(PackedRecords::parse(&packed[..len]).is_err(), "cut to {len}");
    }
    // Every bit is guarded: those of the index when the file is opened, those of frames when they are read.
    for bit in 0..packed.len() * 8 {
        let mut damaged = packed.clone();
        damaged[bit / 8] ^= 1 << (bit % 8);
        match PackedRecords::parse(&damaged) {
            Err(_) => assert!(bit >= frames.len() * 8),
            Ok(parsed) => {
                let damaged_idx = ends.partition_point(|&end| end <= bit / 8);
                let refused = parsed.frames().unwrap_err();
                assert!(
                    matches!(refused, DictionaryError::Record { record_idx, .. } if record_idx == damaged_idx)
                );
            }
        }
    }
}

#[test]
fn packed_records_refuse_another_dictionary_of_the_same_id() {
    let train_on = |seed| {
        let options = small().with_search(false).with_id(40_000);
        Dictionary::new(train(&records(500, seed).samples(), &options).unwrap().dictionary, 3).unwrap()
    };
    let (right, wrong) = (train_on(1), train_on(2));
    let (frames, ends) = right.compress_many(&records(10, 3).samples(), 1).unwrap();
    let packed = pack(&Samples::new(&frames, &ends).unwrap(), &right).unwrap();
    let packed = PackedRecords::parse(&packed).unwrap();
    packed.check_dictionary(&right).unwrap();
    let refused = mithril::Error::from(packed.check_dictionary(&wrong).unwrap_err());
    assert_eq!(refused.kind(), mithril::ErrorKind::Base);
    assert!(refused.to_string().contains("another dictionary: it has id 40000"), "{refused}");
}

#[test]
fn golden_packed_records_come_back() {
    let golden = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../golden/records");
    let read = |name: &str| std::fs::read(golden.join(name)).unwrap();
    let dictionary = Dictionary::new(read("v0_1_0_events.dict"), 3).unwrap();
    let packed = read("v0_1_0_events.mrec");
    let packed = PackedRecords::parse(&packed).unwrap();
    packed.check_dictionary(&dictionary).unwrap();
    let (records, ends) = dictionary.decompress_many(&packed.frames().unwrap(), 1).unwrap();
    assert_eq!(records, read("events.jsonl"));
    assert_eq!(ends.len(), 100);
}

#[test]
fn progress_rises_to_its_end() {
    let set = records(1000, 1);
    for search in [false, true] {
        let steps = std::sync::Mutex::new(Vec::new());
        let watch = |progress: Progress| steps.lock().unwrap().push((progress.n_done, progress.n_steps));
        let options = small().with_search(search).with_threads(1);
        let trained = train_watched(&set.samples(), &options, &watch).unwrap();
        assert_eq!(trained.dictionary, train(&set.samples(), &options).unwrap().dictionary);
        let steps = steps.into_inner().unwrap();
        assert!(steps.is_sorted() && steps.len() > 1, "{steps:?}");
        assert_eq!(steps.last().map(|(n_done, n_steps)| n_steps - n_done), Some(0), "{steps:?}");
    }
}

#[test]
fn a_bounded_set_keeps_an_even_selection() {
    let mut set = SampleSet::with_max_len(10_000);
    for idx in 0..5000u32 {
        set.push(format!("{idx:010}").as_bytes());
    }
    let kept: Vec<u32> =
        set.samples().iter().map(|sample| std::str::from_utf8(sample).unwrap().parse().unwrap()).collect();
    assert!(set.samples().total_len() <= 10_000 && kept.len() > 300, "{}", kept.len());
    assert_eq!((set.n_seen(), set.seen_len()), (5000, 50_000));
    let early = kept.iter().filter(|&&idx| idx < 2500).count();
    assert!((kept.len() / 3..kept.len() * 2 / 3).contains(&early), "{early} of {}", kept.len());
}

#[test]
fn examples_of_the_records_specification_decode_to_their_outputs() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/format/records.md");
    let markdown = std::fs::read_to_string(path).unwrap();
    let (files, outputs) = (hex_blocks(&markdown, "name="), hex_blocks(&markdown, "output="));
    assert!(!files.is_empty() && files.keys().eq(outputs.keys()), "every example has an output");
    let none = Dictionary::new(Vec::new(), 3).unwrap();
    for (name, file) in files {
        let packed = PackedRecords::parse(&file).unwrap();
        packed.check_dictionary(&none).unwrap();
        let (records, _) = none.decompress_many(&packed.frames().unwrap(), 1).unwrap();
        assert_eq!(records, outputs[&name], "example {name}");
    }
}
