use super::plan::MAX_LEN;
use super::*;
use crate::pipeline::sizes;
use std::sync::atomic::AtomicU64;

/// Bytes that tell their place, of which reads are counted, and fail from a place on.
struct Remote {
    len: u64,
    salt: u64,
    n_reads: AtomicUsize,
    n_bytes: AtomicU64,
    fails_at: u64,
}

fn remote(len: u64, salt: u64) -> Remote {
    Remote { len, salt, n_reads: AtomicUsize::new(0), n_bytes: AtomicU64::new(0), fails_at: u64::MAX }
}

fn byte(at: u64, salt: u64) -> u8 {
    (at + salt).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes()[5]
}

impl ReadAt for Remote {
    fn size(&self) -> io::Result<u64> {
        Ok(self.len)
    }

    fn read_exact_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.n_reads.fetch_add(1, Ordering::Relaxed);
        self.n_bytes.fetch_add(out.len() as u64, Ordering::Relaxed);
        let end = offset + out.len() as u64;
        if end > self.fails_at {
            return Err(io::Error::other("the line is cut"));
        }
        assert!(end <= self.len, "within the source");
        (offset..).zip(out).for_each(|(at, out)| *out = byte(at, self.salt));
        Ok(())
    }
}

/// Frames of one length after the other, with some bytes between them.
fn frames(source: &Remote, lens: impl IntoIterator<Item = u64>) -> Vec<FramePlace<'_>> {
    let mut end = 0;
    let place = |len: u64| {
        let start = end + 40;
        end = start + len;
        FramePlace { source, range: start..end }
    };
    lens.into_iter().map(place).collect()
}

/// Tensors of one frame each of some sources.
fn tensors<'a>(levels: &[Vec<FramePlace<'a>>]) -> Vec<Vec<FramePlace<'a>>> {
    (0..levels[0].len()).map(|idx| levels.iter().map(|level| level[idx].clone()).collect()).collect()
}

fn check(frame: &FramePlace<'_>, salt: u64, range: Range<u64>, source: &dyn ReadAt) -> io::Result<()> {
    let bytes = source.read_range(range.clone())?;
    assert!(range.zip(&bytes).all(|(at, &found)| found == byte(at, salt)), "{:?}", frame.range);
    Ok(())
}

/// Reads a frame as a decoder does: a long one in pieces, from its front.
fn read(ahead: &Ahead<'_>, frame: &FramePlace<'_>, salt: u64) -> io::Result<()> {
    match ahead.take(frame).expect("it was planned")? {
        Taken::Whole(run) => check(frame, salt, frame.range.clone(), &*run),
        Taken::Parts(parts) => {
            let Range { start, end } = frame.range;
            check(frame, salt, start..start + 10_000, &parts.ends())?;
            check(frame, salt, end - 10_000..end, &parts.ends())?;
            parts.only_blocks(start + 100..end - 300);
            let mut at = start + 100;
            while at < end - 300 {
                let next = (at + 700_001).min(end - 300);
                check(frame, salt, at..next, &parts)?;
                at = next;
            }
            Ok(())
        }
    }
}

#[test]
fn many_frames_come_with_few_reads_each_byte_once_and_none_stays() {
    let lens = |level: u64| (0..300u64).map(move |idx| 1000 + idx * 7919 * level % 60_000);
    let sources = [remote(40 << 20, 1), remote(40 << 20, 2), remote(40 << 20, 3)];
    let levels: Vec<_> = sources.iter().zip(1..).map(|(source, level)| frames(source, lens(level))).collect();
    let tensors = tensors(&levels);
    let ahead = Ahead::new(&Arc::default(), tensors.clone());
    ahead.run(|| {
        for frame in tensors.iter().flat_map(|frames| frames.iter().enumerate()) {
            read(&ahead, frame.1, frame.0 as u64 + 1).unwrap();
        }
    });
    for (source, level) in sources.iter().zip(1..) {
        let n_reads = source.n_reads.load(Ordering::Relaxed);
        assert!(n_reads < 25, "{n_reads} reads for 300 frames");
        let wanted: u64 = lens(level).sum();
        let n_bytes = source.n_bytes.load(Ordering::Relaxed);
        assert!((wanted..wanted + 300 * 40).contains(&n_bytes), "{n_bytes} bytes for {wanted}");
    }
    assert_eq!(ahead.room.lock().taken, 0);
    assert!(ahead.take(&tensors[0][0]).is_none(), "it was read as often as it was wanted");
}

#[test]
fn long_frames_of_all_levels_come_together_in_bounded_room() {
    let limit = 12 << 20;
    let sources = [remote(120 << 20, 1), remote(40 << 20, 2)];
    let levels =
        [frames(&sources[0], [50 << 20, 900, 30 << 20]), frames(&sources[1], [9 << 20, 100, 5 << 20])];
    let tensors = tensors(&levels);
    let ahead = Ahead::with_limit(&Arc::default(), tensors.clone(), limit);
    let most = AtomicU64::new(0);
    ahead.run(|| {
        for frames in &tensors {
            let opened: Vec<_> = frames.iter().map(|frame| ahead.take(frame).unwrap().unwrap()).collect();
            for piece in 0..100 {
                for (taken, frame) in opened.iter().zip(frames) {
                    let place = |part: u64| frame.range.start + frame.len() * part / 100;
                    let range = place(piece)..place(piece + 1);
                    let source: &dyn ReadAt = match taken {
                        Taken::Whole(run) => &**run,
                        Taken::Parts(parts) => parts,
                    };
                    check(frame, source_salt(&sources, frame), range, source).unwrap();
                    most.fetch_max(ahead.room.lock().taken, Ordering::Relaxed);
                }
            }
        }
    });
    let most = most.into_inner();
    assert!(most <= limit + 2 * MAX_LEN, "{most} bytes were here");
    assert_eq!(ahead.room.lock().taken, 0);
    let n_reads: usize = sources.iter().map(|source| source.n_reads.load(Ordering::Relaxed)).sum();
    assert!(n_reads < 60, "{n_reads} reads");
}

fn source_salt(sources: &[Remote], frame: &FramePlace<'_>) -> u64 {
    let found = sources.iter().find(|source| source_id(*source) == source_id(frame.source));
    found.expect("one of them").salt
}

#[test]
fn blocks_that_are_read_twice_and_frames_without_a_plan_are_read_by_themselves() {
    let source = remote(30 << 20, 5);
    let frames = frames(&source, [20 << 20, 5000]);
    let ahead = Ahead::new(&Arc::default(), vec![vec![frames[0].clone()], vec![frames[0].clone()]]);
    ahead.run(|| {
        assert!(ahead.take(&frames[1]).is_none());
        read(&ahead, &frames[0], 5).unwrap();
        let Some(Ok(Taken::Parts(parts))) = ahead.take(&frames[0]) else { panic!("it was planned twice") };
        for _ in 0..3 {
            check(&frames[0], 5, frames[0].range.clone(), &parts).unwrap();
        }
    });
    assert_eq!(ahead.room.lock().taken, 0);
}

#[test]
fn a_failure_reaches_who_needs_the_bytes_and_little_more_is_asked_for() {
    for lens in [vec![30_000; 2000], vec![50 << 20; 1], vec![3 << 20; 20]] {
        let source = Remote { fails_at: 20 << 20, ..remote(70 << 20, 7) };
        let frames = frames(&source, lens);
        let tensors = frames.iter().map(|frame| vec![frame.clone()]).collect();
        let ahead = Ahead::new(&Arc::default(), tensors);
        let error = ahead.run(|| frames.iter().find_map(|frame| read(&ahead, frame, 7).err())).unwrap();
        assert_eq!(error.to_string(), "the line is cut");
        let n_bytes = source.n_bytes.load(Ordering::Relaxed);
        assert!(n_bytes < (20 << 20) + (N_FETCHING as u64 + 2) * MAX_LEN, "{n_bytes} bytes");
    }
}

#[test]
fn work_that_ends_early_ends_the_fetching() {
    let source = remote(200 << 20, 9);
    let frames = frames(&source, vec![1 << 20; 190]);
    let tensors = || frames.iter().map(|frame| vec![frame.clone()]).collect();
    let ahead = Ahead::with_limit(&Arc::default(), tensors(), 8 << 20);
    ahead.run(|| read(&ahead, &frames[0], 9)).unwrap();
    assert!(source.n_bytes.load(Ordering::Relaxed) <= 24 << 20);
    let ahead = Ahead::with_limit(&Arc::default(), tensors(), 8 << 20);
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| ahead.run(|| panic!("stopped"))));
    assert!(panicked.is_err());
}

#[test]
fn what_is_in_memory_is_not_fetched() {
    let bytes = vec![0; 1000];
    let ahead = Ahead::new(&Arc::default(), vec![vec![FramePlace { source: &bytes, range: 10..500 }]]);
    assert!(ahead.runs.is_empty());
}

/// Short frames that lie so far apart that each is a run, in room for two of them.
#[test]
fn runs_come_one_by_one_through_little_room_and_give_it_back() {
    let n_frames = sizes(200, 5);
    for fails_at in [u64::MAX, 100_000] {
        let source = Remote { fails_at, ..remote(100_000 * n_frames, 3) };
        let place = |idx: u64| FramePlace { source: &source, range: idx * 40_000..idx * 40_000 + 60 };
        let frames: Vec<_> = (0..n_frames).map(place).collect();
        let tensors = frames.iter().map(|frame| vec![frame.clone()]).collect();
        let ahead = Ahead::with_limit(&Arc::default(), tensors, 120);
        assert_eq!(ahead.runs.len() as u64, n_frames);
        let n_read = ahead.run(|| frames.iter().take_while(|frame| read(&ahead, frame, 3).is_ok()).count());
        assert_eq!(n_read as u64, if fails_at == u64::MAX { n_frames } else { 3 });
        if fails_at == u64::MAX {
            assert_eq!(ahead.room.lock().taken, 0);
            assert_eq!(source.n_reads.load(Ordering::Relaxed) as u64, n_frames);
        }
    }
}
