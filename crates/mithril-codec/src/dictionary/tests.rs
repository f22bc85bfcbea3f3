//! Training steps and dictionaries, through the module's public functions.

use super::*;

/// Records of one kind: the same for the same seed.
fn records(n: usize, seed: u64) -> (Vec<u8>, Vec<usize>) {
    let mut state = seed;
    let mut next = move |below: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    let words = ["alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta"];
    let (mut bytes, mut ends) = (Vec::new(), Vec::new());
    for _ in 0..n {
        let word = words[usize::try_from(next(8)).unwrap()];
        let record = format!(
            "{{\"id\":{},\"name\":\"{word}-{}\",\"active\":{},\"tags\":[\"{word}\",\"common\"]}}",
            next(100_000),
            next(50),
            next(2) == 1
        );
        bytes.extend_from_slice(record.as_bytes());
        ends.push(bytes.len());
    }
    (bytes, ends)
}

fn all(samples: &Samples<'_>) -> Vec<usize> {
    (0..samples.n_samples()).collect()
}

fn trained(samples: &Samples<'_>, k: usize, d: usize, len: usize) -> Pool {
    let mut frequencies = Frequencies::count(samples, &all(samples), d, 16);
    let mut scratch = CoverScratch::new();
    let mut segments = Vec::new();
    let mut taken_len = 0;
    for epoch in epochs(samples, 1 + len / k / 2).into_iter().cycle().take(1 + 4 * len / k) {
        if taken_len < len
            && let Some((worth, segment)) = best_segment(samples, &frequencies, epoch, k, &mut scratch)
        {
            let (_, segment) = take_segment(samples, &mut frequencies, segment, worth / 2).unwrap();
            taken_len += segment.len;
            segments.push(segment);
        }
    }
    Pool::from_segments(samples, &segments)
}

#[test]
fn samples_with_ends_that_fall_or_leave_the_buffer_are_refused() {
    assert!(Samples::new(b"abcdef", &[2, 2, 6]).is_some());
    assert!(Samples::new(b"abcdef", &[3, 2]).is_none());
    assert!(Samples::new(b"abcdef", &[7]).is_none());
}

#[test]
fn counts_of_parts_add_up_to_counts_of_all() {
    let (bytes, ends) = records(300, 1);
    let samples = Samples::new(&bytes, &ends).unwrap();
    for d in [MIN_D, 6, 8, 9, 16, MAX_D] {
        let whole = Frequencies::count(&samples, &all(&samples), d, 14);
        let mut sum = Frequencies::count(&samples, &all(&samples)[..77], d, 14);
        sum.add(&Frequencies::count(&samples, &all(&samples)[77..], d, 14));
        assert_eq!(format!("{whole:?}"), format!("{sum:?}"), "d {d}");
    }
}

#[test]
fn pieces_lie_within_their_samples_for_every_k_and_d() {
    let samples: Vec<&[u8]> =
        vec![b"", b"x", b"abcd", b"abcdefgh", b"abcdefghijklmnopqrstuvwxyz", b"abcdefgh", b""];
    let bytes = samples.concat();
    let ends: Vec<usize> = samples
        .iter()
        .scan(0, |end, sample| {
            *end += sample.len();
            Some(*end)
        })
        .collect();
    let samples = Samples::new(&bytes, &ends).unwrap();
    for d in MIN_D..=MAX_D {
        for k in [d, d + 1, 16, 100, 5000] {
            for len in [0, 1, 10, 1000] {
                let pool = trained(&samples, k, d, len);
                for piece in pool.pieces() {
                    let sample = samples.get(usize::try_from(piece.sample_idx).unwrap());
                    let found =
                        sample.windows(piece.range().len()).any(|run| run == &pool.bytes()[piece.range()]);
                    assert!(found && piece.range().len() <= k.max(d), "k {k}, d {d}");
                }
            }
        }
    }
}

#[test]
fn what_many_samples_hold_is_taken_before_what_one_holds() {
    let common = b"this part is in every record of the set";
    let mut bytes = Vec::new();
    let mut ends = Vec::new();
    for idx in 0..40u32 {
        bytes.extend_from_slice(format!("{:08x}", idx.wrapping_mul(2_654_435_761)).repeat(6).as_bytes());
        bytes.extend_from_slice(common);
        ends.push(bytes.len());
    }
    let samples = Samples::new(&bytes, &ends).unwrap();
    let pool = trained(&samples, common.len(), 8, common.len());
    let shared = pool.bytes().windows(30).any(|run| common.windows(30).any(|other| run == other));
    assert!(shared, "{}", pool.bytes().escape_ascii());
}

#[test]
fn a_sample_never_credits_pieces_of_itself() {
    let bytes = b"a record that no other record resembles at all";
    let ends = [bytes.len()];
    let samples = Samples::new(bytes, &ends).unwrap();
    let mut own = Pool::default();
    own.push(0, bytes);
    let mut foreign = Pool::default();
    foreign.push(NO_SAMPLE, bytes);
    let model = MatchModel::of_level(19);
    for (pool, credits) in [(&own, false), (&foreign, true)] {
        let modelled = PoolIndex::new(pool, model, None).measure(&samples, &[0]);
        let real = measure_with_zstd(pool, &samples, &[0], 19).unwrap();
        assert_eq!(modelled.saved_bits(0..pool.len()) > 0, credits);
        assert_eq!(real.saved_bits(0..pool.len()) > 0, credits);
    }
}

#[test]
fn samples_too_short_for_a_match_are_passed_over() {
    let bytes = b"abcdefghijklmnopqrstuvwxyz";
    let mut pool = Pool::default();
    pool.push(NO_SAMPLE, &bytes.repeat(4));
    for level in [1, 3, 9, 19] {
        for len in 0..=bytes.len() {
            let ends = [len];
            let samples = Samples::new(bytes, &ends).unwrap();
            assert!(measure_with_zstd(&pool, &samples, &[0], level).is_ok(), "{len} bytes at level {level}");
        }
    }
}

#[test]
fn use_does_not_depend_on_how_samples_are_shared_out() {
    let (bytes, ends) = records(200, 2);
    let samples = Samples::new(&bytes, &ends).unwrap();
    let pool = trained(&samples, 60, 8, 3000);
    let index = PoolIndex::new(&pool, MatchModel::of_level(3), None);
    let whole = index.measure(&samples, &all(&samples));
    let mut sum = Usage::none(pool.len());
    for part in all(&samples).chunks(17) {
        sum.add(&index.measure(&samples, part));
    }
    assert_eq!(whole, sum);
}

#[test]
fn shrinking_keeps_to_the_length_and_prefers_what_saves() {
    let mut pool = Pool::default();
    pool.push(0, &[b'a'; 100]);
    pool.push(1, &[b'b'; 100]);
    let mut usage = Usage::none(200);
    usage.uses[120..180].fill(300);
    usage.starts[120] = 300;
    usage.paid[120] = 300;
    for wanted_len in [0, 1, 16, 60, 61, 80, 150, 199, 200, 300] {
        let (small, its_usage) = shrink(&pool, &usage, wanted_len);
        assert!(small.len() <= wanted_len.min(200) && its_usage.uses.len() == small.len());
        if wanted_len >= 60 {
            let kept = its_usage.uses.iter().filter(|&&uses| uses == 300).count();
            assert_eq!(kept, 60, "wanted {wanted_len}");
        }
    }
    let mut tiny = Pool::default();
    for byte in 0..100u8 {
        tiny.push(0, &[byte; 4]);
    }
    assert_eq!(shrink(&tiny, &Usage::none(400), 50).0.len(), 48, "short pieces fill room too");
    let (ordered, _) = most_used_last(&pool, &usage);
    assert_eq!(ordered.bytes()[199], b'b');
}

#[test]
fn a_part_that_matches_run_through_is_not_cut_out_of_the_middle() {
    let mut pool = Pool::default();
    pool.push(0, &[b'a'; 100]);
    let mut usage = Usage::none(100);
    // Matches run over all of it; ten bytes in the middle are used a little less, and cost as much as the rest.
    usage.uses.fill(50);
    usage.uses[45..55].fill(40);
    usage.starts[0] = 50;
    usage.starts[55] = 10;
    let (small, _) = shrink(&pool, &usage, 95);
    assert_eq!(small.pieces().len(), 1, "{:?}", small.pieces());
}

#[test]
fn finished_dictionaries_load_and_keep_the_end_of_their_content() {
    let (bytes, ends) = records(400, 3);
    let samples = Samples::new(&bytes, &ends).unwrap();
    let pool = trained(&samples, 100, 8, 4000);
    for max_len in [512, 1000, 2000, 100_000] {
        let dictionary = finish(pool.bytes(), &samples, 3, None, max_len).unwrap();
        let header = Header::parse(&dictionary).unwrap();
        assert!(dictionary.len() <= max_len && header.content_len > 0);
        assert!(pool.bytes().ends_with(&dictionary[header.header_len..]));
        assert!((MIN_ID..2 * MIN_ID).contains(&header.id.unwrap()));
        let again = finish(pool.bytes(), &samples, 3, None, max_len).unwrap();
        assert_eq!(dictionary, again);
        let named = finish(pool.bytes(), &samples, 3, Some(123_456), max_len).unwrap();
        assert_eq!(Header::parse(&named).unwrap().id, Some(123_456));
    }
}

#[test]
fn repeat_offsets_beyond_the_content_are_refused() {
    let (bytes, ends) = records(400, 4);
    let samples = Samples::new(&bytes, &ends).unwrap();
    let dictionary = finish(trained(&samples, 100, 8, 2000).bytes(), &samples, 3, None, 3000).unwrap();
    let content_len = u32::try_from(Header::parse(&dictionary).unwrap().content_len).unwrap();
    let changed = with_repeat_offsets(&dictionary, [content_len, 7, 9], None).unwrap();
    assert_eq!(Header::parse(&changed).unwrap().repeat_offsets, Some([content_len, 7, 9]));
    assert_ne!(Header::parse(&changed).unwrap().id, Header::parse(&dictionary).unwrap().id);
    assert!(with_repeat_offsets(&dictionary, [content_len + 1, 7, 9], None).is_none());
    assert!(with_repeat_offsets(&dictionary, [0, 7, 9], None).is_none());
    assert!(with_repeat_offsets(b"bare content", [1, 2, 3], None).is_none());
}

#[test]
fn records_come_back_and_a_dictionary_makes_them_smaller() {
    let (bytes, ends) = records(600, 5);
    let samples = Samples::new(&bytes, &ends).unwrap();
    let dictionary = finish(trained(&samples, 100, 8, 3000).bytes(), &samples, 3, None, 4000).unwrap();
    let (other_bytes, other_ends) = records(50, 6);
    let others = Samples::new(&other_bytes, &other_ends).unwrap();
    for (bytes, smaller) in [(&dictionary[..], true), (&dictionary[200..], true), (b"", false)] {
        let prepared = Prepared::new(bytes, 3).unwrap();
        let (mut compressor, mut decompressor) =
            (prepared.compressor().unwrap(), prepared.decompressor().unwrap());
        let mut total = 0;
        for record in others.iter().chain([&b""[..], b"x"]) {
            let mut frame = b"before".to_vec();
            let len = compressor.append(record, &mut frame).unwrap();
            assert_eq!(frame.len(), 6 + len);
            assert_eq!(dictionary_id_of_frame(&frame[6..]), prepared.header().id);
            let mut back = b"kept".to_vec();
            decompressor.append(&frame[6..], 1000, &mut back).unwrap();
            assert_eq!(&back[4..], record);
            total += len;
        }
        assert_eq!(total * 10 < others.total_len() * 7, smaller, "{total} of {}", others.total_len());
    }
}

#[test]
fn frames_that_hold_more_than_allowed_are_refused_and_leave_nothing() {
    let prepared = Prepared::new(b"", 3).unwrap();
    let mut frame = Vec::new();
    prepared.compressor().unwrap().append(&[7; 5000], &mut frame).unwrap();
    let mut decompressor = prepared.decompressor().unwrap();
    let mut out = b"kept".to_vec();
    assert!(decompressor.append(&frame, 4999, &mut out).is_err());
    for len in 0..frame.len() {
        assert!(decompressor.append(&frame[..len], 5000, &mut out).is_err(), "cut to {len}");
    }
    assert_eq!(out, b"kept");
    assert_eq!(decompressor.append(&frame, 5000, &mut out), Ok(5000));
}

/// A frame of a record that states its size, or does not.
fn frame_of(dictionary: &[u8], record: &[u8], states_size: bool) -> Vec<u8> {
    let mut encoder = zstd::stream::Encoder::with_dictionary(Vec::new(), 3, dictionary).unwrap();
    encoder.include_contentsize(states_size).unwrap();
    encoder.set_pledged_src_size(states_size.then_some(record.len() as u64)).unwrap();
    std::io::Write::write_all(&mut encoder, record).unwrap();
    encoder.finish().unwrap()
}

/// What some frames are, the frames, the record that they hold, and whether they state its size.
type Case<'a> = (&'a str, &'a [&'a [u8]], Vec<u8>, bool);

#[test]
fn every_sequence_of_frames_that_zstd_reads_is_read() {
    let (bytes, ends) = records(300, 8);
    let samples = Samples::new(&bytes, &ends).unwrap();
    let dictionary = finish(trained(&samples, 100, 8, 600).bytes(), &samples, 3, None, 1000).unwrap();
    let prepared = Prepared::new(&dictionary, 3).unwrap();
    let mut decompressor = prepared.decompressor().unwrap();
    let (first, second) = (samples.get(0), [samples.get(1), &[7; 300_000]].concat());
    let skipped = [&0x184D_2A53u32.to_le_bytes()[..], &5u32.to_le_bytes(), b"notes"].concat();
    let sized = [frame_of(&dictionary, first, true), frame_of(&dictionary, &second, true)];
    let unsized_ = [frame_of(&dictionary, first, false), frame_of(&dictionary, &second, false)];
    let empty = frame_of(&dictionary, b"", true);
    let cases: [Case<'_>; 11] = [
        ("one", &[&sized[0]], first.to_vec(), true),
        ("one without a size", &[&unsized_[1]], second.clone(), false),
        ("two", &[&sized[0], &sized[1]], [first, &second].concat(), true),
        ("two, the second without a size", &[&sized[0], &unsized_[1]], [first, &second].concat(), false),
        ("two, the first without a size", &[&unsized_[0], &sized[1]], [first, &second].concat(), false),
        ("skippable first", &[&skipped, &sized[0]], first.to_vec(), true),
        ("skippable first, no size", &[&skipped, &skipped, &unsized_[0]], first.to_vec(), false),
        ("skippable between", &[&sized[0], &skipped, &sized[1]], [first, &second].concat(), true),
        ("skippable last, no size", &[&unsized_[0], &skipped], first.to_vec(), false),
        ("an empty one between", &[&sized[0], &empty, &sized[0]], first.repeat(2), true),
        ("skippable alone", &[&skipped], Vec::new(), true),
    ];
    for (what, parts, expected, states_size) in cases {
        let frames = parts.concat();
        assert!(are_frames(&frames), "{what}");
        let stated = states_size.then_some(expected.len());
        assert_eq!(record_len(&frames, expected.len()), Ok(stated), "{what}");
        let has_id = frames != skipped;
        assert_eq!(dictionary_id_of_frame(&frames), prepared.header().id.filter(|_| has_id), "{what}");
        let mut out = b"kept".to_vec();
        assert_eq!(decompressor.append(&frames, expected.len(), &mut out), Ok(expected.len()), "{what}");
        assert!(out[4..] == expected, "{what}");
        out.truncate(4);
        if let Some(too_few) = expected.len().checked_sub(1) {
            assert!(decompressor.append(&frames, too_few, &mut out).is_err(), "{what}, limited");
        }
        // Cut off within the last part, and with bytes that are no frame.
        let cut = &frames[..frames.len() - 1];
        assert!(!are_frames(cut), "{what}");
        assert!(decompressor.append(cut, 1 << 20, &mut out).is_err(), "{what}, cut off");
        let longer = [&frames, &b"junk"[..]].concat();
        assert!(decompressor.append(&longer, 1 << 20, &mut out).is_err(), "{what}, with more");
        assert_eq!(out, b"kept", "{what}");
    }
    assert!(!are_frames(b"") && decompressor.append(b"", 100, &mut Vec::new()).is_err());
}

#[test]
fn damaged_dictionaries_are_refused_or_harmless() {
    let (bytes, ends) = records(300, 7);
    let samples = Samples::new(&bytes, &ends).unwrap();
    let dictionary = finish(trained(&samples, 100, 8, 600).bytes(), &samples, 3, None, 1000).unwrap();
    let header_len = Header::parse(&dictionary).unwrap().header_len;
    for len in 4..header_len {
        assert!(Header::parse(&dictionary[..len]).is_err(), "cut to {len}");
    }
    let mut n_refused = 0;
    for bit in 32..header_len * 8 {
        let mut damaged = dictionary.clone();
        damaged[bit / 8] ^= 1 << (bit % 8);
        // What loads must work: a record comes back with it.
        match Prepared::new(&damaged, 3) {
            Err(_) => n_refused += 1,
            Ok(prepared) => {
                let mut frame = Vec::new();
                if prepared.compressor().unwrap().append(samples.get(0), &mut frame).is_ok() {
                    let mut back = Vec::new();
                    prepared.decompressor().unwrap().append(&frame, 1000, &mut back).unwrap();
                    assert_eq!(back, samples.get(0), "bit {bit}");
                }
            }
        }
    }
    assert!(n_refused > 0);
}
