//! Limits of one rendering: bytes, time, size and depth of data.

use std::{
    fmt::{self, Write},
    sync::atomic::{AtomicUsize, Ordering},
    time::{Duration, Instant},
};

use cpu_time::ThreadTime;
use minijinja::{Error, ErrorKind, Value, value::ValueKind};

use super::json;

/// Bytes a rendering may make out of nothing, and how many more for each byte of input.
const BYTES: usize = 24 << 20;
const BYTES_PER_INPUT_BYTE: usize = 16;
/// Time on a processor, and how much more for each byte of input.
const TIME: Duration = Duration::from_millis(150);
const TIME_PER_INPUT_BYTE: Duration = Duration::from_nanos(100);
/// Values an operation may look at, and how deep they may nest.
const VALUES: usize = 50_000;
const DEPTH: usize = 24;
/// Accounted for each element of a list or map.
const ELEMENT: usize = 64;

/// Bytes and time left. Bytes count everything made during the rendering, whether it is still alive or not. Time is that of the
/// rendering thread: on a busy machine a template is no more expensive than on an idle one.
#[derive(Debug)]
pub struct Budget {
    began: Instant,
    time: Duration,
    /// The thread's time at which it is over.
    end: Duration,
    bytes: AtomicUsize,
}

impl Budget {
    /// The budget of a conversation of `input` bytes, which the calling thread renders.
    pub fn new(input: usize) -> Self {
        let time = TIME + TIME_PER_INPUT_BYTE.saturating_mul(u32::try_from(input).unwrap_or(u32::MAX));
        Budget {
            began: Instant::now(),
            time,
            end: ThreadTime::now().as_duration() + time,
            bytes: AtomicUsize::new(BYTES.saturating_add(input.saturating_mul(BYTES_PER_INPUT_BYTE))),
        }
    }

    /// Takes `bytes` off the budget, before they are made.
    pub fn charge(&self, bytes: usize) -> Result<(), Error> {
        let take = |left: usize| left.checked_sub(bytes);
        match self.bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take) {
            Ok(_) => Ok(()),
            Err(_) => Err(refused("it makes too much text")),
        }
    }

    /// Checks that there is time left.
    pub fn check_time(&self) -> Result<(), Error> {
        // The thread's time costs a call of the system, so it is asked for only when it may be over.
        if self.began.elapsed() > self.time && ThreadTime::now().as_duration() > self.end {
            return Err(refused("it takes too long"));
        }
        Ok(())
    }

    /// Looks at the operands of an operation: there is time left, and they are few and shallow.
    pub fn admit(&self, operands: &[Value]) -> Result<(), Error> {
        self.check_time()?;
        let mut left = VALUES;
        operands.iter().try_for_each(|value| walk(value, DEPTH, &mut left))
    }

    /// Takes a finished result off the budget.
    pub fn settle(&self, result: Value) -> Result<Value, Error> {
        self.charge(match result.kind() {
            ValueKind::String => result.as_str().map_or(0, str::len),
            ValueKind::Seq | ValueKind::Map => result.len().unwrap_or(0).saturating_mul(ELEMENT),
            _ => 0,
        })?;
        Ok(result)
    }

    /// Takes a list of `len` elements off the budget.
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
            Err(_) => Err(refused("it makes too much text")),
        }
    }
}

/// Text that is charged as it grows.
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

/// The error for a template that asks for too much.
pub fn refused(why: &'static str) -> Error {
    Error::new(ErrorKind::InvalidOperation, why)
}

fn walk(value: &Value, depth: usize, left: &mut usize) -> Result<(), Error> {
    *left = left.checked_sub(1).ok_or_else(|| refused("its data is too large"))?;
    let kind = value.kind();
    if !matches!(kind, ValueKind::Seq | ValueKind::Map | ValueKind::Iterable) {
        return Ok(());
    }
    let depth = depth.checked_sub(1).ok_or_else(|| refused("its data is nested too deeply"))?;
    for item in value.try_iter()? {
        if kind == ValueKind::Map {
            walk(&value.get_item(&item)?, depth, left)?;
        }
        walk(&item, depth, left)?;
    }
    Ok(())
}
