//! Work on all threads with results in order.

use std::sync::mpsc::sync_channel;

use thermocline_base::error::{Error, Result};

/// Runs `work(0..count)` on `threads` threads and passes the results to `sink` in order, on the
/// caller's thread. At most a few results per thread wait, so memory does not grow with `count`.
/// The first error stops the work.
pub(super) fn in_order<T: Send>(
    threads: usize,
    count: usize,
    work: impl Fn(usize) -> Result<T> + Sync,
    mut sink: impl FnMut(T) -> Result<()>,
) -> Result<()> {
    let threads = threads.min(count);
    std::thread::scope(|scope| {
        let work = &work;
        let results: Vec<_> = (0..threads)
            .map(|worker| {
                let (sender, receiver) = sync_channel(2);
                scope.spawn(move || {
                    for at in (worker..count).step_by(threads) {
                        // The receiver is dropped if an earlier result was an error.
                        if sender.send(work(at)).is_err() {
                            break;
                        }
                    }
                });
                receiver
            })
            .collect();
        for at in 0..count {
            let result = results[at % threads].recv();
            sink(result.map_err(|_| Error::Stopped("a worker thread ended early".to_owned()))??)?;
        }
        Ok(())
    })
}

/// Returns `sum a[i] b[i]`, in an order that the compiler vectorises.
pub(super) fn dot(a: &[f32], b: &[f32]) -> f32 {
    let (a, a_rest) = a.as_chunks::<16>();
    let (b, b_rest) = b.as_chunks::<16>();
    let mut sums = [0.0f32; 16];
    for (a, b) in a.iter().zip(b) {
        for lane in 0..16 {
            sums[lane] += a[lane] * b[lane];
        }
    }
    sums.iter().sum::<f32>() + a_rest.iter().zip(b_rest).map(|(a, b)| a * b).sum::<f32>()
}
