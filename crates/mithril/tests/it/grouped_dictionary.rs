//! Dictionaries of two levels through the library.

use mithril::ErrorKind;
use mithril::dictionary::{
    Dictionary, GroupedDictionary, GroupedOptions, PackedRecords, RecordCodec, SampleSet, Samples,
    TrainOptions, find_groups, pack, train, train_grouped,
};

/// Records of three kinds that share little with each other, by kind and number.
fn record(kind: usize, idx: u64) -> String {
    let number = |place: u64| {
        let mixed = (3 * idx + place).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        (mixed ^ mixed >> 29).wrapping_mul(0xD6E8_FEB8_6659_FD93) >> 40
    };
    let (a, b) = (number(1), number(2) % 500);
    match kind {
        0 => {
            format!("{{\"order\":{a},\"currency\":\"EUR\",\"lines\":[{{\"sku\":\"A-{b}\",\"quantity\":1}}]}}")
        }
        1 => format!(
            "Nov 17 06:{:02}:{:02} host{b} kernel: [{a}] eth0: link is up, full duplex",
            a % 60,
            b % 60
        ),
        _ => format!("<user id=\"{a}\"><name>User {b}</name><role>editor</role><active>true</active></user>"),
    }
}

fn records(kind: usize, numbers: std::ops::Range<u64>) -> SampleSet {
    numbers.map(|idx| record(kind, idx)).collect()
}

fn options() -> GroupedOptions {
    GroupedOptions::new(TrainOptions::default().with_size(2048).with_search(false), 1024)
}

fn trained(sets: &[SampleSet], threads: usize) -> Vec<u8> {
    let mut options = options();
    options.base.threads = threads;
    trained_with(sets, &options)
}

fn trained_with(sets: &[SampleSet], options: &GroupedOptions) -> Vec<u8> {
    let groups: Vec<_> =
        sets.iter().enumerate().map(|(kind, set)| (format!("kind {kind}"), set.samples())).collect();
    train_grouped(&groups, options).unwrap().bytes
}

fn three_kinds() -> Vec<SampleSet> {
    (0..3).map(|kind| records(kind, 0..800)).collect()
}

#[test]
fn every_record_takes_the_member_of_its_kind_and_comes_back() {
    let sets = three_kinds();
    // A base that is too small for any kind, so that every record needs what its group adds.
    let options = GroupedOptions::new(TrainOptions::default().with_size(300).with_search(false), 2048);
    let grouped = GroupedDictionary::new(trained_with(&sets, &options), 3).unwrap();
    assert_eq!(grouped.members().len(), 4);
    for kind in 0..3 {
        let new = records(kind, 800..900);
        let slices: Vec<&[u8]> = new.samples().iter().collect();
        let (frames, ends) = grouped.compress_slices(&slices, 2).unwrap();
        let frames = Samples::new(&frames, &ends).unwrap();
        let mine = frames.iter().filter(|frame| grouped.member_of_frame(frame).unwrap() == kind + 1).count();
        assert!(mine >= 95, "kind {kind}: {mine} of 100 frames use their own member");
        let frames: Vec<&[u8]> = frames.iter().collect();
        assert_eq!(grouped.decompress_slices(&frames, 2).unwrap().0, slices.concat());
        assert_eq!(grouped.decompress(frames[0]).unwrap(), slices[0]);
        assert_eq!(grouped.compress(slices[0]).unwrap(), frames[0]);
        // Standard: the member alone reads the frame.
        let alone = Dictionary::new(grouped.members()[kind + 1].dictionary().as_bytes(), 3).unwrap();
        assert_eq!(alone.decompress(frames[0]).unwrap(), slices[0]);
    }
}

#[test]
fn groups_are_smaller_than_one_dictionary_of_the_same_size() {
    let sets = three_kinds();
    let file = trained(&sets, 1);
    let all: SampleSet = sets.iter().flat_map(|set| set.samples().iter()).collect();
    let options = TrainOptions::default().with_size(file.len()).with_search(false);
    let one = Dictionary::new(train(&all.samples(), &options).unwrap().dictionary, 3).unwrap();
    let grouped = GroupedDictionary::new(file, 3).unwrap();
    let new: SampleSet = (0..3).flat_map(|kind| (800..1000).map(move |idx| record(kind, idx))).collect();
    let with_one = one.evaluate(&new.samples(), 3, 1).unwrap();
    let with_groups = grouped.evaluate(&new.samples(), 3, 1).unwrap();
    assert_eq!(with_one.plain_len, with_groups.plain_len);
    assert!(
        with_groups.coded_len < with_one.coded_len,
        "{} with groups, {} with one",
        with_groups.coded_len,
        with_one.coded_len
    );
}

#[test]
fn grouped_dictionaries_do_not_depend_on_threads() {
    let sets = three_kinds();
    let one = trained(&sets, 1);
    for threads in [2, 5] {
        assert_eq!(trained(&sets, threads), one, "{threads} threads");
    }
}

#[test]
fn kinds_are_found_without_being_named() {
    let mixed: SampleSet = (0..600).map(|idx| record((idx % 3) as usize, idx)).collect();
    let groups = find_groups(&mixed.samples(), 3, 2).unwrap();
    for (idx, group) in groups.iter().enumerate() {
        assert_eq!(*group, groups[idx % 3], "record {idx}");
    }
    assert_ne!(groups[0], groups[1]);
    assert_ne!(groups[1], groups[2]);
    assert_ne!(groups[0], groups[2]);
    assert_eq!(find_groups(&mixed.samples(), 3, 1).unwrap(), groups);
    // More groups than kinds: numbers without gaps, whatever is found.
    let many = find_groups(&mixed.samples(), 20, 1).unwrap();
    let most = many.iter().max().unwrap();
    assert!((0..=*most).all(|group| many.contains(&group)));
    // Records that are like no other make no group that nothing can be learnt from.
    let with_strangers: SampleSet = mixed
        .samples()
        .iter()
        .map(<[u8]>::to_vec)
        .chain((0..5u8).map(|stranger| (0..200u8).map(|byte| byte.wrapping_mul(2 * stranger + 3)).collect()))
        .collect();
    for n_groups in [3, 6] {
        let groups = find_groups(&with_strangers.samples(), n_groups, 1).unwrap();
        for group in 0..=*groups.iter().max().unwrap() {
            let n_members = groups.iter().filter(|&&its_group| its_group == group).count();
            assert!(n_members >= 8, "group {group} of {n_groups} has {n_members}");
        }
        assert_ne!(groups[0], groups[1]);
        assert_ne!(groups[1], groups[2]);
        assert_ne!(groups[0], groups[2]);
    }
    assert!(find_groups(&mixed.samples(), 0, 1).is_err());
    assert!(find_groups(&mixed.samples(), 601, 1).is_err());
}

#[test]
fn packed_records_of_groups_refuse_another_file() {
    let sets = three_kinds();
    let grouped = GroupedDictionary::new(trained(&sets, 1), 3).unwrap();
    let slices: Vec<&[u8]> = sets[1].samples().iter().take(50).collect();
    let (frames, ends) = grouped.compress_slices(&slices, 1).unwrap();
    let file = pack(&Samples::new(&frames, &ends).unwrap(), &grouped).unwrap();
    let packed = PackedRecords::parse(&file).unwrap();
    packed.check_dictionary(&grouped).unwrap();
    assert_eq!(grouped.decompress(packed.frame(17).unwrap().unwrap()).unwrap(), slices[17]);
    let other = GroupedDictionary::new(trained(&sets[..2], 1), 3).unwrap();
    let refused = mithril::Error::from(packed.check_dictionary(&other).unwrap_err());
    assert_eq!(refused.kind(), ErrorKind::Base);
}

#[test]
fn a_frame_of_no_member_names_the_id_it_wants() {
    let sets = three_kinds();
    let grouped = GroupedDictionary::new(trained(&sets, 1), 3).unwrap();
    let options = TrainOptions::default().with_size(1024).with_search(false).with_id(77_777);
    let foreign = Dictionary::new(train(&sets[0].samples(), &options).unwrap().dictionary, 3).unwrap();
    let frame = foreign.compress(b"a record of someone else").unwrap();
    let error = grouped.decompress(&frame).unwrap_err();
    assert!(error.to_string().contains("77777"), "{error}");
    assert_eq!(error.kind(), ErrorKind::Base);
    let error = grouped.decompress_slices(&[&frame], 1).unwrap_err();
    assert!(error.to_string().starts_with("record 0: "), "{error}");
    let unnamed = Dictionary::new(Vec::new(), 3).unwrap().compress(b"no dictionary").unwrap();
    assert_eq!(grouped.decompress(&unnamed).unwrap_err().kind(), ErrorKind::Base);
}

#[test]
fn a_damaged_or_cut_file_is_refused() {
    let file = trained(&three_kinds()[..2], 1);
    for len in (0..file.len()).step_by(7) {
        assert!(GroupedDictionary::new(&file[..len], 3).is_err(), "{len} bytes");
    }
    for at in (0..file.len()).step_by(41) {
        let mut damaged = file.clone();
        damaged[at] ^= 1 << (at % 8);
        let error = GroupedDictionary::new(damaged, 3).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "byte {at}");
    }
}

#[test]
fn groups_that_cannot_be_trained_are_named() {
    let sets = three_kinds();
    let few: SampleSet = (0..3).map(|idx| record(0, idx)).collect();
    let train = |groups: &[(String, Samples<'_>)], options: &GroupedOptions| {
        train_grouped(groups, options).map(|_| ()).unwrap_err().to_string()
    };
    let good = || ("good".to_owned(), sets[0].samples());
    assert!(
        train(&[good(), ("few".to_owned(), few.samples())], &options()).starts_with("group `few`: too few")
    );
    assert!(train(&[good(), good()], &options()).contains("names"));
    assert!(train(&[(String::new(), sets[0].samples())], &options()).contains("names"));
    assert!(train(&[], &options()).contains("groups"));
    let mut bare = options();
    bare.base.raw_content = true;
    assert!(train(&[good()], &bare).contains("header"));
    let mut large = options();
    large.group_size = usize::MAX;
    assert!(train(&[good()], &large).contains("at most"));
}

#[test]
fn golden_grouped_records_come_back() {
    let golden = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../golden/records");
    let read = |name: &str| std::fs::read(golden.join(name)).unwrap();
    let grouped = GroupedDictionary::new(read("v0_1_0_events_grouped.mdic"), 3).unwrap();
    let file = read("v0_1_0_events_grouped.mrec");
    let packed = PackedRecords::parse(&file).unwrap();
    packed.check_dictionary(&grouped).unwrap();
    let frames = packed.frames().unwrap();
    let slices: Vec<&[u8]> = frames.iter().collect();
    let (records, ends) = grouped.decompress_slices(&slices, 1).unwrap();
    assert_eq!(records, read("events.jsonl"));
    assert_eq!(ends.len(), 100);
}
