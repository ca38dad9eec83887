//! Repeated measurements on a machine that also does other work. Other programs, other tenants of a
//! host and clocks that rise slowly change a speed twofold within seconds.
//!
//! Measurements that belong together take turns, so that a disturbance meets all of them. Their
//! number grows while rounds disagree. The lower quartile of the rounds counts. Unlike the median
//! it is right even if most rounds were disturbed. Unlike the minimum it is a speed that lasts.

use std::time::{Duration, Instant};

use super::measured_machine::KeepGoing;
use crate::unless_stopped;
use thermocline_base::error::Result;

/// Time of the rounds that do not count. They touch memory for the first time, and clocks rise.
const WARM_UP: Duration = Duration::from_millis(30);
/// Rounds disagree if the median exceeds the lower quartile by this factor.
const DISAGREEMENT: f64 = 1.1;
/// Most rounds, as a multiple of the usual number, and most time of rounds that disagree.
const MOST: usize = 5;
const LONGEST: Duration = Duration::from_millis(1500);

/// A call whose time is measured.
pub(super) type TimedCall<'a> = Box<dyn FnMut() + 'a>;

/// Returns the seconds of each of `calls`, which take turns for `rounds` rounds or more.
///
/// # Errors
/// [`thermocline_base::error::Error::Cancelled`].
pub(super) fn in_turns(rounds: usize, calls: &mut [TimedCall<'_>], go_on: KeepGoing<'_>) -> Result<Vec<f64>> {
    let started = Instant::now();
    in_turns_by(&|| started.elapsed(), rounds, calls, go_on)
}

/// Computes [`in_turns`] with the clock `now`, which returns the time since any moment.
fn in_turns_by(
    now: &dyn Fn() -> Duration,
    rounds: usize,
    calls: &mut [TimedCall<'_>],
    go_on: KeepGoing<'_>,
) -> Result<Vec<f64>> {
    let since = |moment: Duration| now().saturating_sub(moment);
    let mut seconds = vec![Vec::new(); calls.len()];
    let mut round = |seconds: &mut [Vec<f64>]| -> Result<()> {
        unless_stopped(go_on())?;
        for (call, seconds) in calls.iter_mut().zip(seconds) {
            let started = now();
            call();
            seconds.push(since(started).as_secs_f64().max(1e-9));
        }
        Ok(())
    };
    let began = now();
    round(&mut seconds)?;
    while rounds > 1 && since(began) < WARM_UP {
        round(&mut seconds)?;
    }
    seconds.iter_mut().for_each(Vec::clear);
    let began = now();
    let rounds = rounds.max(1);
    for done in 0..MOST * rounds {
        let settled = || since(began) > LONGEST || seconds.iter().all(|of| agree(of));
        if done >= rounds && settled() {
            break;
        }
        round(&mut seconds)?;
    }
    Ok(seconds.iter().map(|of| lower_quartile(of)).collect())
}

/// Returns the seconds of `call`, from `rounds` rounds or more.
///
/// # Errors
/// [`thermocline_base::error::Error::Cancelled`].
pub(super) fn typical<'a>(rounds: usize, call: impl FnMut() + 'a, go_on: KeepGoing<'_>) -> Result<f64> {
    let seconds = in_turns(rounds, &mut [Box::new(call)], go_on)?;
    Ok(seconds.first().copied().unwrap_or(f64::INFINITY))
}

/// The value below which a quarter of `values` lie; infinite without values.
pub(super) fn lower_quartile(values: &[f64]) -> f64 {
    let sorted = sorted(values);
    sorted.get(sorted.len().saturating_sub(1) / 4).copied().unwrap_or(f64::INFINITY)
}

/// True if most of `values` are about as small as the smaller ones.
fn agree(values: &[f64]) -> bool {
    let sorted = sorted(values);
    sorted.get(sorted.len() / 2).is_none_or(|median| *median <= DISAGREEMENT * lower_quartile(values))
}

fn sorted(values: &[f64]) -> Vec<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted
}

#[cfg(test)]
mod tests {
    use std::{cell::Cell, ops::ControlFlow};

    use super::*;
    use thermocline_base::error::Error;

    #[test]
    fn quartile_is_undisturbed_and_rounds_with_disturbances_disagree() {
        assert_eq!(lower_quartile(&[5.0, 9.0, 1.0, 5.0, 9.0, 9.0, 9.0, 9.0]), 5.0);
        assert_eq!((lower_quartile(&[3.0]), lower_quartile(&[])), (3.0, f64::INFINITY));
        assert!(agree(&[5.0, 5.2, 5.4, 9.0, 5.3]) && agree(&[5.0]));
        assert!(!agree(&[5.0, 9.0, 5.1, 9.0, 9.0]));
    }

    #[test]
    fn calls_take_turns_until_their_rounds_agree() {
        let (order, slow, clock) = (Cell::new(0_u32), Cell::new(0_u32), Cell::new(Duration::ZERO));
        let wait = |millis| clock.set(clock.get() + Duration::from_millis(millis));
        let mut calls: Vec<TimedCall<'_>> = vec![
            Box::new(|| {
                assert_eq!(order.replace(1), 0, "twice in a row");
                wait(1);
            }),
            Box::new(|| {
                assert_eq!(order.replace(0), 1, "twice in a row");
                slow.set(slow.get() + 1);
                // Most of the first rounds are disturbed.
                wait(if (2..10).contains(&slow.get()) && slow.get() % 3 > 0 { 30 } else { 3 });
            }),
        ];
        let seconds = in_turns_by(&|| clock.get(), 4, &mut calls, &mut || ControlFlow::Continue(())).unwrap();
        drop(calls);
        assert_eq!(seconds, [1e-3, 3e-3]);
        // Two rounds warm up. After nine more, most of the rounds are undisturbed.
        assert_eq!(slow.get(), 11);
    }

    #[test]
    fn turns_end_at_a_cancellation() {
        let mut left = 3;
        let mut go_on = || {
            left -= 1;
            if left > 0 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        };
        let rounds = Cell::new(0);
        let mut calls: Vec<TimedCall<'_>> = vec![Box::new(|| rounds.set(rounds.get() + 1))];
        assert!(matches!(in_turns(9, &mut calls, &mut go_on), Err(Error::Cancelled)));
        drop(calls);
        assert_eq!(rounds.get(), 2);
        assert!(matches!(typical(9, || (), &mut || ControlFlow::Break(())), Err(Error::Cancelled)));
    }
}
