//! Checkpoint stores for async callers: the work runs on threads of its own, on any runtime.

use super::background::message_of;
use super::compressed::CompressedCheckpoint;
use super::{
    Checkpoint, CheckpointError, CheckpointMeta, CompressorConfig, GcOptions, GcReport, Listing, SaveHandle,
    TensorData, VerifyOptions, VerifyReport, blocking,
};
use crate::storage::StorageBackend;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

/// Saves and loads checkpoints of one store. Clones share it.
///
/// The futures need no particular runtime. One that is dropped does not stop its work: a save that was started ends
/// as a whole, committed or not.
#[derive(Debug, Clone)]
pub struct CheckpointCompressor {
    inner: blocking::CheckpointCompressor,
}

impl CheckpointCompressor {
    /// A compressor over a storage; see [`storage::open`](crate::storage::open).
    pub fn new(config: CompressorConfig, storage: Arc<dyn StorageBackend>) -> Self {
        Self { inner: blocking::CheckpointCompressor::new(config, storage) }
    }

    /// The same store for callers that block.
    pub fn blocking(&self) -> &blocking::CheckpointCompressor {
        &self.inner
    }

    async fn run<T: Send + 'static>(
        &self,
        key: &str,
        work: impl FnOnce(&blocking::CheckpointCompressor) -> Result<T, CheckpointError> + Send + 'static,
    ) -> Result<T, CheckpointError> {
        let inner = self.inner.clone();
        OnThread::start(key.to_owned(), move || work(&inner)).await
    }

    /// Saves a checkpoint; see [`blocking::CheckpointCompressor::save`]. The tensors are shared with the thread that
    /// saves them, not copied.
    ///
    /// # Errors
    /// As there.
    pub async fn save(
        &self,
        checkpoint: &Checkpoint,
        key: &str,
        previous_key: Option<&str>,
    ) -> Result<CheckpointMeta, CheckpointError> {
        let checkpoint = checkpoint.clone();
        let (own_key, previous_key) = (key.to_owned(), previous_key.map(str::to_owned));
        self.run(key, move |store| store.save(&checkpoint, &own_key, previous_key.as_deref())).await
    }

    /// Starts a save and returns at once; see [`blocking::CheckpointCompressor::save_async`].
    pub fn save_async(&self, checkpoint: &Checkpoint, key: &str, previous_key: Option<&str>) -> SaveHandle {
        self.inner.save_async(checkpoint.clone(), key, previous_key)
    }

    /// Loads a checkpoint; see [`blocking::CheckpointCompressor::load`].
    ///
    /// # Errors
    /// As there.
    pub async fn load(&self, key: &str) -> Result<Checkpoint, CheckpointError> {
        let own_key = key.to_owned();
        self.run(key, move |store| store.load(&own_key)).await
    }

    /// Loads one tensor; see [`blocking::CheckpointCompressor::load_tensor`].
    ///
    /// # Errors
    /// As there.
    pub async fn load_tensor(&self, key: &str, name: &str) -> Result<TensorData, CheckpointError> {
        let (own_key, name) = (key.to_owned(), name.to_owned());
        self.run(key, move |store| store.load_tensor(&own_key, &name)).await
    }

    /// Loads tensors into buffers that are there, and gives them back; see
    /// [`blocking::CheckpointCompressor::load_into`].
    ///
    /// # Errors
    /// As there.
    pub async fn load_into(
        &self,
        key: &str,
        buffers: Vec<(String, Vec<u8>)>,
    ) -> Result<Vec<(String, Vec<u8>)>, CheckpointError> {
        let own_key = key.to_owned();
        self.run(key, move |store| {
            let mut buffers = buffers;
            let mut borrowed: Vec<(&str, &mut [u8])> =
                buffers.iter_mut().map(|(name, buffer)| (name.as_str(), buffer.as_mut_slice())).collect();
            store.load_into(&own_key, &mut borrowed)?;
            Ok(buffers)
        })
        .await
    }

    /// All checkpoints; see [`blocking::CheckpointCompressor::list`].
    ///
    /// # Errors
    /// As there.
    pub async fn list(&self) -> Result<Listing, CheckpointError> {
        self.run("", blocking::CheckpointCompressor::list).await
    }

    /// Deletes a checkpoint; see [`blocking::CheckpointCompressor::delete`].
    ///
    /// # Errors
    /// As there.
    pub async fn delete(&self, key: &str) -> Result<(), CheckpointError> {
        let own_key = key.to_owned();
        self.run(key, move |store| store.delete(&own_key)).await
    }

    /// Removes what no checkpoint needs; see [`blocking::CheckpointCompressor::gc`].
    ///
    /// # Errors
    /// As there.
    pub async fn gc(&self, options: &GcOptions) -> Result<GcReport, CheckpointError> {
        let options = options.clone();
        self.run("", move |store| store.gc(&options)).await
    }

    /// Makes a checkpoint independent of all others; see [`blocking::CheckpointCompressor::rebase`].
    ///
    /// # Errors
    /// As there.
    pub async fn rebase(&self, key: &str) -> Result<CheckpointMeta, CheckpointError> {
        let own_key = key.to_owned();
        self.run(key, move |store| store.rebase(&own_key)).await
    }

    /// Checks a checkpoint, or all of them; see [`blocking::CheckpointCompressor::verify`].
    ///
    /// # Errors
    /// As there.
    pub async fn verify(
        &self,
        key: Option<&str>,
        options: &VerifyOptions,
    ) -> Result<VerifyReport, CheckpointError> {
        let (own_key, options) = (key.map(str::to_owned), options.clone());
        self.run(key.unwrap_or_default(), move |store| store.verify(own_key.as_deref(), &options, &|_| ()))
            .await
    }

    /// Waits for the saves that were started; see [`blocking::CheckpointCompressor::flush`].
    ///
    /// # Errors
    /// When no thread could be started.
    pub async fn flush(&self, deadline: Duration) -> Result<Vec<SaveHandle>, CheckpointError> {
        self.run("", move |store| Ok(store.flush(deadline))).await
    }

    /// A checkpoint as one container in memory; see [`blocking::CheckpointCompressor::compress`].
    ///
    /// # Errors
    /// As there.
    pub async fn compress(
        &self,
        checkpoint: &Checkpoint,
        previous: Option<&str>,
    ) -> Result<CompressedCheckpoint, CheckpointError> {
        let (checkpoint, previous) = (checkpoint.clone(), previous.map(str::to_owned));
        self.run("", move |store| store.compress(&checkpoint, previous.as_deref())).await
    }

    /// The checkpoint that a container in memory holds; see [`blocking::CheckpointCompressor::decompress`].
    ///
    /// # Errors
    /// As there.
    pub async fn decompress(&self, compressed: &CompressedCheckpoint) -> Result<Checkpoint, CheckpointError> {
        let compressed = compressed.clone();
        self.run("", move |store| store.decompress(&compressed)).await
    }
}

/// The result of work on a thread of its own.
struct OnThread<T> {
    shared: Arc<Mutex<Shared<T>>>,
}

struct Shared<T> {
    result: Option<Result<T, CheckpointError>>,
    waker: Option<Waker>,
}

impl<T: Send + 'static> OnThread<T> {
    fn start(key: String, work: impl FnOnce() -> Result<T, CheckpointError> + Send + 'static) -> Self {
        let shared = Arc::new(Mutex::new(Shared { result: None, waker: None }));
        let theirs = shared.clone();
        let finish = move |result| {
            let mut shared = theirs.lock().unwrap_or_else(PoisonError::into_inner);
            shared.result = Some(result);
            if let Some(waker) = shared.waker.take() {
                waker.wake();
            }
        };
        let failed = finish.clone();
        let own_key = key.clone();
        let run = move || {
            let result = catch_unwind(AssertUnwindSafe(work));
            finish(result.unwrap_or_else(|panic| {
                Err(CheckpointError::Panicked { key: own_key, message: message_of(&*panic) })
            }));
        };
        if let Err(error) = std::thread::Builder::new().name("mithril-store".to_owned()).spawn(run) {
            let source = crate::Error::starting(error);
            failed(Err(CheckpointError::Compression { key, source }));
        }
        Self { shared }
    }
}

impl<T> Future for OnThread<T> {
    type Output = Result<T, CheckpointError>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut shared = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        match shared.result.take() {
            Some(result) => Poll::Ready(result),
            None => {
                shared.waker = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::pin::pin;
    use std::task::Wake;

    struct Unpark(std::thread::Thread);

    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }

    #[test]
    fn a_future_is_woken_whenever_its_work_ends() {
        let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
        for panics in [false, true] {
            let mut future = pin!(OnThread::start("key".to_owned(), move || {
                assert!(!panics, "as asked");
                Ok(7)
            }));
            let result = loop {
                match future.as_mut().poll(&mut Context::from_waker(&waker)) {
                    Poll::Ready(result) => break result,
                    Poll::Pending => std::thread::park(),
                }
            };
            assert!(result.is_err_and(|error| error.to_string().contains("as asked")) == panics);
        }
    }
}
