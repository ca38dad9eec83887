//! Limits of one rendering: bytes, time, and the size and depth of data.

use std::{
    fmt::{self, Write},
    sync::atomic::{AtomicUsize, Ordering},
    time::{Duration, Instant},
};

use cpu_time::ThreadTime;
use minijinja::{Error, ErrorKind, Value, value::ValueKind};

use super::json;

/// Bytes that a rendering may create: a constant, plus an amount per byte of input.
const BYTES: usize = 24 << 20;
const BYTES_PER_INPUT_BYTE: usize = 16;
/// Processor time of a rendering: a constant, plus an amount per byte of input.
const TIME: Duration = Duration::from_millis(150);
const TIME_PER_INPUT_BYTE: Duration = Duration::from_nanos(100);
/// Number of values that an operation may inspect, and their nesting depth.
const VALUES: usize = 50_000;
const DEPTH: usize = 24;
/// Bytes charged for each element of a list or map.
const ELEMENT: usize = 64;

/// Remaining bytes and time. Bytes count everything created during the rendering, even if it was
/// freed. Time is the rendering thread's own, so a template costs no more on a busy machine than on
/// an idle one.
#[derive(Debug)]
pub struct Budget {
    began: Instant,
    time: Duration,
    /// The thread time at which the budget ends.
    end: Duration,
    bytes: AtomicUsize,
}

impl Budget {
    /// The budget for a conversation of `input` bytes, rendered by the calling thread.
    pub fn new(input: usize) -> Self {
        let time = TIME + TIME_PER_INPUT_BYTE.saturating_mul(u32::try_from(input).unwrap_or(u32::MAX));
        Budget {
            began: Instant::now(),
            time,
            end: ThreadTime::now().as_duration() + time,
            bytes: AtomicUsize::new(BYTES.saturating_add(input.saturating_mul(BYTES_PER_INPUT_BYTE))),
        }
    }

    /// Charges `bytes` before they are created.
    pub fn charge(&self, bytes: usize) -> Result<(), Error> {
        let take = |left: usize| left.checked_sub(bytes);
        match self.bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take) {
            Ok(_) => Ok(()),
            Err(_) => Err(refused("the template creates too much text")),
        }
    }

    /// Checks that there is time left.
    pub fn check_time(&self) -> Result<(), Error> {
        // Reading the thread's time costs a system call, so it is read only if the budget may be
        // used up.
        if self.began.elapsed() > self.time && ThreadTime::now().as_duration() > self.end {
            return Err(refused("the template takes too long"));
        }
        Ok(())
    }

    /// Checks the operands of an operation: time must be left, and the operands must be few and
    /// shallow.
    pub fn admit(&self, operands: &[Value]) -> Result<(), Error> {
        self.check_time()?;
        let mut left = VALUES;
        operands.iter().try_for_each(|value| walk(value, DEPTH, &mut left))
    }

    /// Charges a finished result.
    pub fn settle(&self, result: Value) -> Result<Value, Error> {
        self.charge(match result.kind() {
            ValueKind::String => result.as_str().map_or(0, str::len),
            ValueKind::Seq | ValueKind::Map => result.len().unwrap_or(0).saturating_mul(ELEMENT),
            _ => 0,
        })?;
        Ok(result)
    }

    /// Charges a list of `len` elements.
    pub fn charge_elements(&self, len: usize) -> Result<(), Error> {
        self.charge(len.saturating_mul(ELEMENT))
    }

    /// The value as a template would print it.
    pub fn text(&self, value: &Value) -> Result<String, Error> {
        if let Some(float) = json::repr(value) {
            self.charge(float.len())?;
            return Ok(float);
        }
        let mut text = Charged { budget: self, text: String::new() };
        self.admit(std::slice::from_ref(value))?;
        match write!(text, "{value}") {
            Ok(()) => Ok(text.text),
            Err(_) => Err(refused("the template creates too much text")),
        }
    }
}

/// A text that is charged as it grows.
struct Charged<'a> {
    budget: &'a Budget,
    text: String,
}

impl Write for Charged<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.budget.charge(text.len()).map_err(|_| fmt::Error)?;
        self.text.push_str(text);
        Ok(())
    }
}

/// The error for a template that exceeds a limit.
pub fn refused(why: &'static str) -> Error {
    Error::new(ErrorKind::InvalidOperation, why)
}

fn walk(value: &Value, depth: usize, left: &mut usize) -> Result<(), Error> {
    *left = left.checked_sub(1).ok_or_else(|| refused("the data of the template is too large"))?;
    let kind = value.kind();
    if !matches!(kind, ValueKind::Seq | ValueKind::Map | ValueKind::Iterable) {
        return Ok(());
    }
    let depth = depth.checked_sub(1).ok_or_else(|| refused("the data of the template is nested too deeply"))?;
    for item in value.try_iter()? {
        if kind == ValueKind::Map {
            walk(&value.get_item(&item)?, depth, left)?;
        }
        walk(&item, depth, left)?;
    }
    Ok(())
}
