//! Which runs of bytes are fetched, in which order: frames that lie beside each other are one.

use super::{Content, FramePlace, Place, Run, State, WHOLE_LEN, source_id};
use mithril_format::ReadAt;
use std::collections::{HashMap, VecDeque};
use std::ops::Range;

/// The first run of a source is short, so that decoding starts early; each that follows is twice as long, up to this.
const FIRST_LEN: u64 = 256 << 10;
pub(super) const MAX_LEN: u64 = 4 << 20;

/// The last runs are short again, so that little is left to decode when the last byte comes: this part of what is left.
const PART_OF_REST: u64 = 8;

/// Shorter frames come whole in any case.
const MIN_LONG_LEN: u64 = 1 << 20;

/// Bytes between two frames that are fetched with them, as they take less time than a request.
const MAX_GAP: u64 = 32 << 10;

/// What a long frame says at its end about its blocks is fetched before them.
const BACK_LEN: u64 = 16 << 10;

/// Runs as they are planned.
#[derive(Default)]
pub(super) struct Plan<'a> {
    pub(super) runs: Vec<Run<'a>>,
    pub(super) states: Vec<State>,
    pub(super) frames: HashMap<(usize, u64), VecDeque<Place>>,
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
    /// The runs of some tensors in this order, each of which needs some frames at the same time.
    pub(super) fn of(tensors: &[Vec<FramePlace<'a>>]) -> Self {
        let rest = tensors.iter().flatten().map(FramePlace::len).sum();
        let mut plan = Self { rest, ..Self::default() };
        for frames in tensors {
            plan.add(frames);
        }
        plan
    }

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
