//! The calculator: [`fend_core`] within limits, because a model writes the expression. The length
//! and the time are limited. The expression runs on a thread whose stack suffices for the deepest
//! nesting of that length.

use std::{
    thread,
    time::{Duration, Instant},
};

use cpu_time::ThreadTime;
use fend_core::{Context, Interrupt, evaluate_with_interrupt};

/// Longest expression in bytes.
const MOST: usize = 500;

/// Longest CPU time.
const TIME: Duration = Duration::from_millis(300);

/// Stack size of the thread in bytes, about 100 kB per byte of an expression.
const STACK: usize = 64 << 20;

/// A limit on the CPU time of the calculating thread. Other work on a busy machine does not count.
struct Deadline {
    began: Instant,
    time: Duration,
    /// CPU time of the thread at which the limit is reached.
    end: Duration,
}

impl Interrupt for Deadline {
    fn should_interrupt(&self) -> bool {
        // Reading the CPU time is a system call, so it is read only after the wall time has passed.
        self.began.elapsed() > self.time && ThreadTime::now().as_duration() > self.end
    }
}

/// Evaluates an expression. "approx." precedes a rounded value.
///
/// # Errors
/// A sentence for the model.
pub fn evaluate(expression: &str) -> Result<String, String> {
    evaluate_within(TIME, expression)
}

fn evaluate_within(time: Duration, expression: &str) -> Result<String, String> {
    let expression = expression.trim();
    if expression.is_empty() {
        return Err("the expression: expected something to evaluate, got nothing".to_owned());
    }
    if expression.len() > MOST {
        return Err(format!("the expression is too long: expected at most {MOST} bytes, got {}", expression.len()));
    }
    // Commas would be read as thousands separators: "min(3,1)" as 31 minutes.
    if expression.contains(',') {
        return Err("the expression: expected one value without commas, like 1000 for 1,000".to_owned());
    }
    let work = {
        let expression = expression.to_owned();
        move || {
            let end = ThreadTime::now().as_duration() + time;
            let deadline = Deadline { began: Instant::now(), time, end };
            evaluate_with_interrupt(&expression, &mut Context::new(), &deadline)
                .map(|result| result.get_main_result().to_owned())
        }
    };
    let thread = thread::Builder::new().name("calculator".to_owned()).stack_size(STACK).spawn(work);
    let thread = thread.map_err(|error| format!("the calculation could not start: {error}"))?;
    let result = thread.join().map_err(|_| "the expression cannot be evaluated".to_owned())?;
    result.map_err(|why| match &*why {
        "interrupted" => format!("the expression takes longer than {} s", time.as_secs_f32()),
        _ => format!("the expression: {why}"),
    })
}

#[cfg(test)]
mod timing;

#[cfg(test)]
mod tests {
    use super::*;
    use thermocline_host::testing::PATIENCE;

    #[test]
    fn arithmetic_is_exact_where_it_can_be() {
        for (expression, want) in [
            ("6 * 7", "42"),
            ("0.1 + 0.2", "0.3"),
            ("1/3 + 1/6", "0.5"),
            ("1/3", "approx. 0.3333333333"),
            ("2^10 - 2 ** 3", "1016"),
            ("2^-2", "0.25"),
            ("-2^2", "-4"),
            ("2^3^2", "512"),
            ("(1 + 2) × (3 − 4) ÷ 4", "-0.75"),
            ("7 mod 3", "1"),
            ("20% of 50", "10"),
            ("1_000 * 1e3 - 2.5e-1", "999999.75"),
            ("sqrt(2.25) + abs(-3) + floor(-1.5) + ceil(1.2) + round(2.5)", "7.5"),
            ("log10(1000) + ln(exp(2))", "approx. 5"),
            ("2^100", "1267650600228229401496703205376"),
            ("3 feet to cm", "91.44 cm"),
        ] {
            assert_eq!(evaluate_within(PATIENCE, expression).as_deref(), Ok(want), "{expression}");
        }
    }

    #[test]
    fn wrong_and_absurd_expressions_are_refused() {
        for (expression, want) in [
            ("", "got nothing"),
            ("1 +", "unexpected input"),
            ("1/0", "division by zero"),
            ("system(1)", "unknown identifier 'system'"),
            ("min(3, 1)", "without commas"),
            ("100 USD to EUR", "exchange rates are not available"),
            ("roll d6", "random numbers are not available"),
            (&"1".repeat(MOST + 1), "too long"),
        ] {
            let error = evaluate_within(PATIENCE, expression).unwrap_err();
            assert!(error.contains(want), "{expression}: {error}");
        }
    }

    #[test]
    fn deepest_nesting_does_not_fill_the_stack() {
        for piece in ["(", "-", "2^", "a ", "sqrt ", "\\x.", "1+", "!", "[", "5 m to ", "\"", "#{"] {
            let text = piece.repeat(MOST / piece.len());
            let _ = (evaluate(&text), evaluate(&format!("{}1", &text[..text.len() - piece.len()])));
        }
    }

    #[test]
    fn no_text_makes_the_calculator_panic() {
        let letters: Vec<char> = "0123456789.e+-*/^%()_ πsqrtmina×=;\\:'\"@!|&<>".chars().collect();
        let mut state = 7_u64;
        for _ in 0..2_000 {
            let mut next = || {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (state >> 33) as usize
            };
            let length = next() % 24;
            let text: String = (0..length).map(|_| letters[next() % letters.len()]).collect();
            assert_ne!(evaluate(&text), Err("the expression cannot be evaluated".to_owned()), "{text}");
        }
    }
}
