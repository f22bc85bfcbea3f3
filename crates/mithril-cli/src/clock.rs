//! Clocks: CPU time of this thread and of the process, and time on the wall.

use rustix::time::{ClockId, clock_gettime};

/// Seconds that some work took, by three clocks.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Elapsed {
    /// CPU time of the calling thread: other load on the machine disturbs it little.
    pub(crate) thread_cpu: f64,
    /// CPU time of all threads of the process.
    pub(crate) process_cpu: f64,
    /// Time on the wall.
    pub(crate) wall: f64,
}

impl Elapsed {
    /// Longer than any work.
    pub(crate) const FOREVER: Self =
        Self { thread_cpu: f64::INFINITY, process_cpu: f64::INFINITY, wall: f64::INFINITY };

    /// The shorter time by each clock.
    pub(crate) fn min(self, other: Self) -> Self {
        Self {
            thread_cpu: self.thread_cpu.min(other.thread_cpu),
            process_cpu: self.process_cpu.min(other.process_cpu),
            wall: self.wall.min(other.wall),
        }
    }
}

/// Runs `work` and says how long it took.
pub(crate) fn time<T>(work: impl FnOnce() -> T) -> (T, Elapsed) {
    let clocks = [ClockId::Monotonic, ClockId::ProcessCPUTime, ClockId::ThreadCPUTime];
    let before = clocks.map(seconds);
    let value = work();
    let mut after = clocks.map(seconds).into_iter().zip(before).map(|(after, before)| after - before);
    let mut next = || after.next().unwrap_or_default();
    let (wall, process_cpu, thread_cpu) = (next(), next(), next());
    (value, Elapsed { thread_cpu, process_cpu, wall })
}

/// What a clock shows.
pub(crate) fn seconds(clock: ClockId) -> f64 {
    let now = clock_gettime(clock);
    now.tv_sec as f64 + now.tv_nsec as f64 * 1e-9
}
