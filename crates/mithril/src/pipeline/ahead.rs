//! Reads what will be needed, in the order in which it will be, before it is: a storage is never idle while something is
//! left to fetch, and is asked for few long runs of bytes instead of many short ones.
//!
//! Frames that lie beside each other are one run. Several runs are under way at a time, and so many bytes are here before
//! they are needed, but not more. Whoever needs a run that nobody fetches yet fetches it himself, so nobody waits for room.

use super::buffers::Buffers;
use mithril_format::ReadAt;
use std::collections::{HashMap, VecDeque};
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// Frames up to this length are in one run, and are fetched whole by whoever reads them without a plan.
pub(crate) const WHOLE_LEN: u64 = 4 << 20;

/// The first run of a source is short, so that decoding starts early; each that follows is twice as long, up to this.
const FIRST_LEN: u64 = 256 << 10;
const MAX_LEN: u64 = 4 << 20;

/// The last runs are short again, so that little is left to decode when the last byte comes: this part of what is left.
const PART_OF_REST: u64 = 8;

/// Shorter frames come whole in any case.
const MIN_LONG_LEN: u64 = 1 << 20;

/// Bytes between two frames that are fetched with them, as they take less time than a request.
const MAX_GAP: u64 = 32 << 10;

/// What a long frame says at its end about its blocks is fetched before them.
const BACK_LEN: u64 = 16 << 10;

/// Bytes that are here before they are needed.
const MAX_AHEAD: u64 = 32 << 20;

/// Runs that are under way at a time.
const N_FETCHING: usize = 4;

/// Where a frame lies.
#[derive(Clone)]
pub(crate) struct FramePlace<'a> {
    pub(crate) source: &'a dyn ReadAt,
    pub(crate) range: Range<u64>,
}

impl FramePlace<'_> {
    fn len(&self) -> u64 {
        self.range.end - self.range.start
    }

    /// What tells its source from others, and where it starts.
    fn key(&self) -> (usize, u64) {
        (source_id(self.source), self.range.start)
    }
}

fn source_id(source: &dyn ReadAt) -> usize {
    std::ptr::from_ref(source).cast::<u8>().addr()
}

/// A plan of runs, and what has come of them.
pub(crate) struct Ahead<'a> {
    buffers: Arc<Buffers>,
    runs: Vec<Run<'a>>,
    /// The runs of every frame, once for each time that it is wanted.
    frames: Mutex<HashMap<(usize, u64), VecDeque<Place>>>,
    states: Mutex<Vec<State>>,
    /// A run is no longer under way.
    arrived: Condvar,
    next: AtomicUsize,
    room: Arc<Room>,
}

#[derive(Clone)]
struct Run<'a> {
    source: &'a dyn ReadAt,
    range: Range<u64>,
}

enum Place {
    /// All of it is in a run, with others.
    Whole(usize),
    /// Its last bytes, and all of it in runs of its own.
    Parts { back: usize, parts: Vec<usize> },
}

struct State {
    /// Bytes that will still be read.
    left: u64,
    content: Content,
}

enum Content {
    Wanted,
    UnderWay,
    Here(Arc<Fetched>),
    Failed(io::Error),
    /// Nobody wants it any more.
    Over,
}

/// A run that is here. Its buffer is used again.
pub(crate) struct Fetched {
    start: u64,
    len: usize,
    bytes: Vec<u8>,
    buffers: Arc<Buffers>,
    _share: Share,
}

impl Fetched {
    fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

impl Drop for Fetched {
    fn drop(&mut self) {
        self.buffers.give_back(std::mem::take(&mut self.bytes));
    }
}

impl ReadAt for Fetched {
    fn size(&self) -> io::Result<u64> {
        Ok(self.start + self.len as u64)
    }

    fn read_exact_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let offset = offset.checked_sub(self.start).ok_or(io::ErrorKind::UnexpectedEof)?;
        self.bytes().read_exact_at(offset, out)
    }

    fn slice(&self, range: Range<u64>) -> Option<&[u8]> {
        self.bytes().slice(range.start.checked_sub(self.start)?..range.end.checked_sub(self.start)?)
    }
}

/// Bytes that are here or under way.
struct Room {
    limit: u64,
    state: Mutex<RoomState>,
    changed: Condvar,
}

#[derive(Default)]
struct RoomState {
    taken: u64,
    is_closed: bool,
}

/// Bytes of the room, given back when dropped.
struct Share {
    room: Arc<Room>,
    len: u64,
}

impl Drop for Share {
    fn drop(&mut self) {
        self.room.lock().taken -= self.len;
        self.room.changed.notify_all();
    }
}

impl Room {
    fn lock(&self) -> MutexGuard<'_, RoomState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes room, however little there is.
    fn take(self: &Arc<Self>, len: u64) -> Share {
        self.lock().taken += len;
        Share { room: Arc::clone(self), len }
    }

    /// Waits until there is room; none is given once it is closed.
    fn wait(self: &Arc<Self>, len: u64) -> Option<Share> {
        let is_full = |state: &mut RoomState| {
            !state.is_closed && state.taken > 0 && state.taken.saturating_add(len) > self.limit
        };
        let state = self.changed.wait_while(self.lock(), is_full);
        let mut state = state.unwrap_or_else(PoisonError::into_inner);
        if state.is_closed {
            return None;
        }
        state.taken += len;
        drop(state);
        Some(Share { room: Arc::clone(self), len })
    }

    fn close(&self) {
        self.lock().is_closed = true;
        self.changed.notify_all();
    }
}

impl<'a> Ahead<'a> {
    /// Plans the reads of some tensors in this order, each of which needs some frames at the same time. Frames whose bytes
    /// are in memory anyway need no plan.
    pub(crate) fn new(buffers: &Arc<Buffers>, tensors: Vec<Vec<FramePlace<'a>>>) -> Self {
        Self::with_limit(buffers, tensors, MAX_AHEAD)
    }

    fn with_limit(buffers: &Arc<Buffers>, mut tensors: Vec<Vec<FramePlace<'a>>>, limit: u64) -> Self {
        for frames in &mut tensors {
            frames.retain(|frame| frame.len() > 0 && frame.source.slice(frame.range.clone()).is_none());
        }
        let rest = tensors.iter().flatten().map(FramePlace::len).sum();
        let mut plan = Plan { rest, ..Plan::default() };
        for frames in &tensors {
            plan.add(frames);
        }
        Self {
            buffers: Arc::clone(buffers),
            runs: plan.runs,
            frames: Mutex::new(plan.frames),
            states: Mutex::new(plan.states),
            arrived: Condvar::new(),
            next: AtomicUsize::new(0),
            room: Arc::new(Room { limit, state: Mutex::default(), changed: Condvar::new() }),
        }
    }

    /// Does some work while others fetch.
    pub(crate) fn run<T>(&self, work: impl FnOnce() -> T) -> T {
        /// Ends the others, also when the work panics.
        struct Ending<'a>(&'a Room);
        impl Drop for Ending<'_> {
            fn drop(&mut self) {
                self.0.close();
            }
        }
        std::thread::scope(|scope| {
            let _ending = Ending(&self.room);
            // What is one run is fetched by whoever needs it.
            let n_fetching = if self.runs.len() > 1 { N_FETCHING.min(self.runs.len()) } else { 0 };
            for _ in 0..n_fetching {
                scope.spawn(|| self.fetch());
            }
            work()
        })
    }

    /// The bytes of a frame, if it was planned: waits for a frame of one run.
    pub(crate) fn take(&self, frame: &FramePlace<'a>) -> Option<io::Result<Taken<'_>>> {
        let mut frames = self.frames.lock().unwrap_or_else(PoisonError::into_inner);
        let place = frames.get_mut(&frame.key())?.pop_front()?;
        drop(frames);
        match place {
            Place::Whole(run_idx) => {
                let found = self.get(run_idx).transpose()?;
                self.count_read(run_idx, frame.len());
                Some(found.map(Taken::Whole))
            }
            Place::Parts { back, parts } => {
                let (source, range) = (frame.source, frame.range.clone());
                Some(Ok(Taken::Parts(Parts { ahead: self, source, range, back, parts })))
            }
        }
    }

    fn states(&self) -> MutexGuard<'_, Vec<State>> {
        self.states.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Fetches runs in order.
    fn fetch(&self) {
        loop {
            let run_idx = self.next.fetch_add(1, Ordering::Relaxed);
            let Some(run) = self.runs.get(run_idx) else { return };
            let Some(share) = self.room.wait(run.range.end - run.range.start) else { return };
            let mut states = self.states();
            if !matches!(states[run_idx].content, Content::Wanted) {
                continue;
            }
            states[run_idx].content = Content::UnderWay;
            drop(states);
            if !self.fetch_run(run_idx, share) {
                // Whoever needs it gets the reason; a storage that fails is not asked for more.
                self.room.close();
                return;
            }
        }
    }

    /// Fetches a run that is under way by now. Returns whether it is here.
    fn fetch_run(&self, run_idx: usize, share: Share) -> bool {
        /// Makes a run that is under way no more one that is wanted, so that nobody waits for it: when reading panics.
        struct Under<'a, 'b>(&'a Ahead<'b>, usize);
        impl Drop for Under<'_, '_> {
            fn drop(&mut self) {
                let mut states = self.0.states();
                if matches!(states[self.1].content, Content::UnderWay) {
                    states[self.1].content = Content::Wanted;
                }
                drop(states);
                self.0.arrived.notify_all();
            }
        }
        let under = Under(self, run_idx);
        let Run { source, range } = &self.runs[run_idx];
        let len = usize::try_from(range.end - range.start).expect("a run lies in memory");
        let bytes = self.buffers.take_bytes(len);
        let mut run =
            Fetched { start: range.start, len, bytes, buffers: Arc::clone(&self.buffers), _share: share };
        let read = source.read_exact_at(range.start, &mut run.bytes[..len]);
        let is_here = read.is_ok();
        let content = match read {
            Ok(()) => Content::Here(Arc::new(run)),
            Err(error) => Content::Failed(error),
        };
        let mut states = self.states();
        let state = &mut states[run_idx];
        // All of it may have been given up meanwhile.
        let unused = if state.left > 0 {
            std::mem::replace(&mut state.content, content)
        } else {
            state.content = Content::Over;
            content
        };
        drop(states);
        drop(unused);
        drop(under);
        is_here
    }

    /// A run, once it is here; none when it was read as often as planned, or has failed before.
    fn get(&self, run_idx: usize) -> io::Result<Option<Arc<Fetched>>> {
        let mut states = self.states();
        loop {
            let content = &mut states[run_idx].content;
            match content {
                Content::Here(run) => return Ok(Some(Arc::clone(run))),
                Content::Over => return Ok(None),
                Content::Failed(_) => match std::mem::replace(content, Content::Over) {
                    Content::Failed(error) => return Err(error),
                    _ => unreachable!("it has failed"),
                },
                Content::UnderWay => {
                    states = self.arrived.wait(states).unwrap_or_else(PoisonError::into_inner);
                }
                Content::Wanted => {
                    *content = Content::UnderWay;
                    drop(states);
                    let range = &self.runs[run_idx].range;
                    self.fetch_run(run_idx, self.room.take(range.end - range.start));
                    states = self.states();
                }
            }
        }
    }

    /// Counts what was read of a run: nobody wants one any more of which all was read.
    fn count_read(&self, run_idx: usize, len: u64) {
        let mut states = self.states();
        let state = &mut states[run_idx];
        state.left = state.left.saturating_sub(len);
        if state.left == 0 && !matches!(state.content, Content::UnderWay) {
            let content = std::mem::replace(&mut state.content, Content::Over);
            drop(states);
            drop(content);
        }
    }
}

/// The bytes of a frame.
pub(crate) enum Taken<'a> {
    Whole(Arc<Fetched>),
    Parts(Parts<'a>),
}

/// A long frame, whose parts come one after the other.
pub(crate) struct Parts<'a> {
    ahead: &'a Ahead<'a>,
    source: &'a dyn ReadAt,
    range: Range<u64>,
    back: usize,
    parts: Vec<usize>,
}

impl Parts<'_> {
    /// The frame for a look at its ends, which are not counted as read.
    pub(crate) fn ends(&self) -> impl ReadAt {
        Ends(self)
    }

    /// Says where its blocks lie: nothing else of it will be read.
    pub(crate) fn only_blocks(&self, blocks: Range<u64>) {
        self.ahead.count_read(self.back, u64::MAX);
        for outside in [self.range.start..blocks.start, blocks.end..self.range.end] {
            for &run_idx in &self.parts {
                let common = common(&self.ahead.runs[run_idx].range, &outside);
                self.ahead.count_read(run_idx, common.end - common.start);
            }
        }
    }

    /// The parts that hold a range, as far as they do.
    fn parts_of(&self, range: Range<u64>) -> impl Iterator<Item = (usize, Range<u64>)> {
        let parts = self.parts.iter().map(move |&run_idx| {
            let common = common(&self.ahead.runs[run_idx].range, &range);
            (run_idx, common)
        });
        parts.filter(|(_, common)| !common.is_empty())
    }

    fn read(&self, offset: u64, out: &mut [u8], is_counted: bool) -> io::Result<()> {
        let range = offset..offset + out.len() as u64;
        let mut rest = out;
        for (run_idx, common) in self.parts_of(range) {
            let len = common.end - common.start;
            let (piece, left) = rest.split_at_mut(usize::try_from(len).expect("a piece of a buffer"));
            match self.ahead.get(run_idx)? {
                Some(run) => run.read_exact_at(common.start, piece)?,
                // Blocks that are needed twice, as those of different levels do not end at the same places.
                None => self.source.read_exact_at(common.start, piece)?,
            }
            if is_counted {
                self.ahead.count_read(run_idx, len);
            }
            rest = left;
        }
        if rest.is_empty() { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
    }
}

/// What two ranges have in common.
fn common(a: &Range<u64>, b: &Range<u64>) -> Range<u64> {
    let start = a.start.max(b.start);
    start..a.end.min(b.end).max(start)
}

impl ReadAt for Parts<'_> {
    fn size(&self) -> io::Result<u64> {
        self.source.size()
    }

    fn read_exact_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.read(offset, out, true)
    }
}

impl Drop for Parts<'_> {
    fn drop(&mut self) {
        for &run_idx in self.parts.iter().chain([&self.back]) {
            self.ahead.count_read(run_idx, u64::MAX);
        }
    }
}

struct Ends<'a, 'b>(&'a Parts<'b>);

impl ReadAt for Ends<'_, '_> {
    fn size(&self) -> io::Result<u64> {
        self.0.source.size()
    }

    fn read_exact_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let Parts { ahead, source, back, parts, .. } = self.0;
        let range = offset..offset + out.len() as u64;
        let holds = |run_idx: usize| common(&ahead.runs[run_idx].range, &range) == range;
        let mut ends = [Some(*back), parts.first().copied()].into_iter().flatten();
        if let Some(run_idx) = ends.find(|&run_idx| holds(run_idx))
            && let Some(run) = ahead.get(run_idx)?
        {
            return run.read_exact_at(offset, out);
        }
        source.read_exact_at(offset, out)
    }
}

/// Runs as they are planned.
#[derive(Default)]
struct Plan<'a> {
    runs: Vec<Run<'a>>,
    states: Vec<State>,
    frames: HashMap<(usize, u64), VecDeque<Place>>,
    /// The last run of every source, to which frames are added up to a length.
    open: HashMap<usize, OpenRun>,
    /// Bytes of the frames that are not planned yet.
    rest: u64,
}

struct OpenRun {
    run_idx: usize,
    max_len: u64,
}

impl<'a> Plan<'a> {
    /// Adds frames that are needed at the same time.
    fn add(&mut self, frames: &[FramePlace<'a>]) {
        // Parts of long frames, by how far into their frames they are: those of all frames are needed together.
        let mut parts = Vec::new();
        for (frame_idx, frame) in frames.iter().enumerate() {
            if frame.len() <= WHOLE_LEN && !self.is_long(frame.len()) {
                self.add_whole(frame);
                continue;
            }
            let n_parts = frame.len().div_ceil(self.run_len(MAX_LEN)).max(2);
            let part_len = frame.len().div_ceil(n_parts);
            let mut start = frame.range.start;
            while start < frame.range.end {
                let end = (start + part_len).min(frame.range.end);
                parts.push(((start - frame.range.start) as f64 / frame.len() as f64, frame_idx, start..end));
                start = end;
            }
            self.rest -= frame.len();
        }
        parts.sort_by(|a, b| a.0.total_cmp(&b.0));
        let mut places: Vec<Option<(usize, Vec<usize>)>> = frames.iter().map(|_| None).collect();
        for (_, frame_idx, range) in parts {
            let frame = &frames[frame_idx];
            let (_, parts) = places[frame_idx].get_or_insert_with(|| {
                let back = frame.range.end - BACK_LEN..frame.range.end;
                (self.push(frame.source, back), Vec::new())
            });
            parts.push(self.push(frame.source, range));
        }
        for (frame, place) in frames.iter().zip(places) {
            if let Some((back, parts)) = place {
                self.frames.entry(frame.key()).or_default().push_back(Place::Parts { back, parts });
            }
        }
    }

    fn add_whole(&mut self, frame: &FramePlace<'a>) {
        let source = source_id(frame.source);
        let (range, len) = (&frame.range, frame.len());
        self.rest -= len;
        let mut max_len = FIRST_LEN;
        let mut found = None;
        if let Some(open) = self.open.get(&source) {
            let run = &self.runs[open.run_idx].range;
            let is_inside = run.start <= range.start && range.end <= run.end;
            let is_next = run.end <= range.start && range.start - run.end <= MAX_GAP;
            if is_inside || (is_next && range.end - run.start <= open.max_len) {
                found = Some(open.run_idx);
            }
            max_len = 2 * open.max_len;
        }
        let run_idx = found.unwrap_or_else(|| {
            let run_idx = self.push(frame.source, range.start..range.start);
            self.open.insert(source, OpenRun { run_idx, max_len: self.run_len(max_len) });
            run_idx
        });
        let run = &mut self.runs[run_idx].range;
        run.end = run.end.max(range.end);
        self.states[run_idx].left += len;
        self.frames.entry(frame.key()).or_default().push_back(Place::Whole(run_idx));
    }

    /// Whether a frame that could come whole would be most of what is left: what of it is here is decoded meanwhile.
    fn is_long(&self, len: u64) -> bool {
        len >= MIN_LONG_LEN && len > self.run_len(MAX_LEN)
    }

    fn run_len(&self, max_len: u64) -> u64 {
        max_len.min(self.rest / PART_OF_REST).clamp(FIRST_LEN, MAX_LEN)
    }

    fn push(&mut self, source: &'a dyn ReadAt, range: Range<u64>) -> usize {
        self.states.push(State { left: range.end - range.start, content: Content::Wanted });
        self.runs.push(Run { source, range });
        self.runs.len() - 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;
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
        let levels: Vec<_> =
            sources.iter().zip(1..).map(|(source, level)| frames(source, lens(level))).collect();
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
            let Some(Ok(Taken::Parts(parts))) = ahead.take(&frames[0]) else {
                panic!("it was planned twice")
            };
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
        let panicked =
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| ahead.run(|| panic!("stopped"))));
        assert!(panicked.is_err());
    }

    #[test]
    fn what_is_in_memory_is_not_fetched() {
        let bytes = vec![0; 1000];
        let ahead = Ahead::new(&Arc::default(), vec![vec![FramePlace { source: &bytes, range: 10..500 }]]);
        assert!(ahead.runs.is_empty());
    }
}
