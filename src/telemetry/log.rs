//! The log: lines on standard output, written by a thread of their own, so that a slow reader delays no request.
//!
//! Lines are gathered for a moment and written together. One write and one wake-up for each line cost as much as a third of a small request.

use std::io::{self, IsTerminal, Write};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;

use super::{LogFormat, Settings};

/// How long lines are gathered.
const GATHER: Duration = Duration::from_millis(20);

/// Bytes that wait to be written, at most, beside as many that are being written. Lines beyond are lost, and counted.
const ROOM: usize = 16 << 20;

/// How long the end waits for a reader that takes nothing.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// What one burst may leave allocated.
const KEPT: usize = 64 << 10;

/// Where the first log that was started writes to: there is one standard output.
static OUTPUT: OnceLock<(Arc<Output>, LogFormat, ArcSwap<Settings>)> = OnceLock::new();

/// The log at work. Dropping it writes what is left, as far as it is read in good time: nobody reads a paused terminal, and the process must end.
pub struct Log {
    output: Arc<Output>,
    filter: Box<dyn Fn(EnvFilter) + Send + Sync>,
}

impl Log {
    /// Writes what `settings` ask for from now on. How a line looks stays as it was.
    pub fn follow(&self, settings: &Settings) {
        if let Some((_, _, of_access)) = OUTPUT.get() {
            of_access.store(Arc::new(settings.clone()));
        }
        (self.filter)(filter(settings));
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        self.output.finish(LAST_WORDS);
    }
}

fn filter(settings: &Settings) -> EnvFilter {
    EnvFilter::new(settings.level.to_string())
}

/// Starts logging to standard output. Fails where no thread can be started.
pub fn start(settings: &Settings) -> io::Result<Log> {
    let output = Arc::new(Output::default());
    let lines = Lines(Arc::clone(&output));
    let subscriber = tracing_subscriber::fmt().with_env_filter(filter(settings)).with_writer(lines).with_ansi(io::stdout().is_terminal());
    // A second start in one process, as in tests, keeps the first.
    let _ = OUTPUT.set((Arc::clone(&output), settings.format, ArcSwap::from_pointee(settings.clone())));
    // Changing the filter fails only where the log is gone.
    let filter: Box<dyn Fn(EnvFilter) + Send + Sync> = match settings.format {
        LogFormat::Text => {
            let subscriber = subscriber.with_filter_reloading();
            let handle = subscriber.reload_handle();
            let _ = subscriber.try_init();
            Box::new(move |filter| drop(handle.reload(filter)))
        }
        LogFormat::Json => {
            let subscriber = subscriber.json().flatten_event(true).with_filter_reloading();
            let handle = subscriber.reload_handle();
            let _ = subscriber.try_init();
            Box::new(move |filter| drop(handle.reload(filter)))
        }
    };
    let writing = Arc::clone(&output);
    // It ends by itself; the end of the process does not wait for it beyond what `finish` waits.
    std::thread::Builder::new().name("log".to_owned()).spawn(move || writing.write_to(&mut io::stdout()))?;
    Ok(Log { output, filter })
}

/// The format of the log that is at work, and what it is to write, if one is.
pub(super) fn at_work() -> Option<(LogFormat, arc_swap::Guard<Arc<Settings>>)> {
    OUTPUT.get().map(|(_, format, settings)| (*format, settings.load()))
}

/// Writes a line, which ends with its line end, in good time.
pub(super) fn write(line: &[u8]) {
    if let Some((output, ..)) = OUTPUT.get() {
        output.put(line);
    }
}

/// How many lines were lost so far.
pub(super) fn lost() -> u64 {
    OUTPUT.get().map_or(0, |(output, ..)| output.lock().lost_in_all)
}

/// Lines between those who have something to say and the thread that writes.
#[derive(Default)]
struct Output {
    state: Mutex<State>,
    news: Condvar,
    /// Tells that the writer is done.
    end: Condvar,
}

#[derive(Default)]
struct State {
    lines: Vec<u8>,
    /// Lines for which there was no room, since that was last told, and in all.
    lost: u64,
    lost_in_all: u64,
    /// Whether the writer waits for a first line.
    is_idle: bool,
    is_over: bool,
    /// Whether nothing is written any more.
    is_closed: bool,
}

impl Output {
    fn put(&self, line: &[u8]) {
        let mut state = self.lock();
        if state.is_closed {
            return;
        }
        if state.lines.len() + line.len() > ROOM {
            state.lost += 1;
            state.lost_in_all += 1;
            return;
        }
        state.lines.extend_from_slice(line);
        if std::mem::take(&mut state.is_idle) {
            self.news.notify_one();
        }
    }

    /// Writes until the log is dropped, and then what is left.
    fn write_to(&self, out: &mut impl Write) {
        let mut lines = Vec::new();
        while let Some(lost) = self.gather(&mut lines) {
            // Without a reader there is nobody to tell.
            let _ = out.write_all(&lines).and_then(|()| out.flush());
            if lost > 0 {
                tracing::error!(lost, "{lost} log lines were lost: whoever reads standard output is too slow");
            }
            lines.clear();
            lines.shrink_to(KEPT);
        }
        self.lock().is_closed = true;
        self.end.notify_all();
    }

    /// Has what is left written, and waits for that, but not for long.
    fn finish(&self, patience: Duration) {
        let mut state = self.lock();
        state.is_over = true;
        self.news.notify_one();
        drop(self.end.wait_timeout_while(state, patience, |state| !state.is_closed));
    }

    /// Waits for lines and for more of them, and puts them into `lines`. How many were lost before them; `None` at the end.
    fn gather(&self, lines: &mut Vec<u8>) -> Option<u64> {
        let mut state = self.lock();
        while state.lines.is_empty() && !state.is_over {
            state.is_idle = true;
            state = self.news.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.is_idle = false;
        (state, _) = self.news.wait_timeout_while(state, GATHER, |state| !state.is_over).unwrap_or_else(PoisonError::into_inner);
        std::mem::swap(&mut state.lines, lines);
        (!lines.is_empty()).then(|| std::mem::take(&mut state.lost))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing panics while it holds this lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Takes whole lines.
#[derive(Clone)]
struct Lines(Arc<Output>);

impl Write for Lines {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.0.put(line);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Lines {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_written_in_order_and_what_is_left_at_the_end() {
        let output = Arc::new(Output::default());
        let writing = Arc::clone(&output);
        let writer = std::thread::spawn(move || {
            let mut written = Vec::new();
            writing.write_to(&mut written);
            written
        });
        let lines: Vec<String> = (0..1_000).map(|number| format!("line {number}\n")).collect();
        for line in &lines {
            output.put(line.as_bytes());
        }
        output.finish(Duration::MAX);
        output.put(b"too late\n");
        assert_eq!(String::from_utf8(writer.join().expect("no panic")).expect("text"), lines.concat());
    }

    #[test]
    fn a_reader_that_takes_nothing_does_not_keep_the_end_from_coming() {
        let output = Output::default();
        output.put(b"line\n");
        output.finish(Duration::from_millis(1));
        assert!(!output.lock().is_closed);
    }

    #[test]
    fn what_nobody_reads_is_bounded_and_counted() {
        let output = Output::default();
        let line = [b'x'; 1 << 10];
        let fitting = ROOM / line.len();
        for _ in 0..fitting + 7 {
            output.put(&line);
        }
        let mut lines = Vec::new();
        assert_eq!(output.gather(&mut lines), Some(7));
        assert_eq!(output.lock().lost_in_all, 7);
        assert_eq!(lines.len(), fitting * line.len());
    }
}
