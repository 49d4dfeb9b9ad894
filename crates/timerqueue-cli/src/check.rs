//! `check`: reads the whole file.

use std::path::Path;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::exit::Fail;
use crate::look::reader;
use crate::out::{Out, Progress};
use crate::put::named;
use crate::text;

/// How often the time that has passed is shown on a terminal.
const TICK: Duration = Duration::from_millis(200);

#[derive(Serialize)]
struct Sound {
    sound: bool,
    bytes: u64,
    seconds: f64,
}

pub(crate) fn check(file: &Path, progress: bool, out: &mut Out) -> Result<(), Fail> {
    let begin = Instant::now();
    let reader = reader(file)?;
    let bytes = file.metadata().map_or(0, |data| data.len());
    let (steps, shown) = channel();
    let checked = std::thread::scope(|scope| {
        // Shows the part of the check that is under way, and on a terminal for how long.
        scope.spawn(move || {
            let mut progress = Progress::new(progress);
            let mut now = String::new();
            loop {
                match shown.recv_timeout(TICK) {
                    Ok(step) => now = step,
                    Err(RecvTimeoutError::Timeout) if progress.is_terminal() && progress.is_on() => {}
                    Err(RecvTimeoutError::Timeout) => continue,
                    Err(RecvTimeoutError::Disconnected) => return,
                }
                progress.show(&format!("{now}, {:.1} s", begin.elapsed().as_secs_f64()));
            }
        });
        reader.check(move |step| {
            let size = if step.number == 1 { format!(" of {}", size(bytes)) } else { String::new() };
            let _ = steps.send(format!("{} of {}: {}{size}", step.number, step.of, step.what));
        })
    });
    checked.map_err(|error| named(file, error.into()))?;
    let sound = Sound { sound: true, bytes, seconds: begin.elapsed().as_secs_f64() };
    out.thing(&sound, |sound| {
        format!("{}: sound, {} read in {:.1} s", text::tame(&file.to_string_lossy()), size(sound.bytes), sound.seconds)
    })
}

fn size(bytes: u64) -> String {
    match bytes {
        0..1_000_000 => format!("{} KB", bytes.div_ceil(1_000)),
        1_000_000..1_000_000_000 => format!("{} MB", bytes / 1_000_000),
        _ => format!("{:.1} GB", bytes as f64 / 1e9),
    }
}
