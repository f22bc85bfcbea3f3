//! The runtime that object-store clients run on.

use std::future::Future;
use std::sync::mpsc;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::runtime::{Builder, Runtime};

/// The runtime of this process, and the process that it belongs to: after a fork its threads are not there, and the
/// child makes its own.
static CURRENT: Mutex<Option<(u32, Arc<Runtime>)>> = Mutex::new(None);

fn current() -> Arc<Runtime> {
    let mut current = CURRENT.lock().unwrap_or_else(PoisonError::into_inner);
    let process = std::process::id();
    match &*current {
        Some((owner, runtime)) if *owner == process => runtime.clone(),
        _ => {
            let runtime = Builder::new_multi_thread()
                .worker_threads(2)
                .thread_name("mithril-storage")
                .enable_all()
                .build()
                .expect("threads can be started");
            let runtime = Arc::new(runtime);
            // Dropping the parent's runtime would wait for threads that do not exist here.
            if let Some(parents) = current.replace((process, runtime.clone())) {
                std::mem::forget(parents);
            }
            runtime
        }
    }
}

/// Starts work, whose result comes through the channel. Works inside of other runtimes too.
pub(super) fn start<T: Send + 'static>(
    future: impl Future<Output = T> + Send + 'static,
) -> mpsc::Receiver<T> {
    let (sender, receiver) = mpsc::sync_channel(1);
    current().spawn(async move {
        // Nobody may wait for it any more.
        let _ = sender.send(future.await);
    });
    receiver
}
