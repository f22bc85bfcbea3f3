//! Reads many tensors at once: some threads fetch their bytes, the caller's opens them, others decode.

use super::{OpenTensor, round_to};
use crate::Error;
use crate::options::thread_count;
use crate::pipeline::ahead::Ahead;
use crate::pipeline::ordered::{self, Closed, Line};
use bytes::BytesMut;
use mithril_codec::Dtype;
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

/// A tensor that is read, and those that follow from it, which need not be decoded again.
pub(crate) struct Wanted<'a, P> {
    pub(crate) tensor: OpenTensor<'a>,
    pub(crate) name: &'a str,
    /// What `take` knows it by, and a buffer of exactly its length.
    pub(crate) place: (usize, P),
    pub(crate) followers: Vec<Follower<P>>,
}

/// A tensor that follows from another one.
pub(crate) struct Follower<P> {
    /// The type that F32 elements are rounded to; none for the same bytes.
    pub(crate) rounded_to: Option<Dtype>,
    pub(crate) place: (usize, P),
}

impl<P> Follower<P> {
    /// Its bytes for so many of the tensor that it follows from.
    fn len_of(&self, len: usize) -> usize {
        if self.rounded_to.is_some() { len / 2 } else { len }
    }
}

/// Reads tensors, which the iterator opens while those before are decoded, and others fetch what was planned. `take` gets
/// the filled pieces of every tensor in order. `threads` decode; 0 is one per core, for tensors of so many bytes in all.
pub(crate) fn read_many<'env, P: Place + 'env>(
    ahead: &Ahead<'env>,
    tensors: impl Iterator<Item = Result<Wanted<'env, P>, Error>>,
    raw_len: u64,
    threads: usize,
    mut take: impl FnMut(usize, P) + Send,
) -> Result<(), Error> {
    let threads = thread_count(threads, usize::MAX, usize::try_from(raw_len).unwrap_or(usize::MAX));
    let feed = |line: &Line<'env, Result<Filled<P>, Error>>| {
        for wanted in tensors {
            if feed_tensor(line, wanted?).is_err() {
                // Nobody takes results any more because one was an error, which is reported.
                break;
            }
        }
        Ok(())
    };
    let take_all = |pieces: &mut dyn Iterator<Item = Result<Filled<P>, Error>>| {
        for piece in pieces {
            let ((tensor_idx, piece), followers) = piece?;
            take(tensor_idx, piece);
            for (tensor_idx, piece) in followers {
                take(tensor_idx, piece);
            }
        }
        Ok(())
    };
    let ran = ahead.run(|| ordered::run(threads, feed, take_all));
    let (fed, taken) = ran.map_err(Error::starting)?;
    // What decoding found broken comes before what was opened later.
    taken.and(fed)
}

/// A piece of a tensor, and those of its followers.
type Filled<P> = ((usize, P), Vec<(usize, P)>);

fn feed_tensor<'env, P: Place + 'env>(
    line: &Line<'env, Result<Filled<P>, Error>>,
    wanted: Wanted<'env, P>,
) -> Result<(), Closed> {
    let Wanted { tensor, name, mut place, mut followers } = wanted;
    let tensor = Arc::new(tensor);
    let mut step = (BATCH_LEN / tensor.block_len()).max(1) * tensor.block_len();
    if !followers.is_empty() {
        // Whole elements are rounded.
        step = step.next_multiple_of(4);
    }
    let mut at = 0;
    while at < tensor.raw_len() {
        let end = tensor.raw_len().min(at + step);
        let len = usize::try_from(end - at).expect("within the buffer");
        let mut piece = place.1.take_front(len);
        let tensor_idx = place.0;
        let mut follow: Vec<_> = followers
            .iter_mut()
            .map(|follower| {
                let len = follower.len_of(len);
                (follower.rounded_to, (follower.place.0, follower.place.1.take_front(len)))
            })
            .collect();
        let tensor = Arc::clone(&tensor);
        line.push(move || {
            tensor.read_range(at..end, &mut piece, 1).map_err(|error| error.in_tensor(name))?;
            for (rounded_to, (_, out)) in &mut follow {
                match rounded_to {
                    Some(dtype) => round_to(*dtype, &piece, out),
                    None => out.copy_from_slice(&piece),
                }
            }
            Ok(((tensor_idx, piece), follow.into_iter().map(|(_, place)| place).collect()))
        })?;
        at = end;
    }
    Ok(())
}
