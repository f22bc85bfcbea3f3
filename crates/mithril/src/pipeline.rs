//! Runs a plan over the blocks of a tensor, on one thread or several.
//!
//! Blocks are independent. On save, threads take blocks in order, code them apart, and hand them in in order, so
//! that the bytes do not depend on the number of threads. On load, every block has its place in the output.

pub(crate) mod ahead;
pub(crate) mod buffers;
pub(crate) mod ordered;
pub(crate) mod tasks;
pub(crate) mod threads;

use crate::options::thread_count;
use mithril_codec::block::{MAX_OVERHEAD, Place, Recipe, Scratch, encode_block, store_block};
use mithril_codec::checksum;
use mithril_format::FormatError;
use mithril_format::frame::{BlockHeader, FrameHeader, FrameView, Trailer};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Bytes that the blocks of `raw_len` bytes can take at most, with their headers.
pub(crate) fn blocks_bound(raw_len: usize, block_len: usize) -> usize {
    let n_blocks = raw_len.div_ceil(block_len);
    raw_len + n_blocks * (BlockHeader::len(true) + MAX_OVERHEAD)
}

/// How the blocks of a frame are coded.
#[derive(Debug)]
pub(crate) struct BlockCoder {
    pub(crate) recipe: Recipe,
    pub(crate) header: FrameHeader,
    /// Whether others may change the raw bytes meanwhile, so that blocks are copied before they are looked at.
    pub(crate) changing: bool,
}

impl BlockCoder {
    /// Codes blocks from number `first_block` on to the front of `out`; returns what the trailer says
    /// of them, and their length. The caller has made room for `blocks_bound`. `base` holds the same bytes of the base, if
    /// there is one.
    pub(crate) fn encode(
        &self,
        first_block: usize,
        source: &[u8],
        base: Option<&[u8]>,
        threads: usize,
        out: &mut [u8],
    ) -> (Trailer, usize) {
        let n_blocks = source.len().div_ceil(self.header.block_len as usize);
        let n_threads = thread_count(threads, n_blocks, source.len());
        let blocks = RawBlocks { coder: self, first_block, source, base };
        let mut trailer = Trailer { coded_lens: Vec::with_capacity(n_blocks), raw_len: source.len() as u64 };
        if n_threads == 1 {
            let mut at = 0;
            with_scratch(|scratch| {
                for block_idx in 0..n_blocks {
                    let coded_len = blocks.encode(block_idx, scratch, &mut out[at..]);
                    at += BlockHeader::len(self.header.checksums) + coded_len as usize;
                    trailer.coded_lens.push(coded_len);
                }
            });
            return (trailer, at);
        }
        let room_len = out.len();
        let queue = Queue {
            state: Mutex::new(QueueState {
                next_taken: 0,
                next_handed_in: 0,
                coded_lens: Vec::new(),
                room: out,
                has_failed: false,
            }),
            handed_in: Condvar::new(),
        };
        std::thread::scope(|scope| {
            let (queue, blocks) = (&queue, &blocks);
            let help = || move || queue.work(blocks, n_blocks, &mut Scratch::new());
            threads::start_helpers(scope, n_threads - 1, help);
            with_scratch(|scratch| queue.work(blocks, n_blocks, scratch));
        });
        let state = queue.state.into_inner().unwrap_or_else(PoisonError::into_inner);
        trailer.coded_lens = state.coded_lens;
        let len = room_len - state.room.len();
        (trailer, len)
    }

    /// Codes one block with its header to the front of `out`; returns the coded length without the header.
    fn encode_one(&self, raw: &[u8], place: Place<'_>, scratch: &mut Scratch, out: &mut [u8]) -> u32 {
        // The checksum comes first: it brings the block into the cache for everything that follows.
        let sum = if self.header.checksums { checksum(raw) } else { 0 };
        let coded = &mut out[BlockHeader::len(self.header.checksums)..];
        let len = encode_block(&self.recipe, &self.header.shared, place, raw, scratch, coded);
        self.write_header(len, raw, sum, out)
    }

    /// Writes one block with its header to the front of `out`, as it is; returns the coded length without the header.
    pub(crate) fn store(&self, raw: &[u8], out: &mut [u8]) -> u32 {
        let sum = if self.header.checksums { checksum(raw) } else { 0 };
        let len = store_block(raw, &mut out[BlockHeader::len(self.header.checksums)..]);
        self.write_header(len, raw, sum, out)
    }

    fn write_header(&self, coded_len: usize, raw: &[u8], checksum: u64, out: &mut [u8]) -> u32 {
        let coded_len =
            u32::try_from(coded_len).expect("a coded block is at most one byte longer than a raw one");
        let raw_len = u32::try_from(raw.len()).expect("a block is at most 32 MiB");
        BlockHeader { coded_len, raw_len, checksum }.write(self.header.checksums, out);
        coded_len
    }
}

/// Runs with the buffers that this thread keeps between calls: for small tensors, fresh pages cost more than coding.
pub(crate) fn with_scratch<T>(work: impl FnOnce(&mut Scratch) -> T) -> T {
    thread_local! {
        static SCRATCH: std::cell::RefCell<Scratch> = std::cell::RefCell::new(Scratch::new());
    }
    SCRATCH.with(|scratch| work(&mut scratch.borrow_mut()))
}

/// Runs with a buffer of this length that this thread keeps between calls. What it holds is what its last user left.
pub(crate) fn with_spare<T>(len: usize, work: impl FnOnce(&mut [u8]) -> T) -> T {
    thread_local! {
        static SPARE: std::cell::Cell<Vec<u8>> = const { std::cell::Cell::new(Vec::new()) };
    }
    // Whoever needs one meanwhile makes his own.
    let mut spare = SPARE.take();
    if spare.len() < len {
        spare.resize(len, 0);
    }
    let result = work(&mut spare[..len]);
    if spare.len() <= MAX_SPARE_LEN {
        SPARE.set(spare);
    }
    result
}

/// Longer buffers are not kept.
const MAX_SPARE_LEN: usize = 4 << 20;

/// Blocks that are to be coded.
struct RawBlocks<'a> {
    coder: &'a BlockCoder,
    first_block: usize,
    source: &'a [u8],
    base: Option<&'a [u8]>,
}

impl RawBlocks<'_> {
    /// Codes a block with its header to the front of `out`; returns the coded length without the header.
    fn encode(&self, block_idx: usize, scratch: &mut Scratch, out: &mut [u8]) -> u32 {
        let Self { coder, first_block, source, base } = *self;
        let block_len = coder.header.block_len as usize;
        let start = block_idx * block_len;
        let end = (start + block_len).min(source.len());
        let raw = &source[start..end];
        let place = Place {
            first_byte: (first_block + block_idx) as u64 * block_len as u64,
            next: &source[end..(end + block_len).min(source.len())],
            base: base.map(|base| &base[start..end]),
        };
        if !coder.changing {
            return coder.encode_one(raw, place, scratch, out);
        }
        // Checksum and coding read the copy, which is in the cache.
        scratch.with_block(|copy, scratch| {
            copy.clear();
            copy.extend_from_slice(raw);
            coder.encode_one(copy, place, scratch, out)
        })
    }
}

/// Blocks handed out and handed in, in order.
struct Queue<'a> {
    state: Mutex<QueueState<'a>>,
    handed_in: Condvar,
}

struct QueueState<'a> {
    next_taken: usize,
    next_handed_in: usize,
    coded_lens: Vec<u32>,
    /// What is left of the output.
    room: &'a mut [u8],
    /// A thread panicked: its block will never come.
    has_failed: bool,
}

/// Lets the others end when a thread panics, which would wait for its block.
struct Failing<'q, 'a>(&'q Queue<'a>);

impl Drop for Failing<'_, '_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.lock().has_failed = true;
            self.0.handed_in.notify_all();
        }
    }
}

impl<'a> Queue<'a> {
    fn lock(&self) -> MutexGuard<'_, QueueState<'a>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn work(&self, blocks: &RawBlocks<'_>, n_blocks: usize, scratch: &mut Scratch) {
        let _failing = Failing(self);
        let header = &blocks.coder.header;
        let mut coded = vec![0; header.block_len as usize + BlockHeader::len(true) + MAX_OVERHEAD];
        loop {
            let block_idx = {
                let mut state = self.lock();
                state.next_taken += 1;
                state.next_taken - 1
            };
            if block_idx >= n_blocks {
                return;
            }
            let coded_len = blocks.encode(block_idx, scratch, &mut coded);
            let len = BlockHeader::len(header.checksums) + coded_len as usize;
            let Some(room) = self.take_room(block_idx, coded_len, len) else { return };
            room.copy_from_slice(&coded[..len]);
        }
    }

    /// Waits for the blocks before this one, then takes its place in the output. There is none when another thread has
    /// failed.
    fn take_room(&self, block_idx: usize, coded_len: u32, len: usize) -> Option<&'a mut [u8]> {
        let mut state = self
            .handed_in
            .wait_while(self.lock(), |state| state.next_handed_in != block_idx && !state.has_failed)
            .unwrap_or_else(PoisonError::into_inner);
        if state.has_failed {
            return None;
        }
        state.next_handed_in += 1;
        state.coded_lens.push(coded_len);
        let (taken, left) = std::mem::take(&mut state.room).split_at_mut(len);
        state.room = left;
        self.handed_in.notify_all();
        Some(taken)
    }
}

/// Decodes blocks `first_block ..` into `out`, which holds exactly the raw bytes of those blocks, as does `base`, if
/// there is one.
pub(crate) fn decode_blocks(
    view: &FrameView<'_>,
    first_block: usize,
    base: Option<&[u8]>,
    out: &mut [u8],
    threads: usize,
) -> Result<(), FormatError> {
    let block_len = view.header().block_len as usize;
    decode_each(first_block, block_len, out, threads, |block_idx, out, scratch| {
        let start = (block_idx - first_block) * block_len;
        let base = base.and_then(|base| base.get(start..start + out.len()));
        view.decode_block(block_idx, base, out, scratch)
    })
}

/// Decodes a block over its base, which `out` holds: the function gets a copy of it, which is in the cache. After a failure
/// the base stands there again.
pub(crate) fn decode_over_base(
    out: &mut [u8],
    scratch: &mut Scratch,
    decode: impl FnOnce(&[u8], &mut [u8], &mut Scratch) -> Result<(), FormatError>,
) -> Result<(), FormatError> {
    scratch.with_block(|base, scratch| {
        base.clear();
        base.extend_from_slice(out);
        decode(base, out, scratch).inspect_err(|_| out.copy_from_slice(base))
    })
}

/// Decodes blocks `first_block ..` by a function of their number, their place in `out` and scratch.
pub(crate) fn decode_each(
    first_block: usize,
    block_len: usize,
    out: &mut [u8],
    threads: usize,
    decode: impl Fn(usize, &mut [u8], &mut Scratch) -> Result<(), FormatError> + Sync,
) -> Result<(), FormatError> {
    let n_threads = thread_count(threads, out.len().div_ceil(block_len), out.len());
    if n_threads == 1 {
        return with_scratch(|scratch| {
            let mut blocks = (first_block..).zip(out.chunks_mut(block_len));
            blocks.try_for_each(|(block_idx, out)| decode(block_idx, out, scratch))
        });
    }
    let blocks = Mutex::new((first_block..).zip(out.chunks_mut(block_len)));
    let failure: Mutex<Option<(usize, FormatError)>> = Mutex::new(None);
    let work = |scratch: &mut Scratch| loop {
        let Some((block_idx, out)) = blocks.lock().unwrap_or_else(PoisonError::into_inner).next() else {
            return;
        };
        if let Err(error) = decode(block_idx, out, scratch) {
            let mut failure = failure.lock().unwrap_or_else(PoisonError::into_inner);
            // The first damaged block is reported, whatever the order of the threads.
            if failure.as_ref().is_none_or(|(earlier, _)| block_idx < *earlier) {
                *failure = Some((block_idx, error));
            }
            return;
        }
    };
    std::thread::scope(|scope| {
        threads::start_helpers(scope, n_threads - 1, || move || work(&mut Scratch::new()));
        with_scratch(work);
    });
    match failure.into_inner().unwrap_or_else(PoisonError::into_inner) {
        Some((_, error)) => Err(error),
        None => Ok(()),
    }
}

/// How much a test does: less in Miri, which takes a thousand times as long and tries many interleavings
/// (`scripts/sanitize.sh`).
#[cfg(test)]
fn sizes<T>(everywhere: T, in_miri: T) -> T {
    if cfg!(miri) { in_miri } else { everywhere }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Threads that write the number of every block to its place. One of them panics at a block, if asked to. Returns how
    /// many panicked, and the output.
    fn numbers(n_blocks: u8, fails_at: Option<u8>) -> (usize, Vec<u8>) {
        let mut out = vec![0xff; usize::from(n_blocks)];
        let state = QueueState {
            next_taken: 0,
            next_handed_in: 0,
            coded_lens: Vec::new(),
            room: &mut out,
            has_failed: false,
        };
        let queue = Queue { state: Mutex::new(state), handed_in: Condvar::new() };
        let work = || {
            let _failing = Failing(&queue);
            loop {
                let block_idx = {
                    let mut state = queue.lock();
                    state.next_taken += 1;
                    state.next_taken - 1
                };
                let Some(number) = u8::try_from(block_idx).ok().filter(|&number| number < n_blocks) else {
                    return;
                };
                assert_ne!(Some(number), fails_at, "as asked");
                let Some(room) = queue.take_room(block_idx, 1, 1) else { return };
                room[0] = number;
            }
        };
        let n_panicked = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..3).map(|_| scope.spawn(work)).collect();
            threads.into_iter().filter_map(|thread| thread.join().err()).count()
        });
        (n_panicked, out)
    }

    #[test]
    fn blocks_are_handed_in_in_order_and_no_thread_waits_for_one_that_failed() {
        let n_blocks = sizes(200, 7);
        assert_eq!(numbers(n_blocks, None), (0, (0..n_blocks).collect()));
        for fails_at in [0, 3, n_blocks - 1] {
            let (n_panicked, out) = numbers(n_blocks, Some(fails_at));
            assert_eq!(n_panicked, 1);
            let expected = (0..n_blocks).map(|number| if number < fails_at { number } else { 0xff });
            assert_eq!(out, expected.collect::<Vec<_>>());
        }
    }
}
