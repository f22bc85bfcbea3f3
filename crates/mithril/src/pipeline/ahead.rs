//! Reads what will be needed, in the order in which it will be, before it is: a storage is never idle while something is
//! left to fetch, and is asked for few long runs of bytes instead of many short ones.
//!
//! Frames that lie beside each other are one run. Several runs are under way at a time, and so many bytes are here before
//! they are needed, but not more. Whoever needs a run that nobody fetches yet fetches it himself, so nobody waits for room.

mod plan;
#[cfg(test)]
mod tests;

use super::buffers::Buffers;
use super::threads;
use mithril_format::ReadAt;
use plan::Plan;
use std::collections::{HashMap, VecDeque};
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// Frames up to this length are in one run, and are fetched whole by whoever reads them without a plan.
pub(crate) const WHOLE_LEN: u64 = 4 << 20;

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
        let plan = Plan::of(&tensors);
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
            threads::start_helpers(scope, n_fetching, || move || self.fetch());
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
        let read = self.buffers.take_bytes(len).and_then(|bytes| {
            let buffers = Arc::clone(&self.buffers);
            let mut run = Fetched { start: range.start, len, bytes, buffers, _share: share };
            source.read_exact_at(range.start, &mut run.bytes[..len]).map(|()| run)
        });
        let is_here = read.is_ok();
        let content = match read {
            Ok(run) => Content::Here(Arc::new(run)),
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
