//! How far reading has come: a bar with rate and time left, on a terminal only.

use crate::clock::seconds;
use rustix::time::ClockId;
use std::io::{self, IsTerminal, Read, Write};

/// Seconds between two pictures; also before the first, so that short work shows none.
const INTERVAL_SECONDS: f64 = 0.2;

/// Places of a full bar.
const BAR_WIDTH: usize = 30;

/// A reader that counts, and shows how far it is.
#[derive(Debug)]
pub(crate) struct Metered<R> {
    reader: R,
    len: u64,
    total_len: Option<u64>,
    started: f64,
    shown: f64,
    /// Places that the last picture took, to be wiped; nothing when stderr is no terminal.
    width: Option<usize>,
}

impl<R> Metered<R> {
    /// Counts what is read; `total_len` is how much there is, if known.
    pub(crate) fn new(reader: R, total_len: Option<u64>) -> Self {
        let now = seconds(ClockId::Monotonic);
        let width = io::stderr().is_terminal().then_some(0);
        Self { reader, len: 0, total_len, started: now, shown: now, width }
    }

    /// Wipes the bar; returns how many bytes were read.
    pub(crate) fn finish(mut self) -> u64 {
        self.wipe();
        self.len
    }

    fn show(&mut self) {
        let now = seconds(ClockId::Monotonic);
        let Some(width) = self.width.filter(|_| now - self.shown >= INTERVAL_SECONDS) else { return };
        self.shown = now;
        let line = picture(self.len, self.total_len, now - self.started);
        // Blanks instead of escape codes: they work on every terminal.
        let _ = write!(io::stderr().lock(), "\r{line:<width$}");
        self.width = Some(line.len());
    }

    fn wipe(&mut self) {
        if let Some(width) = self.width.filter(|&width| width > 0) {
            let _ = write!(io::stderr().lock(), "\r{:width$}\r", "");
            self.width = Some(0);
        }
    }
}

impl<R: Read> Read for Metered<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let len = self.reader.read(out)?;
        self.len += len as u64;
        if self.width.is_some() {
            self.show();
        }
        Ok(len)
    }
}

impl<R> Drop for Metered<R> {
    fn drop(&mut self) {
        self.wipe();
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
}
