//! How far work has come: a bar with rate and time left, on a terminal only.

use crate::clock::seconds;
use rustix::time::ClockId;
use std::io::{self, IsTerminal, Read, Write};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Seconds between two pictures; also before the first, so that short work shows none.
const INTERVAL_SECONDS: f64 = 0.2;

/// Places of a full bar.
const BAR_WIDTH: usize = 30;

/// Counts work, and shows how far it is. Several threads may count.
#[derive(Debug)]
pub(crate) struct Meter {
    total_len: Option<u64>,
    started: f64,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    len: u64,
    shown: f64,
    /// Places that the last picture took, to be wiped; nothing when stderr is no terminal.
    width: Option<usize>,
}

impl Meter {
    /// Starts to count; `total_len` is how much there will be, if known.
    pub(crate) fn new(total_len: Option<u64>) -> Self {
        let now = seconds(ClockId::Monotonic);
        let width = io::stderr().is_terminal().then_some(0);
        Self { total_len, started: now, state: Mutex::new(State { len: 0, shown: now, width }) }
    }

    /// Counts some more bytes.
    pub(crate) fn add(&self, len: u64) {
        let mut state = self.state();
        state.len += len;
        let Some(width) = state.width else { return };
        let now = seconds(ClockId::Monotonic);
        if now - state.shown < INTERVAL_SECONDS {
            return;
        }
        state.shown = now;
        let line = picture(state.len, self.total_len, now - self.started);
        // Blanks instead of escape codes: they work on every terminal.
        let _ = write!(io::stderr().lock(), "\r{line:<width$}");
        state.width = Some(line.len());
    }

    /// Bytes counted so far.
    pub(crate) fn len(&self) -> u64 {
        self.state().len
    }

    /// Seconds since the start.
    pub(crate) fn elapsed_seconds(&self) -> f64 {
        (seconds(ClockId::Monotonic) - self.started).max(1e-9)
    }

    /// Removes the bar from the terminal, so that other text can stand there.
    pub(crate) fn wipe(&self) {
        let mut state = self.state();
        if let Some(width) = state.width.filter(|&width| width > 0) {
            let _ = write!(io::stderr().lock(), "\r{:width$}\r", "");
            state.width = Some(0);
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Meter {
    fn drop(&mut self) {
        self.wipe();
    }
}

/// A reader that counts what is read.
#[derive(Debug)]
pub(crate) struct Metered<R> {
    reader: R,
    meter: Meter,
}

impl<R> Metered<R> {
    /// Counts what is read; `total_len` is how much there is, if known.
    pub(crate) fn new(reader: R, total_len: Option<u64>) -> Self {
        Self { reader, meter: Meter::new(total_len) }
    }

    /// Counts bytes that something else has done.
    pub(crate) fn add(&mut self, len: u64) {
        self.meter.add(len);
    }

    /// Wipes the bar; returns how many bytes were read.
    pub(crate) fn finish(self) -> u64 {
        self.meter.len()
    }
}

impl<R: Read> Read for Metered<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let len = self.reader.read(out)?;
        self.meter.add(len as u64);
        Ok(len)
    }
}

/// The bar after some bytes and seconds.
fn picture(len: u64, total_len: Option<u64>, elapsed_seconds: f64) -> String {
    let rate = len as f64 / elapsed_seconds.max(1e-9);
    let read = format!("{:.1} MB, {:.2} GB/s", len as f64 / 1e6, rate / 1e9);
    let Some(total_len) = total_len.filter(|&total_len| total_len > 0) else { return read };
    let share = (len as f64 / total_len as f64).min(1.0);
    let left_seconds = total_len.saturating_sub(len) as f64 / rate.max(1.0);
    let full: String = (0..BAR_WIDTH)
        .map(|place| if (place as f64) < share * BAR_WIDTH as f64 { '#' } else { '.' })
        .collect();
    format!(
        "[{full}] {:3.0} % of {:.1} MB, {:.2} GB/s, {left_seconds:.0} s left",
        share * 100.0,
        total_len as f64 / 1e6,
        rate / 1e9
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bar_shows_share_rate_and_time_left() {
        let half = picture(500_000_000, Some(1_000_000_000), 2.0);
        assert_eq!(half, "[###############...............]  50 % of 1000.0 MB, 0.25 GB/s, 2 s left");
        assert_eq!(picture(1_000_000, None, 1.0), "1.0 MB, 0.00 GB/s");
    }

    #[test]
    fn what_several_threads_count_adds_up() {
        let meter = Meter::new(None);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..1000).for_each(|_| meter.add(3)));
            }
        });
        assert_eq!(meter.len(), 12_000);
    }
}
