//! Reads many tensors at once: the caller's thread opens them, which fetches their bytes, while others decode.

use super::OpenTensor;
use crate::Error;
use crate::options::thread_count;
use crate::pipeline::ordered;
use bytes::BytesMut;
use std::ops::DerefMut;
use std::sync::Arc;

/// Raw bytes that are decoded by one job.
const BATCH_LEN: u64 = 1 << 20;

/// A buffer of which pieces are filled on several threads.
pub(crate) trait Place: DerefMut<Target = [u8]> + Send {
    /// Takes the first bytes off.
    fn take_front(&mut self, len: usize) -> Self;
}

impl Place for &mut [u8] {
    fn take_front(&mut self, len: usize) -> Self {
        let (front, rest) = std::mem::take(self).split_at_mut(len);
        *self = rest;
        front
    }
}

/// Pieces of one allocation, which are put together again without a copy.
impl Place for BytesMut {
    fn take_front(&mut self, len: usize) -> Self {
        self.split_to(len)
    }
}

/// A tensor, its name and a buffer of exactly its length.
pub(crate) type Wanted<'a, P> = (OpenTensor<'a>, &'a str, P);

/// Reads tensors, whose bytes are fetched when the iterator opens them: the next ones while these are decoded. `take` gets
/// the filled pieces in order, each with the number of its tensor. `threads` decode; 0 is one per core, for tensors of so
/// many bytes in all.
pub(crate) fn read_many<'env, P: Place + 'env>(
    tensors: impl Iterator<Item = Result<Wanted<'env, P>, Error>>,
    raw_len: u64,
    threads: usize,
    mut take: impl FnMut(usize, P) + Send,
) -> Result<(), Error> {
    let threads = thread_count(threads, usize::MAX, usize::try_from(raw_len).unwrap_or(usize::MAX));
    let (fed, taken) = ordered::run(
        threads,
        |line| {
            for (tensor_idx, wanted) in tensors.enumerate() {
                let (tensor, name, mut place) = wanted?;
                let tensor = Arc::new(tensor);
                let step = (BATCH_LEN / tensor.block_len()).max(1) * tensor.block_len();
                let mut at = 0;
                while at < tensor.raw_len() {
                    let end = tensor.raw_len().min(at + step);
                    let mut piece = place.take_front(usize::try_from(end - at).expect("within the buffer"));
                    let tensor = Arc::clone(&tensor);
                    let job = move || {
                        let read = tensor.read_range(at..end, &mut piece, 1);
                        read.map(|()| (tensor_idx, piece)).map_err(|error| error.in_tensor(name))
                    };
                    // Nobody takes results any more because one was an error, which is reported.
                    if line.push(job).is_err() {
                        return Ok(());
                    }
                    at = end;
                }
            }
            Ok(())
        },
        |pieces| {
            for piece in pieces {
                let (tensor_idx, piece) = piece?;
                take(tensor_idx, piece);
            }
            Ok(())
        },
    );
    // What decoding found broken comes before what was opened later.
    taken.and(fed)
}
