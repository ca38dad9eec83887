//! Trial of subgroups. Kernels work with subgroups of any size from 4 to 128, but drivers have
//! reported wrong sizes. A sum over a part of a subgroup would then be wrong without any error.

use super::{Gpu, Op, Purpose, ReadbackRing, Recorder, Usage, params};
use thermocline_base::error::{Error, Result};

/// Invocations in the trial.
const WORKGROUP: u32 = 128;
/// Number that the trial adds to every invocation's index.
const VALUE: u32 = 3;

/// Returns why the subgroups of `gpu` cannot be trusted; `None` if they can or if its kernels use
/// none.
///
/// # Errors
/// [`Error::Gpu`] if the device is lost.
pub(super) fn distrusted(gpu: &Gpu) -> Result<Option<String>> {
    let caps = gpu.caps();
    if !caps.tier.subgroups {
        return Ok(None);
    }
    let (least, most) = caps.subgroups;
    if most > 0 && (least < 4 || most > 128) {
        return Ok(Some(format!("the subgroups have {least} to {most} invocations, but the kernels support 4 to 128")));
    }
    let got = match trial(gpu) {
        // A budget without room for these few numbers has no room for a kernel either.
        Err(Error::Memory { .. }) => return Ok(None),
        Err(error) => {
            gpu.check_trial("subgroup_trial", None)?;
            return Ok(Some(error.to_string()));
        }
        Ok(got) => got,
    };
    Ok(verdict(&got, least, most))
}

/// Returns the defect of the trial's answer `got`, which is the number of subgroups and then each
/// invocation's sum.
fn verdict(got: &[u32], least: u32, most: u32) -> Option<String> {
    let [subgroups, sums @ ..] = got else { return Some("the trial of subgroups returned no results".to_owned()) };
    let workgroup = sums.len() as u32;
    let expected: u32 = (0..workgroup).map(|index| index + VALUE).sum();
    if sums.iter().any(|sum| *sum != expected) {
        return Some("sums over subgroups are wrong".to_owned());
    }
    let size = workgroup.div_ceil((*subgroups).max(1));
    let reported = most == 0 || (least..=most).contains(&size);
    (!reported).then(|| format!("the driver reports subgroups of {least} to {most}, but a subgroup has {size}"))
}

fn trial(gpu: &Gpu) -> Result<Vec<u32>> {
    let bytes = (1 + u64::from(WORKGROUP)) * 4;
    let out = gpu.arena().buffer(Purpose::Scratch, "trial of subgroups", bytes, Usage::Storage)?;
    let op = Op::of(gpu, "subgroup_trial", WORKGROUP, &[], &[&out])?;
    let mut recorder = Recorder::new(gpu);
    recorder.dispatch(&op, &params::SubgroupTrial { value: VALUE }, [1, 1, 1]);
    let mut ring = ReadbackRing::new(gpu, 1, bytes)?;
    ring.read(recorder, &[(&out, 0, bytes)], || (), bytemuck::pod_collect_to_vec)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{FaultPoint, Faults, GpuOptions};

    #[test]
    fn verdict_accepts_right_sums_of_the_reported_sizes_only() {
        let answer = |subgroups: u32, sum: u32| [&[subgroups][..], &[sum; 8]].concat();
        let sum = (0..8).sum::<u32>() + 8 * VALUE;
        assert_eq!(verdict(&answer(2, sum), 4, 32), None);
        assert_eq!(verdict(&answer(1, sum), 0, 0), None);
        for (got, reported) in [(answer(2, sum), (32, 32)), (answer(2, sum - 3), (4, 4)), (Vec::new(), (4, 4))] {
            assert!(verdict(&got, reported.0, reported.1).is_some(), "{got:?} {reported:?}");
        }
    }

    #[test]
    fn adapters_that_lie_about_subgroups_lose_them() {
        let faults = Faults(Some((FaultPoint::Subgroups, 1)));
        let honest = Gpu::open(&GpuOptions::first()).unwrap();
        assert!(honest.caps().tier.subgroups && distrusted(&honest).unwrap().is_none());
        let liar = Gpu::open(&GpuOptions { faults, ..GpuOptions::first() }).unwrap();
        assert!(!liar.caps().tier.subgroups && liar.caps().tier.f16 == honest.caps().tier.f16);
        // These kernels use no subgroups.
        assert_eq!(trial(&liar).unwrap()[0], 1);
    }
}
